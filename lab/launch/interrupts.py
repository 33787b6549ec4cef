"""Ctrl-C, of which only the first press interrupts what is being done."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class OneInterrupt:
    """While entered, only the first Ctrl-C raises KeyboardInterrupt; `again` tells of another.

    So the jobs that the first one ends are waited for, however often it is pressed. In a thread
    that receives no signals, and where Ctrl-C is ignored, nothing changes.
    """

    def __init__(self) -> None:
        self.again = False
        self._pressed = False
        self._previous: Any = None

    def __enter__(self) -> OneInterrupt:
        self.again = self._pressed = False
        self._previous = signal.getsignal(signal.SIGINT)
        if callable(self._previous) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._press)
        else:
            self._previous = None
        return self

    def __exit__(self, *error: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.again = self._pressed
        self._pressed = True
        if not self.again:
            self._previous(number, frame)
