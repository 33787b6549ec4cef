"""What the training loop asks of a way to train in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from lab.config.run import Run
from lab.errors import InputError, Problem
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.measure.ddp_hook import BucketRecorder
from lab.worker.optim import optimizer_for


class Strategy:
    """One process with the whole model, which sends nothing; other strategies change what they do otherwise.

    A strategy keeps no state: what it needs to know lies in the module that `wrap` makes, which the loop calls like
    the model and gives back to every other function.
    """

    needs_group = True  # whether it works on a process group, at world size 1 too
    comparable = False  # whether a pass that sends nothing computes the same, so that the probe can set one against the other

    def recorder(self, clock: Clock, *, world_size: int) -> BucketRecorder | CallRecorder | None:
        """What stamps the strategy's communication; None where there is none."""
        return CallRecorder(clock) if world_size > 1 else None

    def wrap(
        self,
        model: nn.Module,
        *,
        run: Run,
        device: torch.device,
        clock: Clock,
        recorder: BucketRecorder | CallRecorder | None,
    ) -> nn.Module:
        """The model as the loop calls it: with inputs and targets, for the mean loss of this process's samples."""
        return model

    def unwrap(self, parallel: nn.Module) -> nn.Module:
        """The model under its wrapper: the same parameters, called in the same way, to evaluate with."""
        return parallel

    def no_sync(self, parallel: nn.Module) -> AbstractContextManager[None]:
        """Where gradients are only added up, for all but the last micro-batch of a step."""
        return nullcontext()

    def synchronize(self, parallel: nn.Module) -> None:
        """After the last backward pass of a step: exchange what that pass did not."""

    def optimizer(self, parallel: nn.Module, run: Run) -> torch.optim.Optimizer:
        """The optimizer of what this rank updates."""
        return optimizer_for(parallel, run)

    def clip(self, parallel: nn.Module, max_norm: float) -> torch.Tensor:
        """Scale gradients to this norm where theirs is larger; the norm before, that of the whole model on each rank."""
        return nn.utils.clip_grad_norm_(parallel.parameters(), max_norm)

    def all_losses(self, losses: torch.Tensor) -> torch.Tensor:
        """The losses that this rank noted, from the rank that knows them."""
        return losses

    def replicated(self, parallel: nn.Module) -> Iterable[torch.Tensor]:
        """Parameters that must be equal on all ranks, whole; all ranks must go through them together."""
        return parallel.parameters()


def require_dtensor(device: torch.device) -> None:
    """Raise InputError on a CPU whose torch is too old for DTensor over gloo: 2.6 breaks off in it, or crashes."""
    if device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        what = f"torch {torch.__version__} cannot divide the tensors of a model on CPU"
        raise InputError(
            "run", [Problem("strategy", what, "a later torch, or strategy ddp or zero1")]
        )


@torch.no_grad()
def clip(
    gradients: Sequence[torch.Tensor],
    max_norm: float,
    *,
    copies: Sequence[torch.Tensor] = (),
    group: ProcessGroup | None = None,
) -> torch.Tensor:
    """Scale the gradients of all ranks of a group to this norm where theirs together is larger; the norm before.

    `copies` are scaled and not counted: another rank counts them. One all-reduce of a number.
    """
    device = next(iter([*gradients, *copies])).device
    squares = [gradient.float().square().sum() for gradient in gradients]
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=device)
    dist.all_reduce(total, group=group)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ does it
    torch._foreach_mul_([*gradients, *copies], factor)
    return norm
