"""Optimizer, learning rate, precision and compilation of every run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lab.config.run import Run
from lab.errors import InputError

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
LONGEST = 4096  # elements of a row that a block of threads of a compiled kernel holds at once


def decayed_and_not(
    parameters: Iterable[nn.Parameter],
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters, divided into matrices and all others."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return [p for p in trained if p.dim() >= 2], [p for p in trained if p.dim() < 2]


def adamw(
    decayed: Iterable[Iterable[torch.Tensor]], others: Iterable[Iterable[torch.Tensor]], run: Run
) -> torch.optim.AdamW:
    """AdamW over homogeneous parameter groups, the first with the run's weight decay."""
    groups = [{"params": list(group), "weight_decay": run.weight_decay} for group in decayed]
    groups += [{"params": list(group), "weight_decay": 0.0} for group in others]
    # Fused: a step over 10.8M parameters on CPU took 8 ms instead of 20.
    return torch.optim.AdamW(groups, lr=run.learning_rate, betas=(0.9, 0.95), fused=True)


def optimizer_for(model: nn.Module, run: Run) -> torch.optim.Optimizer:
    """The optimizer of a model whose parameters are all of one kind."""
    decayed, others = decayed_and_not(model.parameters())
    return adamw([decayed], [others], run)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The model's equal blocks, a ModuleList called `blocks`; none without it."""
    blocks = getattr(model, "blocks", None)
    return list(blocks) if isinstance(blocks, nn.ModuleList) else []


def checkpoint_blocks(model: nn.Module) -> None:
    """Make blocks save only their inputs and recompute the rest in backward (Chen et al., 2016).

    Raises InputError for a model without blocks.
    """
    blocks = blocks_of(model)
    if not blocks:
        what = "this model has no list of equal blocks"
        advice = "leave it out, or train a transformer"
        raise InputError.of("run", "activation_checkpointing", what, advice)
    kinds = {kind: _checkpointed(kind) for kind in map(type, blocks)}
    for block in blocks:
        # A wrapper module would change the parameter names that checkpoints use, and a method of
        # this block would be called by its replicas on other devices.
        block.__class__ = kinds[type(block)]


def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    def forward(block: nn.Module, *arguments: Any, **options: Any) -> Any:
        method = partial(kind.forward, block)
        return checkpoint(method, *arguments, use_reentrant=False, **options)

    return type(kind.__name__, (kind,), {"forward": forward})


def learning_rate(run: Run, step: int) -> float:
    """Linear warm-up over `lr_warmup_steps`, then half a cosine down to `min_learning_rate`."""
    if step < run.lr_warmup_steps:
        return run.learning_rate * (step + 1) / run.lr_warmup_steps
    done = (step - run.lr_warmup_steps) / max(run.steps - 1 - run.lr_warmup_steps, 1)
    above = 0.5 * (1 + math.cos(math.pi * done)) * (run.learning_rate - run.min_learning_rate)
    return run.min_learning_rate + above


def set_products(precision: str) -> None:
    """Make fp32 products and convolutions on GPUs compute in fp32, or with `tf32` in TF32.

    By default cuDNN's convolutions round to TF32, whose peak is several times that of fp32.
    """
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    rounded = precision == "tf32"
    # Both names, as torch refuses to read the older one if the two disagree.
    cuda.matmul.allow_tf32 = cudnn.allow_tf32 = rounded
    if hasattr(cudnn, "conv"):  # since torch 2.9
        for part in (cuda.matmul, cudnn.conv, cudnn.rnn):
            part.fp32_precision = "tf32" if rounded else "ieee"


def autocast(run: Run, device: torch.device) -> torch.autocast:
    """The run's precision for the forward pass; weights stay in fp32."""
    dtype = DTYPES[run.stated.precision]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def compiled(forward: Any) -> Any:
    """A module or function that is compiled when it is called first."""
    configure_inductor()
    return torch.compile(forward)


def configure_inductor() -> None:
    """Before anything is compiled on a GPU: avoid kernels whose results may be wrong."""
    if torch.cuda.is_available():
        # Imported only here, as it takes a second.
        import torch._inductor.config as inductor

        if hasattr(inductor, "inductor_choices_class"):  # which old versions of torch lack
            inductor.inductor_choices_class = _whole_rows


def _whole_rows() -> Any:
    """How inductor reduces rows: without a loop, if they are not too long.

    By default it does so up to 1,024 elements. Beyond that, a kernel may store what it reads again
    in a second loop before all threads see it (github.com/pytorch/pytorch/issues/190517). With
    such loops gpt2-large, whose layer norms are 1,280 wide, learned something else on an H200 than
    uncompiled; without them it learned the same.
    """
    from torch._inductor.choices import InductorChoices
    from torch._inductor.runtime.hints import ReductionHint
    from torch._inductor.virtualized import V

    class WholeRows(InductorChoices):  # type: ignore[misc]
        @staticmethod
        def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
            inner = features.get_reduction_hint() == ReductionHint.INNER
            short = V.graph.sizevars.statically_known_leq(features.reduction_numel, LONGEST)
            if inner and short and not cooperative_reduction:
                return True
            return InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)

        def uuid(self) -> str:
            return f"rows up to {LONGEST}"

    return WholeRows()
