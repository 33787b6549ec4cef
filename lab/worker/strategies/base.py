"""The interface of parallel strategies to the training loop, and what several have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from lab.config.run import Run
from lab.errors import InputError
from lab.worker.distributed import all_gather_single as all_gather_single  # for learners' files
from lab.worker.distributed import reduce_scatter_single as reduce_scatter_single
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.measure.ddp_hook import BucketRecorder
from lab.worker.optim import optimizer_for

Recorder = BucketRecorder | CallRecorder
Parallel = TypeVar("Parallel", bound=nn.Module)


@dataclass(frozen=True)
class Setup:
    """The conditions for which a strategy wraps a model."""

    run: Run
    device: torch.device
    clock: Clock
    recorder: Recorder | None


class Strategy(Generic[Parallel]):
    """One process with the whole model, which sends nothing; subclasses override what differs.

    A strategy keeps no state. What it needs is stored in the module returned by `wrap`, which the
    loop calls like the model and passes to every other method.
    """

    needs_group = True  # whether it uses a process group, even at world size 1
    cycle = 1  # number of steps after which a strategy with differing steps repeats itself
    comparable = False  # whether a pass without the exchange computes the same, as a probe requires
    records: type[Recorder] | None = CallRecorder  # None if its messages cannot be seen

    def recorder(self, clock: Clock, *, world_size: int) -> Recorder | None:
        """The recorder of the strategy's communication; None if it has none."""
        return self.records(clock) if self.records and world_size > 1 else None

    def wrap(self, model: nn.Module, setup: Setup) -> Parallel:
        """The model as the loop calls it, from inputs and targets to this process's mean loss."""
        raise NotImplementedError

    def unwrap(self, parallel: Parallel) -> nn.Module:
        """The model under its wrapper, called in the same way for evaluation."""
        return getattr(parallel, "module", parallel)

    def no_sync(self, parallel: Parallel) -> AbstractContextManager[None]:
        """Only accumulate gradients inside, for all but the last micro-batch of a step."""
        return nullcontext()

    def synchronize(self, parallel: Parallel) -> None:
        """After a step's last backward pass, exchange what that pass did not."""

    def optimizer(self, parallel: Parallel, run: Run) -> torch.optim.Optimizer:
        """The optimizer of the parameters that this rank updates."""
        return optimizer_for(parallel, run)

    def clip(self, parallel: Parallel, max_norm: float) -> torch.Tensor:
        """Clip gradients to this norm; returns the whole model's norm before, on each rank."""
        return nn.utils.clip_grad_norm_(parallel.parameters(), max_norm)

    def all_losses(self, losses: torch.Tensor) -> torch.Tensor:
        """This rank's losses, obtained from the rank that knows them."""
        return losses

    def replicated(self, parallel: Parallel) -> Iterable[torch.Tensor]:
        """Tensors that must be equal on all ranks, as their parameters are; called on each rank."""
        return parallel.parameters()


class Wrapper(nn.Module):
    """A module called like its model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of the rank's samples."""
        return self.module(inputs, targets)


def devices_of(run: Run, device: torch.device) -> list[torch.device]:
    """The run's devices, driven by one process; raises InputError for too few GPUs."""
    if device.type == "cpu":
        return [device] * run.world_size
    if (visible := torch.cuda.device_count()) < run.world_size:
        what = f"{run.world_size} devices for one process, which sees only {visible}"
        raise InputError.of("run", "world_size", what, "use at most one node's GPUs")
    return [torch.device("cuda", number) for number in range(run.world_size)]


@torch.no_grad()
def clip(
    gradients: Sequence[torch.Tensor],
    max_norm: float,
    *,
    copies: Sequence[torch.Tensor] = (),
    group: ProcessGroup | None = None,
) -> torch.Tensor:
    """Clip the gradients of all ranks of a group to this norm; returns their norm before.

    `copies` are scaled but not counted, as another rank counts them.
    """
    device = next(iter([*gradients, *copies])).device
    squares = [gradient.float().square().sum() for gradient in gradients]
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=device)
    # All ranks take part, even those without gradients, as the others would wait for them.
    dist.all_reduce(total, group=group)
    norm = total.sqrt()
    # Like torch.nn.utils.clip_grad_norm_; with `if norm > max_norm` the host would have to wait.
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([*gradients, *copies], factor)
    return norm
