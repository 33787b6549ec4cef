"""Rung 7: tensor parallelism, one matrix cut along its outputs, the next along its inputs.

Both functions compute `inputs @ weight.T + bias`, like `torch.nn.functional.linear`; a rank has
only its part of `weight`. Between the two comes an element-wise function, such as GELU.
"""

import torch
from torch import distributed as dist
from torch.nn import functional as F


class Copy(torch.autograd.Function):
    """Forward, nothing happens: every rank has the inputs. Backward, what must happen?"""

    @staticmethod
    def forward(ctx, inputs):
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        ### END SOLUTION
        return gradient


class Sum(torch.autograd.Function):
    """Forward, every rank has a part of a sum. Backward, what must happen?"""

    @staticmethod
    def forward(ctx, part):
        part = part.clone()
        ### BEGIN SOLUTION
        dist.all_reduce(part)
        ### END SOLUTION
        return part

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def column(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """This rank's outputs; `inputs` (samples, width) are whole, `weight` (outputs/n, width)."""
    ### BEGIN SOLUTION
    return F.linear(Copy.apply(inputs), weight, bias)
    ### END SOLUTION


def row(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """All outputs; `inputs` (samples, width/n) are this rank's, `weight` (outputs, width/n).

    `bias` (outputs,) is whole, and the same on every rank.
    """
    ### BEGIN SOLUTION
    return Sum.apply(F.linear(inputs, weight)) + bias
    ### END SOLUTION
