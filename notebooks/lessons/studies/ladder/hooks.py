"""Rung 4: send a gradient as soon as it is ready, while the backward pass computes the next."""

from torch import distributed as dist
from torch import nn

from lab.worker.strategies.base import Setup, Strategy, Wrapper


class Hooked(Wrapper):
    """A model whose gradients leave for the other ranks during the backward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.sent = []  # for each all-reduce under way, what is needed to wait for it
        for parameter in model.parameters():
            # Called in the backward pass, when `parameter.grad` is complete.
            parameter.register_post_accumulate_grad_hook(self.ready)

    def ready(self, parameter: nn.Parameter) -> None:
        """Begin to average a gradient, and do not wait for it."""
        assert parameter.grad is not None
        ### BEGIN SOLUTION
        parameter.grad /= dist.get_world_size()
        self.sent.append(dist.all_reduce(parameter.grad, async_op=True))
        ### END SOLUTION


class HookedDDP(Strategy):
    """One all-reduce per gradient, behind the backward pass."""

    def wrap(self, model: nn.Module, setup: Setup) -> Hooked:
        """All ranks begin with the parameters of rank 0."""
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        return Hooked(model)

    def synchronize(self, parallel: Hooked) -> None:
        """After the backward pass: wait until every gradient is the mean over the ranks."""
        ### BEGIN SOLUTION
        for work in parallel.sent:
            work.wait()
        parallel.sent.clear()
        ### END SOLUTION
        assert not parallel.sent, "what was sent in this step must not be waited for in the next"
