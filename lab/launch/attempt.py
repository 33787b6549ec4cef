"""The files by which a job's ranks and its driver talk: claim, heartbeat, pids, errors, logs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from lab.files import read_json, write_atomically
from lab.machine import began, is_running

Decision = Literal["run", "skip"]


@dataclass(frozen=True)
class RankError:
    """How one rank ended: the exception, when (s since the epoch), and its traceback."""

    rank: int
    type: str
    message: str
    time: float
    traceback: str = ""
    waiting: bool = False  # it stood in a collective, so another rank is the cause


@dataclass(frozen=True)
class Attempt:
    """One start of the job of the repeat in `folder`; `job_id` and `restarts` identify it."""

    folder: Path
    job_id: str
    restarts: int = 0  # how often the scheduler has put the job back into its queue
    output: Path | None = None  # where the ranks' output goes, unless to the log

    @classmethod
    def latest(cls, folder: Path, job_id: str, output: Path, *, at_least: int = 0) -> Attempt:
        """The last start of a job of which any rank has registered."""
        paths = (folder / "log").glob(f"{job_id}.r*.rank*.pid")
        starts = [int(path.name.removeprefix(f"{job_id}.r").split(".")[0]) for path in paths]
        return cls(folder, job_id, max([at_least, *starts]), output)

    @property
    def name(self) -> str:
        """The prefix of this start's files."""
        return f"{self.job_id}.r{self.restarts}" if self.restarts else self.job_id

    @property
    def log(self) -> Path:
        """The folder of logs, submitit's pickles and these files; private to the user."""
        return self.folder / "log"

    def path(self, name: str) -> Path:
        """A file of this start alone."""
        return self.log / f"{self.name}.{name}"

    def decide(self, decision: Decision) -> None:
        """As rank 0, tell the others to run, or that the task is measured already."""
        write_atomically(self.path("start"), decision.encode())

    def wait_for_leader(self, *, patience_s: float = 60.0) -> Decision:
        """Wait for rank 0's decision; raises TimeoutError `patience_s` after its last heartbeat."""
        # Compared with each other, never with a clock: the nodes' clocks differ, and may jump.
        beat, since = self._last_heartbeat(), time.monotonic()
        while not self.path("start").exists():
            if (latest := self._last_heartbeat()) != beat:
                beat, since = latest, time.monotonic()
            if time.monotonic() - since > patience_s:
                raise TimeoutError(f"no heartbeat of rank 0 for {patience_s:.0f} s")
            time.sleep(0.05)
        return "skip" if self.path("start").read_text() == "skip" else "run"

    def _last_heartbeat(self) -> int | None:
        with contextlib.suppress(OSError):
            return self.path("alive").stat().st_mtime_ns
        return None

    def heartbeat(self) -> None:
        """As rank 0, show the others that it still waits for its claim."""
        self.log.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path("alive").touch()

    def register_rank(self, rank: int) -> None:
        """Leave this rank's host and process id, to tell a lost rank from a silent one."""
        content = {"host": socket.gethostname(), "pid": os.getpid(), "began": began(os.getpid())}
        write_atomically(self.path(f"rank{rank}.pid"), json.dumps(content).encode())

    def any_registered(self) -> bool:
        """Whether any rank has started."""
        return any(self.log.glob(f"{self.name}.rank*.pid"))

    def running_ranks(self) -> list[int]:
        """Process ids of the ranks that run, all of them on this host."""
        contents = map(read_json, self.log.glob(f"{self.name}.rank*.pid"))
        return [
            content["pid"]
            for content in contents
            if content is not None and is_running(content["pid"], content["began"])
        ]

    def lost_ranks(self, world_size: int) -> list[int]:
        """Ranks of this host whose process is gone and left no error."""
        failed = {error.rank for error in self.errors()}
        return [rank for rank in range(world_size) if rank not in failed and self._is_gone(rank)]

    def _is_gone(self, rank: int) -> bool:
        content = read_json(self.path(f"rank{rank}.pid"))
        if content is None or content["host"] != socket.gethostname():
            return False
        return not is_running(content["pid"], content["began"])

    def write_error(self, error: RankError) -> None:
        """Leave how a rank ended."""
        path = self.path(f"rank{error.rank}.error.json")
        write_atomically(path, json.dumps(asdict(error)).encode())

    def errors(self) -> list[RankError]:
        """Errors of the ranks: causes before those that only waited for them, then by time."""
        contents = map(read_json, self.log.glob(f"{self.name}.rank*.error.json"))
        errors = [RankError(**content) for content in contents if content is not None]
        return sorted(errors, key=lambda error: (error.waiting, error.time))

    def log_tail(self, rank: int, *, lines: int = 30) -> str:
        """The last lines that a rank printed."""
        path = (self.output or self.log) / f"{self.job_id}_{rank}_log.out"
        try:
            with path.open("rb") as stream:
                stream.seek(max(path.stat().st_size - 20_000, 0))
                text = stream.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def last_line(self) -> str:
        """The last line of the ranks' logs that is not empty."""
        lines = (line.strip() for tail in self._log_tails() for line in tail.splitlines())
        return next(reversed([line for line in lines if line]), "")

    def log_contains(self, *phrases: str) -> bool:
        """Whether the ends of the ranks' logs contain one of these, in lower case."""
        return any(phrase in tail.lower() for tail in self._log_tails() for phrase in phrases)

    def _log_tails(self) -> list[str]:
        paths = (self.output or self.log).glob(f"{self.job_id}_*_log.out")
        ranks = (path.name.removeprefix(f"{self.job_id}_").split("_")[0] for path in paths)
        return [self.log_tail(rank) for rank in sorted(map(int, ranks))]


@contextmanager
def claim(folder: Path, attempt: Attempt, *, devices: bool) -> Iterator[None]:
    """Hold a task and then, where no scheduler shares them out, this machine's `devices`.

    The kernel releases both when the process ends, however it ends. The order is the same in every
    job, so that two of them cannot deadlock.
    """
    paths = [folder / "lock", *([_private_folder() / "devices.lock"] if devices else [])]
    with contextlib.ExitStack() as stack:
        for lock in map(FileLock, paths):
            while not lock.is_locked:
                attempt.heartbeat()
                with contextlib.suppress(Timeout):
                    lock.acquire(timeout=2, poll_interval=0.05)
            stack.callback(lock.release)
        yield


def _private_folder() -> Path:
    """A folder of this user's alone, the same for every study on this machine."""
    folder = Path(tempfile.gettempdir()) / f"scaling-lab-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{folder} belongs to another user: set TMPDIR to a folder of your own"
        )
    return folder
