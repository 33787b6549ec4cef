"""What all classifiers have in common, which parameters of them train, torchvision's import."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.perfmodel.flops import first_trainable


class Classifier(nn.Module):
    """A model of classes; `right` is the share that it had right when last evaluated."""

    # An attribute, as wrappers that only know how to call a model pass on nothing but its loss.
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
    """Let only a part train: all, the `head` last layers, or last layers of this share.

    Layers are modules with parameters of their own, in the order of their registration.
    """
    layers = [list(layer.parameters(recurse=False)) for layer in network.modules()]
    layers = [parameters for parameters in layers if parameters]
    sizes = [sum(parameter.numel() for parameter in parameters) for parameters in layers]
    for parameters in layers[: first_trainable(sizes, trainable, head=head)]:
        for parameter in parameters:
            parameter.requires_grad_(False)


# Declared operators live as long as their library.
_stand_ins: list[torch.library.Library] = []
_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> ModuleType:
    """torchvision with its models, also where its compiled library cannot be loaded."""
    try:
        import torchvision
    except RuntimeError as error:
        # A build for CUDA beside a CPU-only torch stops at operators on boxes, which no model here
        # calls: they are declared without an implementation, and the import is tried again.
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
