"""The sections of a run's notebook: what came of it, and its phases."""

from __future__ import annotations

from collections.abc import Sequence

from lab.page import Prose, Table
from lab.records import PHASES, Record


def outcome(records: Sequence[Record]) -> Prose:
    """What came of a run: its throughput, or the first cause of its failure with the last lines of the log."""
    from lab.analysis.rounding import format_seconds

    for record in records:
        if record.error is not None:
            rank = "" if record.error.rank is None else f" on rank {record.error.rank}"
            told = Prose.of(f"This run did not complete ({record.status}{rank}): {record.error.type}: {record.error.message}")
            return Prose(
                f"{told.markdown}\n\n~~~text\n{record.error.log.replace('~~~', '~~')}\n~~~" if record.error.log else told.markdown
            )
        if record.timing is not None:
            timing = record.timing
            step = format_seconds(timing.step.median, *(timing.step.interval or (None, None)))
            opening = f"Emulated {record.emulation}: a" if record.emulation else "A"
            return Prose.of(
                f"{opening} step takes {step} (median of {timing.measured_steps} steps after {timing.warmup_steps} of warm-up): "
                f"{timing.samples_per_second:.1f} samples/s, {timing.flops_per_second / 1e9:.1f} GFLOP/s of the model's own arithmetic."
            )
        if record.inference is not None:
            return _inference_outcome(record)
    return Prose.of("There is no record of this run.")


def _inference_outcome(record: Record) -> Prose:
    from lab.analysis import classifications, inferences

    told = [*inferences.missing([record]), *inferences.sentences([record]), *classifications.sentences([record])]
    return Prose.of(*(told or ["Two copies of the base were timed against each other."]), bullets=True)


def phases(records: Sequence[Record]) -> Table:
    """Median, 10th and 90th percentile of the step and its phases in ms, and the medians of each rank."""
    import pandas as pd

    rows = []
    for record in records:
        if record.timing is None:
            continue
        for name in ("step", *(phase for phase in PHASES if phase in record.timing.phases)):
            stat = record.timing.step if name == "step" else record.timing.phases[name]
            ranks = {f"rank {rank}": f"{time * 1e3:.2f}" for rank, time in enumerate(record.timing.per_rank[name])}
            quantiles = {"median": stat.median, "p10": stat.p10, "p90": stat.p90}
            rows.append({"phase": name} | {key: f"{value * 1e3:.2f}" for key, value in quantiles.items()} | ranks)
    return Table("Times in ms: over the steps of the slowest rank, and the median of each rank", pd.DataFrame(rows), index=False)
