"""What the values of a row of a layout table say together: GPUs, batch, and the time of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lab.analysis.audit.values import number
from lab.analysis.layout_columns import ALL_GPUS, FLOPS, RATES
from lab.analysis.layout_words import HYBRID
from lab.formatting import count
from lab.perfmodel.layout_terms import Case

BATCHES = ("global_batch", "micro_batch", "replica_batch", "batch_tokens", "batch")
SPLITS = ("data", "tensor", "pipeline", "context")
AGREES, ROUNDED = 0.02, 0.05  # relative
MOST_TOKENS = 2**18  # of a micro-batch on a GPU: logits alone would take tens of GB
# FLOPs are counted differently by a factor of up to ROUGH, so that on fewer than FEWEST_GPUS a rate
# of each cannot be told from that of all.
ROUGH, FEWEST_GPUS = 1.6, 4
LEAST_USED = 0.005  # of the peak
SAME = 0.02  # relative: FLOP/s over the peak are the quoted MFU


def ranks_of_row(values: Mapping[str, Any]) -> tuple[float, int]:
    """All GPUs of a row and its replicas; raises ValueError if they contradict each other."""
    split = math.prod(degrees_of(values))
    gpus = gpus_of(values)
    data = whole(values, "data", (gpus or split) / split)
    gpus = gpus or data * split
    if gpus % split:
        raise ValueError(f"{gpus:g} GPUs are not a multiple of tp x pp x cp = {split}")
    stated = data * split if values.get("data") else round(gpus)
    if gpus not in {stated, stated * whole(values, "fsdp")}:
        raise ValueError(
            f"dp x tp x pp x cp make {count(stated, 'GPU')}, not {gpus:g}; correct a degree or the "
            "number of GPUs"
        )
    return gpus, round(gpus / split)


def gpus_of(values: Mapping[str, Any]) -> float:
    """The stated GPUs, else 0."""
    nodes = (values.get("nodes") or 0.0) * (values.get("per_node") or 0.0)
    return float(values.get("gpus") or nodes)


def degrees_of(values: Mapping[str, Any]) -> tuple[int, int, int]:
    """Tensor, pipeline and context parallelism; ValueError if one is unknown."""
    names = ("tensor", "pipeline", "context")
    for name in names:
        # No GPUs may be left for it.
        if unknown(values, name) and gpus_of(values) != _product(values):
            raise ValueError(
                f"no {name} parallelism, which other rows give: write 1 where it is not used"
            )
    tensor, pipeline, context = (whole(values, name) for name in names)
    return tensor, pipeline, context


def unknown(values: Mapping[str, Any], name: str) -> bool:
    """Whether other rows give this degree of parallelism, but this one does not."""
    return math.isnan(values.get(name, 1))


def whole(values: Mapping[str, Any], name: str, default: float = 1) -> int:
    """A count of a row, such as a degree of parallelism, at least 1."""
    value = default if unknown(values, name) else values.get(name) or default
    return max(round(float(value)), 1)


def has_groups(values: Mapping[str, Any]) -> bool:
    """Whether the table gives the groups of hybrid sharding."""
    return bool({"replicate", "shard"} & values.keys())


def is_hybrid(values: Mapping[str, Any]) -> bool:
    """Whether FSDP shards within groups only, whose sizes the table may not give."""
    return bool(HYBRID.search(str(values.get("sharding", ""))))


def with_defaults(row: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """A row's values, and those of all rows for what it does not say itself.

    A row that gives its GPUs a layout of its own does not have that of the others as well.
    """
    values = {**others, **row}
    if any(name in row for name in SPLITS) and _product(values) != gpus_of(values) == _product(row):
        values = {
            name: value for name, value in values.items() if name in row or name not in SPLITS
        }
    return values


def enter_gpus(row: dict[str, Any]) -> bool:
    """Enter the GPUs that a row's rates in all and of each make if it gives none."""
    total, each = row.get("tokens"), row.get("tokens_per_gpu")
    if gpus_of(row) or row.get("data") or not (total and each):
        return False
    gpus = round(total / each)
    if gpus < 1 or abs(total / each / gpus - 1) > AGREES:
        return False
    row["gpus"] = float(gpus)
    return True


def completed(every: list[dict[str, Any]], columns: Mapping[str, str]) -> Iterator[str]:
    """Enter what rows say by several of their values together; sentences on what is assumed."""
    if by_rate := sum(map(_enter_batch, every)):
        yield f"{count(by_rate, 'row')}: the batch follows from time and rate"
    plain = any("batch" in values for values in every)
    if plain and (meant := _meaning_of_batch(every)):
        every[:] = [{meant: values.get("batch")} | values for values in every]
        what = "a whole step" if meant == "global_batch" else "one micro-batch"
        yield f"{columns.get('batch', 'bs')!r} is that of {what}, by the other columns"
    if sum(map(_enter_context, every)):
        yield "sequence parallelism without tensor parallelism is counted as context parallelism"
    for values in every:
        _enter_groups(values)
    if any(is_hybrid(values) and not has_groups(values) for values in every):
        yield "HSDP shards within a node, as the table gives no groups"


def _enter_batch(values: dict[str, Any]) -> bool:
    """Enter the batch that a row's time and its rate in tokens make if it gives none."""
    # Without another number of GPUs, degrees of parallelism make it.
    gpus = gpus_of(values) or (_product(values) if values.get("data") else 0.0)
    time, sequence = values.get("time"), values.get("sequence")
    rate = values.get("tokens") or (values.get("tokens_per_gpu") or 0.0) * gpus
    stated = any(map(values.get, {*BATCHES, "accum"} - {"micro_batch"}))
    if stated or not (rate and time and sequence):
        return False
    batch = rate * time / sequence
    if abs(round(batch) / batch - 1) > AGREES:
        return False
    values["global_batch"] = float(round(batch))
    return True


def _product(values: Mapping[str, Any]) -> float:
    return float(math.prod(whole(values, name) for name in SPLITS))


def _meaning_of_batch(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What a plain batch size means: `global_batch` or `micro_batch`; None if both are possible."""
    if any("micro_batch" in values for values in rows):
        return "global_batch"
    if any("global_batch" in values for values in rows):
        return "micro_batch"
    shares = set()
    for values in rows:
        with suppress(ValueError):
            gpus, data = ranks_of_row(values)
            tokens = (values.get("batch") or 0) * (values.get("sequence") or 0)
            if tokens * data / gpus > MOST_TOKENS:
                return "global_batch"
            share = data * (values.get("accum") or 1)
            shares.add(share)
            if (values.get("batch") or 0) % share:
                return "micro_batch"  # a step's batch is a multiple
    return "global_batch" if shares == {1} else None  # a step is one micro-batch


def _enter_context(values: dict[str, Any]) -> bool:
    """Enter groups of sequence parallelism as context parallelism if a row knows of neither that
    nor tensor parallelism."""
    groups = number(values.get("sequence_parallel"))
    if not groups > 1 or {"tensor", "context"} & values.keys():
        return False
    values |= {"context": groups, "sequence_parallel": "off"}
    return True


def _enter_groups(values: dict[str, Any]) -> None:
    """Enter the data parallelism that the groups of HSDP make: replicas times shards."""
    if values.get("shard", 1) < 1:  # torchtitan's -1: all that are left
        del values["shard"]
    data, shards = values.get("data"), values.get("fsdp") or 1
    if data and shards > 1 and gpus_of(values) == _product(values) * shards:
        values |= {"replicate": data, "shard": shards, "data": data * shards}
    elif values.get("shard") and not data and (values.get("replicate") or not gpus_of(values)):
        values["data"] = float(whole(values, "replicate") * values["shard"])


def step_by_rate(
    values: Mapping[str, Any], gpus: float, batch: float, sequence: float
) -> float | None:
    """Seconds of a step by a row's time, or else by its tokens or samples/s; None without them."""
    work = {
        "tokens_per_gpu": batch * sequence / gpus,
        "tokens": batch * sequence,
        "samples_per_gpu": batch / gpus,
        "samples": batch,
    }
    if time := values.get("time"):
        return float(time)
    return next((work[name] / values[name] for name in RATES if values.get(name)), None)


def mfu_of(values: Mapping[str, Any]) -> float | None:
    """A row's MFU as a fraction."""
    mfu = values.get("mfu")
    return mfu / 100 if mfu and mfu > 1.5 else mfu  # per cent, though not labelled so


def stated_flops(values: Mapping[str, Any]) -> float | None:
    """A row's FLOP/s of each GPU, of whatever kind."""
    return next(filter(None, map(values.get, FLOPS)), None)


def is_rate_of_gpu(
    values: Mapping[str, Any], case: Case, gpus: float, batch: float, step_s: float
) -> bool:
    """Whether a row's rate makes its MFU or FLOP/s, or uses its GPUs at all, only if each's."""
    peak = case.machine.gpu.fastest(case.candidate.precision)
    flops = (mfu_of(values) or 0.0) * peak or stated_flops(values) or 0.0
    plain = not any(map(values.get, ("time", "tokens_per_gpu", "samples_per_gpu")))
    tokens = batch * case.sequence / gpus
    made = case.model.flops_per_token(case.sequence) * tokens / step_s
    if not plain or gpus < FEWEST_GPUS:
        return False
    # Of all GPUs it would use next to nothing of them.
    unlikely = not flops and made < LEAST_USED * peak and made * gpus < peak
    return unlikely or 1 / ROUGH < flops / (made * gpus) < ROUGH


def flop_rate(values: Mapping[str, Any]) -> str | None:
    """The kind of FLOP/s, else "mfu", to time a row that has neither a time nor another rate."""
    if any(values.get(name) for name in ("time", *RATES)):
        return None
    kinds = (prefix + name for prefix in ("", ALL_GPUS) for name in FLOPS)
    return next((kind for kind in (*kinds, "mfu") if values.get(kind)), None)


def step_by_flops(values: Mapping[str, Any], case: Case, gpus: float, batch: float) -> float:
    """The step time for which a row's FLOP/s are those of its work; ValueError if unknown.

    FLOP/s of the model count three forward passes, those of the hardware recomputed ones as well.
    """
    kind = flop_rate(values)
    assert kind is not None  # a row with neither a time nor a rate is left out before
    gpu, precision = case.machine.gpu, case.candidate.precision
    mfu = (mfu_of(values) or 0.0) * gpu.fastest(precision)
    rate = mfu if kind == "mfu" else values[kind] / (gpus if kind.startswith(ALL_GPUS) else 1)
    if kind == "mfu" and mfu > gpu.fastest(precision):
        raise ValueError(f"an MFU of {100 * (mfu_of(values) or 0):.4g} %, more than the peak")
    if rate > gpu.fastest(precision):
        raise ValueError(
            f"more FLOP/s than the {gpu.fastest(precision) / 1e12:g} TFLOP/s of an "
            f"{gpu.name.upper()}: name those of all GPUs 'aggregate TFLOP/s'"
        )
    passes = case.passes
    plain = not kind.endswith("hardware_flops") and case.framework.counts_recomputed is False
    of_model = kind.endswith(("mfu", "model_flops")) or plain
    if of_model or abs(mfu / rate - 1) < SAME:
        passes = 3.0
    elif "recomputed" not in values:
        raise ValueError(
            "FLOP/s that may count recomputed passes, without saying whether there are any: assume "
            "recomputed, or name them 'model TFLOP/s'"
        )
    elif passes > 3 and not (kind.endswith("hardware_flops") or case.framework.counts_recomputed):
        raise ValueError(
            "FLOP/s that may or may not count recomputed passes: name them 'model TFLOP/s' or "
            "'hardware TFLOP/s'"
        )
    work = case.model.flops_per_token(
        case.sequence, passes=passes, masked=case.framework.halves_attention
    )
    return float(work * batch * case.sequence / gpus / rate)
