"""Rung 2: data parallelism the naive way, one all-reduce per gradient, after the backward pass."""

from torch import distributed as dist
from torch import nn

from lab.worker.strategies.base import Setup, Strategy, Wrapper


class NaiveDDP(Strategy):
    """Every rank has the whole model and its own samples."""

    def wrap(self, model: nn.Module, setup: Setup) -> Wrapper:
        """All ranks begin with the parameters of rank 0."""
        ### BEGIN SOLUTION
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        ### END SOLUTION
        return Wrapper(model)

    def synchronize(self, parallel: Wrapper) -> None:
        """After the backward pass: every gradient becomes its mean over the ranks."""
        for parameter in parallel.parameters():
            assert parameter.grad is not None
            ### BEGIN SOLUTION
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)
            ### END SOLUTION
