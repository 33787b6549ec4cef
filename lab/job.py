"""What runs on each rank of a job: claim the work, measure, and turn every end into a record."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

from lab import network
from lab.atomic import write_atomically
from lab.attempt import Attempt, RankError, claim
from lab.cluster import Cluster
from lab.emulation import Emulated
from lab.place import Place
from lab.records import Failure, Record, Status, read_record, write_record
from lab.study import Run

if TYPE_CHECKING:
    from lab.worker.main import Measured

# Frames in which a rank waits for the others; they mark it as a victim of a hang and not its cause.
_WAITING = ("_engine_run_backward", "all_reduce", "barrier", "all_gather", "gather_object", "broadcast")

_STEPPING = ("warm-up", "measuring", "evaluating", "comparing")


def execute(run_json: str, repeat: int, cluster_json: str, folder: str, data_root: str) -> Literal["done", "skipped"]:
    """Measure one repeat of one run on this rank; submitit calls this on every rank.

    Rank 0 writes the record, whatever the end. A job whose work is done already, by a job that somebody else
    submitted, skips it.
    """
    run, cluster = Run.model_validate_json(run_json), Cluster.model_validate_json(cluster_json)
    place, attempt = sign_on(run.world_size, cluster, Path(folder))
    if place.rank != 0:
        if attempt.await_decision() == "skip":
            return "skipped"
        return _measure(run, repeat, place, attempt, cluster, Path(data_root))
    with claim(attempt.folder, attempt):
        for leftover in attempt.folder.glob(".record.json.*"):  # of a job that was killed while it wrote
            leftover.unlink(missing_ok=True)
        existing = read_record(attempt.folder / "record.json")
        if existing is not None and existing.completed:
            attempt.decide("skip")
            return "skipped"
        attempt.decide("run")
        return _measure(run, repeat, place, attempt, cluster, Path(data_root))


def sign_on(world_size: int, cluster: Cluster, folder: Path) -> tuple[Place, Attempt]:
    """Where this process of a job runs, and the files by which it talks; it leaves its process id there."""
    import submitit

    here = submitit.JobEnvironment()
    attempt = Attempt(folder, str(here.job_id))
    attempt.sign_on(here.global_rank)
    place = Place(
        rank=here.global_rank,
        world_size=world_size,
        local_rank=here.local_rank,
        device=cluster.device_kind,
        cores=cluster.cores_of(here.local_rank),
        threads=cluster.threads_per_rank,
        cluster=cluster.name,
        rendezvous=attempt.rendezvous,
        timeout_s=cluster.hang_timeout_s,
        job_id=attempt.job_id,
        emulated=Emulated(compute=cluster.compute) if cluster.compute else None,
    )
    return place, attempt


def _measure(run: Run, repeat: int, place: Place, attempt: Attempt, cluster: Cluster, data_root: Path) -> Literal["done"]:
    started_at = _now()
    watchdog = Watchdog(run, repeat, place, attempt, started_at)
    try:
        place = settle_in(place, cluster, attempt)
        watchdog.start()
        from lab.worker.main import measure

        measured = measure(run, place, data_root=data_root, folder=attempt.folder, progress=watchdog.progress)
        watchdog.stop()
        if measured is not None:
            write_record(_completed(run, repeat, started_at, measured), attempt.folder)
        return "done"
    except Exception as error:
        watchdog.stop()
        attempt.write_error(rank_error(place.rank, error))
        if place.rank == 0:
            time.sleep(1.0)  # the rank that failed first may still be writing its error
            write_record(failed(run, repeat, attempt, started_at=started_at), attempt.folder)
        raise


def settle_in(place: Place, cluster: Cluster, attempt: Attempt) -> Place:
    """Take this rank's cores, and its link where one is emulated, and set what must be set before torch is imported."""
    signal.signal(signal.SIGTERM, _interrupt)
    os.environ.update(cluster.variables)
    os.environ["OMP_NUM_THREADS"] = str(place.threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, place.cores)
    return place if cluster.link is None else network.join(place, cluster.link, attempt.path("network"))


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class Watchdog:
    """Publishes a rank's progress and ends the rank when there has been none for too long."""

    def __init__(self, run: Run, repeat: int, place: Place, attempt: Attempt, started_at: str) -> None:
        self._run, self._repeat, self._place, self._attempt, self._started_at = run, repeat, place, attempt, started_at
        self._last = self._published = time.monotonic()
        self._phase = "starting"
        self._stopped = threading.Event()
        self._main = threading.get_ident()

    def start(self) -> None:
        """Begin to watch."""
        self.progress("loading torch", 0, self._run.steps)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer: what follows has its own time limit."""
        self._stopped.set()

    def progress(self, phase: str, step: int, steps: int) -> None:
        """Note that the rank goes on; rank 0 publishes it twice a second at most, so that it costs the step nothing."""
        now = time.monotonic()
        self._last = now
        if self._place.rank == 0 and (phase != self._phase or now - self._published > 0.5):
            self._published = now
            content = f'{{"phase": "{phase}", "step": {step}, "steps": {steps}, "time": {time.time()}}}'
            write_atomically(self._attempt.folder / "progress.json", content.encode(), durable=False)
        self._phase = phase

    def _watch(self) -> None:
        while not self._stopped.wait(1.0):
            limit = self._place.timeout_s if self._phase in _STEPPING else self._place.start_timeout_s
            if time.monotonic() - self._last > limit:
                self._give_up(limit)

    def _give_up(self, limit: float) -> None:
        frame = sys._current_frames().get(self._main)
        stack = traceback.extract_stack(frame) if frame else []
        where = f" in {stack[-1].name} ({Path(stack[-1].filename).name}:{stack[-1].lineno})" if stack else ""
        message = f"no progress for {limit:.0f} s while {self._phase}; stood{where}"
        waiting = any(entry.name in _WAITING for entry in stack)
        text = "".join(traceback.format_list(stack))
        self._attempt.write_error(RankError(self._place.rank, "Hang", message, time.time(), text, waiting))
        if self._place.rank == 0:
            time.sleep(2.0)  # the ranks gave up together; let the cause be written before it is looked for
            write_record(failed(self._run, self._repeat, self._attempt, started_at=self._started_at), self._attempt.folder)
        os._exit(1)


def rank_error(rank: int, error: Exception) -> RankError:
    """How a rank ended, and whether it only lost a peer."""
    name, message = type(error).__name__, str(error).strip()
    lost_peer = "Connection closed by peer" in message or "Connection reset by peer" in message or "Timed out waiting" in message
    return RankError(rank, name, message, time.time(), traceback.format_exc(), waiting=lost_peer)


def failed(run: Run, repeat: int, attempt: Attempt, *, started_at: str | None = None, fallback: str = "") -> Record:
    """The record of a run that did not complete, with its first cause among the ranks."""
    errors = attempt.errors()
    if errors and all(error.waiting for error in errors):
        errors = [*_silent(attempt, run.world_size, errors), *errors]
    if not errors:
        errors = [RankError(0, "JobLost", fallback or "the job ended without a record and without an error", 0.0)]
    first = errors[0]
    return Record(
        run_id=run.id,
        repeat=repeat,
        run=run,
        status=_status(first),
        error=Failure(
            type=first.type,
            message=first.message,
            rank=first.rank,
            traceback=first.traceback,
            log=attempt.log_tail(first.rank),
        ),
        started_at=started_at,
        finished_at=_now(),
    )


def _silent(attempt: Attempt, world_size: int, errors: list[RankError]) -> list[RankError]:
    """The rank for which the others waited: one that is gone, or one that lives and said nothing."""
    for rank in attempt.lost_ranks(world_size):
        return [RankError(rank, "RankLost", f"rank {rank} ended without an error of its own: killed from outside?", 0.0)]
    for rank in sorted(set(range(world_size)) - {error.rank for error in errors}):
        return [RankError(rank, "Hang", f"the other ranks waited for rank {rank}, which gave no sign: stopped or stuck?", 0.0)]
    return []


def _status(error: RankError) -> Status:
    if error.type in {"OutOfMemoryError", "MemoryError"}:
        return "oom"
    if error.type in {"Hang", "UncompletedJobError", "TimeLimit"}:
        return "timeout"
    return "failed"


def _completed(run: Run, repeat: int, started_at: str, measured: Measured) -> Record:
    return Record(
        run_id=run.id,
        repeat=repeat,
        run=run,
        status="completed",
        started_at=started_at,
        finished_at=_now(),
        environment=measured.environment,
        timing=measured.timing,
        communication=measured.communication,
        memory=measured.memory,
        quality=measured.quality,
        checks=measured.checks,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
