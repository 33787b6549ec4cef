"""What a job runs on each rank: prepare, train, evaluate, and bring the ranks' measurements together."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lab.config.run import Run
from lab.errors import LabError
from lab.perfmodel.flops import flops_per_sample
from lab.records.schema import Communication, Event, Memory, Quality, Timing
from lab.worker import data, strategies
from lab.worker.calibrate import peak_flops
from lab.worker.context import Measurement, Progress, RankContext
from lab.worker.data.dataset import Dataset
from lab.worker.distributed import (
    ClockOffset,
    all_gather_object,
    device_of,
    gather,
    on_clock_of_rank_0,
    process_group,
    read_clock_offset,
)
from lab.worker.emulation import pauses_for, told
from lab.worker.environment import CpuUse, StateBytes, background_cpu, environment
from lab.worker.measure import overlap
from lab.worker.measure.clock import FloatArray, phases_close, timing
from lab.worker.measure.collective_trace import Calls
from lab.worker.measure.ddp_hook import Buckets
from lab.worker.measure.overlap import Exposure, events, representative_step, timeline
from lab.worker.measure.parquet import write_buckets, write_calls, write_steps
from lab.worker.resume import forget
from lab.worker.sync_cost import Probe, costs, methods_agree, probe, readiness
from lab.worker.train import Training, evaluate, train


@dataclass(frozen=True)
class RankReport:
    """What a rank tells rank 0 when it is done; moments are those of rank 0's clock."""

    host: str
    cores: tuple[int, ...]
    steps: dict[str, FloatArray]  # the columns of steps.parquet
    began: float  # the first step
    sent: Buckets | Calls | None
    median_step: tuple[float, list[Event]] | None
    probe: Probe | None
    use: CpuUse
    peak_flops: float | None
    peak_memory: list[int]
    held: StateBytes
    fingerprint: tuple[float, float] | None


def measure(
    run: Run, place: RankContext, *, data_root: Path, folder: Path, progress: Progress
) -> Measurement | None:
    """Measure one repeat of a run, training or inference, on this rank; rank 0 gets the measurement, the others None.

    Rank 0 writes `folder`/steps.parquet, and where ranks communicate buckets.parquet (DDP's) or calls.parquet.

    All ranks must call it. Raises InputError for data or a model that cannot be used, LabError for a device that is not
    there, ranks that see different data, or a loss that is not finite; torch.OutOfMemoryError passes through.
    """
    if run.task == "inference":
        from lab.worker.inference.main import infer

        return infer(run, place, data_root=data_root, folder=folder, progress=progress)
    torch.set_num_threads(place.threads)
    device = device_of(place)
    progress("data", 0, 1)
    dataset = data.prepare(run, data_root=data_root, progress=progress)
    progress("data", 1, 1)
    grouped = place.world_size > 1 or strategies.get(run.strategy).needs_group
    with process_group(place, device=device) if grouped else nullcontext():
        _require_same_data(dataset)
        pauses = pauses_for(run, place, device=device, dataset=dataset)
        # What sleeps has no peak.
        peak, peak_source = (
            peak_flops(device, precision=run.precision) if pauses is None else (None, None)
        )
        before = read_clock_offset(socket.gethostname())
        training = train(
            run,
            place,
            device=device,
            dataset=dataset,
            progress=progress,
            folder=folder,
            pauses=pauses,
        )
        validation_loss, accuracy = evaluate(
            training.model, run, place, device=device, dataset=dataset, progress=progress
        )
        probed = probe(training, run, place, device=device, dataset=dataset, progress=progress)
        gradients = readiness(training, run, place, device=device, dataset=dataset)
        readings = before, read_clock_offset(socket.gethostname())
        reports = gather(_report(training, probed, run, place, peak=peak, readings=readings))
    if reports is None:
        return None
    communication = _communication(run, reports, folder, first_step=training.first_step)
    write_steps(
        [report.steps for report in reports],
        folder / "steps.parquet",
        warmup_steps=run.warmup_steps,
        first_step=training.first_step,
    )
    forget(folder / "checkpoint")  # there is nothing left to go on with
    timed = _timing(run, dataset, training, reports, peak_source=peak_source)
    return Measurement(
        timing=timed,
        communication=communication,
        gradients=gradients,
        memory=Memory(
            kind="cuda_allocated" if device.type == "cuda" else "resident",
            peak=[peak for report in reports for peak in report.peak_memory],
            parameters=max(report.held.parameters for report in reports),
            optimizer=max(report.held.optimizer for report in reports),
        ),
        quality=None
        if pauses
        else _quality(run, training.loss.tolist(), validation_loss, accuracy),
        environment=environment(
            told(place, pauses),
            device=device,
            dataset=dataset,
            parameters=training.parameters,
            devices=run.world_size,
            hosts=[report.host for report in reports],
            cores=[report.cores for report in reports],
            foreign_cpu=background_cpu((report.host, report.use) for report in reports),
        ),
        checks=_checks(timed, communication, reports, learned=pauses is None),
    )


def _require_same_data(dataset: Dataset) -> None:
    hosts: dict[str, str] = {}
    for host, digest in all_gather_object((socket.gethostname(), dataset.sha256)):
        hosts.setdefault(digest, host)
    if len(hosts) > 1:
        raise LabError(
            f"the ranks see different data, for one those of {' and '.join(sorted(hosts.values()))}: "
            "give every node the same files and the same Python, or one LAB_CACHE that all of them share"
        )


def _report(
    training: Training,
    probed: Probe | None,
    run: Run,
    place: RankContext,
    *,
    peak: float | None,
    readings: tuple[ClockOffset, ClockOffset],
) -> RankReport:
    def shift(times: FloatArray) -> FloatArray:
        return on_clock_of_rank_0(times, readings)

    sent = training.sent.shifted(shift) if training.sent else None
    median_step = None
    if training.sent:
        step = representative_step(
            np.stack(all_gather_object(training.laps["step_time"])), warmup_steps=run.warmup_steps
        )
        median_step = events(
            place.rank, step, clock=training.clock, sent=training.sent, shift=shift
        )
    return RankReport(
        host=socket.gethostname(),
        cores=place.cores,
        steps={
            **training.laps,
            "cpu_time": training.cpu_time,
            "loss": training.rank_loss,
            "learning_rate": training.learning_rate,
            "grad_norm": training.grad_norm,
        },
        began=float(shift(np.array(training.clock.phases(0)[0][1]))),
        sent=sent,
        median_step=median_step,
        probe=probed.moved(shift) if probed else None,
        use=training.use,
        peak_flops=peak,
        peak_memory=training.peak_memory,
        held=training.held,
        fingerprint=_fingerprint(strategies.get(run.strategy).replicated(training.parallel)),
    )


def _communication(
    run: Run, reports: Sequence[RankReport], folder: Path, *, first_step: int
) -> Communication | None:
    """The record's part; puts the steps of all ranks on one time axis and the communication of each step beside them."""
    probes = [report.probe for report in reports if report.probe]
    measured = costs(probes) if probes else {}
    origin = reports[0].began
    buckets = [report.sent for report in reports if isinstance(report.sent, Buckets)]
    calls = [report.sent for report in reports if isinstance(report.sent, Calls)]
    if buckets:
        write_buckets(buckets, folder / "buckets.parquet", origin=origin, first_step=first_step)
        exposed = Exposure.from_buckets(buckets)
        counted = overlap.count_buckets(
            buckets[0], operation=None if run.compression == "powersgd" else "all_reduce"
        )
    elif calls:
        write_calls(calls, folder / "calls.parquet", origin=origin, first_step=first_step)
        exposed = Exposure.from_calls(calls, steps=run.steps - first_step)
        counted = overlap.count_calls(calls[0])
    else:
        return Communication().model_copy(update=measured) if measured else None
    for rank, report in enumerate(reports):
        report.steps["start"] += report.began - origin
        report.steps.update(exposed.columns(rank))
    step_time = np.stack([report.steps["step_time"] for report in reports])
    found = overlap.summary(exposed, step_time, warmup_steps=run.warmup_steps)
    shown = timeline([report.median_step for report in reports if report.median_step])
    return found.model_copy(update={**measured, **counted, "timeline": shown})


def _quality(
    run: Run, loss: list[float], validation_loss: float, accuracy: float | None
) -> Quality:
    split = run.architecture.depends_on_split or None
    return Quality(
        loss=loss, validation_loss=validation_loss, accuracy=accuracy, depends_on_split=split
    )


def _checks(
    timed: Timing,
    communication: Communication | None,
    reports: Sequence[RankReport],
    *,
    learned: bool,
) -> dict[str, bool]:
    checks = {"phases_close": phases_close(timed)} | (
        {"same_parameters": _same_parameters(reports)} if learned else {}
    )
    agree = methods_agree(communication) if communication else None
    return checks if agree is None else checks | {"communication_methods_agree": agree}


def _timing(
    run: Run,
    dataset: Dataset,
    training: Training,
    reports: Sequence[RankReport],
    *,
    peak_source: str | None,
) -> Timing:
    peaks = [report.peak_flops for report in reports if report.peak_flops is not None]
    return timing(
        {name: np.stack([report.steps[name] for report in reports]) for name in training.laps},
        warmup_steps=run.warmup_steps,
        setup_time=training.setup_time,
        samples_per_step=run.global_batch_size,
        tokens_per_sample=dataset.tokens_per_sample,
        flops_per_sample=flops_per_sample(run),
        peak_flops=float(np.mean(peaks)) if peaks else None,
        peak_source=peak_source,
        devices=run.world_size,
    )


@torch.no_grad()
def _fingerprint(parameters: Iterable[torch.Tensor]) -> tuple[float, float] | None:
    """Sum and sum of squares of parameters, in fp64; None where there are none."""
    sums = [
        (float(parameter.double().sum()), float(parameter.double().square().sum()))
        for parameter in parameters
    ]
    return (sum(first for first, _ in sums), sum(second for _, second in sums)) if sums else None


def _same_parameters(reports: Sequence[RankReport]) -> bool:
    """The check of the same name: ranks that train one model end with one model, up to the rounding of unequal CPUs (1e-6)."""
    prints = np.array([report.fingerprint for report in reports if report.fingerprint])
    if not len(prints):
        return True  # nothing is shared, as in a pipeline of one stage
    scale = max(prints[0, 1], 1.0)  # a sum may be near zero by chance
    return bool(np.all(np.abs(prints - prints[0]) <= 1e-6 * scale))
