"""What all classifiers have in common, which of their parameters train, torchvision's import."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.perfmodel.flops import first_trainable


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


# Declared operators live as long as their library.
_stand_ins: list[torch.library.Library] = []
_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


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

    module: ModuleType = torchvision
    return module
