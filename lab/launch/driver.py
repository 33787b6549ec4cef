"""Drive jobs: submit works as their queue has room, and watch each to its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.config.cluster import Cluster
from lab.files import read_json
from lab.launch.executor import Executor, Handle, JobSpec

# How long the other ranks may take to end by themselves once one of them has failed, in s.
GRACE_S = 20.0
PAUSE_S = 0.1


@dataclass
class Driver:
    """What one driver has under way, by the jobs' folders.

    `ended` is called once for each job, when it is over; `seen`, whether it has left what it was to leave, which may
    take the time that files need from there to here.
    """

    queue: Executor
    ended: Callable[[Path, Handle], None]
    seen: Callable[[Path], bool]
    alive: dict[Path, Handle] = field(default_factory=dict)
    _since: dict[tuple[str, Path], float] = field(default_factory=dict)

    def drive(
        self,
        works: Sequence[JobSpec],
        *,
        adopted: Mapping[Path, Handle],
        stopped: Callable[[float], bool],
    ) -> None:
        """See all works and adopted jobs through; `stopped(s)` waits s seconds and tells whether to leave them as they are."""
        waiting = deque(works)
        self.alive |= adopted
        while waiting or self.alive:
            if (room := self.queue.room(len(self.alive))) > 0 and waiting:
                chosen = [waiting.popleft() for _ in range(min(room, len(waiting)))]
                self.alive |= zip(
                    (work.folder for work in chosen), self.queue.submit(chosen), strict=True
                )
            pause = poll(self.alive.values())
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
                terminate([handle])
        else:
            self._since.pop(("failed", folder), None)  # it was put back into its queue
        return False

    def _lasts(self, what: str, folder: Path) -> float:
        now = time.monotonic()
        return now - self._since.setdefault((what, folder), now)


def executor_for(cluster: Cluster, home: Path) -> Executor:
    """The queue of a cluster; what belongs to no single job, it keeps under `home`."""
    if cluster.executor == "slurm":
        from lab.launch.slurm.executor import SlurmExecutor

        return SlurmExecutor(cluster, home)
    if cluster.executor == "replay":
        from lab.launch.replay import ReplayExecutor

        return ReplayExecutor(cluster)
    from lab.launch.local import LocalExecutor

    return LocalExecutor(cluster)


def handles(folders: Iterable[Path]) -> dict[Path, Handle]:
    """The last job of each folder that ever had one, of whatever queue, looked at once."""
    from lab.launch.local import LocalHandle
    from lab.launch.slurm.executor import SlurmHandle

    found: dict[Path, Handle] = {}
    for folder in folders:
        content: Mapping[str, Any] | None = read_json(folder / "job.json")
        if content is None:
            continue
        handle: Handle | None = (
            SlurmHandle.of(folder, content)
            if content.get("executor") == "slurm"
            else LocalHandle.of(folder, content)
        )
        if handle is not None:
            found[folder] = handle
    poll(found.values())
    return found


def poll(handles: Iterable[Handle]) -> float:
    """Find out how jobs stand, with one question to each scheduler; returns after how many s to look again."""
    return min((kind.look(ours) for kind, ours in _by_kind(handles)), default=0.0)


def terminate(handles: Iterable[Handle]) -> None:
    """End jobs; returns when they are gone."""
    for kind, ours in _by_kind(handles):
        kind.end(ours)


def _by_kind(handles: Iterable[Handle]) -> list[tuple[type[Handle], list[Handle]]]:
    kinds: dict[type[Handle], list[Handle]] = {}
    for handle in handles:
        kinds.setdefault(type(handle), []).append(handle)
    return list(kinds.items())
