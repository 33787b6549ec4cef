"""Drive jobs: submit works as their queue has room, and watch each to its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.jobs import queues
from lab.jobs.queues import Handle, Queue, Work

# How long the other ranks may take to end by themselves once one of them has failed, in s.
GRACE_S = 20.0
PAUSE_S = 0.1


@dataclass
class Driver:
    """What one driver has under way, by the jobs' folders.

    `ended` is called once for each job, when it is over; `seen`, whether it has left what it was to leave, which may
    take the time that files need from there to here.
    """

    queue: Queue
    ended: Callable[[Path, Handle], None]
    seen: Callable[[Path], bool]
    alive: dict[Path, Handle] = field(default_factory=dict)
    _since: dict[tuple[str, Path], float] = field(default_factory=dict)

    def drive(self, works: Sequence[Work], *, adopted: Mapping[Path, Handle], stopped: Callable[[float], bool]) -> None:
        """See all works and adopted jobs through; `stopped(s)` waits s seconds and tells whether to leave them as they are."""
        waiting = deque(works)
        self.alive |= adopted
        while waiting or self.alive:
            if (room := self.queue.room(len(self.alive))) > 0 and waiting:
                chosen = [waiting.popleft() for _ in range(min(room, len(waiting)))]
                self.alive |= zip((work.folder for work in chosen), self.queue.submit(chosen), strict=True)
            pause = queues.look(self.alive.values())
            for folder, handle in list(self.alive.items()):
                if self._is_over(folder, handle):
                    del self.alive[folder]
                    self.ended(folder, handle)
            if (waiting or self.alive) and stopped(pause if self.alive else 0.0):
                return

    def _is_over(self, folder: Path, handle: Handle) -> bool:
        state = handle.stand().state
        if state == "ended":
            return self.seen(folder) or self._lasts("ended", folder) >= handle.lag_s
        if state == "running" and handle.attempt.errors():
            if self._lasts("failed", folder) > GRACE_S:
                queues.end([handle])
        else:
            self._since.pop(("failed", folder), None)  # it was put back into its queue
        return False

    def _lasts(self, what: str, folder: Path) -> float:
        now = time.monotonic()
        return now - self._since.setdefault((what, folder), now)
