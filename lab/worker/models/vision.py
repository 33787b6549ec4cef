"""torchvision's convolutional networks, fitted to the data."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.config import models
from lab.worker.models.classifier import Classifier, freeze, import_torchvision


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
        scores: Tensor = self.network(images.to(first.weight.dtype))
        return scores

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
