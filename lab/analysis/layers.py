"""What layers cost: a trace of shapes through a network counts parameters, operations and what is kept for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["fp32", "bf16", "fp16"]
Device = Literal["cpu", "cuda"]
INDEX = 8  # bytes of a token, a class, a place in a pooling window: int64
FLOAT = 4


@dataclass(eq=False)
class Value:
    """A tensor of the forward pass: its shape without the batch, bytes per element, and whether a gradient comes back to it."""

    shape: tuple[int, ...]
    item: int = FLOAT
    grad: bool = False

    @property
    def bytes(self) -> int:
        """Of one sample."""
        return math.prod(self.shape) * self.item


@dataclass
class Trace:
    """Follows one forward pass of a micro-batch; each method is a layer that takes values and gives one.

    Only products (linear, convolution, attention) count as operations, a multiplication and an addition as two. The
    first `frozen` layers with parameters do not train. Under autocast products read and write two bytes an element.
    """

    samples: int = 1
    precision: Precision = "fp32"
    device: Device = "cpu"
    frozen: int = 0
    sizes: list[int] = field(default_factory=list)  # parameters of each layer that has any, in order
    forward: int = 0  # FLOPs of one sample
    backward: int = 0
    _saved: dict[Value, int] = field(default_factory=dict)
    _views: dict[Value, Value] = field(default_factory=dict)
    _kept: int = 0

    @property
    def activation_bytes(self) -> int:
        """What one micro-batch keeps for its backward pass, parameters left out."""
        return self._kept + sum(self._saved.values())

    def save(self, *values: Value) -> None:
        """Keep values for the backward pass; what several layers keep is there once."""
        for value in values:
            whole = self._views.get(value, value)
            self._saved[whole] = self.samples * whole.bytes

    def linear(self, x: Value, out: int, *, bias: bool = True) -> Value:
        """(..., in) to (..., out)."""
        trains = self._layer((x.shape[-1] + bias) * out)
        return self._product(x, (*x.shape[:-1], out), 2 * math.prod(x.shape) * out, trains=trains, keep=trains)

    def conv(self, x: Value, out: int, kernel: int, *, stride: int = 1, padding: int = 0, bias: bool = True) -> Value:
        """(channels, rows, columns) by square kernels."""
        window = x.shape[0] * kernel**2
        trains = self._layer((window + bias) * out)
        shape = (out, *(_reach(size, kernel, stride, padding) for size in x.shape[1:]))
        # Its backward pass is one function of input and weight: it keeps the input also where only that has a gradient.
        return self._product(x, shape, 2 * math.prod(shape) * window, trains=trains, keep=trains or x.grad)

    def embedding(self, tokens: Value, vocab_size: int, width: int) -> Value:
        """Rows of a table; keeps the tokens."""
        y = self.positions(tokens, vocab_size, width)
        if y.grad:
            self.save(tokens)
        return y

    def positions(self, tokens: Value, count: int, width: int, *, made: bool = False) -> Value:
        """Rows of a table in their order, the same for all samples; keeps the numbers of the rows where they are `made` each time."""
        trains = self._layer(count * width)
        self._kept += tokens.bytes * (trains and made)
        return Value((*tokens.shape, width), grad=trains)

    def layer_norm(self, x: Value) -> Value:
        """Normalize the last axis; keeps its input, and the mean and deviation of each row."""
        y = Value(x.shape, x.item, grad=self._layer(2 * x.shape[-1]) or x.grad)
        if y.grad:
            self.save(x)
            self._kept += 2 * FLOAT * self.samples * math.prod(x.shape[:-1])
        return y

    def batch_norm(self, x: Value, *, frozen: bool = False) -> Value:
        """Normalize channels, by running statistics where they are `frozen`."""
        y = Value(x.shape, x.item, grad=self._layer(2 * x.shape[0]) or x.grad)
        if y.grad:
            self.save(x)
            self._kept += 0 if frozen else 2 * FLOAT * x.shape[0]
        return y

    def relu(self, x: Value) -> Value:
        """In place: the backward pass needs the result."""
        if x.grad:
            self.save(x)
        return x

    def gelu(self, x: Value) -> Value:
        """Keeps its input."""
        if x.grad:
            self.save(x)
        return Value(x.shape, x.item, x.grad)

    def dropout(self, x: Value, rate: float) -> Value:
        """Keeps its mask: bytes on CUDA, factors on CPU."""
        if not rate:
            return x
        if x.grad:
            self._kept += self.samples * (math.prod(x.shape) if self.device == "cuda" else x.bytes)
        return Value(x.shape, x.item, x.grad)

    def add(self, x: Value, y: Value) -> Value:
        """A sum of its own; keeps nothing."""
        return Value(x.shape, max(x.item, y.item), x.grad or y.grad)

    def concatenate(self, values: Sequence[Value]) -> Value:
        """Channels of several values one after the other."""
        channels = sum(value.shape[0] for value in values)
        return Value((channels, *values[0].shape[1:]), values[0].item, any(value.grad for value in values))

    def max_pool(self, x: Value, kernel: int, stride: int, *, padding: int = 0, ceil: bool = False) -> Value:
        """Keeps its input and the place of each maximum."""
        shape = (x.shape[0], *(_reach(size, kernel, stride, padding, ceil=ceil) for size in x.shape[1:]))
        if x.grad:
            self.save(x)
            self._kept += self.samples * INDEX * math.prod(shape)
        return Value(shape, x.item, x.grad)

    def average_pool(self, x: Value, size: int) -> Value:
        """To `size` rows and columns; keeps its input."""
        if x.grad:
            self.save(x)
        return Value((x.shape[0], size, size), x.item, x.grad)

    def mean_of_places(self, x: Value) -> Value:
        """One value per channel; keeps nothing."""
        return Value((x.shape[0],), x.item, x.grad)

    def attention(self, projected: Sequence[Value], heads: int, *, mask: int = 0) -> Value:
        """Fused self-attention of queries, keys and values, (tokens, width) each or in one: keeps them, the result, a sum per row.

        Where texts are padded it also keeps a mask, of so many elements a sample.
        """
        tokens = projected[0].shape[0]
        width = sum(value.shape[1] for value in projected) // 3
        y = Value((tokens, width), projected[0].item, any(value.grad for value in projected))
        flops = 4 * tokens**2 * width
        self.forward += flops
        if y.grad:
            self.backward += 2 * flops
            self.save(*projected, y)
            self._kept += FLOAT * self.samples * (tokens * heads + mask)
        return y

    def first(self, x: Value) -> Value:
        """The first token: a view, so that whoever keeps it keeps all of them."""
        y = Value(x.shape[1:], x.item, x.grad)
        self._views[y] = x
        return y

    def mean_of_tokens(self, x: Value) -> Value:
        """A weighted mean as a product of the weights of the tokens and the tokens."""
        x = self._low(x)
        tokens, width = x.shape
        self.forward += 2 * tokens * width
        self.backward += 2 * tokens * width * x.grad
        if x.grad:
            self._kept += self.samples * tokens * self._item
        return Value((width,), self._item, x.grad)

    def cross_entropy(self, logits: Value) -> None:
        """Keeps the logarithms of the shares, and the targets."""
        if logits.grad:
            rows = math.prod(logits.shape[:-1])
            self._kept += self.samples * (FLOAT * math.prod(logits.shape) + INDEX * rows) + FLOAT

    def product(self, x: Value, flops: int) -> None:
        """A product with a weight that trains and counts elsewhere."""
        self.forward += flops
        self.backward += 2 * flops
        self.save(x)

    @property
    def _item(self) -> int:
        return FLOAT if self.precision == "fp32" else 2

    def _low(self, x: Value) -> Value:
        """Under autocast a copy in fewer bytes, unless it is one."""
        return x if x.item == self._item else Value(x.shape, self._item, x.grad)

    def _layer(self, parameters: int) -> bool:
        self.sizes.append(parameters)
        return len(self.sizes) > self.frozen

    def _product(self, x: Value, shape: tuple[int, ...], flops: int, *, trains: bool, keep: bool) -> Value:
        x = self._low(x)
        self.forward += flops
        self.backward += flops * (trains + x.grad)
        if keep:
            self.save(x)
        return Value(shape, self._item, trains or x.grad)


def first_trainable(sizes: Sequence[int], trainable: str | float, *, head: int = 1) -> int:
    """How many of a network's first layers stay as they are; `sizes` are the parameters of each, `head` its last layers.

    A share is met by the fewest last layers that together hold at least as much of the parameters.
    """
    if trainable == "all":
        return 0
    if trainable == "head":
        return len(sizes) - head
    wanted, held = float(trainable) * sum(sizes), 0
    for place in reversed(range(len(sizes))):
        held += sizes[place]
        if held >= wanted:
            return place
    return 0


def _reach(size: int, kernel: int, stride: int, padding: int, *, ceil: bool = False) -> int:
    """Places of a window along an axis."""
    steps = (size + 2 * padding - kernel) / stride
    return (math.ceil(steps) if ceil else math.floor(steps)) + 1
