"""What all classifiers have in common, and which of their parameters train."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.perfmodel.flops import first_trainable


class Classifier(nn.Module):
    """Answers inputs with targets with the mean loss in nats per sample; `right` is the share it had right of its last inputs.

    That is how a wrapper that only knows how to call a model leaves room for accuracy.
    """

    right: Tensor

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores (samples, classes)."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy; targets are classes, (samples,)."""
        scores = self.logits(inputs)
        if not self.training:
            self.right = (scores.argmax(dim=1) == targets).float().mean()
        return functional.cross_entropy(scores, targets)


def freeze(network: nn.Module, trainable: str | float, *, head: int = 1) -> None:
    """Let only a part of the parameters train: all, the `head` last layers, or the last layers that hold at least this share.

    Layers are modules with parameters of their own, in the order in which the network registers them.
    """
    layers = [
        layer for layer in network.modules() if any(True for _ in layer.parameters(recurse=False))
    ]
    sizes = [
        sum(parameter.numel() for parameter in layer.parameters(recurse=False)) for layer in layers
    ]
    for layer in layers[: first_trainable(sizes, trainable, head=head)]:
        for parameter in layer.parameters(recurse=False):
            parameter.requires_grad_(False)


# A library lives as long as this keeps it.
_stand_ins: list[torch.library.Library] = []
_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> ModuleType:
    """torchvision with its models.

    Where its compiled library cannot be loaded, as that of a CUDA build beside a CPU-only torch, the import stops at
    operators on boxes that no model here calls. They are declared then, and the import is tried again.
    """
    try:
        import torchvision
    except RuntimeError as error:
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

    module: ModuleType = torchvision
    return module
