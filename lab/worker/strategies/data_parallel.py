"""torch's DataParallel: one process drives all GPUs, each of which gets a copy of the model in every pass.

It knows CUDA only: on CPU it hands everything to the model as it is, and more than one device is refused.
"""

from __future__ import annotations

import torch
from torch import nn

from lab.config.run import Run
from lab.errors import InputError, Problem
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.measure.ddp_hook import BucketRecorder
from lab.worker.strategies.base import Strategy


class DataParallelism(Strategy):
    """Time on the links is not known: the copies are made inside of torch, and no group sees them."""

    needs_group = False

    def recorder(self, clock: Clock, *, world_size: int) -> BucketRecorder | CallRecorder | None:
        """None: nothing passes through torch.distributed."""
        return None

    def wrap(
        self,
        model: nn.Module,
        *,
        run: Run,
        device: torch.device,
        clock: Clock,
        recorder: BucketRecorder | CallRecorder | None,
    ) -> nn.Module:
        """The model in torch's wrapper; raises InputError where there are fewer GPUs than the run asks for."""
        return Averaged(model, devices_of(run, device, strategy="data_parallel"))

    def unwrap(self, parallel: nn.Module) -> nn.Module:
        """The model on the first device."""
        assert isinstance(parallel, Averaged)
        return parallel.model


class Averaged(nn.Module):
    """The mean over the devices, which have equally many samples each."""

    def __init__(self, model: nn.Module, devices: list[torch.device]) -> None:
        super().__init__()
        self.model = model
        on_gpus = [device.index for device in devices if device.type == "cuda"]
        self.parallel = nn.DataParallel(OneLoss(model), device_ids=on_gpus or None)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        losses: torch.Tensor = self.parallel(inputs, targets)
        return losses.mean()


class OneLoss(nn.Module):
    """The loss as a vector of one: what DataParallel gathers has a dimension to join along."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of one device's samples, of shape (1,)."""
        loss: torch.Tensor = self.model(inputs, targets)
        return loss[None]


def devices_of(run: Run, device: torch.device, *, strategy: str) -> list[torch.device]:
    """The devices of a process that drives as many as the run has; raises InputError where there are not so many."""
    if device.type == "cpu" and strategy == "data_parallel" and run.world_size > 1:
        what = (
            f"{run.world_size} devices, and torch's DataParallel divides its work among GPUs only"
        )
        raise InputError(
            "run", [Problem("world_size", what, "1 on CPU, or strategy vanilla_data_parallel")]
        )
    if device.type == "cpu":
        return [device] * run.world_size
    if torch.cuda.device_count() < run.world_size:
        what = f"{run.world_size} devices for one process, which sees {torch.cuda.device_count()}"
        raise InputError("run", [Problem("world_size", what, "at most the GPUs of one node")])
    return [torch.device("cuda", number) for number in range(run.world_size)]


STRATEGY = DataParallelism()
