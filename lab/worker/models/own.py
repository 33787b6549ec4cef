"""A user's module as the training loop calls it, from inputs and targets to the mean loss."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from lab.config.models import BATCH_NORM_BY_RANK, DROPOUT_BY_RANK, PythonModel
from lab.errors import InputError, LabError, Problem, nearest
from lab.worker import own
from lab.worker.distributed import all_gather_object

# DDP's message if a parameter has no gradient after a backward pass, and how it names parameters.
NO_GRADIENT = "Expected to have finished reduction in the prior iteration"
WITHOUT = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


class OwnModel(nn.Module):
    """The module made by a user's factory, its loss, and the location of its equal blocks."""

    def __init__(self, config: PythonModel) -> None:
        super().__init__()
        self.name, self.path = config.factory, config.blocks
        self.network: nn.Module = own.make(config)
        if not isinstance(self.network, nn.Module):
            kind = type(self.network).__name__
            raise LabError(f"{config.factory} returned {kind!r}, not a torch.nn.Module")
        self.loss_name = config.loss
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
        """The mean loss of a batch, a scalar tensor."""
        if self.loss is None:
            value = self.network(inputs, targets)
        else:
            output = self.network(inputs)
            value = self.loss(output, targets)
        if not isinstance(value, Tensor) or value.dim():
            advice = "take its mean" if isinstance(value, Tensor) else "return its mean alone"
            raise LabError(
                f"the loss of {self.name} is not a scalar tensor but {_kind(value)}; {advice}"
            )
        if torch.is_grad_enabled() and not value.requires_grad:
            raise LabError(
                f"the loss of {self.name} has no gradient: do not compute it, or what it is made "
                "of, under torch.no_grad() or from detached tensors"
            )
        return value


def build(config: PythonModel) -> OwnModel:
    """The model on this rank; LabError if it cannot be trained or is another one on other ranks."""
    model = OwnModel(config)
    named = dict(model.network.named_parameters())
    if unknown := [name for name, parameter in named.items() if is_lazy(parameter)]:
        raise LabError(
            f"{config.factory} has parameters without a shape ({unknown[0]}), as a LazyLinear has "
            "at first: call the module on a batch in the factory, or give its layers their sizes"
        )
    if empty := [name for name, parameter in named.items() if parameter.is_meta]:
        raise LabError(
            f"{config.factory} has parameters on the device meta ({empty[0]}), which have no "
            "values: make the module on the CPU, from which the lab moves it"
        )
    if not any(parameter.requires_grad for parameter in named.values()):
        raise LabError(
            f"{config.factory} has no parameter that requires a gradient: nothing can be trained"
        )
    _require_same(model.network, config.factory)
    return model


def _require_same(network: nn.Module, name: str) -> None:
    """Raise LabError if ranks made different tensors, which they would wait for in vain."""
    state = [*network.named_parameters(), *network.named_buffers()]
    made = [[key, list(tensor.shape), str(tensor.dtype)] for key, tensor in state]
    first, *others = all_gather_object(made)
    for rank, other in enumerate(others, start=1):
        if other != first:
            different = [one for one in (*first, *other) if one not in first or one not in other]
            raise LabError(
                f"{name} makes another module on rank {rank} than on rank 0 "
                f"({(different or first)[0][0]}): its parameters and buffers must be the same on "
                "every rank"
            )


def explained(error: BaseException) -> str:
    """What an error that torch raised says about a user's module; empty if it is none of these."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        known: dict[str, Any] = frame.f_locals
        model: Any = known.get("self")
        if isinstance(model, DistributedDataParallel) and NO_GRADIENT in str(error):
            return _without_gradient(model, str(error))
        if frame.f_code is OwnModel.forward.__code__ and "output" in known:
            said = f"{type(error).__name__}: {error}".rstrip(".")
            return (
                f"the loss {model.loss_name} failed: {said}; it was given an output of "
                f"{model.name}, {_kind(known['output'])}, and targets, {_kind(known['targets'])}"
            )
    return ""


def _without_gradient(parallel: DistributedDataParallel, message: str) -> str:
    trained = [name for name, one in parallel.module.named_parameters() if one.requires_grad]
    match = WITHOUT.search(message)
    places = [int(place) for place in match[1].split()] if match else []
    names = [trained[place].removeprefix("network.") for place in places if place < len(trained)]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"{shown or 'some parameters'} took no part in a step's loss, but DDP waits for the "
        "gradient of every parameter: let all take part in every step, freeze those that never "
        "do (requires_grad_(False)), or train with naive_ddp, zero1 or fsdp"
    )


def _kind(value: object) -> str:
    """`float32 of shape (4, 10)` for a tensor, `a dict` for anything else."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


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
