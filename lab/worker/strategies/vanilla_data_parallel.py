"""DataParallel written out: replicate, scatter, parallel apply, gather; on CPU too."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from lab.config.run import Run
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.measure.ddp_hook import BucketRecorder
from lab.worker.strategies.base import Strategy
from lab.worker.strategies.data_parallel import devices_of


class VanillaDataParallelism(Strategy):
    """The four steps of DataParallel, each stamped."""

    needs_group = False

    def wrap(
        self,
        model: nn.Module,
        *,
        run: Run,
        device: torch.device,
        clock: Clock,
        recorder: BucketRecorder | CallRecorder | None,
    ) -> nn.Module:
        """The model and what spreads its passes; raises InputError where there are fewer GPUs than the run asks for."""
        devices = devices_of(run, device, strategy="vanilla_data_parallel")
        return DataParallel(
            model, devices, recorder=recorder if isinstance(recorder, CallRecorder) else None
        )

    def unwrap(self, parallel: nn.Module) -> nn.Module:
        """The model on the first device."""
        assert isinstance(parallel, DataParallel)
        return parallel.model


class DataParallel(nn.Module):
    """One pass of a model over several devices."""

    def __init__(
        self, model: nn.Module, devices: Sequence[torch.device], *, recorder: CallRecorder | None
    ) -> None:
        super().__init__()
        self.model, self.devices, self.recorder = model, devices, recorder

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss; inputs and targets are divided evenly along their first dimension."""
        parameters = dict(self.model.named_parameters())
        others = len(self.devices) - 1
        with self._stamped(
            "replicate", others * sum(parameter.nbytes for parameter in parameters.values())
        ):
            copies = _Replicate.apply(self.devices, self._stamped, *parameters.values())  # type: ignore[no-untyped-call]
            replicas = [
                replica(
                    self.model,
                    dict(zip(parameters, copies[number :: len(self.devices)], strict=True)),
                )
                for number in range(len(self.devices))
            ]
        with self._stamped(
            "scatter", (inputs.nbytes + targets.nbytes) * others // len(self.devices)
        ):
            parts = list(
                zip(scatter(inputs, self.devices), scatter(targets, self.devices), strict=True)
            )
        losses = parallel_apply(replicas, parts, self.devices)
        with self._stamped("gather", others * losses[0].nbytes):
            return torch.stack([loss.to(self.devices[0]) for loss in losses]).mean()

    def _stamped(self, operation: str, size: int) -> AbstractContextManager[None]:
        if self.recorder is None:
            return nullcontext()
        return self.recorder.blocked(operation, size, members=len(self.devices))


class _Replicate(torch.autograd.Function):
    """Copies of parameters on every device but the first, which uses them as they are; backward adds up their gradients.

    The answer has the first parameter on each device, then the second on each, and so on.
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
        with ctx.stamped(
            "reduce", (count - 1) * sum(gradient.nbytes for gradient in gradients[::count])
        ):
            return (
                None,
                None,
                *(
                    _sum(gradients[first : first + count])
                    for first in range(0, len(gradients), count)
                ),
            )


def replica(model: nn.Module, parameters: dict[str, torch.Tensor]) -> nn.Module:
    """A model of the same modules that computes with these parameters, which need not be leaves; buffers are shared."""
    twins = {
        name: module._replicate_for_data_parallel()
        for name, module in model.named_modules(remove_duplicate=False)
    }
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, module in model.named_modules(remove_duplicate=False):
        for child in module._modules:
            twins[name]._modules[child] = twins[f"{name}.{child}" if name else child]
        for key, parameter in module._parameters.items():
            setattr(
                twins[name], key, None if parameter is None else parameters[names[id(parameter)]]
            )
    whole: nn.Module = twins[""]
    return whole


def scatter(tensor: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    """Equal parts along the first dimension, each on its device."""
    return [
        part.to(device, non_blocking=True)
        for part, device in zip(tensor.chunk(len(devices)), devices, strict=True)
    ]


def parallel_apply(
    replicas: Sequence[nn.Module],
    inputs: Sequence[tuple[torch.Tensor, ...]],
    devices: Sequence[torch.device],
) -> list[torch.Tensor]:
    """Call each replica with its inputs in a thread of its own; raises what the first of them raised."""
    kind = devices[0].type
    # What a thread does not inherit.
    settings = (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled(kind),
        torch.get_autocast_dtype(kind),
    )
    outputs: dict[int, torch.Tensor] = {}
    errors: dict[int, BaseException] = {}

    def apply(number: int) -> None:
        grad, autocast, dtype = settings
        on_device = torch.cuda.device(devices[number]) if kind == "cuda" else nullcontext()
        try:
            with (
                on_device,
                torch.set_grad_enabled(grad),
                torch.autocast(kind, dtype=dtype, enabled=autocast),
            ):
                outputs[number] = replicas[number](*inputs[number])
        except BaseException as error:  # noqa: BLE001 raised again in the caller's thread
            errors[number] = error

    threads = [threading.Thread(target=partial(apply, number)) for number in range(len(replicas))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors.values():
        raise error
    return [outputs[number] for number in range(len(replicas))]


def _sum(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    total = gradients[0]
    for gradient in gradients[1:]:
        total = total + gradient.to(total.device)
    return total


STRATEGY = VanillaDataParallelism()
