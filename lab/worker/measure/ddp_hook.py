"""DDP's communication hook, which records when a gradient bucket is ready, launched and reduced.

This is the primary measure of exposed communication: the wait between the last bucket's timestamp
and the end of the backward pass. DDP's own log describes the previous step, and reports
"communication" even with one rank.
"""

# No `from __future__ import annotations`: DDP compares the annotations of a hook with types.

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from lab.worker.measure.clock import Clock, FloatArray, IntArray, Timestamped


class Sent(NamedTuple):
    """A bucket on the link: the future of its average over the ranks, and its bytes on the link."""

    future: Future[Any]
    bytes: int


Exchange = Callable[[GradBucket], Sent]


@dataclass(frozen=True)
class Buckets(Timestamped):
    """One rank's buckets in sending order; `step` counts synchronizing backward passes, times in s.

    A bucket is `ready` when its last gradient is, handed to the link at `launch`, and holds the
    average at `finish`.
    """

    TIMES = ("ready", "launch", "finish")

    bucket: IntArray
    ready: FloatArray
    launch: FloatArray
    finish: FloatArray
    bytes: IntArray

    def after(self, steps: int) -> "Buckets":
        """The buckets without the first steps."""
        rest = self.where(self.step >= steps)
        return replace(rest, step=rest.step - steps)


class BucketRecorder:
    """Keeps one rank's bucket timestamps; taking a timestamp never waits."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.exchange: Exchange | None = None  # set before the first bucket
        self._buckets: list[int] = []
        self._bytes: list[int] = []
        self._marks: list[Any] = []  # ready, launch, finish of each

    def send(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Hand a bucket to the exchange and record its timestamps: DDP's hook, unbound."""
        assert self.exchange is not None
        # DDP calls the hook when the bucket's last gradient is ready: its backward compute is over.
        ready = self.clock.now()
        future, size = self.exchange(bucket)
        # Any time in between is the hook's own compute, such as a cast, not time on the link.
        launch = self.clock.now()
        self._buckets.append(bucket.index())
        self._bytes.append(size)
        self._marks += (ready, launch, None)
        return future.then(partial(self._finish, len(self._marks) - 1))

    def _finish(self, index: int, future: Future[Any]) -> torch.Tensor:
        # Runs in a back-end thread, so the time is that of arrival, not of a wait for it. On CUDA
        # the current stream waits for the exchange, and so does the event.
        self._marks[index] = self.clock.now()
        return _average(future)

    def take(self) -> Buckets:
        """The buckets since the last call, in s of `perf_counter`; on CUDA waits for the device."""
        bucket = np.array(self._buckets, dtype=np.int64)
        ready, launch, finish = self.clock.seconds(self._marks).reshape(-1, 3).T
        # A GPU may have sent a small bucket before its main stream passes the mark of its launch.
        finish = np.maximum(finish, launch)
        # DDP sends its buckets in order, so number 0 begins a backward pass.
        step = np.cumsum(bucket == 0) - 1
        size = np.array(self._bytes, dtype=np.int64)
        buckets = Buckets(step, bucket, ready, launch, finish, size)
        self._buckets, self._bytes, self._marks = [], [], []
        return buckets


def unrecorded(exchange: Exchange, bucket: GradBucket) -> Future[torch.Tensor]:
    """DDP's hook with an exchange as its state, used if nothing is measured."""
    return exchange(bucket).future.then(_average)


def _average(future: Future[Any]) -> torch.Tensor:
    value = future.value()
    # A collective's future holds the list of its tensors; a hook's holds the tensor.
    return value[0] if isinstance(value, list | tuple) else value
