"""Rules about the share of a GPU's peak that training reaches (MFU, HFU, TFLOP/s)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.audit.columns import ADAPTED, LAYOUT, counted, named_precision
from lab.analysis.audit.observations import Observations, UncheckedError, largest, rounding
from lab.analysis.audit.rule import Comparison, Fault, rule
from lab.formatting import count
from lab.perfmodel.hardware import GPUS, Gpu, named_gpu
from lab.perfmodel.transformer import named

# FLOPs per token depend only on model and length; rates and shares are rounded, and authors round
# the time of a step before they divide by it.
CONSTANT = 0.05
VARIED = 0.01  # half of the steps of a log, if their lengths are equal
# If no column names the model, rows further apart belong to different models.
ONE_MODEL = 1.5
# How a model is trained, which leaves its FLOPs unchanged; a share of peak depends on the GPU too.
HOW = {
    *("key:strategy", "key:scaling", "key:recompute", "key:sharding", "key:interleave"),
    *("key:compile", "key:link", "key:seed", "key:emulated", *(f"key:{name}" for name in LAYOUT)),
}
OF_MODEL = {"key:model", "key:parameters", "key:sequence_length", "key:dataset"}
OF_PEAK = {"key:gpu", "key:precision", "key:device"}
# Of a configuration such as "Mixtral 8x7B" or "7B, FSDP=4".
MODEL_SIZE = re.compile(r"(?<![\w.])((?:\d+x)?\d+(?:\.\d+)?[bm])(?![a-z])", re.IGNORECASE)
OF_HEAD = 0.2  # some authors leave out the FLOPs of embeddings and heads
FEWEST = 3  # rows, most of which agree on a peak
ANOTHER = 0.01  # a peak this near to a known one is that of another GPU or precision
SPARSE, SPARSE_TOLERANCE = 2.0, 0.02  # vendors' figures with sparsity are twice the dense ones
COMMON = ("a100", "h100")  # their sparse peaks are mistaken for dense ones if no GPU is named


@rule(
    "mfu-consistent",
    "mfu or flops or flops_per_rank, rate or rate_per_rank or time or mfu,"
    " world_size or rate_per_rank or mfu",
    advice="For one model and sequence length this ratio is a constant: find what the FLOPs of "
    "these rows count twice or leave out, and rank by tokens per second.",
)
def mfu_consistent(observations: Observations) -> Iterator[Fault]:
    """MFU or TFLOP/s that are not in proportion to the rate, for one model and length, or to each
    other."""
    frame = observations.frame
    sizes = frame["strategy"].astype(str).str.extract(MODEL_SIZE, expand=False)
    frame = frame.assign(named_size=sizes.str.lower())
    logged = {"step", "epoch"} & set(observations.given)
    rates, digits = _rates(observations)
    known = [name for name in ("flops_per_rank", "flops", "mfu") if frame[name].count() > 0]
    compared = 0
    for name in known:
        keys = [
            key
            for key in [*observations.keys, "parameters", "named_size"]
            if key not in HOW or frame[key].astype(str).str.contains(ADAPTED).any()
        ]
        if name != "mfu":
            keys = [key for key in keys if key not in OF_PEAK]
        shares = frame[name] / rates
        if name == "mfu" and "key:device" in frame:  # a CPU's peak is measured again each time
            shares = shares.where(frame["key:device"].astype(str).str.lower() != "cpu")
        number, groups = _inconstant(frame, shares, digits + rounding(frame, name), keys)
        compared += number
        for same, own, wrong in groups:
            if logged and (own / own.median() - 1).abs().median() > VARIED:
                continue  # steps whose lengths vary have various FLOPs per token
            if _of_one_model(same, own, wrong, keys) and not (
                name == "flops" and _is_constant(same["flops"] / same["rate"])
            ):
                yield _unlike_rate(same, name, own, wrong)
    compared += yield from _unlike_peaks(observations)
    compared += yield from _unlike_model(observations)
    if not compared:
        raise UncheckedError("two rows of one model with MFU or TFLOP/s and a rate")


def _rates(observations: Observations) -> tuple[pd.Series, pd.Series]:
    """Samples or tokens per second of a rank, from batch and time of a step where the table has no
    rate, and their relative rounding."""
    frame, ranks = observations.frame, observations.frame["world_size"]
    if observations.logged and ranks.isna().all():
        ranks = ranks.fillna(1.0)  # a run has as many from its first line to its last
    rates = frame["rate_per_rank"].fillna(frame["rate"] / ranks)
    if rates.count() > 0 or observations.per != "step":
        return rates, frame["rate_per_rank_rounding"].fillna(rounding(frame, "rate"))
    batch = frame["global_batch_size"] / frame["world_size"]
    return batch / frame["time"], rounding(frame, "time")


def _inconstant(
    frame: pd.DataFrame, ratios: pd.Series, digits: pd.Series, keys: Sequence[str]
) -> tuple[int, list[tuple[pd.DataFrame, pd.Series, pd.Series]]]:
    """How many rows have others alike in all keys, and the groups of such rows in which some ratios
    are off their median by more than CONSTANT and rounding, with the ratios and which these are."""
    rows = frame[ratios.notna() & (ratios > 0)]
    group = (
        rows.groupby(list(keys), sort=False, dropna=False).ngroup()
        if keys
        else pd.Series(0, rows.index)
    )
    own, share = ratios[rows.index], digits[rows.index]
    of_one = own.groupby(group)
    usual = of_one.transform("median")
    wrong = (own * (1 - share) > usual * (1 + CONSTANT)) | (
        own * (1 + share) < usual / (1 + CONSTANT)
    )
    places = rows.groupby(group).indices if wrong.any() else {}
    alike = [rows.iloc[places[number]] for number in group[wrong].unique()]
    off = [(same, own[same.index], wrong[same.index]) for same in alike]
    return int((of_one.transform("size") > 1).sum()), off


def _of_one_model(
    same: pd.DataFrame, own: pd.Series, wrong: pd.Series, keys: Sequence[str]
) -> bool:
    """Whether rows belong to one model although no column may name it: their ratios are close, or
    most agree, and so do others that are named as the odd ones are."""
    if "key:model" in keys or own.max() <= ONE_MODEL * own.min():
        return True
    names = same.get("key:strategy", pd.Series("", same.index))
    alike = set(names[wrong]) <= set(names[~wrong])
    return alike and len(same) >= FEWEST and wrong.sum() <= len(same) / 3


def _unlike_peaks(observations: Observations) -> Comparison:
    """TFLOP/s over MFU, which is the peak, that differs from that of most rows on one GPU."""
    frame = observations.frame
    keys = [key for key in observations.keys if key not in HOW | OF_MODEL]
    name = "flops_per_rank" if frame["flops_per_rank"].count() > 0 else "flops"
    digits = rounding(frame, name, "mfu")
    peaks = frame[name] / frame["mfu"]
    # It is unknown whether TFLOP/s are of one GPU or of all.
    bases = [peaks] if name != "flops" else [peaks, peaks / frame["world_size"]]
    number, groups = min(
        (_inconstant(frame, base, digits, keys) for base in bases),
        key=lambda each: sum(int(wrong.sum()) for _, _, wrong in each[1]),
    )
    for same, own, wrong in groups:
        known = _known_peaks(same, observations)
        others = (np.abs(known / own[wrong].to_numpy()[:, np.newaxis] - 1) < ANOTHER).any()
        if len(same) >= FEWEST and wrong.sum() <= len(same) / 3 and not others:
            worst, usual = same.loc[own[wrong].index[0]], float(own.median())
            yield Fault(
                same["label"][wrong],
                f"TFLOP/s over MFU gives a peak of {own[worst.name] / 1e12:.4g} TFLOP/s in "
                f"{worst['label']}, but of {usual / 1e12:.4g} in {len(same) - wrong.sum()} "
                "other rows.",
                "The peak of a GPU is one number: find out which of the two is wrong.",
            )
    return number > 0


def _known_peaks(rows: pd.DataFrame, observations: Observations) -> np.ndarray[Any, Any]:
    """The peaks that MFU may be relative to, as far as GPU and precision are named."""
    words = _words(rows, observations).str.partition("|")
    gpus = [named_gpu(name) or named_gpu(" ".join(observations.notes)) for name in words[0]]
    models = {gpu and gpu.name.split("-")[0] for gpu in gpus}  # an H100 may be of any kind
    precisions = {named_precision(precision) for precision in words[2]}
    return np.array(
        [
            flops
            for gpu in GPUS.values()
            for precision, flops in gpu.flops.items()
            if models & {None, gpu.name.split("-")[0]} and precisions & {None, precision}
        ]
    )


def _unlike_model(observations: Observations) -> Comparison:
    """MFU below that of a published model at the rate of its row, even without attention."""
    frame = observations.frame
    per_rank = observations.given.get("rate_per_rank", "")
    if counted(per_rank or observations.given.get("rate", "")) != "token":
        return False
    rates = frame["rate_per_rank"].fillna(frame["rate"] / frame["world_size"])
    words = frame[["model", "strategy"]].fillna("").astype(str).agg(" ".join, axis=1)
    trained = frame[frame["mfu"].notna() & rates.notna() & ~words.str.contains(ADAPTED)]
    least = pd.Series(
        [
            rate * model.flops_per_token(0) / max(gpu.flops.values())
            if (model := named(str(name))) and (gpu := named_gpu(str(machine)))
            else np.nan
            for rate, name, machine in zip(
                rates[trained.index], trained["model"], trained["gpu"], strict=True
            )
        ],
        trained.index,
        dtype=float,
    )
    low = trained[trained["mfu"] * (1 + rounding(trained, "mfu")) < (1 - OF_HEAD) * least]
    if len(low):
        worst = largest(low, least[low.index] / low["mfu"])
        yield Fault(
            low["label"],
            f"MFU is {100 * worst['mfu']:.3g} % in {worst['label']}, but the parameters of "
            f"{worst['model']} alone take {100 * least[worst.name]:.3g} % of the peak of a "
            f"{worst['gpu']} at this rate; found in {count(len(low), 'row')}.",
            "A token takes 6 FLOPs for each parameter: find out which of the two is wrong, and "
            "whether the rate is of one GPU.",
            "error" if least[worst.name] > 1 else "warning",
        )
    return bool(least.count() > 0)


def _is_constant(ratios: pd.Series) -> bool:
    return bool(ratios.max() < ratios.min() * (1 + CONSTANT))


def _unlike_rate(group: pd.DataFrame, name: str, own: pd.Series, wrong: pd.Series) -> Fault:
    rows, usual = group[wrong], float(own.median())
    worst = largest(rows, np.log(own / usual).abs())
    what = "MFU" if name == "mfu" else "TFLOP/s"
    evidence = (
        f"{what} over the rate is more than {100 * CONSTANT:.0f} % off its median in {len(rows)} "
        f"of {len(group)} rows of one model, such as {100 * (own[worst.name] / usual - 1):+.0f} % "
        f"in {worst['label']}"
    )
    return Fault(rows["label"], f"{evidence}{_told_by(group, own)}.")


def _told_by(group: pd.DataFrame, own: pd.Series) -> str:
    """The degree of parallelism that changes the ratio most, between 1 and more."""
    gaps = {}
    for name in LAYOUT:
        alone, shared = own[group[name] == 1].median(), own[group[name] > 1].median()
        if alone > 0 and shared > 0:
            gaps[name] = shared / alone - 1
    name = max(gaps, key=lambda name: abs(gaps[name]), default="")
    if not name or abs(gaps[name]) < CONSTANT:
        return ""
    gap = gaps[name]
    return f"; it is {100 * abs(gap):.0f} % {'more' if gap > 0 else 'less'} where {name} > 1"


@rule("impossible-mfu", "mfu or hfu or flops_per_rank or peak_flops", severity="error")
def impossible_mfu(observations: Observations) -> Iterator[Fault]:
    """A share of the peak above 1, more FLOP/s than the GPU has, or a peak with sparsity."""
    frame = observations.frame
    of_peak = frame["flops_per_rank"] / frame["peak_flops"]
    for name, shares in {"mfu": frame["mfu"].fillna(of_peak), "hfu": frame["hfu"]}.items():
        beyond = frame[shares * (1 - rounding(frame, name)) > 1]
        if len(beyond):
            worst = largest(beyond, shares[beyond.index])
            yield Fault(
                beyond["label"],
                f"{name.upper()} is {100 * shares[worst.name]:.4g} % in {worst['label']}: nothing "
                "computes faster than its peak.",
                "Check the FLOPs of a token, the peak and its precision, and whether the rate is "
                "of one GPU or of all.",
            )
    checked = bool(frame[["mfu", "hfu"]].notna().any(axis=None) or of_peak.count() > 0)
    words = _words(frame, observations)
    for text in words.unique():
        rows = frame[words == text]
        checked = checked or named_gpu(text) is not None
        yield from _against_peak(rows, text, observations)
    if not checked:
        raise UncheckedError("mfu, or a known GPU")


def _words(frame: pd.DataFrame, observations: Observations) -> pd.Series:
    """The text that names the GPU of each row and, after a bar, its precision."""
    names = frame["gpu"].fillna(frame["device"]).fillna("").astype(str)
    noted = "" if "precision" in observations.known else observations.noted_precision
    return names + "|" + frame["precision"].fillna(noted).astype(str).str.lower()


def _noted_gpu(rows: pd.DataFrame, notes: Sequence[str]) -> Gpu | None:
    """The GPU that notes name, unless the shares of a peak that rows quote are of another's."""
    gpu = named_gpu(" ".join(notes))
    peak = float((rows["flops_per_rank"] / rows["mfu"]).median())
    if gpu is None or not peak > 0:
        return gpu
    near = {
        each.name
        for each in GPUS.values()
        if any(abs(peak / flops - 1) < CONSTANT for flops in each.flops.values())
    }
    return gpu if gpu.name in near or not near else None


def _against_peak(rows: pd.DataFrame, text: str, observations: Observations) -> Iterator[Fault]:
    name, _, precision = text.partition("|")
    gpu = named_gpu(name) or _noted_gpu(rows, observations.notes)
    meant, words, named = "fp16", "in half precision", named_precision(precision)
    if named == "tf32" and (gpu is None or "tf32" in gpu.flops):
        meant, words = "tf32", "in TF32"
    elif named not in {"bf16", "fp16"} and (
        gpu is None or "fp8" in gpu.flops or named or "int" in precision
    ):
        return  # it is unknown which peak is meant
    gpus = [gpu] if gpu else [GPUS[name] for name in COMMON]
    dense = {each.name: each.flops[meant] for each in gpus}
    if gpu:
        beyond = rows[rows["flops_per_rank"] > dense[gpu.name]]
        if len(beyond):
            worst = largest(beyond, beyond["flops_per_rank"])
            yield Fault(
                beyond["label"],
                f"{worst['flops_per_rank'] / 1e12:.4g} TFLOP/s per GPU in {worst['label']} are "
                f"more than the dense {dense[gpu.name] / 1e12:.4g} of {gpu.name.upper()} {words}.",
                "Check the FLOPs of a token and whether the rate is of one GPU or of all.",
            )
    flops = rows["flops_per_rank"].fillna(rows["flops"])
    peaks = rows["peak_flops"].fillna(flops / rows["mfu"])
    for which, peak in dense.items():
        sparse = rows[(peaks / (SPARSE * peak) - 1).abs() < SPARSE_TOLERANCE]
        if len(sparse):
            value = float(peaks[sparse.index[0]])
            yield Fault(
                sparse["label"],
                f"The peak is {value / 1e12:.4g} TFLOP/s in {count(len(sparse), 'row')}, which is "
                f"that of {which.upper()} with sparsity; its dense peak is {peak / 1e12:.4g}.",
                "Training is dense: quote the MFU relative to the dense peak, which doubles it.",
                "warning",
            )
            return
