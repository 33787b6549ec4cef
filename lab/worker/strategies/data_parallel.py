"""torch's DataParallel: one process drives all GPUs, each with a copy of the model in every pass.

It supports only CUDA: on CPU the model runs without it, and more than one device is rejected.
"""

from __future__ import annotations

import torch
from torch import nn

from lab.errors import InputError
from lab.worker.strategies.base import Setup, Strategy, Wrapper, devices_of


class DataParallelism(Strategy["Averaged"]):
    """torch's DataParallel; copies are made inside torch, so their time on the links is unknown."""

    needs_group = False
    records = None  # nothing passes through torch.distributed

    def wrap(self, model: nn.Module, setup: Setup) -> Averaged:
        """The model in torch's wrapper; raises InputError for several CPUs and too few GPUs."""
        devices = devices_of(setup.run, setup.device)
        if setup.device.type == "cpu" and len(devices) > 1:
            what = (
                f"{len(devices)} devices, but torch's DataParallel divides its work only among GPUs"
            )
            advice = "use 1 on CPU, or strategy vanilla_data_parallel"
            raise InputError.of("run", "world_size", what, advice)
        return Averaged(model, devices)


class Averaged(Wrapper):
    """The mean over the devices, which have equal numbers of samples."""

    def __init__(self, model: nn.Module, devices: list[torch.device]) -> None:
        super().__init__(model)
        gpus = [device.index for device in devices if device.type == "cuda"]
        one = OneLoss(model)
        # Without a list it would take all GPUs in sight, also for a run on the CPU.
        self.parallel = nn.DataParallel(one, device_ids=gpus) if gpus else one

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        losses: torch.Tensor = self.parallel(inputs, targets)
        return losses.mean()  # equal parts of the batch, so the mean of means is the batch's


class OneLoss(Wrapper):
    """The loss as a vector of one element, as DataParallel gathers along a dimension."""

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of one device's samples, of shape (1,)."""
        return super().forward(inputs, targets)[None]


STRATEGY = DataParallelism()
