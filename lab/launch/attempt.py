"""What the ranks of one job and its driver tell each other through files: claim, start, progress, errors."""

from __future__ import annotations

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
    """How one rank ended: the exception's type and message, when (s since the epoch), and its traceback."""

    rank: int
    type: str
    message: str
    time: float
    traceback: str = ""
    waiting: bool = False  # it stood in a collective, so another rank is the cause


@dataclass(frozen=True)
class Attempt:
    """One start of a job of a task: `folder` is the repeat's folder, `job_id` and `restarts` tell its starts apart."""

    folder: Path
    job_id: str
    restarts: int = 0  # how often the scheduler has put the job back into its queue
    output: Path | None = None  # where the ranks' output goes, unless to the log

    @classmethod
    def latest(cls, folder: Path, job_id: str, output: Path, *, at_least: int = 0) -> Attempt:
        """The last start of a job of which there is a sign."""
        signs = (folder / "log").glob(f"{job_id}.r*.rank*.pid")
        seen = [int(path.name.removeprefix(f"{job_id}.r").split(".")[0]) for path in signs]
        return cls(folder, job_id, max([at_least, *seen]), output)

    @property
    def name(self) -> str:
        """What the files of this start begin with."""
        return f"{self.job_id}.r{self.restarts}" if self.restarts else self.job_id

    @property
    def log(self) -> Path:
        """The folder of logs, submitit's pickles and the files of this class; private to the user."""
        return self.folder / "log"

    def path(self, name: str) -> Path:
        """A file of this start alone."""
        return self.log / f"{self.name}.{name}"

    @property
    def rendezvous(self) -> Path:
        """Where rank 0 publishes its address."""
        return self.path("rendezvous")

    def decide(self, decision: Decision) -> None:
        """Rank 0 tells the others to run, or that the work is done already."""
        write_atomically(self.path("start"), decision.encode())

    def await_decision(self, *, patience_s: float = 60.0) -> Decision:
        """Wait for rank 0's word for as long as it shows signs of life; raises TimeoutError when it no longer does."""
        # Signs are compared with each other and never with a clock: those of the nodes differ, and may jump.
        sign, seen = self._sign_of_life(), time.monotonic()
        while not self.path("start").exists():
            if (now := self._sign_of_life()) != sign:
                sign, seen = now, time.monotonic()
            if time.monotonic() - seen > patience_s:
                raise TimeoutError(f"rank 0 gave no sign for {patience_s:.0f} s")
            time.sleep(0.05)
        return "skip" if self.path("start").read_text() == "skip" else "run"

    def _sign_of_life(self) -> int | None:
        try:
            return self.path("alive").stat().st_mtime_ns
        except OSError:
            return None

    def show_life(self) -> None:
        """Rank 0 tells the others that it still waits for its turn."""
        self.log.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path("alive").touch()

    def sign_on(self, rank: int) -> None:
        """Leave this rank's host and process id, so that its loss can be told from its silence."""
        content = {"host": socket.gethostname(), "pid": os.getpid(), "began": began(os.getpid())}
        write_atomically(self.path(f"rank{rank}.pid"), json.dumps(content).encode())

    def signed_on(self) -> bool:
        """Whether any rank has come to life."""
        return any(self.log.glob(f"{self.name}.rank*.pid"))

    def lost_ranks(self, world_size: int) -> list[int]:
        """Ranks of this host whose process is gone and left no error."""
        told = {error.rank for error in self.errors()}
        return [rank for rank in range(world_size) if rank not in told and self._gone(rank)]

    def _gone(self, rank: int) -> bool:
        content = read_json(self.path(f"rank{rank}.pid"))
        if content is None or content["host"] != socket.gethostname():
            return False
        return not is_running(content["pid"], content["began"])

    def write_error(self, error: RankError) -> None:
        """Leave how a rank ended."""
        write_atomically(
            self.path(f"rank{error.rank}.error.json"), json.dumps(asdict(error)).encode()
        )

    def errors(self) -> list[RankError]:
        """What the ranks said, causes before those that only waited for them, earlier before later."""
        found = [read_json(path) for path in self.log.glob(f"{self.name}.rank*.error.json")]
        errors = [RankError(**content) for content in found if content is not None]
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
        """The last line of the ranks' logs that says something."""
        lines = [
            line.strip()
            for rank in self._logged()
            for line in self.log_tail(rank).splitlines()
            if line.strip()
        ]
        return lines[-1] if lines else ""

    def says(self, *words: str) -> bool:
        """Whether the ends of the ranks' logs hold one of these, in lower case."""
        return any(word in self.log_tail(rank).lower() for rank in self._logged() for word in words)

    def _logged(self) -> list[int]:
        printed = (self.output or self.log).glob(f"{self.job_id}_*_log.out")
        return sorted(
            int(path.name.removeprefix(f"{self.job_id}_").split("_")[0]) for path in printed
        )


@contextmanager
def claim(folder: Path, attempt: Attempt, *, devices: bool) -> Iterator[None]:
    """Hold a task and then, where no scheduler shares them out, this machine's `devices`, for as long as this process lives.

    The kernel lets go of both when the process dies, however it dies. The order is the same in every job, so that
    two of them cannot wait for each other.
    """
    locks = [FileLock(folder / "lock")] + (
        [FileLock(_private_folder() / "devices.lock")] if devices else []
    )
    for lock in locks:
        while True:
            attempt.show_life()
            try:
                lock.acquire(timeout=2, poll_interval=0.05)
                break
            except Timeout:
                continue
    try:
        yield
    finally:
        for lock in reversed(locks):
            lock.release()


def _private_folder() -> Path:
    """A folder of this user's alone, the same for every study on this machine."""
    folder = Path(tempfile.gettempdir()) / f"scaling-lab-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{folder} belongs to somebody else: set TMPDIR to a folder of your own"
        )
    return folder
