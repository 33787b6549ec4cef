"""What runs on each rank of a job: claim the work, measure, and turn every end into a record."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import psutil

from lab.cluster import Cluster
from lab.emulation import network
from lab.emulation.profile import Emulated
from lab.jobs import notice
from lab.jobs.attempt import Attempt, claim
from lab.jobs.endings import DISTURBED, failed, now, put_away, rank_error
from lab.jobs.place import Place
from lab.jobs.watchdog import Watchdog
from lab.records import Granted, Record, read_record, write_record
from lab.study import Run

if TYPE_CHECKING:
    from lab.worker.main import Measured


def execute(run_json: str, repeat: int, cluster_json: str, folder: str, data_root: str) -> Literal["done", "skipped"]:
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
        for leftover in attempt.folder.glob(".record.json.*"):  # of a job that was killed while it wrote
            leftover.unlink(missing_ok=True)
        existing = read_record(attempt.folder / "record.json")
        if existing is not None and existing.completed:
            attempt.decide("skip")
            return "skipped"
        put_away(attempt.folder)  # of an earlier start of this job
        attempt.decide("run")
        return _measure(run, repeat, place, attempt, cluster, Path(data_root))


def sign_on(world_size: int, cluster: Cluster, folder: Path, *, devices: int = 1) -> tuple[Place, Attempt]:
    """Where this process of a job runs, with the cores of so many devices, and the files by which it talks.

    It leaves its process id there.
    """
    import submitit

    if cluster.executor == "slurm":
        notice.listen()
    here = submitit.JobEnvironment()
    output = Path(os.environ["SUBMITIT_FOLDER"])
    attempt = Attempt(folder, str(here.job_id), int(os.environ.get("SLURM_RESTART_COUNT", 0)), output)
    attempt.sign_on(here.global_rank)
    place = Place(
        rank=here.global_rank,
        world_size=world_size,
        local_rank=here.local_rank,
        device=cluster.device_kind,
        cores=tuple(core for number in range(devices) for core in cluster.cores_of(here.local_rank * devices + number)),
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


def _measure(run: Run, repeat: int, place: Place, attempt: Attempt, cluster: Cluster, data_root: Path) -> Literal["done"]:
    started_at = now()

    def leave_failure() -> None:
        # Once the scheduler has told the job to end, its word is the cause, and what the ranks then meet a consequence.
        if place.rank == 0 and not notice.given():
            time.sleep(1.0)  # the rank that failed first may still be writing its error
            write_record(failed(run, repeat, attempt, started_at=started_at, allocation=_granted(attempt)), attempt.folder)

    watchdog = Watchdog(place, attempt, steps=run.steps, given_up=leave_failure)
    try:
        place = settle_in(place, cluster, attempt)
        watchdog.start()
        from lab.worker.main import measure

        measured = measure(run, place, data_root=data_root, folder=attempt.folder, progress=watchdog.progress)
        watchdog.stop()
        if measured is not None:
            earlier = read_record(attempt.folder / DISTURBED / "record.json")
            record = _completed(run, repeat, started_at, measured, allocation=_granted(attempt), earlier=earlier)
            write_record(record, attempt.folder)
        return "done"
    except Exception as error:
        watchdog.stop()
        attempt.write_error(rank_error(place.rank, error, phase=watchdog.phase))
        leave_failure()
        raise


def settle_in(place: Place, cluster: Cluster, attempt: Attempt) -> Place:
    """Take this rank's cores, and its link where one is emulated, and set what must be set before torch is imported."""
    if cluster.executor == "local":
        signal.signal(signal.SIGTERM, _interrupt)
    os.environ.update(cluster.variables)
    os.environ["OMP_NUM_THREADS"] = str(place.threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, place.cores)
    return place if cluster.link is None else network.join(place, cluster.link, attempt.path("network"))


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _granted(attempt: Attempt) -> Granted | None:
    if "SLURM_JOB_ID" not in os.environ:
        return None
    from lab.slurm.granted import granted

    return granted(attempt)


def _completed(
    run: Run, repeat: int, started_at: str, measured: Measured, *, allocation: Granted | None, earlier: Record | None
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
