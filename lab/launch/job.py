"""What runs on each rank of a job: claim the work, measure, and turn every end into a record."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import psutil

from lab.config.cluster import Cluster
from lab.config.emulation import Emulated
from lab.config.run import Run
from lab.config.study import Study
from lab.errors import LabError
from lab.launch import netem
from lab.launch.attempt import Attempt, claim
from lab.launch.outcome import DISTURBED, archive_failed, failed, now, rank_error
from lab.launch.watchdog import Watchdog
from lab.records.schema import Allocation
from lab.records.store import Record, Store, read_record, write_record
from lab.worker import context
from lab.worker.context import RankContext

if TYPE_CHECKING:
    from lab.worker.context import Measurement


def execute(
    run_json: str, repeat: int, cluster_json: str, folder: str, data_root: str
) -> Literal["done", "skipped"]:
    """Measure one repeat of one run on this rank; submitit calls this on every rank.

    Rank 0 writes the record, whatever the end. A job whose work is done already, by a job that somebody else
    submitted, skips it.
    """
    run, cluster = Run.model_validate_json(run_json), Cluster.model_validate_json(cluster_json)
    cluster = cluster.on(run.needs_device) or cluster
    place, attempt = sign_on(run.processes, cluster, Path(folder), devices=run.devices)
    if place.rank != 0:
        if attempt.await_decision() == "skip":
            return "skipped"
        return _measure(run, repeat, place, attempt, cluster, Path(data_root))
    with claim(attempt.folder, attempt, devices=cluster.executor == "local"):
        for leftover in attempt.folder.glob(
            ".record.json.*"
        ):  # of a job that was killed while it wrote
            leftover.unlink(missing_ok=True)
        existing = read_record(attempt.folder / "record.json")
        if existing is not None and existing.completed:
            attempt.decide("skip")
            return "skipped"
        archive_failed(attempt.folder)  # of an earlier start of this job
        attempt.decide("run")
        return _measure(run, repeat, place, attempt, cluster, Path(data_root))


def sign_on(
    world_size: int, cluster: Cluster, folder: Path, *, devices: int = 1
) -> tuple[RankContext, Attempt]:
    """Where this process of a job runs, with the cores of so many devices, and the files by which it talks.

    It leaves its process id there.
    """
    import submitit

    if cluster.executor == "slurm":
        context.listen_for_preemption()
    here = submitit.JobEnvironment()
    output = Path(os.environ["SUBMITIT_FOLDER"])
    attempt = Attempt(
        folder, str(here.job_id), int(os.environ.get("SLURM_RESTART_COUNT", 0)), output
    )
    attempt.sign_on(here.global_rank)
    place = RankContext(
        rank=here.global_rank,
        world_size=world_size,
        local_rank=here.local_rank,
        device=cluster.device_kind,
        cores=tuple(
            core
            for number in range(devices)
            for core in cluster.cores_of(here.local_rank * devices + number)
        ),
        threads=cluster.threads_per_rank,
        cluster=cluster.name,
        rendezvous=attempt.rendezvous,
        timeout_s=cluster.hang_timeout_s,
        job_id=attempt.job_id,
        emulated=Emulated(compute=cluster.compute) if cluster.compute else None,
        backend=cluster.backend,
        checkpoint_every_s=cluster.checkpoint_every_min * 60.0,
        **_address(cluster, here),
    )
    return place, attempt


def _address(cluster: Cluster, here: Any) -> dict[str, str]:
    """Under what address the other ranks reach this one, where some are on other nodes."""
    if here.num_nodes == 1:
        return {}
    for found in psutil.net_if_addrs().get(cluster.network_interface or "", []):
        if found.family == socket.AF_INET:
            return {"host": found.address}
    return {"host": os.environ["SLURMD_NODENAME"]}


def _measure(
    run: Run, repeat: int, place: RankContext, attempt: Attempt, cluster: Cluster, data_root: Path
) -> Literal["done"]:
    started_at = now()

    def leave_failure() -> None:
        # Once the scheduler has told the job to end, its word is the cause, and what the ranks then meet a consequence.
        if place.rank == 0 and not context.preemption_noticed():
            time.sleep(1.0)  # the rank that failed first may still be writing its error
            write_record(
                failed(run, repeat, attempt, started_at=started_at, allocation=_granted(attempt)),
                attempt.folder,
            )

    watchdog = Watchdog(place, attempt, steps=run.steps, given_up=leave_failure)
    try:
        place = setup_rank(place, cluster, attempt)
        watchdog.start()
        from lab.worker.main import measure

        measured = measure(
            run, place, data_root=data_root, folder=attempt.folder, progress=watchdog.progress
        )
        watchdog.stop()
        if measured is not None:
            earlier = read_record(attempt.folder / DISTURBED / "record.json")
            record = _completed(
                run, repeat, started_at, measured, allocation=_granted(attempt), earlier=earlier
            )
            write_record(record, attempt.folder)
        return "done"
    except Exception as error:
        watchdog.stop()
        attempt.write_error(rank_error(place.rank, error, phase=watchdog.phase))
        leave_failure()
        raise


def setup_rank(place: RankContext, cluster: Cluster, attempt: Attempt) -> RankContext:
    """Take this rank's cores, and its link where one is emulated, and set what must be set before torch is imported."""
    if cluster.executor == "local":
        signal.signal(signal.SIGTERM, _interrupt)
    os.environ.update(cluster.variables)
    os.environ["OMP_NUM_THREADS"] = str(place.threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, place.cores)
    return (
        place if cluster.link is None else netem.join(place, cluster.link, attempt.path("network"))
    )


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _granted(attempt: Attempt) -> Allocation | None:
    if "SLURM_JOB_ID" not in os.environ:
        return None
    from lab.launch.slurm.controller import read_allocation

    return read_allocation(attempt)


def _completed(
    run: Run,
    repeat: int,
    started_at: str,
    measured: Measurement,
    *,
    allocation: Allocation | None,
    earlier: Record | None,
) -> Record:
    return Record(
        run_id=run.id,
        repeat=repeat,
        run=run,
        status="completed",
        started_at=started_at,
        finished_at=now(),
        allocation=allocation,
        environment=measured.environment,
        timing=measured.timing,
        communication=measured.communication,
        gradients=measured.gradients,
        memory=measured.memory,
        quality=measured.quality,
        inference=measured.inference,
        checks=measured.checks,
        disturbed=earlier.environment.foreign_cpu if earlier and earlier.environment else None,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one repeat of one run on this rank, as a job of `lab run` does; returns the exit status.

    Rank 0 writes the record. A repeat that is measured already is not measured again.
    """
    parser = argparse.ArgumentParser(
        prog="python -m lab.launch.job", description="One rank of one task of a study, under srun."
    )
    parser.add_argument("study")
    parser.add_argument("run", help="the run's id, as `lab plan` shows it")
    parser.add_argument("repeat", type=int)
    parser.add_argument(
        "--cluster", required=True, help="the profile by which the job was submitted"
    )
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    try:
        if "SLURM_PROCID" not in os.environ:
            raise LabError("this is one rank of a job: start it by srun, or use `lab run`")
        study, cluster = Study.load(given.study, quick=given.quick), Cluster.load(given.cluster)
        task = study.task(given.run, given.repeat)
        folder = Store(study.out).folder(task)
        log = folder / "log"
        log.mkdir(mode=0o700, parents=True, exist_ok=True)
        # By these submitit knows the job that it did not submit.
        os.environ.update(SUBMITIT_EXECUTOR="slurm", SUBMITIT_FOLDER=str(log))
        print(
            execute(
                task.run.model_dump_json(),
                task.repeat,
                cluster.model_dump_json(),
                str(folder),
                str(study.folder),
            )
        )
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
