"""What a job runs on each rank: prepare, train, evaluate, and gather the measurements."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.config.datasets import PythonData
from lab.config.run import Run
from lab.errors import LabError
from lab.records.schema import Environment, Quality, Timing
from lab.worker import data, distributed, models, own, strategies
from lab.worker.calibrate import peak_flops
from lab.worker.checkpoint import forget
from lab.worker.context import Conclude, Measurement, Progress, RankContext
from lab.worker.data.dataset import Dataset
from lab.worker.distributed import RankJob
from lab.worker.emulation import Pauses, pauses_for
from lab.worker.environment import environment
from lab.worker.measure.clock import phases_close, timing
from lab.worker.measure.overlap import Shift
from lab.worker.rank_report import (
    RankReport,
    fingerprint,
    memory_of,
    same_parameters,
    write_reports,
)
from lab.worker.sync_cost import Probe, methods_agree, probe, readiness
from lab.worker.trace import trace, write_trace
from lab.worker.train import Training, evaluate, train


def measure(
    run: Run,
    context: RankContext,
    *,
    data_root: Path,
    folder: Path,
    progress: Progress,
    conclude: Conclude | None = None,
) -> Measurement | None:
    """Measure one repeat of a run of a model or a script; the measurement on rank 0, else None.

    All ranks must call it. `conclude` ends a rank whose script goes on after its last step. Rank 0
    writes `folder`/steps.parquet and, if ranks communicate, buckets.parquet (DDP) or calls.parquet,
    and trace.json.gz if the run asks for it. Raises InputError for data or a model that cannot be
    used, LabError for a missing device, ranks with different data, or a non-finite loss;
    torch.OutOfMemoryError passes through.
    """
    place: dict[str, Any] = {"data_root": data_root, "folder": folder, "progress": progress}
    if run.task == "inference":
        from lab.worker.inference.main import infer

        return infer(run, context, **place)
    if run.script is not None:
        from lab.worker.script.main import measure_script

        return measure_script(run, context, conclude=conclude, **place)
    own.admit(run, data_root)
    torch.set_num_threads(context.threads)
    device = distributed.device_of(context)
    # Before the group forms, as building a tokenizer may take longer than a collective's timeout.
    progress("data", 0, 1)
    dataset = data.prepare(run, data_root=data_root, progress=progress)
    progress("setting up", 0, run.steps)
    job = RankJob(run, context, device, dataset, progress)
    strategy = strategies.of(run)
    _require_whole_cycle(run, strategy.cycle)
    with distributed.process_group(context, device=device, alone=strategy.needs_group):
        _require_same_data(dataset, run)
        pauses = pauses_for(job)
        # Emulated compute has no peak.
        peak, peak_source = (
            peak_flops(device, precision=run.stated.precision) if pauses is None else (None, None)
        )
        # Once before and once after everything that is timed, as the clocks of two hosts drift.
        offset_before = distributed.read_clock_offset()
        with own.located(data_root):
            training = train(job, folder=folder, pauses=pauses)
            # Emulated compute learns nothing.
            quality = _quality(training, job) if pauses is None else None
        # After evaluation, as extra passes change a model's running statistics.
        probed = probe(training, job)
        gradients = readiness(training, job)
        offsets = offset_before, distributed.read_clock_offset()
        shift = partial(distributed.on_clock_of_rank_0, offsets=offsets)
        reports = distributed.gather(_report(training, probed, job, peak, shift))
        traced = None
        # Emulated compute runs no operators and holds no activations.
        if run.trace and pauses is None:
            training = training.without_model()  # its memory is needed for another one
            traced = distributed.gather(trace(job, shift=shift))
    # From here on only rank 0 is needed; there is no group, so the others may end.
    if reports is None:
        return None
    communication = write_reports(
        run, reports, folder, first_step=training.first_step, cycle=strategy.cycle
    )
    forget(folder / "checkpoint")  # the repeat is done: there is nothing left to resume
    timed = _timing(job, training, reports, peak_source=peak_source, cycle=strategy.cycle)
    checks = {"phases_close": phases_close(timed)}
    if pauses is None:
        checks["same_parameters"] = same_parameters(reports)
    if communication and (agree := methods_agree(communication)) is not None:
        checks["communication_methods_agree"] = agree
    return Measurement(
        timing=timed,
        communication=communication,
        gradients=gradients,
        memory=memory_of(reports, device),
        quality=quality,
        environment=_environment(job, training, reports, pauses),
        checks=checks,
        trace=write_trace(traced, folder) if traced else None,
    )


def _quality(training: Training, job: RankJob) -> Quality:
    validation_loss, accuracy = evaluate(training.model, job)
    return Quality(
        loss=training.loss.tolist(),
        validation_loss=validation_loss,
        accuracy=accuracy,
        depends_on_split=models.depends_on_split(training.model, job.run),
    )


def _timing(
    job: RankJob,
    training: Training,
    reports: Sequence[RankReport],
    *,
    peak_source: str | None,
    cycle: int,
) -> Timing:
    peaks = [report.peak_flops for report in reports if report.peak_flops is not None]
    return timing(
        {name: np.stack([report.steps[name] for report in reports]) for name in training.steps},
        warmup_steps=job.run.warmup_steps,
        setup_time=training.setup_time,
        samples_per_step=job.run.global_batch_size,
        tokens_per_sample=job.dataset.tokens_per_sample,
        flops_per_sample=models.flops_per_sample(job.run, job.dataset),
        peak_flops=float(np.mean(peaks)) if peaks else None,
        peak_source=peak_source,
        devices=job.run.world_size,
        cycle=cycle,
    )


def _environment(
    job: RankJob, training: Training, reports: Sequence[RankReport], pauses: Pauses | None
) -> Environment:
    context = job.context
    if pauses is not None and context.emulated is not None:
        step = {name: getattr(pauses, name) for name in ("forward", "backward", "optimizer")}
        emulated = context.emulated.model_copy(update={"step": step})
        context = replace(context, emulated=emulated)
    return environment(
        context,
        device=job.device,
        dataset=job.dataset,
        parameters=training.parameters,
        attention=models.attention_kernel(job.run, job.device) if pauses is None else None,
        devices=job.run.world_size,
        ranks=[report.use for report in reports],
    )


def _require_whole_cycle(run: Run, cycle: int) -> None:
    if type(cycle) is not int or cycle < 1:
        raise LabError(
            f"{run.strategy}: cycle is {cycle!r}; it must be a number of steps, 1 or more"
        )
    if run.steps - run.warmup_steps < cycle:
        measured = f"{run.steps - run.warmup_steps} of {run.steps} steps"
        raise LabError(
            f"{run.strategy} repeats itself only after {cycle} steps, but {measured} are "
            "measured; raise steps"
        )


def _require_same_data(dataset: Dataset, run: Run) -> None:
    hosts: dict[str, str] = {}
    for host, digest in distributed.all_gather_object((socket.gethostname(), dataset.sha256)):
        hosts.setdefault(digest, host)
    if len(hosts) == 1:
        return
    if isinstance(run.dataset, PythonData):
        raise LabError(
            f"{run.dataset.factory} makes different samples on different ranks: draw random "
            "numbers from generators with the seed that its parameter `seed` receives"
        )
    different = " and ".join(sorted(set(hosts.values())))
    raise LabError(
        f"ranks on {different} see different data; give every node the same files and the "
        "same Python, or one LAB_CACHE that all of them share"
    )


def _report(
    training: Training,
    probed: Probe | None,
    job: RankJob,
    peak: float | None,
    shift: Shift,
) -> RankReport:
    run, clock = job.run, training.clock
    strategy = strategies.of(run)
    report = RankReport(
        use=training.use,
        state=training.state,
        steps=training.steps,
        # The clock counts starts from its own first step; this places them on one axis.
        start=clock.phases(0)[0][1],
        sent=training.sent,
        probe=probed,
        peak_flops=peak,
        fingerprint=fingerprint(strategy.replicated(training.parallel)),
    )
    rank, warmup_steps = job.context.rank, run.warmup_steps
    return report.on_clock_of_rank_0(
        rank, clock, shift, warmup_steps=warmup_steps, cycle=strategy.cycle
    )
