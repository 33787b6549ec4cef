"""Smaller and perhaps faster copies of a trained model: their sizes, and how well they agree."""

from __future__ import annotations

import copy
import io
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.errors import LabError, first_line
from lab.records.schema import Share
from lab.records.statistics import RESAMPLES, bootstrap_interval
from lab.worker.data.dataset import Batch
from lab.worker.distributed import all_gather_object
from lab.worker.environment import plain_tensors
from lab.worker.inference.generate import continuations
from lab.worker.measure.clock import FloatArray, synchronize
from lab.worker.models.classifier import Classifier
from lab.worker.models.gpt import GPT, Cache
from lab.worker.optim import blocks_of, configure_inductor

RECOMPILE_LIMIT = 64
FP8_CAPABILITY = (8, 9)  # NVIDIA Ada and Hopper were the first with fp8 tensor cores
INT8_ROWS = 32  # CUDA's product of int8 matrices takes more than 16
MAX_OUTPUT_ERROR = 0.5  # a relative error of logits that rounding does not explain
Pair = tuple[nn.Module, nn.Module]  # the base and its quantized copy


class UnavailableError(LabError):
    """A quantization method that this machine lacks; the message is the reason."""


@dataclass(frozen=True)
class Quantized:
    """A quantized copy of a model, its method, and the seconds it took to make."""

    model: nn.Module
    method: str
    seconds: float


def quantize(model: nn.Module, name: str) -> Quantized:
    """A quantized copy of a trained fp32 model, on its device.

    Raises UnavailableError if the device or packages do not support it or no layer is suitable.
    """
    device = next(model.parameters()).device
    quantized = copy.deepcopy(model).eval()  # torchao works in place
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated functions work in the pinned version
            quantized, method = METHODS[name](quantized, device)
    # Packages reject a device, a dtype or a shape with any of these.
    except (RuntimeError, ImportError, AssertionError, ValueError, AttributeError) as error:
        raise UnavailableError(first_line(error)) from error
    synchronize(device)  # else only the launch of the conversion would be timed
    seconds = time.perf_counter() - begin
    if name not in {"none", "bf16"}:  # those treat every layer the same
        method = f"{method}: {_count_layers(model, quantized)}"
    return Quantized(quantized, method, seconds)


def _count_layers(model: nn.Module, quantized: nn.Module) -> str:
    """How many layers of each kind are quantized: `9 of 9 linear layers, 0 of 20 convolutions`."""
    counts = {}
    for kind, of in (("linear layers", nn.Linear), ("convolutions", nn.Conv2d)):
        names = [name for name, layer in model.named_modules() if isinstance(layer, of)]
        counts[kind] = [_is_quantized(quantized.get_submodule(name)) for name in names]
    if not any(map(any, counts.values())):
        raise UnavailableError("none of the model's layers can be quantized this way")
    return ", ".join(f"{sum(own)} of {len(own)} {kind}" for kind, own in counts.items() if own)


def _is_quantized(layer: nn.Module) -> bool:
    # torch's own class has a method in place of the weight; torchao's keeps nn.Linear's class.
    weight = layer.weight
    return not isinstance(weight, Tensor) or type(weight.data) is not Tensor


def _int8_dynamic(model: nn.Module, device: torch.device) -> tuple[nn.Module, str]:
    if device.type == "cuda":
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig as Config

        model, method = _torchao(model, Config(), "int8 weights and activations in bf16", (16, 16))
        for layer in model.modules():
            if isinstance(layer, nn.Linear) and _is_quantized(layer):
                cast(Any, layer).forward = partial(_padded, layer.forward)
        return model, method
    # On a CPU torch's own is faster than torchao's.
    model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    engine = torch.backends.quantized.engine
    return model, f"torch's dynamic int8 linear layers, engine {engine}; the rest in fp32"


def _padded(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What a layer returns, called with at least as many rows as CUDA's int8 product takes."""
    rows = x.flatten(0, -2)
    if len(rows) >= INT8_ROWS:
        return forward(x)
    # torchao pads them itself, but not where its layer is compiled.
    out = forward(functional.pad(rows, (0, 0, 0, INT8_ROWS - len(rows))))
    return out[: len(rows)].unflatten(0, x.shape[:-1])


def _int8_weight_only(model: nn.Module, device: torch.device) -> tuple[nn.Module, str]:
    from torchao.quantization import Int8WeightOnlyConfig

    method = "int8 weights of linear layers, computed in bf16"
    return _torchao(model, Int8WeightOnlyConfig(), method)


def _int4_weight_only(model: nn.Module, device: torch.device) -> tuple[nn.Module, str]:
    method = "int4 weights of linear layers in groups of 32, in bf16"
    if device.type == "cuda":
        from torchao.quantization import Int4WeightOnlyConfig

        # The kernels of the default format are in a package that the lab does not install. This
        # format uses torch's, which pad inputs to a multiple of 1,024.
        config = Int4WeightOnlyConfig(group_size=32, int4_packing_format="tile_packed_to_4d")
        return _torchao(model, config, f"{method}, from 1,024 inputs on", (1024, 8))
    # The plain one fails on CPU in all of its formats.
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

    return _torchao(model, PrototypeInt4WeightOnlyConfig(group_size=32), method, (32, 16))


def _fp8(model: nn.Module, device: torch.device) -> tuple[nn.Module, str]:
    if device.type != "cuda":
        raise UnavailableError("fp8 matrix products need a GPU with fp8 tensor cores, not a CPU")
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        gpu = torch.cuda.get_device_name(device)
        has = f"{capability[0]}.{capability[1]}"
        raise UnavailableError(f"{gpu} has compute capability {has}, but fp8 needs 8.9")
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig as Config

    return _torchao(model, Config(), "fp8 weights and activations, in bf16", (16, 16))


def _torchao(
    model: nn.Module, config: Any, method: str, multiple_of: tuple[int, int] = (1, 1)
) -> tuple[nn.Module, str]:
    """Quantize the linear layers whose sizes the kernels support, in place; the rest is bf16."""
    import torchao

    def fits(layer: nn.Module, _: str) -> bool:
        if not isinstance(layer, nn.Linear):
            return False
        return layer.in_features % multiple_of[0] == 0 and layer.out_features % multiple_of[1] == 0

    # Otherwise torchao has all that is compiled afterwards tuned kernel by kernel.
    config.set_inductor_config = False
    model = model.to(torch.bfloat16)
    torchao.quantize_(model, config, filter_fn=fits)
    return model, f"torchao {torchao.__version__}: {method}"


METHODS: dict[str, Callable[[nn.Module, torch.device], tuple[nn.Module, str]]] = {
    "none": lambda model, _: (model, "a second copy of the base: what differs is noise"),
    "bf16": lambda model, _: (model.to(torch.bfloat16), "all weights and activations in bf16"),
    "int8_dynamic": _int8_dynamic,
    "int8_weight_only": _int8_weight_only,
    "int4_weight_only": _int4_weight_only,
    "fp8": _fp8,
}


def compile_alike(*models: nn.Module, backend: str = "inductor") -> None:
    """Compile the blocks of each model in place, or all of a network without blocks.

    Weights of 8 bits are then converted, and activations rounded, within the kernels of the
    products instead of by separate kernels.
    """
    configure_inductor()
    # A block is compiled for a prompt and for one token, for one sequence and for several, with a
    # cache and without; beyond its limit, torch would silently run the rest uncompiled.
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for model in models:
        for part in blocks_of(model) or [model.get_submodule("network")]:
            part.compile(dynamic=True, backend=backend)


def bytes_on_disk(model: nn.Module) -> int:
    """Size of the file that torch.save writes for the model's state."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.tell()


def bytes_in_memory(module: nn.Module) -> int:
    """Bytes of all weights in memory, scales and zero points included, each counted once."""
    # All at once, as the address of a freed tensor may be reused by the next one.
    weights = list(_weights(module))
    return sum(dict(storage for tensor in weights for storage in _storages(tensor)).values())


def _weights(module: nn.Module) -> Iterator[Tensor]:
    for part in module.modules():
        packed = getattr(part, "_packed_params", None)
        # torch's own quantized layer does not expose its weight as a parameter.
        if isinstance(packed, nn.Module):
            weight, bias = cast(Any, packed)._weight_bias()
            yield weight
            if bias is not None:
                yield bias
        yield from part.parameters(recurse=False)
        yield from part.buffers(recurse=False)


def _storages(tensor: Tensor) -> Iterator[tuple[object, int]]:
    """Storages and bytes of the tensors that make up one."""
    for part in plain_tensors(tensor):
        storage = None if part.is_quantized else part.untyped_storage().data_ptr()
        yield storage or id(part), part.nbytes


@torch.inference_mode()
def output_errors(models: Pair, inputs: Sequence[Tensor]) -> dict[str, float]:
    """The largest relative error of logits on any rank by input shape; all ranks must call it."""
    errors: dict[str, float] = {}
    for samples in inputs:  # kernels differ by shape, and some are wrong for only one shape
        error = _relative_error(*(_logits(model, samples) for model in models))
        shape = "x".join(map(str, samples.shape))
        errors[shape] = max(error, errors.get(shape, 0.0))
    return {shape: max(rank[shape] for rank in all_gather_object(errors)) for shape in errors}


@torch.inference_mode()
def cached_error(models: tuple[GPT, GPT], prompts: Tensor) -> float:
    """The largest relative error on any rank of a token's logits after a prompt in the cache."""
    error = _relative_error(*(_after_prompt(model, prompts) for model in models))
    return max(all_gather_object(error))


def _relative_error(expected: Tensor, logits: Tensor) -> float:
    # Relative to all of them, as a single logit may be near zero.
    error = float((logits - expected).norm() / expected.norm())
    return error if np.isfinite(error) else np.inf  # NaN would pass every comparison with a limit


def _after_prompt(model: GPT, prompts: Tensor) -> Tensor:
    cache = Cache(len(model.blocks), prompts.shape[1])
    model.extend(prompts[:, :-1], cache)
    return model.extend(prompts[:, -1:], cache).float()


def _logits(model: nn.Module, samples: Tensor) -> Tensor:
    logits: Tensor = model.logits(samples) if isinstance(model, Classifier) else model(samples)
    return logits.float()  # bf16 would round their differences too


@torch.inference_mode()
def compare_language_models(
    models: Pair, batches: Iterable[Batch], *, device: torch.device
) -> dict[str, Any]:
    """Fields of `Inference` from this rank's held-out batches; all ranks must call it."""
    rows = [np.zeros((0, 3))]  # a rank may have no batch
    for batch in batches:
        inputs, targets = batch.to(device)
        expected, logits = (_logits(model, inputs) for model in models)
        losses = [
            functional.cross_entropy(of.transpose(1, 2), targets, reduction="none").mean(dim=1)
            for of in (expected, logits)
        ]
        same = (expected.argmax(dim=-1) == logits.argmax(dim=-1)).float().mean(dim=1)
        rows.append(torch.stack([*losses, same], dim=1).double().cpu().numpy())
    of_base, of_quantized, same_tokens = _on_all_ranks(rows)
    # Sample by sample, the difference between two models varies far less than either of them.
    change = _mean(of_quantized - of_base)
    # The ratio of two perplexities is the exponential of the mean difference of losses.
    low, high = (None if end is None else float(np.exp(end)) for end in (change.low, change.high))
    return {
        "base_perplexity": float(np.exp(of_base.mean())),
        "perplexity": float(np.exp(of_quantized.mean())),
        "perplexity_ratio": Share(value=float(np.exp(change.value)), low=low, high=high),
        "same_tokens": _mean(same_tokens),
    }


@torch.inference_mode()
def compare_classifiers(
    models: Pair, batches: Iterable[Batch], *, device: torch.device
) -> dict[str, Any]:
    """Fields of `Inference` from this rank's held-out batches; all ranks must call it."""
    rows = [np.zeros((0, 3))]
    for batch in batches:
        inputs, targets = batch.to(device)
        expected, classes = (_logits(model, inputs).argmax(dim=1) for model in models)
        same = torch.stack([expected == targets, classes == targets, expected == classes], dim=1)
        rows.append(same.double().cpu().numpy())
    of_base, of_quantized, same_classes = _on_all_ranks(rows)
    return {
        "held_out_samples": len(of_base),
        "base_accuracy": float(of_base.mean()),
        "accuracy": float(of_quantized.mean()),
        "accuracy_change": _mean(of_quantized - of_base),
        "same_classes": _mean(same_classes),
    }


def _on_all_ranks(rows: Sequence[FloatArray]) -> FloatArray:
    """The columns of the rows gathered from all ranks, some of which may have no samples."""
    return np.concatenate(all_gather_object(np.concatenate(rows))).T


def generated_alike(models: tuple[GPT, GPT], prompts: Tensor, *, new_tokens: int) -> float:
    """The share of greedily generated tokens that agree, over all ranks."""
    expected, tokens = (continuations(model, prompts, new_tokens=new_tokens) for model in models)
    return float(np.mean(all_gather_object(float((expected == tokens).float().mean()))))


def _mean(values: FloatArray) -> Share:
    """The mean with its bootstrap interval, or without one for fewer than two values."""
    if len(values) < 2:
        return Share(value=float(values.mean()), low=None, high=None)
    low, high = bootstrap_interval([values], np.mean, resamples=RESAMPLES)
    return Share(value=float(values.mean()), low=float(low), high=float(high))
