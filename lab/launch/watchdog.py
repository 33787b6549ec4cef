"""What watches a rank: threads inside of it, and its parent, to which the end of a process shows.

The threads publish progress for the driver, and end a rank that makes none for too long. They then
say where the rank stood, and the processes that it had started, such as the workers of its
DataLoader. A rank that has measured but does not end is ended too. The parent records an end that
the rank could not report, and ends processes that it left running, as they would disturb the next
job.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import itertools
import mmap
import os
import re
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import psutil

from lab.errors import LabError
from lab.launch.attempt import Attempt, RankError, RankProgress, present, write_progress
from lab.machine import end_left
from lab.worker.context import ENDING, RankContext

if TYPE_CHECKING:
    from lab.launch.executor import LocalJob, SlurmJob

# A signal that neither Slurm, submitit nor a script is likely to use; macOS has none of them.
ASK: int = getattr(signal, "SIGRTMIN", 0)
ANSWER_S, PAUSE_S = 1.0, 0.05  # the longest wait for a stack, and for its next line
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
# Frames in which a rank waits for the others; they mark it as a victim, not the cause, of a hang.
COLLECTIVE_FRAMES = {
    *("_engine_run_backward", "all_reduce", "barrier", "send", "recv"),
    *("all_gather", "gather", "broadcast", "all_gather_single", "reduce_scatter_single"),
    "_pre_forward",  # of DDP, which sends buffers and the order of its buckets to all ranks
}
TRACE = "collective_trace.py"  # around other strategies' calls and waits
PUBLISH_S = 0.5
# How long a rank may take to fail on its own once another is lost, in s.
LOST_S = 10.0
# How long a job's folder must be gone before its ranks end, in s, as file systems have hiccups.
REMOVED_S = 10.0
# Phases in which every rank makes progress at each step, or need not make more: the shorter
# timeout applies.
STEPPING = ("warm-up", "measuring", ENDING, "evaluating", "comparing", "tracing")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_DOING = mmap.mmap(-1, 128)  # the rank's phase, in memory shared with its parent


class Children:
    """Asks the processes that were forked from this one where they stand.

    Must be made before they start: a fork inherits the handler that writes its stack to a pipe.
    """

    def __init__(self) -> None:
        self._answers, pipe = os.pipe()
        if ASK:
            faulthandler.register(ASK, file=pipe, all_threads=False)

    def places(self) -> list[str]:
        """Where each of them stands, but for those that wait for work."""
        places = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):  # it has just ended
                if _listens(child.pid) and (frames := self._ask(child.pid)):
                    places.append(f"its process {child.pid} {place(*frames[0])}")
        return places

    def _ask(self, pid: int) -> list[tuple[str, str, int]]:
        """The functions, files and lines of a process, innermost first; [] if it waits for work."""
        os.kill(pid, ASK)
        text, patience = b"", ANSWER_S
        while select.select([self._answers], [], [], patience)[0]:
            text, patience = text + os.read(self._answers, 2**16), PAUSE_S
        matches = FRAME.finditer(text.decode(errors="replace"))
        frames = [(one["name"], Path(one["file"]).name, int(one["line"])) for one in matches]
        # What a fork of multiprocessing did before it was forked is the rank's own stack.
        own = list(itertools.takewhile(lambda frame: frame[0] != "_bootstrap", frames))
        return [] if any(frame[:2] == ("get", "queues.py") for frame in own) else own


def _listens(pid: int) -> bool:
    """Whether a process handles the signal, which would end any other."""
    status = Path(f"/proc/{pid}/status")
    match = re.search(r"^SigCgt:\s*(\w+)", status.read_text(), re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> (ASK - 1) & 1)


def place(name: str, file: str, line: int) -> str:
    """The innermost function of a stack, with its file and line, in words."""
    return f"stood in {name} ({file}:{line})"


class Watchdog:
    """Publishes a rank's progress, and ends the rank if there has been none for too long.

    `steps` is the total number; `on_hang` is called before the rank is ended.
    """

    def __init__(
        self, context: RankContext, attempt: Attempt, *, steps: int, on_hang: Callable[[], None]
    ) -> None:
        self._context, self._attempt, self._on_hang = context, attempt, on_hang
        self._last = time.monotonic()
        self._progress = RankProgress(steps=steps)
        self._stopped = threading.Event()
        self._main = threading.get_ident()
        self._since: dict[str, float] = {}
        self._children = Children()

    def start(self) -> None:
        """Begin to watch."""
        self.progress("loading torch", 0, self._progress.steps)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        if self._context.rank == 0:
            threading.Thread(target=self._publish, name="progress", daemon=True).start()

    def stop(self) -> None:
        """Stop watching, as what follows has its own time limit."""
        self._stopped.set()

    def limit_exit(self) -> None:
        """Give this process, with nothing left to do, the hang limit to exit."""
        last = self._progress
        self.progress("ending", last.step, last.steps, last.loss)
        threading.Thread(target=self._exit_late, name="exit limit", daemon=True).start()

    @property
    def phase(self) -> str:
        """The rank's current phase."""
        return self._progress.phase

    def progress(self, phase: str, step: int, steps: int, loss: float | None = None) -> None:
        """Note progress, at no cost to the training, because another thread publishes it."""
        self._last = time.monotonic()
        if phase != self.phase:
            note(phase)
        self._progress = RankProgress(phase, step, steps, loss)

    def _watch(self) -> None:
        context = self._context
        while not self._stopped.wait(1.0):
            limit = context.timeout_s if self.phase in STEPPING else context.start_timeout_s
            if time.monotonic() - self._last > limit:
                self._give_up(limit)
            if self._lasted("removed", self.is_removed()) > REMOVED_S:
                os._exit(1)  # the job could no longer be found or ended
            lost = [error for error in self._attempt.errors() if error.observed]
            if self._lasted("lost", bool(lost)) > LOST_S:
                self._end(lost[0].message, waiting=True)

    def _exit_late(self) -> None:
        # A forgotten thread or an exit handler may wait forever, and the driver waits for the rank.
        time.sleep(self._context.timeout_s)
        waited = f"{self._context.timeout_s:.0f} s after the measurement"
        sys.stderr.write(f"lab: threads or exit handlers still ran {waited}; the rank is ended\n")
        sys.stderr.flush()
        os._exit(0)

    def _lasted(self, event: str, is_so: bool) -> float:
        """How long, in s, a condition has held."""
        now = time.monotonic()
        if not is_so:
            self._since.pop(event, None)
        return now - self._since.setdefault(event, now) if is_so else 0.0

    def is_removed(self) -> bool:
        """Whether the files by which a driver finds the job are gone, not only its logs."""
        if self._attempt.path(f"rank{self._context.rank}.pid").exists():
            return False
        from lab.launch.executor import read_job  # which no other rank needs

        with contextlib.suppress(LabError):
            return not self._is_own(read_job(self._attempt.folder))
        return False

    def _is_own(self, job: LocalJob | SlurmJob | None) -> bool:
        """Whether the last job of the folder is this one, and not one started after a removal."""
        attempt = self._attempt
        if job is None:
            return False
        if job.executor == "local":
            return job.job_id == attempt.job_id
        output = attempt.output
        return output is None or (attempt.folder / job.array).resolve() == output.resolve()

    def _publish(self) -> None:
        # Not in the training thread, as a busy disk would make this rank late for the others.
        published = None
        while not self._stopped.wait(PUBLISH_S if published else 0.0):
            if published is self._progress or self.is_removed():
                continue
            published = self._progress
            # A full disk ends the run only when it causes a loss, not here.
            with contextlib.suppress(OSError):
                write_progress(self._attempt.folder, published)

    def _give_up(self, limit: float) -> None:
        frame = sys._current_frames().get(self._main)
        stack = traceback.extract_stack(frame) if frame else []
        message = f"no progress for {limit:.0f} s in the phase {self.phase!r}"
        if stack:
            last = stack[-1]
            message += f"; {place(last.name, Path(last.filename).name, last.lineno or 0)}"
        waiting = _waits_for_others(stack) or _device_waits()
        text = "".join(traceback.format_list(stack))
        if not waiting:
            self._write_hang(message, waiting=False, stack=text)  # first, as a child may not answer
            message = "; ".join([message, *self._children.places()])
        self._end(message, waiting=waiting, stack=text)

    def _write_hang(self, message: str, *, waiting: bool, stack: str) -> None:
        error = RankError(self._context.rank, "Hang", message, time.time(), stack, waiting)
        self._attempt.write_error(error)

    def _end(self, message: str, *, waiting: bool, stack: str = "") -> None:
        self._write_hang(message, waiting=waiting, stack=stack)
        # The ranks give up together: the one that is the cause writes its error too.
        time.sleep(1.0)
        self._on_hang()
        os._exit(1)


def _waits_for_others(stack: Iterable[traceback.FrameSummary]) -> bool:
    return any(
        entry.name in COLLECTIVE_FRAMES or Path(entry.filename).name == TRACE for entry in stack
    )


def _device_waits() -> bool:
    """Whether this rank's GPU still has work, such as an NCCL kernel waiting for other ranks.

    The GPU of a rank whose host is stuck has finished everything launched on it.
    """
    # Not imported here, as that would also hang if the rank hangs in an import.
    module = sys.modules.get("lab.worker.distributed")
    # A failed device only returns its error, and this rank must end all the same.
    with contextlib.suppress(RuntimeError):
        return module is not None and bool(module.device_is_busy())
    return False


def note(phase: str) -> None:
    """Tell this rank's parent what the rank is doing, at the cost of one copy in memory."""
    _DOING[:] = phase.encode()[: len(_DOING)].ljust(len(_DOING), b"\0")


def supervise(folder: Path) -> None:
    """Return in a child, which is a rank of the job in `folder`; the parent ends as the child does.

    Both end together, whichever is killed. Must be called before the process starts threads.
    """
    here, attempt = present(folder)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    # Whatever the rank starts becomes a child of this process once its own parent has ended.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _prctl(PR_SET_CHILD_SUBREAPER, 0)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        if os.getppid() != parent:
            os._exit(1)
        return

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code = _wait(child)
    if code:
        doing = bytes(_DOING).rstrip(b"\0").decode(errors="replace")
        try:
            attempt.observe_exit(here.global_rank, code, doing)
        except OSError:
            _end_job()
    end_left(psutil.Process().children(recursive=True))
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(parent, -code)
    os._exit(abs(code))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _wait(child: int) -> int:
    """The exit code of a child; others that end meanwhile do not stay as zombies."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            return os.waitstatus_to_exitcode(status)


def _end_job() -> None:
    """End all ranks, as the others would wait for one whose end cannot be told: the disk is full.

    Slurm itself does so; on this machine the ranks' controller does if it is interrupted.
    """
    if os.environ.get("SUBMITIT_EXECUTOR") == "local":
        os.kill(os.getppid(), signal.SIGINT)
