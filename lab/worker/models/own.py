"""A user's module as the training loop calls it, from inputs and targets to the mean loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lab.config.models import BATCH_NORM_BY_RANK, DROPOUT_BY_RANK, PythonModel
from lab.errors import InputError, LabError, Problem, nearest
from lab.worker import own


class OwnModel(nn.Module):
    """The module made by a user's factory, its loss, and the location of its equal blocks."""

    def __init__(self, config: PythonModel) -> None:
        super().__init__()
        self.name, self.path = config.factory, config.blocks
        self.network: nn.Module = own.make(config)
        if not isinstance(self.network, nn.Module):
            kind = type(self.network).__name__
            raise LabError(f"{config.factory} returned {kind!r}, not a torch.nn.Module")
        self.loss: Callable[..., Any] | None = None
        if config.loss is not None:
            loss = own.load(config.loss)
            # A class, such as torch.nn:CrossEntropyLoss, stands for its instance.
            self.loss = loss() if isinstance(loss, type) else loss
        if self.path is not None and self.blocks is None:
            lists = [k for k, v in self.network.named_modules() if isinstance(v, nn.ModuleList)]
            what = f"{config.factory} has no ModuleList {self.path!r}"
            raise InputError("model", [Problem("blocks", what, nearest(self.path, lists))])

    @property
    def blocks(self) -> nn.ModuleList | None:
        """The equal blocks, which FSDP and checkpointing take one by one."""
        blocks = dict(self.network.named_modules()).get(self.path) if self.path else None
        return blocks if isinstance(blocks, nn.ModuleList) else None

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, a tensor of one number."""
        if self.loss is None:
            value = self.network(inputs, targets)
        else:
            value = self.loss(self.network(inputs), targets)
        if not isinstance(value, Tensor) or value.dim():
            kind = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value)
            raise LabError(
                f"the loss of {self.name} is not a scalar tensor but {kind}; take its mean"
            )
        return value


def depends_on_split(model: nn.Module) -> str:
    """Why the loss curve depends on how ranks split the batch, as far as torch's modules show."""
    return ", and ".join(dict.fromkeys(_reasons(model)))


def _reasons(model: nn.Module) -> Iterator[str]:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(
            module, nn.SyncBatchNorm
        ):
            yield BATCH_NORM_BY_RANK
        elif isinstance(module, nn.modules.dropout._DropoutNd) and module.p:
            yield DROPOUT_BY_RANK


def counted_flops(config: PythonModel, inputs: Tensor, targets: Tensor) -> float | None:
    """FLOPs of forward and backward for one sample by torch's counter, which counts products.

    It uses tensors without data, so nothing is computed. None if the module needs data.
    """
    try:
        with torch.random.fork_rng(), torch.device("meta"):
            model = OwnModel(config).to("meta")
            with FlopCounterMode(display=False) as counter:
                model(inputs.to("meta"), targets.to("meta")).backward()
    except Exception:  # noqa: BLE001 - whatever a user's code does without data, it may fail at
        return None
    return counter.get_total_flops() / len(inputs) or None
