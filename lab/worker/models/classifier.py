"""What all classifiers have in common, and which of their parameters train."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from lab.analysis.layers import first_trainable


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
    layers = [layer for layer in network.modules() if any(True for _ in layer.parameters(recurse=False))]
    sizes = [sum(parameter.numel() for parameter in layer.parameters(recurse=False)) for layer in layers]
    for layer in layers[: first_trainable(sizes, trainable, head=head)]:
        for parameter in layer.parameters(recurse=False):
            parameter.requires_grad_(False)
