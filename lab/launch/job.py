"""What each rank of a job runs: claim the task, measure, and record the end, whatever it is.

Job scripts call `python -m lab.launch.job STUDY RUN REPEAT --cluster PROFILE` under srun.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Literal

import psutil

from lab.config.base import InvalidValueError
from lab.config.cluster import Cluster
from lab.config.emulation import Emulated
from lab.config.own import SCRIPT_OUT
from lab.config.run import Run
from lab.config.slurm import expand
from lab.config.study import Study, Task
from lab.errors import InputError, LabError, Problem, nearest
from lab.files import private_folder
from lab.launch import netem
from lab.launch.attempt import Attempt, Decision, claim, present
from lab.launch.outcome import (
    archive_failed,
    failed,
    keep_quieter,
    now,
    rank_error,
    restore_quieter,
)
from lab.launch.watchdog import Watchdog, supervise
from lab.machine import Interrupted, exit_with, interfaces, interrupt, loading
from lab.records.schema import Allocation
from lab.records.store import LOGS, RECORD, Record, Store, read_record, write_record
from lab.worker.context import Measurement, RankContext, listen_for_preemption, preemption_noticed


class TimeLimitError(LabError):
    """A job took longer than its profile allows."""


def execute(
    run_json: str, repeat: int, cluster_json: str, folder: str, data_root: str
) -> Literal["done", "skipped"]:
    """Measure one repeat of one run on this rank; every rank calls this function.

    Rank 0 writes the record, however the job ends. A task measured in the meantime is skipped.
    """
    run, cluster = Run.model_validate_json(run_json), Cluster.model_validate_json(cluster_json)
    task, cluster = Task(run, repeat), cluster.on(run.needs_device) or cluster
    context, attempt = register(run.processes, cluster, Path(folder), devices=run.devices)

    def leave_failure() -> None:
        # After a warning by the scheduler, that is the cause, and the ranks' errors follow from it.
        if context.rank == 0 and not preemption_noticed():
            time.sleep(1.0)  # the rank that failed first may still be writing its error
            allocation = _allocation(attempt)
            record = failed(task, attempt, started_at=started_at, allocation=allocation)
            write_record(record, attempt.folder)

    count = slots(run, cluster)
    arrived = time.monotonic()
    with claimed(
        context, cluster, attempt, lambda: _decide(attempt.folder), slots=count
    ) as decision:
        if decision == "skip":
            return "skipped"
        started_at = now()
        context = replace(context, waited_s=time.monotonic() - arrived)
        with watched(context, cluster, attempt, steps=run.steps, on_failure=leave_failure) as rank:
            with loading():
                from lab.worker.main import measure

            context, watchdog = rank

            def keep(measurement: Measurement | None) -> None:
                watchdog.stop()
                if measurement is not None:
                    _write_record(measurement, task, attempt, started_at=started_at)
                watchdog.limit_exit()  # not before, as a slow disk must not cost the record

            def conclude(collect: Callable[[], Measurement | None]) -> int:
                with suppress(Exception), _reported(watchdog, context, attempt, leave_failure):
                    keep(collect())
                    return 0
                return 1

            measurement = measure(
                run,
                context,
                data_root=Path(data_root),
                folder=attempt.folder,
                progress=watchdog.progress,
                conclude=conclude,
            )
            keep(measurement)
    return "done"


def _write_record(
    measurement: Measurement, task: Task, attempt: Attempt, *, started_at: str
) -> None:
    record = Record(
        run_id=task.run.id,
        repeat=task.repeat,
        run=task.run,
        status="completed",
        started_at=started_at,
        finished_at=now(),
        allocation=_allocation(attempt),
        **vars(measurement),
    )
    keep_quieter(record, attempt.folder)


def slots(run: Run, cluster: Cluster) -> int | None:
    """How many devices a run claims on a shared host; None if it must have the host to itself."""
    profile = cluster.on(run.needs_device) or cluster
    return run.processes * run.devices if profile.packs else None


def _decide(folder: Path) -> Decision:
    for partial in folder.glob(f".{RECORD}.*"):  # from a job that was killed while writing
        partial.unlink(missing_ok=True)
    if restore_quieter(folder):  # which a kill interrupted
        return "skip"
    record = read_record(folder / RECORD)
    if record is not None and record.completed:
        return "skip"
    archive_failed(folder)  # from an earlier start of this job
    # A script might resume from what an earlier start wrote there.
    shutil.rmtree(folder / SCRIPT_OUT, ignore_errors=True)
    return "run"


def register(
    world_size: int, cluster: Cluster, folder: Path, *, devices: int = 1
) -> tuple[RankContext, Attempt]:
    """Register this rank, which drives `devices` devices; returns its context and files."""
    signal.signal(signal.SIGINT, interrupt)
    if cluster.executor == "slurm":
        listen_for_preemption()
    else:
        signal.signal(signal.SIGUSR2, _time_is_over)
    here, attempt = present(folder)
    attempt.register_rank(here.global_rank)
    first = here.local_rank * devices
    cores = _cores(cluster, range(first, first + devices))
    context = RankContext(
        rank=here.global_rank,
        world_size=world_size,
        local_rank=here.local_rank,
        device=cluster.device_kind,
        cores=cores,
        threads=_threads(cluster, cores),
        cluster=cluster.name,
        cluster_file=cluster.file,
        rendezvous=attempt.path("rendezvous"),
        timeout_s=cluster.hang_timeout_s,
        job_id=attempt.job_id,
        emulated=Emulated(compute=cluster.compute) if cluster.compute else None,
        backend=cluster.backend,
        checkpoint_every_s=cluster.checkpoint_every_min * 60.0,
        host=RankContext.host if here.num_nodes == 1 else _address(cluster),
        nodes=here.num_nodes,
    )
    return context, attempt


def _cores(cluster: Cluster, slots: Iterable[int]) -> tuple[int, ...]:
    """The cores that belong to these devices, each once, as devices may share them."""
    return tuple(dict.fromkeys(core for slot in slots for core in cluster.cores_of(slot)))


def _threads(cluster: Cluster, cores: Sequence[int]) -> int:
    """The threads of a rank with these cores.

    The CPUs that Slurm grants may be hardware threads: two threads on one core would compete.
    """
    threads = cluster.threads_per_rank
    return min(threads, len(cores)) if cluster.executor == "slurm" else threads


def _address(cluster: Cluster) -> str:
    """The address at which ranks on other nodes reach this one; its host name if none is found.

    It is that of the profile's first interface, or else the source address of packets to another
    node. Rank 0 listens on no other address.
    """
    from lab.launch.slurm.controller import expand as nodes_of

    addresses = psutil.net_if_addrs()
    for address in (address for name in cluster.interfaces for address in addresses.get(name, [])):
        if address.family == socket.AF_INET:
            return str(address.address)
    name = os.environ["SLURMD_NODENAME"]
    for other in set(nodes_of(os.environ.get("SLURM_JOB_NODELIST", ""))) - {name}:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))  # on a datagram socket this sends nothing
            here = str(probe.getsockname()[0])
            if not here.startswith("127."):
                return here
    return name


@contextmanager
def claimed(
    context: RankContext,
    cluster: Cluster,
    attempt: Attempt,
    decide: Callable[[], Decision] = lambda: "run",
    *,
    slots: int | None = None,
) -> Iterator[Decision]:
    """Rank 0 claims the task and decides; the others wait for its decision.

    On this machine it also claims devices: `slots` of them, or all if None.
    """
    if context.rank != 0:
        yield attempt.wait_for_leader()
        return
    names: list[str] | None = []
    if cluster.executor == "local":
        names = None if slots is None else _device_names(cluster)
    with claim(attempt, names=names, count=slots or 0) as devices:
        decision = decide()
        attempt.decide(decision, devices)
        yield decision


def _device_names(cluster: Cluster) -> list[str]:
    """Names of this machine's devices, the same in every job: of GPUs those that CUDA takes."""
    if cluster.device_kind == "cuda":
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    return [f"emulated-{slot}" for slot in range(cluster.ranks_per_node)]


@contextmanager
def watched(
    context: RankContext,
    cluster: Cluster,
    attempt: Attempt,
    *,
    steps: int = 1,
    on_failure: Callable[[], None] = lambda: None,
) -> Iterator[tuple[RankContext, Watchdog]]:
    """Set this rank up and watch it; an error is recorded for the driver before it is raised."""
    watchdog = Watchdog(context, attempt, steps=steps, on_hang=on_failure)
    with _reported(watchdog, context, attempt, on_failure):
        context = setup_rank(context, cluster, attempt)
        watchdog.start()
        yield context, watchdog


@contextmanager
def _reported(
    watchdog: Watchdog, context: RankContext, attempt: Attempt, on_failure: Callable[[], None]
) -> Iterator[None]:
    """Record an error for the driver before it is raised."""
    try:
        yield
    except Interrupted:  # which this rank's parent reports
        raise
    except BaseException as error:
        watchdog.stop()
        if not watchdog.is_removed():
            attempt.write_error(rank_error(context.rank, error, phase=watchdog.phase))
            on_failure()
        raise


def setup_rank(context: RankContext, cluster: Cluster, attempt: Attempt) -> RankContext:
    """Bind this rank to its cores and link, and set what must precede the import of torch."""
    if cluster.executor == "local":
        signal.signal(signal.SIGTERM, interrupt)
        # Linux divides a core among sessions: a rank's share beside other processes must not depend
        # on what the other ranks do.
        with suppress(PermissionError):  # it leads a session already
            os.setsid()
    if missing := [name for name in cluster.interfaces if name not in interfaces()]:
        where, host = "network_interface", socket.gethostname()
        problems = [
            Problem(where, f"no {name!r} on {host}", nearest(name, interfaces()))
            for name in missing
        ]
        raise InputError(cluster.name, problems)
    set_variables(cluster)
    if (start := attempt.start()) and start.devices:
        context = settle(context, cluster, start.devices)
    os.environ["OMP_NUM_THREADS"] = str(context.threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, context.cores)
    if cluster.link is None:
        return context
    return netem.join(context, cluster.link, attempt.path("network"))


def settle(context: RankContext, cluster: Cluster, devices: Sequence[int]) -> RankContext:
    """Let this rank see its job's devices alone; returns its context, with the cores of its own."""
    if context.device == "cuda":
        names = _device_names(cluster)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[device] for device in devices)
    each = len(devices) // context.world_size
    own = devices[context.local_rank * each : (context.local_rank + 1) * each]
    return replace(context, cores=_cores(cluster, own), shared_host=True)


def set_variables(cluster: Cluster) -> None:
    """Set a profile's variables in this process; raises InputError if one uses an unset one."""
    for name, value in cluster.variables.items():
        try:
            os.environ[name] = expand(value, os.environ)
        except InvalidValueError as error:
            where = f"environment.{name}"
            what, advice = error.faults[0]
            raise InputError.of(
                cluster.name, where, f"{what} on {socket.gethostname()}", advice
            ) from None


def _time_is_over(signum: int, frame: FrameType | None) -> None:
    """Handle the signal that submitit's controller sends half a minute before killing the ranks."""
    raise TimeLimitError("it reached its time limit: raise time_limit_min")


def _allocation(attempt: Attempt) -> Allocation | None:
    if "SLURM_JOB_ID" not in os.environ:
        return None
    from lab.launch.slurm.controller import read_allocation

    return read_allocation(attempt)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one repeat of one run on this rank, started by srun; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.launch.job", description="One rank of one task of a study, under srun."
    )
    parser.add_argument("study")
    parser.add_argument("run", help="the run's id, as `lab plan` shows it")
    parser.add_argument("repeat", type=int)
    parser.add_argument("--cluster", required=True, help="the profile with which it was submitted")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if "SLURM_PROCID" not in os.environ:
            raise LabError("this is one rank of a job: start it with srun, or use `lab run`")
        study = Study.load(options.study, quick=options.quick)
        cluster = Cluster.load(options.cluster)
        task = study.task(options.run, options.repeat)
        folder = Store(study.out).folder(task)
        private_folder(folder / LOGS)
        # submitit.JobEnvironment reads these in a job that submitit did not submit.
        os.environ.update(SUBMITIT_EXECUTOR="slurm", SUBMITIT_FOLDER=str(folder / LOGS))
        supervise(folder)
        print(execute(*job_arguments(study, task, cluster, folder)))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def job_arguments(
    study: Study, task: Task, cluster: Cluster, folder: Path
) -> tuple[str, int, str, str, str]:
    """The arguments of `execute`, all text or numbers because they travel as JSON."""
    profile = cluster.settled.model_dump_json()
    return task.run.model_dump_json(), task.repeat, profile, str(folder), str(study.folder)


if __name__ == "__main__":
    exit_with(main)
