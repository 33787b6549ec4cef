"""Where the processes that a rank has started stand, such as the workers of its DataLoader."""

from __future__ import annotations

import faulthandler
import os
import re
import select
import signal
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

# A signal that neither Slurm, submitit nor a script is likely to use; macOS has none of them.
ASK: int = getattr(signal, "SIGRTMIN", 0)
ANSWER_S, PAUSE_S = 1.0, 0.05  # the longest wait for a stack, and for its next line
SILENT = {psutil.STATUS_STOPPED: "is stopped", psutil.STATUS_DISK_SLEEP: "waits for a disk"}
PLURALS = {"process": "processes", "DataLoader worker": "DataLoader workers"}
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
Stacks = Mapping[int, traceback.StackSummary | str]


class Children:
    """Asks the processes that were forked from this one for their Python stacks.

    Must be made before they start: a fork inherits the handler that writes the stack to a pipe.
    """

    def __init__(self) -> None:
        self._answers, pipe = os.pipe()
        if ASK:
            faulthandler.register(ASK, file=pipe, all_threads=False)

    def stacks(self) -> Stacks:
        """The stack of each child by its process id, innermost last, or why it has none."""
        stacks: dict[int, traceback.StackSummary | str] = {}
        for child in psutil.Process().children(recursive=True):
            try:
                silent = SILENT.get(child.status())
                if silent is None and _listens(child.pid):
                    stacks[child.pid] = self._ask(child.pid) or "gives no sign"
                else:
                    stacks[child.pid] = silent or f"runs {' '.join(child.cmdline())[:80]}"
            except (psutil.Error, OSError):  # it has just ended
                continue
        return stacks

    def _ask(self, pid: int) -> traceback.StackSummary:
        os.kill(pid, ASK)
        text, patience = b"", ANSWER_S
        while select.select([self._answers], [], [], patience)[0]:
            text, patience = text + os.read(self._answers, 2**16), PAUSE_S
        frames = [
            (match["file"], int(match["line"]), match["name"], None)
            for match in FRAME.finditer(text.decode(errors="replace"))
        ]
        frames = frames[::-1]
        # What a fork of multiprocessing did before it was forked is the rank's own stack.
        names = [name for _, _, name, _ in frames]
        begin = names.index("_bootstrap") if "_bootstrap" in names else 0
        return traceback.StackSummary.from_list(frames[begin:])


def _listens(pid: int) -> bool:
    """Whether a process handles the signal, which would end any other."""
    status = Path(f"/proc/{pid}/status")
    match = re.search(r"^SigCgt:\s*(\w+)", status.read_text(), re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> (ASK - 1) & 1)


def place(stack: Sequence[traceback.FrameSummary]) -> str:
    """The innermost function of a stack, with its file and line."""
    last = stack[-1]
    return f"stood in {last.name} ({Path(last.filename).name}:{last.lineno})"


def busy(stacks: Stacks) -> str:
    """The children that do not wait for work, and where each of them stands; "" if none."""
    places: dict[tuple[str, str], list[int]] = {}
    for pid, stack in stacks.items():
        kind = "process"
        if isinstance(stack, str):
            if stack not in SILENT.values():
                continue
            where = stack
        else:
            if any((Path(f.filename).name, f.name) == ("queues.py", "get") for f in stack):
                continue
            if any(frame.name == "_worker_loop" for frame in stack):
                kind = "DataLoader worker"
            where = place(stack)
        places.setdefault((kind, where), []).append(pid)
    return "; ".join(
        f"its {kind if len(pids) == 1 else PLURALS[kind]} {', '.join(map(str, pids))} {where}"
        for (kind, where), pids in places.items()
    )


def listed(stacks: Stacks) -> str:
    """All stacks, in the form of a traceback."""
    return "".join(
        f"Process {pid}, started by this rank, {stack}\n"
        if isinstance(stack, str)
        else f"Process {pid}, started by this rank:\n{''.join(stack.format())}"
        for pid, stack in stacks.items()
    )
