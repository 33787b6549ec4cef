"""Classifiers of images and texts: torchvision's networks, the lab's own encoder, DistilBERT."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.config import models
from lab.errors import InputError, LabError
from lab.perfmodel.flops import DISTILBERT_HEAD, first_trainable
from lab.worker.models.gpt import Block, init_weights

# Declared operators live as long as their library.
_stand_ins: list[torch.library.Library] = []
_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class Classifier(nn.Module):
    """A classifier; `right` is its share of correct answers when last evaluated."""

    # An attribute, as wrappers that only call a model pass on nothing but its loss.
    right: Tensor

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores (samples, classes)."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per sample; targets are classes, (samples,)."""
        scores = self.logits(inputs)
        if not self.training:
            self.right = (scores.argmax(dim=1) == targets).float().mean()
        return functional.cross_entropy(scores, targets)


def freeze(network: nn.Module, trainable: str | float, *, head: int = 1) -> None:
    """Freeze all but a part: everything, the last `head` layers, or this share of last layers.

    Layers are modules that directly hold parameters, in the order of their registration.
    """
    layers = [list(layer.parameters(recurse=False)) for layer in network.modules()]
    layers = [parameters for parameters in layers if parameters]
    sizes = [sum(parameter.numel() for parameter in parameters) for parameters in layers]
    for parameters in layers[: first_trainable(sizes, trainable, head=head)]:
        for parameter in parameters:
            parameter.requires_grad_(False)


def import_torchvision() -> ModuleType:
    """torchvision with its models, even if its compiled library cannot be loaded."""
    try:
        import torchvision
    except RuntimeError as error:
        # A CUDA build beside a CPU-only torch fails at box operators, which no model here calls.
        # They are declared without an implementation, and the import is tried again.
        if "torchvision::nms" not in str(error) or _stand_ins:
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(operator + _BOXES)
        _stand_ins.append(library)
        import torchvision
    import torchvision.models

    return torchvision


class Vision(Classifier):
    """A network with random weights, fitted to the data's channels and classes."""

    def __init__(self, config: models.CNN, *, channels: int, classes: int) -> None:
        super().__init__()
        self.image_size = config.image_size
        self.freeze_batch_norm = config.batch_norm == "frozen"
        self.network: nn.Module = import_torchvision().models.get_model(
            config.network, weights=None, num_classes=classes
        )
        self.first_layer = _take_channels(self.network, channels)
        for module in self.network.modules():
            if isinstance(module, nn.Dropout) and config.dropout is not None:
                module.p = config.dropout
        freeze(self.network, config.trainable)
        self.train()  # a new module is in training mode, but its batch norm is not frozen yet

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores (samples, classes) of images (samples, channels, rows, columns) of bytes."""
        # Scaled here, on the device, as copying bytes to it takes a quarter of the traffic of fp32.
        images = inputs.to(torch.get_default_dtype()) / 127.5 - 1
        size = (self.image_size, self.image_size)
        if images.shape[2:] != size:
            images = functional.interpolate(images, size=size, mode="bilinear", align_corners=False)
        first = self.network.get_submodule(self.first_layer)
        assert isinstance(first, nn.Conv2d)
        # A quantized copy may be in bf16.
        return self.network(images.to(first.weight.dtype))

    def train(self, mode: bool = True) -> Self:
        """Like nn.Module.train, but frozen batch norm stays in evaluation mode."""
        super().train(mode)
        if self.freeze_batch_norm:
            for module in self.network.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self


def _take_channels(network: nn.Module, channels: int) -> str:
    """Replace the first convolution's three channels by the data's number; returns its name."""
    name, first = next(
        (name, module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d)
    )
    if first.in_channels == channels:
        return str(name)
    parent, _, child = name.rpartition(".")
    replacement = nn.Conv2d(
        channels,
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]
        stride=first.stride,  # type: ignore[arg-type]
        padding=first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    nn.init.kaiming_normal_(replacement.weight, mode="fan_out", nonlinearity="relu")
    setattr(network.get_submodule(parent), child, replacement)
    return str(name)


class TextClassifier(Classifier):
    """GPT-2's blocks without the causal mask, the mean over a text's tokens, a linear head."""

    def __init__(
        self, config: models.TextClassifier, *, vocab_size: int, classes: int, pad: int = 0
    ) -> None:
        super().__init__()
        self.pad = pad
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.positions = nn.Embedding(config.block_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, classes)
        self.apply(init_weights)

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores (samples, classes) of tokens (samples, tokens); padding changes nothing."""
        is_text = not_padding(inputs, self.pad)
        positions = self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        x = self.dropout(self.embedding(inputs) + positions)
        for block in self.blocks:
            x = block(x, is_text[:, None, None, :])
        weights = is_text / is_text.sum(dim=1, keepdim=True)
        pooled = torch.einsum("st,std->sd", weights.to(x.dtype), self.norm(x))
        return self.head(pooled)


def not_padding(tokens: Tensor, pad: int) -> Tensor:
    """True where a token is text, (samples, tokens)."""
    is_text = tokens != pad
    is_text[:, 0] = True  # so that an empty text also has a mean
    return is_text


class DistilBERT(Classifier):
    """A folder's encoder with transformers' classification head, initialized at random."""

    def __init__(self, config: models.DistilBERT, *, folder: Path, classes: int, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.network = _load(folder, classes, config.dropout)
        freeze(self.network, config.trainable, head=DISTILBERT_HEAD)

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores (samples, classes) of tokens (samples, tokens)."""
        mask = not_padding(inputs, self.pad)
        return self.network(input_ids=inputs, attention_mask=mask).logits


def _load(folder: Path, classes: int, dropout: float | None) -> nn.Module:
    # Before transformers, whose import would fail with a broken torchvision.
    import_torchvision()
    try:
        from transformers import DistilBertForSequenceClassification
    except ImportError as error:
        raise LabError(
            f"DistilBERT needs transformers ({error}): pip install 'scaling-lab[encoders]'"
        ) from None
    names = ("dropout", "attention_dropout", "seq_classif_dropout")
    rates: dict[str, Any] = {} if dropout is None else dict.fromkeys(names, dropout)
    try:
        network: nn.Module = DistilBertForSequenceClassification.from_pretrained(
            folder,
            num_labels=classes,
            # Nothing is downloaded and nothing of the folder is executed.
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            **rates,
        )
    except (OSError, ValueError, RuntimeError) as error:
        what = f"{folder} cannot be loaded: {error}"
        raise InputError.of("model", "weights", what) from None
    return network
