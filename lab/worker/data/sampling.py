"""Which samples a step sees: drawn for the whole global batch at once, so that the number of ranks changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lab.study import Run

_TRAINING, _EVALUATION = 0, 1


class Sampler:
    """One rank's micro-batches, as int64 arrays (samples, block_size + 1): inputs and, moved by one, targets.

    A step's samples are a function of the seed, the step and the global batch size alone. Ranks take
    consecutive slices of the global batch, micro-batches consecutive slices of the rank's; ranks that share out the
    model take the same slice, and a process of several devices that of all of them.
    """

    def __init__(self, tokens: npt.NDArray[np.unsignedinteger[Any]], *, run: Run, rank: int) -> None:
        self.run = run
        self.shares = min(run.data_parallel_size, run.processes)
        self.rank = rank % self.shares
        self.size = run.global_batch_size // (run.grad_accum * self.shares)  # of a micro-batch of this process
        self._windows = np.lib.stride_tricks.sliding_window_view(tokens, run.architecture.block_size + 1)
        self._step = -1
        self._offsets = np.empty(0, dtype=np.int64)

    def micro_batch(self, step: int, micro: int) -> npt.NDArray[np.int64]:
        """The `micro`-th micro-batch of a training step."""
        if step != self._step:
            self._step = step
            self._offsets = _draw(len(self._windows), self.run.global_batch_size, seed=self.run.seed, stream=_TRAINING, step=step)
        first = (self.rank * self.run.grad_accum + micro) * self.size
        return self._windows[self._offsets[first : first + self.size]].astype(np.int64)

    def evaluation(self) -> list[npt.NDArray[np.int64]]:
        """The rank's share of `eval_batches` global batches, the same samples at every seed and world size."""
        share = self.run.eval_batches * self.run.grad_accum
        offsets = _draw(len(self._windows), share * self.size * self.shares, seed=0, stream=_EVALUATION, step=0)
        mine = offsets.reshape(self.shares, share, self.size)[self.rank]
        return [self._windows[part].astype(np.int64) for part in mine]


def _draw(windows: int, samples: int, *, seed: int, stream: int, step: int) -> npt.NDArray[np.int64]:
    # Philox counts: any step's numbers are there without drawing those before it.
    generator = np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, 0, step]))
    return generator.integers(0, windows, size=samples)
