"""One attempt at a task: files through which its ranks and driver communicate, and its locks.

Files are the heartbeat, start, pids, ends and logs. By the locks, no two jobs measure the same task
or are timed on the same device.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from lab.errors import InputError, LabError
from lab.files import OWN_MODE, private_folder, read_file, read_own, write_atomically
from lab.formatting import log_end
from lab.machine import began, is_running
from lab.records.store import LOGS

Decision = Literal["run", "skip"]
PROGRESS = "progress.json"  # of the job of a folder
WAITING = "waiting for other jobs"  # on the same devices
POLL_S = 0.05
# Lines in which srun reports ends, but not their cause.
ONLY_ENDED = re.compile(
    r"srun: (error: \S+: tasks? [\d,-]+: |(\S+: )*Terminating |Job step aborted)"
)
LOG_LINES, LOG_BYTES = 30, 20_000  # the most that is read of the end of a rank's log
# Signals by which a process ends itself.
CRASHES = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}


@dataclass(frozen=True)
class RankError:
    """How one rank ended: the exception, when, and its traceback."""

    rank: int
    type: str
    message: str
    time: float = 0.0  # s since the epoch; 0 if the end was only observed from outside
    traceback: str = ""
    waiting: bool = False  # it was waiting in a collective, so another rank is the cause

    @property
    def observed(self) -> bool:
        """Whether the rank did not report this itself."""
        return not self.time

    def __str__(self) -> str:
        end = f"rank {self.rank} ended with {self.type}: {self.message}"
        return self.message if self.observed else end


@dataclass(frozen=True)
class RankProcess:
    """The process of a rank, as the rank registered it, or of a local job's controller."""

    host: str
    pid: int
    began: float

    @property
    def runs_here(self) -> bool:
        """Whether the process belongs to this host and is running."""
        return self.host == socket.gethostname() and is_running(self.pid, self.began)


@dataclass(frozen=True)
class Start:
    """What rank 0 decided, and the devices that it claimed where jobs share the host."""

    decision: Decision
    devices: tuple[int, ...] = ()


@dataclass(frozen=True)
class RankProgress:
    """How far rank 0 has come."""

    phase: str = "starting"
    step: int = 0
    steps: int = 1
    loss: float | None = None


def read_progress(folder: Path) -> RankProgress:
    """The progress of a folder's job, which anybody may read."""
    return _read(folder / PROGRESS, RankProgress, read=read_file) or RankProgress()


def write_progress(folder: Path, progress: RankProgress) -> None:
    """Show the progress of a folder's job; raises OSError."""
    write_atomically(folder / PROGRESS, json.dumps(asdict(progress)).encode(), durable=False)


_READERS = {kind: TypeAdapter(kind) for kind in (RankError, RankProcess, RankProgress, Start)}
T = TypeVar("T", RankError, RankProcess, RankProgress, Start)


def _read(path: Path, kind: type[T], *, read: Callable[[Path], bytes] = read_own) -> T | None:
    """What a rank left in a file; None if it is missing, incomplete, or owned by another user."""
    try:
        return cast("T", _READERS[kind].validate_json(read(path)))
    except (OSError, ValidationError, InputError):
        return None


@dataclass(frozen=True)
class Attempt:
    """One start of the job for the repeat in `folder`, identified by `job_id` and `restarts`."""

    folder: Path
    job_id: str
    restarts: int = 0  # how often the scheduler has requeued the job
    output: Path | None = None  # where the ranks' output goes, if not to the log

    @classmethod
    def latest(cls, folder: Path, job_id: str, output: Path, *, at_least: int = 0) -> Attempt:
        """The last start of a job in which any rank has registered."""
        paths = (folder / LOGS).glob(f"{job_id}.r*.rank*.pid")
        starts = [int(path.name.removeprefix(f"{job_id}.r").split(".")[0]) for path in paths]
        return cls(folder, job_id, max([at_least, *starts]), output)

    @property
    def name(self) -> str:
        """The prefix of this start's files."""
        return f"{self.job_id}.r{self.restarts}" if self.restarts else self.job_id

    @property
    def log(self) -> Path:
        """The folder that holds the logs and these files; private to the user."""
        return self.folder / LOGS

    def path(self, name: str) -> Path:
        """The path of a file that belongs to this start only."""
        return self.log / f"{self.name}.{name}"

    def decide(self, decision: Decision, devices: tuple[int, ...] = ()) -> None:
        """As rank 0, tell the others to run, and on which devices, or that it is measured."""
        self._write("start", Start(decision, devices))

    def wait_for_leader(self, *, patience_s: float = 60.0) -> Decision:
        """Wait for rank 0's decision.

        Raises TimeoutError `patience_s` after its last heartbeat, and LabError if it is known to
        have ended.
        """
        # Compared with each other, never with a clock: the nodes' clocks differ and may jump.
        beat, since = self._last_heartbeat(), time.monotonic()
        while (start := self.start()) is None:
            if (latest := self._last_heartbeat()) != beat:
                beat, since = latest, time.monotonic()
            if ended := next((error for error in self.errors() if error.rank == 0), None):
                raise LabError(str(ended))
            if time.monotonic() - since > patience_s:
                raise TimeoutError(f"no heartbeat from rank 0 for {patience_s:.0f} s")
            time.sleep(POLL_S)
        return start.decision

    def start(self) -> Start | None:
        """What rank 0 decided; None before it did."""
        return _read(self.path("start"), Start)

    def _last_heartbeat(self) -> int | None:
        with contextlib.suppress(OSError):
            return self.path("alive").stat().st_mtime_ns
        return None

    def heartbeat(self) -> None:
        """As rank 0, show the others that it still waits; raises OSError if its files are gone."""
        self.path("alive").touch()

    def show(self, phase: str) -> None:
        """Show what the job does before a rank reports its own progress."""
        if read_progress(self.folder).phase != phase:
            with contextlib.suppress(OSError):
                write_progress(self.folder, RankProgress(phase))

    def register_rank(self, rank: int) -> None:
        """Record this rank's host and process id, to distinguish a lost rank from a silent one."""
        process = RankProcess(socket.gethostname(), os.getpid(), began(os.getpid()))
        self._write(f"rank{rank}.pid", process)

    def any_registered(self) -> bool:
        """Whether any rank has started."""
        return any(self.log.glob(f"{self.name}.rank*.pid"))

    def running_ranks(self) -> list[int]:
        """Process ids of the ranks running on this host."""
        paths = self.log.glob(f"{self.name}.rank*.pid")
        processes = [_read(path, RankProcess) for path in paths]
        return [process.pid for process in processes if process and process.runs_here]

    def write_error(self, error: RankError) -> None:
        """Record how a rank ended."""
        self._write(f"rank{error.rank}.error.json", error)

    def observe_exit(self, rank: int, code: int, doing: str) -> None:
        """As a rank's parent, record how its process ended in a phase, unless the rank did.

        A negative `code` is a signal.
        """
        path = self.path(f"rank{rank}.error.json")
        if not self.log.is_dir() or _read(path, RankError) is not None:
            return
        how = f"ended with exit status {code} and could not say why (a full disk, or os._exit?)"
        if code < 0:
            has_name = -code in set(signal.Signals)  # not all real-time signals have a name
            name = signal.Signals(-code).name if has_name else f"signal {-code}"
            cause = " (by a person, or because memory ran out)" if name == "SIGKILL" else ""
            how = f"was killed by {name}{cause}"
        message = f"rank {rank} {how} in the phase {doing or 'starting'!r}"
        if code > 0 or -code in CRASHES:
            message += log_end(_last_line([self.log_tail(rank)]))
        self.write_error(RankError(rank, "RankLost", message))

    def errors(self) -> list[RankError]:
        """Errors of the ranks: causes, ends only observed from outside, ranks that only waited."""
        paths = self.log.glob(f"{self.name}.rank*.error.json")
        errors = [error for path in paths if (error := _read(path, RankError))]
        return sorted(errors, key=lambda e: (e.waiting, e.observed, e.time, e.rank))

    def _write(self, name: str, content: RankError | RankProcess | Start) -> None:
        write_atomically(self.path(name), json.dumps(asdict(content)).encode(), mode=OWN_MODE)

    def log_tail(self, rank: int) -> str:
        """The last LOG_LINES lines printed by a rank."""
        path = (self.output or self.log) / f"{self.job_id}_{rank}_log.out"
        try:
            with path.open("rb") as stream:
                stream.seek(max(path.stat().st_size - LOG_BYTES, 0))
                text = stream.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-LOG_LINES:])

    def last_line(self) -> str:
        """The last non-empty line of the ranks' logs that says more than that a rank ended."""
        return _last_line(self.log_tails())

    def log_tails(self) -> list[str]:
        """The ends of the ranks' logs that were opened, even if nothing was written to them."""
        paths = (self.output or self.log).glob(f"{self.job_id}_*_log.out")
        ranks = (path.name.removeprefix(f"{self.job_id}_").split("_")[0] for path in paths)
        return [self.log_tail(rank) for rank in sorted(map(int, ranks))]


def _last_line(tails: Iterable[str]) -> str:
    lines = [text for tail in tails for line in tail.splitlines() if (text := line.strip())]
    causes = [line for line in lines if not ONLY_ENDED.match(line)]
    return next(reversed(causes or lines), "")


def present(folder: Path) -> tuple[Any, Attempt]:
    """submitit's view of this process's place in its job, and the job's files in `folder`."""
    import submitit

    here = submitit.JobEnvironment()
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    return here, Attempt(folder, here.job_id, restarts, Path(os.environ["SUBMITIT_FOLDER"]))


@contextmanager
def claim(
    attempt: Attempt, *, names: Sequence[str] | None = (), count: int = 0
) -> Iterator[tuple[int, ...]]:
    """Lock a task and then `count` of the devices with these names; yields their indices in order.

    With None, all of this machine's are locked, and no indices yielded, as the job may use all that
    it sees; without names, none are. The kernel releases all locks of this module when the process
    ends, however it ends.
    """
    with _locked(attempt.folder / "lock", attempt), contextlib.ExitStack() as stack:
        if names is not None and not names:
            yield ()
            return
        # Jobs wait for devices in a queue, so those that need few cannot starve one that needs many
        # and two jobs cannot deadlock: only who is first waits for devices.
        # Private to this user, and the same for every study on this machine.
        folder = private_folder(Path(tempfile.gettempdir()) / f"scaling-lab-{os.getuid()}")
        queue = stack.enter_context(contextlib.ExitStack())
        queue.enter_context(_locked(folder / "devices.lock", attempt, phase=WAITING))
        paths = [folder / f"device-{name.replace('/', '-')}.lock" for name in names or ()]
        locks = [FileLock(path) for path in paths or sorted(folder.glob("device-*.lock"))]
        while sum(lock.is_locked for lock in locks) < (len(locks) if names is None else count):
            attempt.heartbeat()
            free = (lock for lock in locks if not lock.is_locked and _acquire(lock, timeout=0))
            if lock := next(free, None):
                stack.callback(lock.release)
            else:
                attempt.show(WAITING)
                time.sleep(POLL_S)
        if names is None:
            yield ()
            return
        queue.close()
        yield tuple(index for index, lock in enumerate(locks) if lock.is_locked)


@contextmanager
def _locked(path: Path, attempt: Attempt, *, phase: str = "") -> Iterator[None]:
    """Lock a file; an attempt that has locked its task is shown in this phase while it waits."""
    lock = FileLock(path)
    attempt.heartbeat()
    while not _acquire(lock, timeout=2):
        if phase:
            attempt.show(phase)
        attempt.heartbeat()
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, *, timeout: float) -> bool:
    with contextlib.suppress(Timeout):
        lock.acquire(timeout=timeout, poll_interval=POLL_S)
    return lock.is_locked
