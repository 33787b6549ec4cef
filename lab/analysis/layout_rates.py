"""The time of a layout's step by its rate in tokens, samples or FLOPs, or by its MFU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.analysis.layout_columns import ALL_GPUS, FLOPS, RATES
from lab.perfmodel.layout_terms import Case

# FLOPs are counted differently by a factor of up to ROUGH, so that on fewer than FEWEST_GPUS a rate
# of each cannot be told from that of all.
ROUGH, FEWEST_GPUS = 1.6, 4
LEAST_USED = 0.005  # of the peak
SAME = 0.02  # relative: FLOP/s over the peak are the quoted MFU


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


def is_rate_of_gpu(
    values: Mapping[str, Any], case: Case, gpus: float, batch: float, step_s: float
) -> bool:
    """Whether a row's rate makes its MFU or FLOP/s, or uses its GPUs at all, only if each's."""
    peak = case.machine.gpu.fastest(case.candidate.precision)
    flops = (mfu_of(values) or 0.0) * peak or next(filter(None, map(values.get, FLOPS)), 0.0)
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
