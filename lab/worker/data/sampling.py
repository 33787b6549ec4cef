"""Which samples a step sees: drawn for the whole global batch at once, so that the number of ranks changes nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.study import Run

_TRAINING, _EVALUATION = 0, 1
Indices = npt.NDArray[np.int64]


class Sampler:
    """The global indices of one rank's micro-batches, of `count` samples.

    A step's samples are a function of the seed, the step and the global batch size alone. With `epochs` all samples are
    drawn once, in an order of the epoch's own, before any is drawn again; else each is drawn from all. Ranks take
    consecutive slices of the global batch, micro-batches consecutive slices of the rank's; ranks that share out the
    model take the same slice, and a process of several devices that of all of them.
    """

    def __init__(self, count: int, *, run: Run, rank: int, epochs: bool) -> None:
        self.count, self.run, self.epochs = count, run, epochs
        self.shares = min(run.data_parallel_size, run.processes)
        self.rank = rank % self.shares
        self.size = run.global_batch_size // (run.grad_accum * self.shares)  # of a micro-batch of this process
        self._step = -1
        self._indices = np.empty(0, dtype=np.int64)
        self._numbers = _Numbers()
        self._order: tuple[tuple[int, int, int], Indices] | None = None

    def micro_batch(self, step: int, micro: int) -> Indices:
        """The `micro`-th micro-batch of a training step."""
        if step != self._step:
            self._step = step
            self._indices = self._draw(self.run.global_batch_size, seed=self.run.seed, stream=_TRAINING, step=step)
        first = (self.rank * self.run.grad_accum + micro) * self.size
        return self._indices[first : first + self.size]

    def evaluation(self) -> list[Indices]:
        """The rank's share of `eval_batches` global batches, the same samples at every seed and world size."""
        share = self.run.eval_batches * self.run.grad_accum
        indices = self._draw(share * self.size * self.shares, seed=0, stream=_EVALUATION, step=0)
        return list(indices.reshape(self.shares, share, self.size)[self.rank])

    def _draw(self, samples: int, *, seed: int, stream: int, step: int) -> Indices:
        if not self.epochs:
            return self._numbers.at(seed, stream, step).integers(0, self.count, size=samples)
        epoch, first = divmod(step * samples, self.count)
        drawn = self._shuffled(seed, stream, epoch)[first : first + samples]
        while len(drawn) < samples:
            epoch += 1
            drawn = np.concatenate([drawn, self._shuffled(seed, stream, epoch)[: samples - len(drawn)]])
        return drawn

    def _shuffled(self, seed: int, stream: int, epoch: int) -> Indices:
        """The order of an epoch; the last one is kept."""
        key = (seed, stream, epoch)
        if self._order is None or self._order[0] != key:
            self._order = (key, self._numbers.at(seed, stream, epoch).permutation(self.count))
        return self._order[1]


class _Numbers:
    """Random numbers of any place of a stream, without drawing those before it: Philox counts."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._philox)
        # One generator is set to its places: each step would wait longer for a new one.
        self._fresh = self._philox.state

    def at(self, seed: int, stream: int, place: int) -> np.random.Generator:
        """The generator, set to the beginning of that place."""
        self._fresh["state"]["key"][:] = seed, stream
        self._fresh["state"]["counter"][3] = place
        self._philox.state = self._fresh
        return self._generator
