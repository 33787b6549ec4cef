"""What a job runs on each rank: prepare, train, evaluate, and bring the ranks' measurements together."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn

from lab.analysis.costs import gpt_flops_per_token
from lab.errors import LabError
from lab.place import Place, Progress
from lab.records import Communication, Environment, Event, Memory, Quality, Timing
from lab.study import Run
from lab.worker import data, exposure, strategies
from lab.worker.communication import Buckets
from lab.worker.data.tokens import Tokens
from lab.worker.emulated import pauses_for, told
from lab.worker.environment import environment
from lab.worker.exposure import Exposure
from lab.worker.foreign import CpuUse, foreign_cpu
from lab.worker.group import gather, process_group, share
from lab.worker.offset import Reading, read_offset, to_rank_0
from lab.worker.peak import peak_flops
from lab.worker.probe import Probe, costs, methods_agree, probe
from lab.worker.steps import write_buckets, write_steps
from lab.worker.timeline import events, representative, timeline
from lab.worker.timing import FloatArray, phases_close, timing
from lab.worker.train import Training, evaluate, train


@dataclass(frozen=True)
class Measured:
    """All of a record that is measured inside the job."""

    timing: Timing
    communication: Communication | None
    memory: Memory
    quality: Quality
    environment: Environment
    checks: dict[str, bool]


@dataclass(frozen=True)
class RankReport:
    """What a rank tells rank 0 when it is done; moments are those of rank 0's clock."""

    host: str
    cores: tuple[int, ...]
    steps: dict[str, FloatArray]  # the columns of steps.parquet
    began: float  # the first step
    buckets: Buckets | None
    median_step: tuple[float, list[Event]] | None
    probe: Probe | None
    use: CpuUse
    peak_flops: float | None
    peak_memory: int
    fingerprint: tuple[float, float]


def measure(run: Run, place: Place, *, data_root: Path, folder: Path, progress: Progress) -> Measured | None:
    """Train one repeat of a run on this rank; rank 0 gets the measurement, the others None.

    Rank 0 writes `folder`/steps.parquet, and buckets.parquet where ranks exchange gradients.

    All ranks must call it. Raises InputError for data or a model that cannot be used, LabError for a device that is not
    there, ranks that see different data, or a loss that is not finite; torch.OutOfMemoryError passes through.
    """
    torch.set_num_threads(place.threads)
    device = device_of(place)
    progress("data", 0, 1)
    tokens = data.prepare(run, data_root=data_root, progress=progress)
    progress("data", 1, 1)
    grouped = place.world_size > 1 or strategies.get(run.strategy).needs_group
    with process_group(place, device=device) if grouped else nullcontext():
        _require_same_data(tokens)
        pauses = pauses_for(run, place, device=device, tokens=tokens)
        # What sleeps has no peak.
        peak, peak_source = peak_flops(device, precision=run.precision) if pauses is None else (None, None)
        before = read_offset(socket.gethostname())
        training = train(run, place, device=device, tokens=tokens, progress=progress, pauses=pauses)
        validation_loss = evaluate(training.model, run, place, device=device, tokens=tokens, progress=progress)
        probed = probe(training, run, place, device=device, tokens=tokens, progress=progress)
        readings = before, read_offset(socket.gethostname())
        reports = gather(_report(training, probed, run, place, peak=peak, readings=readings))
    if reports is None:
        return None
    communication = _communication(run, reports, folder)
    write_steps([report.steps for report in reports], folder / "steps.parquet", warmup_steps=run.warmup_steps)
    parameters = list(training.model.parameters())
    timed = _timing(run, tokens, training, reports, peak_source=peak_source)
    return Measured(
        timing=timed,
        communication=communication,
        memory=Memory(
            kind="cuda_allocated" if device.type == "cuda" else "resident",
            peak=[report.peak_memory for report in reports],
            parameters=sum(parameter.nbytes for parameter in parameters),
        ),
        quality=Quality(loss=training.loss.tolist(), validation_loss=validation_loss) if pauses is None else Quality(loss=[]),
        environment=environment(
            told(place, pauses),
            device=device,
            tokens=tokens,
            parameters=sum(parameter.numel() for parameter in parameters),
            hosts=[report.host for report in reports],
            cores=[report.cores for report in reports],
            foreign_cpu=foreign_cpu((report.host, report.use) for report in reports),
        ),
        checks=_checks(timed, communication, reports, learned=pauses is None),
    )


def device_of(place: Place) -> torch.device:
    """The device of a rank, made current where it is a GPU; raises LabError where the promised one is not there."""
    if place.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LabError(
            f"cluster {place.cluster!r} promises CUDA, torch {torch.__version__} on {socket.gethostname()} finds none: see `lab doctor`"
        )
    # Where the scheduler shows each rank its own GPU only, that one is number 0.
    device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _require_same_data(tokens: Tokens) -> None:
    hosts: dict[str, str] = {}
    for host, digest in share((socket.gethostname(), tokens.sha256)):
        hosts.setdefault(digest, host)
    if len(hosts) > 1:
        raise LabError(
            f"the ranks see different data, for one those of {' and '.join(sorted(hosts.values()))}: "
            "give every node the same files and the same Python, or one LAB_CACHE that all of them share"
        )


def _report(
    training: Training, probed: Probe | None, run: Run, place: Place, *, peak: float | None, readings: tuple[Reading, Reading]
) -> RankReport:
    def shift(times: FloatArray) -> FloatArray:
        return to_rank_0(times, readings)

    buckets = training.buckets.moved(shift) if training.buckets else None
    median_step = None
    if training.buckets:
        step = representative(np.stack(share(training.laps["step_time"])), warmup_steps=run.warmup_steps)
        median_step = events(place.rank, step, clock=training.clock, buckets=training.buckets, shift=shift)
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
        buckets=buckets,
        median_step=median_step,
        probe=probed.moved(shift) if probed else None,
        use=training.use,
        peak_flops=peak,
        peak_memory=training.peak_memory,
        fingerprint=_fingerprint(training.model),
    )


def _communication(run: Run, reports: Sequence[RankReport], folder: Path) -> Communication | None:
    """The record's part; puts the steps of all ranks on one time axis and the communication of each step beside them."""
    probes = [report.probe for report in reports if report.probe]
    measured = costs(probes) if probes else {}
    buckets = [report.buckets for report in reports if report.buckets]
    if not buckets:
        return Communication().model_copy(update=measured) if measured else None
    origin = reports[0].began
    write_buckets(buckets, folder / "buckets.parquet", origin=origin)
    exposed = Exposure.of(buckets)
    for rank, report in enumerate(reports):
        report.steps["start"] += report.began - origin
        report.steps.update(exposed.columns(rank))
    found = exposure.summary(
        buckets, exposed, np.stack([report.steps["step_time"] for report in reports]), warmup_steps=run.warmup_steps
    )
    shown = timeline([report.median_step for report in reports if report.median_step])
    return found.model_copy(update={**measured, "timeline": shown})


def _checks(
    timed: Timing, communication: Communication | None, reports: Sequence[RankReport], *, learned: bool
) -> dict[str, bool]:
    checks = {"phases_close": phases_close(timed)} | ({"same_parameters": _same_parameters(reports)} if learned else {})
    agree = methods_agree(communication) if communication else None
    return checks if agree is None else checks | {"communication_methods_agree": agree}


def _timing(run: Run, tokens: Tokens, training: Training, reports: Sequence[RankReport], *, peak_source: str | None) -> Timing:
    peaks = [report.peak_flops for report in reports if report.peak_flops is not None]
    return timing(
        {name: np.stack([report.steps[name] for report in reports]) for name in training.laps},
        warmup_steps=run.warmup_steps,
        setup_time=training.first_step_at - psutil.Process().create_time(),
        samples_per_step=run.global_batch_size,
        tokens_per_sample=run.architecture.block_size,
        flops_per_token=gpt_flops_per_token(run.architecture, tokens.vocab_size),
        peak_flops=float(np.mean(peaks)) if peaks else None,
        peak_source=peak_source,
    )


@torch.no_grad()
def _fingerprint(model: nn.Module) -> tuple[float, float]:
    """Sum and sum of squares of all parameters, in fp64."""
    parameters = [parameter.double() for parameter in model.parameters()]
    return float(sum(p.sum() for p in parameters)), float(sum(p.square().sum() for p in parameters))


def _same_parameters(reports: Sequence[RankReport]) -> bool:
    """The check of the same name: ranks that train one model end with one model, up to the rounding of unequal CPUs (1e-6)."""
    prints = np.array([report.fingerprint for report in reports])
    scale = max(prints[0, 1], 1.0)  # a sum may be near zero by chance
    return bool(np.all(np.abs(prints - prints[0]) <= 1e-6 * scale))
