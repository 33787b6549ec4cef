"""Local SGD: ranks train by themselves, and average their parameters every few steps."""

from collections.abc import Iterable

import torch
from torch import distributed as dist
from torch import nn

from lab.config.run import Run
from lab.worker.strategies.base import Setup, Strategy, Wrapper


class LocalSGD(Strategy):
    """Parameters are averaged after every `period` steps instead of gradients after each.

    Stich (2019): fewer bytes on the link, and ranks that differ between two averages.
    """

    def __init__(self, period: int = 4) -> None:
        self.period = self.cycle = period  # steps are timed by means over a period

    def wrap(self, model: nn.Module, setup: Setup) -> Wrapper:
        """The model with its parameters broadcast from rank 0."""
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        return Wrapper(model)

    def optimizer(self, parallel: Wrapper, run: Run) -> torch.optim.Optimizer:
        """The lab's optimizer, which averages after every `period` of its steps."""
        optimizer = super().optimizer(parallel, run)
        parameters = [p.data for p in parallel.parameters() if p.requires_grad]
        steps = 0

        def average(*_: object) -> None:
            nonlocal steps
            steps += 1
            if steps % self.period == 0 and dist.get_world_size() > 1:
                flat = torch.cat([parameter.flatten() for parameter in parameters])
                dist.all_reduce(flat.div_(dist.get_world_size()))
                parts = flat.split([parameter.numel() for parameter in parameters])
                for parameter, part in zip(parameters, parts, strict=True):
                    parameter.copy_(part.view_as(parameter))

        optimizer.register_step_post_hook(average)
        return optimizer

    def replicated(self, parallel: Wrapper) -> Iterable[torch.Tensor]:
        """Nothing: between two averages, ranks differ."""
        return ()
