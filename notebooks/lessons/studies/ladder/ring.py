"""Rung 1: an all-reduce of your own, which sends messages to the next rank only."""

import torch
from torch import distributed as dist


def all_reduce(tensor: torch.Tensor) -> None:
    """Leave the sum over all ranks in `tensor`, which is flat, on every rank.

    Use `dist.isend(tensor, rank)` and `dist.irecv(tensor, rank)`, which return at once, and their
    `wait()`. A tensor's length need not be a multiple of the number of ranks.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    before, after = (rank - 1) % n, (rank + 1) % n
    chunks = list(tensor.tensor_split(n))  # views: writing to them writes to `tensor`
    assert sum(chunk.numel() for chunk in chunks) == tensor.numel()
    ### BEGIN SOLUTION
    for r in range(n - 1):
        incoming = torch.empty_like(chunks[(rank - r - 1) % n])
        sending = dist.isend(chunks[(rank - r) % n], after)
        dist.irecv(incoming, before).wait()
        chunks[(rank - r - 1) % n] += incoming
        sending.wait()
    for r in range(n - 1):
        incoming = torch.empty_like(chunks[(rank - r) % n])
        sending = dist.isend(chunks[(rank + 1 - r) % n], after)
        dist.irecv(incoming, before).wait()
        chunks[(rank - r) % n].copy_(incoming)
        sending.wait()
    ### END SOLUTION
