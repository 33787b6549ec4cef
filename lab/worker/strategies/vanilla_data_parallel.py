"""DataParallel written out: replicate, scatter, parallel apply, gather; on CPU too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.strategies.base import Setup, Strategy, Wrapper, devices_of


class VanillaDataParallelism(Strategy["DataParallel"]):
    """The four steps of DataParallel, each timestamped."""

    needs_group = False

    def wrap(self, model: nn.Module, setup: Setup) -> DataParallel:
        """The model, whose passes run on all devices; raises InputError for too few GPUs."""
        recorder = setup.recorder if isinstance(setup.recorder, CallRecorder) else None
        return DataParallel(model, devices_of(setup.run, setup.device), recorder=recorder)


class DataParallel(Wrapper):
    """One pass of a model over several devices."""

    def __init__(
        self, model: nn.Module, devices: Sequence[torch.device], *, recorder: CallRecorder | None
    ) -> None:
        super().__init__(model)
        self.devices, self.recorder = devices, recorder

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss; inputs and targets are split evenly along their first dimension."""
        devices, others = self.devices, len(self.devices) - 1
        tensors = dict(_tensors(self.module))
        size = others * sum(tensor.nbytes for tensor in tensors.values())
        with self._stamped("replicate", size):
            # In every pass, because the optimizer has changed the first device's parameters.
            replicas = [replica(self.module, copies) for copies in self._copies(tensors)]
        with self._stamped("scatter", (inputs.nbytes + targets.nbytes) * others // len(devices)):
            parts = [*zip(scatter(inputs, devices), scatter(targets, devices), strict=True)]
        losses = parallel_apply(replicas, parts, devices)
        with self._stamped("gather", others * losses[0].nbytes):
            return torch.stack([loss.to(devices[0]) for loss in losses]).mean()

    def _copies(self, tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """Parameters and buffers for each device; frozen ones get no gradient."""
        trained = [name for name, tensor in tensors.items() if tensor.requires_grad]
        values = [tensors[name] for name in trained]
        copies = _Replicate.apply(self.devices, self._stamped, *values)  # type: ignore[no-untyped-call]
        constants = [name for name in tensors if name not in trained]
        return [
            dict(zip(trained, copies[number :: len(self.devices)], strict=True))
            # The first device uses the model's own, so running statistics come from its samples.
            | {name: tensors[name].to(device, copy=number > 0) for name in constants}
            for number, device in enumerate(self.devices)
        ]

    def _stamped(self, operation: str, size: int) -> AbstractContextManager[None]:
        if self.recorder is None:
            return nullcontext()
        return self.recorder.blocked(operation, size, members=len(self.devices))


class _Replicate(torch.autograd.Function):
    """Copies of parameters for all devices but the first; backward sums their gradients.

    Returns the first parameter on each device, then the second on each, and so on.
    """

    @staticmethod
    def forward(
        ctx: Any, devices: Sequence[torch.device], stamped: Any, *parameters: torch.Tensor
    ) -> Any:
        ctx.devices, ctx.stamped = devices, stamped
        return tuple(
            parameter.view_as(parameter) if number == 0 else parameter.to(device, copy=True)
            for parameter in parameters
            for number, device in enumerate(devices)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        count = len(ctx.devices)
        size = (count - 1) * sum(gradient.nbytes for gradient in gradients[::count])
        with ctx.stamped("reduce", size):
            firsts = range(0, len(gradients), count)
            return None, None, *(_sum(gradients[first : first + count]) for first in firsts)


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, each once."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def replica(model: nn.Module, tensors: dict[str, torch.Tensor]) -> nn.Module:
    """The same modules with these parameters, which need not be leaves, and buffers."""
    modules = dict(model.named_modules(remove_duplicate=False))
    twins = {name: module._replicate_for_data_parallel() for name, module in modules.items()}
    # By identity, as tied parameters have one name in the model but belong to several modules.
    names = {id(tensor): name for name, tensor in _tensors(model)}
    for name, module in modules.items():
        for child in module._modules:
            twins[name]._modules[child] = twins[f"{name}.{child}" if name else child]
        for key, parameter in module._parameters.items():
            value = None if parameter is None else tensors[names[id(parameter)]]
            setattr(twins[name], key, value)
        for key, buffer in module._buffers.items():
            value = None if buffer is None else tensors[names[id(buffer)]]
            twins[name]._buffers[key] = value
    return twins[""]


def scatter(tensor: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    """Split a tensor into equal parts along the first dimension, each on its device."""
    parts = zip(tensor.chunk(len(devices)), devices, strict=True)
    return [part.to(device, non_blocking=True) for part, device in parts]


def parallel_apply(
    replicas: Sequence[nn.Module],
    inputs: Sequence[tuple[torch.Tensor, ...]],
    devices: Sequence[torch.device],
) -> list[torch.Tensor]:
    """Call each replica with its inputs in a separate thread; raises the first error."""
    kind = devices[0].type
    # Read here, because threads do not inherit them.
    grad, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind)

    def apply(
        replica: nn.Module, arguments: tuple[torch.Tensor, ...], device: torch.device
    ) -> torch.Tensor:
        on_device = torch.cuda.device(device) if kind == "cuda" else nullcontext()
        precision = torch.autocast(kind, dtype=dtype, enabled=autocast)
        with on_device, torch.set_grad_enabled(grad), precision:
            return replica(*arguments)

    with ThreadPoolExecutor(len(replicas)) as threads:
        return list(threads.map(apply, replicas, inputs, devices))


def _sum(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    total = gradients[0]
    for gradient in gradients[1:]:
        total = total + gradient.to(total.device)  # not in place: autograd may still hold the first
    return total


STRATEGY = VanillaDataParallelism()
