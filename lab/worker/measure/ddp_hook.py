"""The gradients of a rank on their way: a DDP hook that stamps each bucket, and what was stamped."""

# No `from __future__ import annotations` here: DDP compares the annotations of a hook with types, not with their names.

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from lab.worker.measure.clock import Clock, FloatArray

IntArray = npt.NDArray[np.int64]


class Sent(NamedTuple):
    """A bucket that was handed to the link: its average over the ranks in the future, its bytes on the link."""

    future: Future[Any]
    bytes: int


Exchange = Callable[[GradBucket], Sent]


@dataclass(frozen=True)
class Buckets:
    """What one rank sent, in the order of sending; `step` counts backward passes that synchronize, times are in s.

    A bucket is `ready` when its last gradient is, is handed to the link at `launch`, and holds the average at `finish`.
    """

    step: IntArray
    bucket: IntArray
    ready: FloatArray
    launch: FloatArray
    finish: FloatArray
    bytes: IntArray

    def shifted(self, shift: Callable[[FloatArray], FloatArray]) -> "Buckets":
        """The same on another clock."""
        return replace(
            self, ready=shift(self.ready), launch=shift(self.launch), finish=shift(self.finish)
        )

    def after(self, steps: int) -> "Buckets":
        """Without the first steps."""
        late = self.step >= steps
        return Buckets(
            self.step[late] - steps,
            *(getattr(self, field.name)[late] for field in fields(self)[1:]),
        )

    def of(self, step: int) -> "Buckets":
        """Of one step alone."""
        its = self.step == step
        return Buckets(*(getattr(self, field.name)[its] for field in fields(self)))


class BucketRecorder:
    """Keeps the stamps of one rank's buckets; no stamp waits for anything."""

    def __init__(self, clock: Clock, exchange: Exchange | None = None) -> None:
        self.clock, self.exchange = clock, exchange
        self._buckets: list[int] = []
        self._bytes: list[int] = []
        self._marks: list[Any] = []  # ready, launch, finish of each

    def send(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Hand a bucket to the exchange, stamped."""
        assert self.exchange is not None
        now = self.clock.now
        ready = now()
        future, size = self.exchange(bucket)
        launch = now()
        self._buckets.append(bucket.index())
        self._bytes.append(size)
        self._marks += (ready, launch, None)
        return future.then(partial(self._finish, len(self._marks) - 1))

    def _finish(self, place: int, future: Future[Any]) -> torch.Tensor:
        # Runs in a thread of the back end, on CUDA with a stream current that waits for the exchange.
        self._marks[place] = self.clock.now()
        return _average(future)

    def take(self) -> Buckets:
        """What was stamped since the last call, in seconds of this host's `perf_counter`; on CUDA it waits for the device."""
        bucket = np.array(self._buckets, dtype=np.int64)
        ready, launch, finish = self.clock.seconds(self._marks).reshape(-1, 3).T
        # DDP sends its buckets in order: number 0 begins a backward pass.
        found = Buckets(
            np.cumsum(bucket == 0) - 1,
            bucket,
            ready,
            launch,
            finish,
            np.array(self._bytes, dtype=np.int64),
        )
        self._buckets, self._bytes, self._marks = [], [], []
        return found


def recorded(recorder: BucketRecorder, bucket: GradBucket) -> Future[torch.Tensor]:
    """DDP's hook with a recorder as its state."""
    return recorder.send(bucket)


def unrecorded(exchange: Exchange, bucket: GradBucket) -> Future[torch.Tensor]:
    """DDP's hook with an exchange as its state, where nothing is measured."""
    return exchange(bucket).future.then(_average)


def _average(future: Future[Any]) -> torch.Tensor:
    value = future.value()
    average: torch.Tensor = value[0] if isinstance(value, list | tuple) else value
    return average
