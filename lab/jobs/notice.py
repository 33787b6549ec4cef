"""The scheduler's notice that it is about to end this job, for its time is over or its nodes are wanted."""

from __future__ import annotations

import signal
from types import FrameType

_given = False


def listen() -> None:
    """Take the signals by which Slurm gives notice; whoever saves its state does so then, and works on until it is killed.

    A job that ended by itself would count as one that failed, and not be put back into the queue.
    """
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, _note)


def given() -> bool:
    """Whether notice was given."""
    return _given


def _note(signum: int, frame: FrameType | None) -> None:
    global _given
    _given = True
