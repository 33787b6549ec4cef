"""Smaller and perhaps faster copies of a trained model: what there is on this device, and how large it is."""

from __future__ import annotations

import copy
import io
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from lab.errors import LabError
from lab.worker.measure.clock import synchronize

FP8_CAPABILITY = (8, 9)  # NVIDIA Ada and Hopper were the first with fp8 tensor cores


class UnavailableError(LabError):
    """A way to quantize that this machine has not; the message is the reason."""


@dataclass(frozen=True)
class Quantized:
    """A quantized copy of a model, by which method, and in how many s it was made."""

    model: nn.Module
    method: str
    seconds: float


def quantize(model: nn.Module, name: str) -> Quantized:
    """A copy of a trained fp32 model, quantized where the model is; the model itself stays as it is.

    The method says of which layers the weights are quantized, the others stay as they are. Raises UnavailableError where
    device or packages cannot, and where the model has no layer for it.
    """
    device = next(model.parameters()).device
    copied = copy.deepcopy(model).eval()
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of deprecation: what is deprecated still works in the pinned version
            made, method = _WAYS[name](copied, device)
    except (
        RuntimeError,
        NotImplementedError,
        ImportError,
        AssertionError,
        ValueError,
        AttributeError,
    ) as error:
        told = str(error).strip().splitlines()
        raise UnavailableError(told[0] if told else type(error).__name__) from error
    synchronize(device)
    seconds = time.perf_counter() - begin
    return Quantized(
        made, method if name in _WHOLE else f"{method}: {_layers(model, made)}", seconds
    )


def _layers(model: nn.Module, made: nn.Module) -> str:
    """How many layers of each kind are quantized: `9 of 9 linear layers, 0 of 20 convolutions`."""
    pairs = [(layer, made.get_submodule(name)) for name, layer in model.named_modules()]
    kinds = {"linear layers": nn.Linear, "convolutions": nn.Conv2d}
    quantized = {
        kind: [_is_quantized(now) for was, now in pairs if isinstance(was, of)]
        for kind, of in kinds.items()
    }
    if not any(map(any, quantized.values())):
        raise UnavailableError("none of the model's layers can be quantized so")
    return ", ".join(f"{sum(own)} of {len(own)} {kind}" for kind, own in quantized.items() if own)


def _is_quantized(layer: nn.Module) -> bool:
    # torch's own is another class, with a method in place of the weight; torchao's keeps the class and has another weight.
    weight = layer.weight
    return not isinstance(weight, Tensor) or type(weight.data) is not Tensor


def _none(model: nn.Module, device: torch.device) -> tuple[nn.Module, str]:
    return model, "fp32, a second copy of the base: what differs is noise"


def _bf16(model: nn.Module, device: torch.device) -> tuple[nn.Module, str]:
    return model.to(torch.bfloat16), "all weights and activations in bf16"


def _int8_dynamic(model: nn.Module, device: torch.device) -> tuple[nn.Module, str]:
    if device.type == "cuda":
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig

        told = "int8 weights and activations in bf16"
        return _torchao(
            model.to(torch.bfloat16),
            Int8DynamicActivationInt8WeightConfig(),
            told,
            multiple_of=(16, 16),
        )
    made = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    engine = torch.backends.quantized.engine
    return made, f"torch's dynamic int8 linear layers, engine {engine}; the rest in fp32"


def _int8_weight_only(model: nn.Module, device: torch.device) -> tuple[nn.Module, str]:
    from torchao.quantization import Int8WeightOnlyConfig

    return _torchao(
        model.to(torch.bfloat16),
        Int8WeightOnlyConfig(),
        "int8 weights of linear layers, computed in bf16",
    )


def _int4_weight_only(model: nn.Module, device: torch.device) -> tuple[nn.Module, str]:
    if device.type == "cuda":
        from torchao.quantization import Int4WeightOnlyConfig as Config
    else:  # the plain one fails on CPU in each of its formats
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig as Config
    told = "int4 weights of linear layers in groups of 32, in bf16"
    return _torchao(model.to(torch.bfloat16), Config(group_size=32), told, multiple_of=(32, 16))


def _fp8(model: nn.Module, device: torch.device) -> tuple[nn.Module, str]:
    if device.type != "cuda":
        raise NotImplementedError(
            "fp8 matrix products need a GPU with fp8 tensor cores, here is a CPU"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise NotImplementedError(
            f"{name} has compute capability {capability[0]}.{capability[1]}, fp8 needs 8.9"
        )
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig

    told = "fp8 weights and activations, in bf16"
    return _torchao(
        model.to(torch.bfloat16),
        Float8DynamicActivationFloat8WeightConfig(),
        told,
        multiple_of=(16, 16),
    )


def _torchao(
    model: nn.Module, config: Any, method: str, *, multiple_of: tuple[int, int] = (1, 1)
) -> tuple[nn.Module, str]:
    """Quantize the linear layers whose inputs and outputs are multiples of what the kernels take."""
    import torchao

    def takes(layer: nn.Module, _: str) -> bool:
        if not isinstance(layer, nn.Linear):
            return False
        return layer.in_features % multiple_of[0] == 0 and layer.out_features % multiple_of[1] == 0

    torchao.quantize_(model, config, filter_fn=takes)
    return model, f"torchao {torchao.__version__}: {method}"


_WHOLE = {"none", "bf16"}  # that do the same with every layer
_WAYS: dict[str, Callable[[nn.Module, torch.device], tuple[nn.Module, str]]] = {
    "none": _none,
    "bf16": _bf16,
    "int8_dynamic": _int8_dynamic,
    "int8_weight_only": _int8_weight_only,
    "int4_weight_only": _int4_weight_only,
    "fp8": _fp8,
}


def bytes_on_disk(model: nn.Module) -> int:
    """Size of the file that torch.save makes of the model's state."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.tell()


def bytes_in_memory(module: nn.Module) -> int:
    """Bytes of all weights as they lie in memory, scales and zero points included, each counted once."""
    weights = list(
        _weights(module)
    )  # all at once: a tensor that is freed would leave its address to the next one
    found = {place: size for tensor in weights for place, size in _storages(tensor)}
    return sum(found.values())


def _weights(module: nn.Module) -> Iterator[Tensor]:
    for part in module.modules():
        packed = getattr(part, "_packed_params", None)
        if isinstance(
            packed, nn.Module
        ):  # torch's own quantized layer keeps its weight out of sight
            weight, bias = cast(Any, packed)._weight_bias()
            yield weight
            if bias is not None:
                yield bias
            if weight.qscheme() == torch.per_channel_affine:
                yield weight.q_per_channel_scales()
        yield from part.parameters(recurse=False)
        yield from part.buffers(recurse=False)


def _storages(tensor: Tensor) -> Iterator[tuple[object, int]]:
    """Storages of a tensor, or of the tensors that a quantized one is made of, with their bytes."""
    if type(tensor) in (Tensor, nn.Parameter) or not hasattr(tensor, "__tensor_flatten__"):
        storage = None if tensor.is_quantized else tensor.untyped_storage().data_ptr()
        yield storage or id(tensor), tensor.numel() * tensor.element_size()
        return
    inner: list[str] = cast(Any, tensor).__tensor_flatten__()[0]
    for name in inner:
        yield from _storages(getattr(tensor, name))
