"""A ring of ranks on paper: who sends what to its neighbour, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Ring:
    """`n` ranks in a ring, each with a tensor cut into `n` chunks; a rank can send only to the next one, (rank + 1) % n.

    `chunks[rank][chunk]` is what a rank holds. What is sent in a round arrives when the round ends, so that all ranks
    send at the same time. Raises ValueError for tensors that are not cut into as many chunks as there are ranks.
    """

    def __init__(self, chunks: Sequence[Sequence[Any]]) -> None:
        self.chunks = [[np.array(chunk, dtype=float) for chunk in rank] for rank in chunks]
        self.n = len(self.chunks)
        if any(len(rank) != self.n for rank in self.chunks):
            raise ValueError(f"each of {self.n} ranks needs {self.n} chunks")
        self.rounds = 0
        self.sent = [0] * self.n
        self.busiest = 0
        self._waiting: list[tuple[int, int, Any, bool]] = []

    def send(self, rank: int, chunk: int, *, add: bool) -> None:
        """Send one chunk to the next rank, which adds it to its own or, without `add`, keeps it in its place."""
        self._waiting.append(((rank + 1) % self.n, chunk % self.n, self.chunks[rank % self.n][chunk % self.n].copy(), add))
        self.sent[rank % self.n] += 1

    def end_round(self) -> None:
        """Let everything that was sent arrive."""
        senders = [receiver for receiver, *_ in self._waiting]
        self.busiest = max([self.busiest, *(senders.count(rank) for rank in senders)])
        for receiver, chunk, value, add in self._waiting:
            self.chunks[receiver][chunk] = self.chunks[receiver][chunk] + value if add else value
        self._waiting = []
        self.rounds += 1

    @property
    def pending(self) -> bool:
        """Whether something was sent and no round ended since."""
        return bool(self._waiting)
