"""What ranks send to rank 0, parts of a record built from it, and Parquet files of every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.config.run import Run
from lab.files import write_atomically
from lab.records.schema import Communication, Event, Memory
from lab.records.store import BUCKETS, CALLS, STEPS
from lab.worker.distributed import all_gather_object
from lab.worker.environment import RankUse, StateBytes, plain_tensors
from lab.worker.measure import overlap
from lab.worker.measure.clock import Clock, FloatArray, IntArray
from lab.worker.measure.collective_trace import Calls
from lab.worker.measure.ddp_hook import Buckets
from lab.worker.sync_cost import Probe, costs

# Columns of steps.parquet; `start` counts from rank 0's first step. Unmeasured columns are null.
COLUMNS = (
    *("rank", "step", "warmup", "start"),
    *("data", "h2d", "forward", "backward", "optimizer", "other", "step_time"),
    *("communication_total", "communication_exposed", "communication_straggler"),
    *("cpu_time", "loss", "learning_rate", "grad_norm"),
)


@dataclass(frozen=True)
class RankReport:
    """What a rank sends to rank 0 when it is done."""

    use: RankUse
    state: StateBytes
    steps: dict[str, FloatArray]  # the columns of steps.parquet
    start: float  # of the first step
    sent: Buckets | Calls | None
    probe: Probe | None = None
    peak_flops: float | None = None
    fingerprint: tuple[float, float] | None = None
    # Of a script's DDP: the backward pass that sent each bucket, and the calls beside its buckets.
    passes: IntArray | None = None
    calls: Calls | None = None
    # If anything is sent: the step of the timeline, when it began, and the bars in it.
    bars: tuple[int, tuple[float, list[Event]]] | None = None

    def on_clock_of_rank_0(
        self, rank: int, clock: Clock, shift: overlap.Shift, *, warmup_steps: int, cycle: int = 1
    ) -> RankReport:
        """The same with the times of rank 0's clock, and with its bars; all ranks must call it.

        They show the same step, the one at the slowest rank's median, counted from the first that
        this job made. `cycle` is the strategy's.
        """
        shown, sent, calls = None, self.sent, self.calls
        if sent is not None:
            step_time = self.steps["step_time"]
            of_rank = step_time, overlap.bytes_by_step(sent, steps=len(step_time))
            times, sizes = map(np.stack, zip(*all_gather_object(of_rank), strict=True))
            step = overlap.representative_step(
                times, warmup_steps=warmup_steps, sent=sizes, cycle=cycle
            )
            begin, bars = overlap.events(rank, step, clock=clock, sent=sent, shift=shift)
            if calls is not None:
                bars += overlap.sent_events(rank, calls.of(step).shifted(shift))
            shown = step, (begin, bars)
        return replace(
            self,
            start=float(shift(np.array(self.start))),
            sent=sent.shifted(shift) if sent else None,
            probe=self.probe.shifted(shift) if self.probe else None,
            calls=calls.shifted(shift) if calls else None,
            bars=shown,
        )


def write_reports(
    run: Run, reports: Sequence[RankReport], folder: Path, *, first_step: int, cycle: int = 1
) -> Communication | None:
    """Write steps.parquet and buckets.parquet or calls.parquet; returns the record's communication.

    Raises OSError.
    """
    communication = _communication(run, reports, folder, first_step=first_step, cycle=cycle)
    steps = np.arange(len(reports[0].steps["step_time"]))
    numbers = {"step": first_step + steps, "warmup": steps < run.warmup_steps}
    ranks = (numbers | report.steps for report in reports)
    _write(ranks, folder / STEPS, columns=COLUMNS)
    return communication


def _communication(
    run: Run, reports: Sequence[RankReport], folder: Path, *, first_step: int, cycle: int
) -> Communication | None:
    """The record's communication; puts all ranks' steps and communication on one time axis."""
    probes = [report.probe for report in reports if report.probe]
    update: dict[str, object] = dict(costs(probes)) if probes else {}
    origin, steps = reports[0].start, run.steps - first_step
    buckets = [report.sent for report in reports if isinstance(report.sent, Buckets)]
    calls = [report.sent for report in reports if isinstance(report.sent, Calls)]
    if not buckets and not calls:
        return Communication().model_copy(update=update) if update else None
    # One step is counted and shown, as those of a script differ when it evaluates or logs.
    (shown, *_), bars = zip(*(report.bars for report in reports if report.bars), strict=True)
    if buckets:
        _write(_rows(buckets, origin, first_step), folder / BUCKETS)
        passes = [report.passes for report in reports if report.passes is not None]
        exposure = overlap.Exposure.from_buckets(buckets, passes)
        # PowerSGD takes several collectives per bucket, which the hook does not see.
        operation = None if run.compression == "powersgd" else "all_reduce"
        update |= overlap.counted(buckets[0], None, step=shown, operation=operation)
        beside = [report.calls for report in reports if report.calls is not None]
        if any(len(one.step) for one in beside):
            _write(_rows(beside, origin, first_step), folder / CALLS)
            both = exposure.with_calls(buckets, beside)
            # DDP itself may call without waiting, as for the ranks that joined early.
            if not np.isnan(both.exposed).any():
                exposure = both
                update |= overlap.counted(buckets[0], beside[0], step=shown)
    else:
        _write(_rows(calls, origin, first_step), folder / CALLS)
        exposure = overlap.Exposure.from_calls(calls, steps=steps)
        update |= overlap.counted(None, calls[0], step=shown, cycle=cycle)
        if cycle > 1:
            sent = overlap.bytes_by_step(calls[0], steps=steps)
            update["cycle"] = sent[-cycle:].astype(int).tolist()
    for rank, report in enumerate(reports):
        report.steps["start"] += report.start - origin
        report.steps.update(exposure.columns(rank))
    step_time = np.stack([report.steps["step_time"] for report in reports])
    update |= {"timeline_step": first_step + shown + 1, "timeline": overlap.timeline(bars)}
    summary = overlap.summary(exposure, step_time, warmup_steps=run.warmup_steps, cycle=cycle)
    return summary.model_copy(update=update)


def memory_of(reports: Sequence[RankReport], device: torch.device) -> Memory:
    """The record's memory: peaks of all ranks, and the most model state kept by one, in bytes."""
    return Memory(
        kind="cuda_allocated" if device.type == "cuda" else "resident",
        peak=[peak for report in reports for peak in report.use.peak_memory],
        parameters=_most(report.state.parameters for report in reports),
        optimizer=_most(report.state.optimizer for report in reports),
    )


def _most(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _rows(
    ranks: Sequence[Buckets] | Sequence[Calls], origin: float, first_step: int
) -> Iterable[dict[str, Any]]:
    """A row per bucket or call of each rank, with its times in s after `origin`."""
    for sent in ranks:
        shifted = vars(sent.shifted(lambda times: times - origin))
        yield shifted | {"step": first_step + sent.step}


def _write(
    ranks: Iterable[Mapping[str, Any]], path: Path, *, columns: Sequence[str] | None = None
) -> None:
    # Imported only by rank 0 after the measurement, and without pandas, which takes a second.
    import pyarrow as pa
    from pyarrow import parquet

    tables = [_table(rank, values, columns) for rank, values in enumerate(ranks)]
    content = pa.BufferOutputStream()
    parquet.write_table(pa.concat_tables(tables), content)
    write_atomically(path, content.getvalue().to_pybytes(), durable=False)


def _table(rank: int, values: Mapping[str, Any], columns: Sequence[str] | None) -> Any:
    """One rank's rows; NaN, and all of a column that was not measured, become null."""
    import pyarrow as pa

    rows = len(next(iter(values.values())))
    arrays = {
        "rank": _array(np.full(rows, rank)),
        **{name: _array(np.asarray(column)) for name, column in values.items()},
    }
    missing = pa.nulls(rows, pa.float64())
    return pa.table({name: arrays.get(name, missing) for name in columns or arrays})


def _array(values: np.ndarray[Any, Any]) -> Any:
    """A column as an Arrow array, its NaN as null; `pyarrow.array` would import pandas."""
    import pyarrow as pa

    if values.dtype.kind == "U":
        words = [str(word).encode() for word in values]
        ends = np.cumsum([0, *map(len, words)], dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(words))]
        return pa.Array.from_buffers(pa.string(), len(values), buffers)
    validity = _bits(~np.isnan(values)) if values.dtype.kind == "f" else None
    content = _bits(values) if values.dtype == bool else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [validity, content]
    )


def _bits(values: np.ndarray[Any, Any]) -> Any:
    """Arrow's bitmap of booleans, whose first value is the lowest bit."""
    import pyarrow as pa

    return pa.py_buffer(np.packbits(values, bitorder="little"))


@torch.no_grad()
def fingerprint(parameters: Iterable[torch.Tensor]) -> tuple[float, float] | None:
    """Sum and sum of squares of the parameters, in fp64; None if there are none."""
    values = (part.double() for one in parameters for part in plain_tensors(one))
    sums = [(float(value.sum()), float(value.square().sum())) for value in values]
    return (sum(first for first, _ in sums), sum(second for _, second in sums)) if sums else None


def same_parameters(reports: Sequence[RankReport]) -> bool:
    """Whether all ranks end with the same model, up to rounding on different CPUs (1e-6)."""
    prints = np.array([report.fingerprint for report in reports if report.fingerprint])
    if not len(prints):
        return True  # nothing is replicated, as in a pipeline of one stage
    scale = max(prints[0, 1], 1.0)  # the sum of squares, as a plain sum may be near zero by chance
    return bool(np.all(np.abs(prints - prints[0]) <= 1e-6 * scale))
