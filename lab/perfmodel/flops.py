"""Model costs: parameters, FLOPs, and the activations kept for the backward pass.

Counted layer by layer without torch, for any image size, batch and precision. The tests check the
counts against the real modules, torch's own FLOP counter and the tensors that autograd saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from lab.config.datasets import Data, Images, LabelledTexts, Synthetic, vocab_size_of
from lab.config.models import CNN, GPT, DistilBERT, Network, PythonModel, TextClassifier
from lab.config.own import Script
from lab.config.run import PrecisionName, Run, value_bytes
from lab.errors import LabError

INDEX = 8  # bytes of a token, a class, a position in a pooling window: int64
FLOAT = 4
# Tokens whose logits the head of a GPT holds at once. In bf16 on a CPU, 512 was within 6 % of the
# fastest number, for vocabularies of 4,096 and 50,304. On an H200, by torch's operators, 8,192 was
# within 3 % of 32,768.
HEAD_CHUNK = {"cpu": 512, "cuda": 8192}
DROPOUT = 0.5  # as published for AlexNet, VGG and SqueezeNet
DISTILBERT_DROPOUT, DISTILBERT_HEAD_DROPOUT = 0.1, 0.2
DISTILBERT_HEAD = 2  # layers that transformers adds to the encoder


@dataclass(frozen=True)
class ModelCost:
    """Parameters of a model, FLOPs of one sample, bytes that one micro-batch keeps for backward.

    Frozen parameters are not trained, and gradients go no further back than the first layer that
    trains. Activations assume fused attention, and exclude parameters. `copy_bytes` are those of
    the weights in low precision that autocast keeps for the backward pass.
    """

    parameters: int
    trainable: int
    forward_flops: int
    backward_flops: int
    activation_bytes: int
    copy_bytes: int


def model_cost(run: Run) -> ModelCost:
    """The cost of a run's model on its data, counted layer by layer.

    Raises LabError for a model of the user's own, whose layers are not known here.
    """
    trainable = getattr(run.architecture, "trainable", "all")
    head = DISTILBERT_HEAD if isinstance(run.architecture, DistilBERT) else 1
    trace = _trace(run, frozen=0)
    sizes = trace.sizes
    if frozen := first_trainable(sizes, trainable, head=head):
        trace = _trace(run, frozen=frozen)
    saved = trace.unshared + sum(trace.saved.values())
    flops = trace.forward, trace.backward
    return ModelCost(sum(sizes), sum(sizes[frozen:]), *flops, saved, trace.copies)


def flops_per_sample(run: Run) -> int:
    """FLOPs of forward and backward of one sample, the numerator of MFU.

    For a GPT by the published formula, else as counted.
    """
    model = run.architecture
    if isinstance(model, GPT):
        return model.block_size * gpt_flops_per_token(model, vocab_size_of(model, run.dataset))
    cost = model_cost(run)
    return cost.forward_flops + cost.backward_flops


def block_parameters(width: int) -> int:
    """Parameters of one transformer block: 12 d^2 + 13 d."""
    return 12 * width**2 + 13 * width


def gpt_parameters(config: GPT, vocab_size: int) -> int:
    """Trainable parameters of a GPT with a tied head: V d + T d + L (12 d^2 + 13 d) + 2 d.

    T is the block size. A vocabulary in the configuration overrides `vocab_size`, the data's.
    """
    width, vocabulary = config.width, config.vocab_size or vocab_size
    blocks = config.layers * block_parameters(width)
    return (vocabulary + config.block_size) * width + blocks + 2 * width


def gpt_flops_per_token(config: GPT, vocab_size: int) -> int:
    """FLOPs per token, forward and backward: 6 N + 12 L T d, N without position embeddings.

    Chowdhery et al. (2022), PaLM, appendix B. Recomputation to save memory does not count.
    """
    active = gpt_parameters(config, vocab_size) - config.block_size * config.width
    return 6 * active + 12 * config.layers * config.block_size * config.width


def first_trainable(sizes: Sequence[int], trainable: str | float, *, head: int = 1) -> int:
    """The number of first layers that stay frozen, from each layer's parameters.

    The last `head` layers are the head. A share is met by the fewest last layers that together hold
    at least that share of the parameters.
    """
    if trainable == "all":
        return 0
    if trainable == "head":
        return len(sizes) - head
    least = float(trainable) * sum(sizes)
    return max(place for place in range(len(sizes)) if sum(sizes[place:]) >= least)


@dataclass(eq=False)
class Value:
    """A tensor: its shape without the batch, bytes per element, whether it gets a gradient."""

    shape: tuple[int, ...]
    item: int = FLOAT
    grad: bool = False

    def like(self, *shape: int) -> Value:
        """Another value of the same kind, with this shape or its own."""
        return Value(shape or self.shape, self.item, self.grad)


@dataclass
class Trace:
    """Follows one forward pass of a micro-batch; each method is a layer, from values to a value.

    Only products (linear, convolution, attention) count as operations; a multiply-add counts as
    two. The first `frozen` layers with parameters do not train. Under autocast, products read and
    write two bytes per element.
    """

    samples: int
    precision: PrecisionName
    frozen: int
    sizes: list[int] = field(default_factory=list)  # parameters of each layer that has any
    forward: int = 0  # FLOPs of one sample
    backward: int = 0
    saved: dict[Value, int] = field(default_factory=dict)  # bytes; shared tensors count once
    unshared: int = 0  # bytes that one layer alone keeps
    copies: int = 0  # bytes of weights in low precision
    views: dict[Value, Value] = field(default_factory=dict)

    @property
    def item(self) -> int:
        """Bytes of an element that a product reads and writes."""
        return value_bytes(self.precision)

    def save(self, *values: Value) -> None:
        """Keep values for the backward pass."""
        for value in values:
            whole = self.views.get(value, value)
            self.saved[whole] = self.samples * math.prod(whole.shape) * whole.item

    def layer(self, parameters: int) -> bool:
        """Begin a layer with parameters; return whether it trains."""
        self.sizes.append(parameters)
        return len(self.sizes) > self.frozen

    def low(self, x: Value) -> Value:
        """Under autocast a copy in fewer bytes, unless the value already is one."""
        return x if x.item == self.item else Value(x.shape, self.item, x.grad)

    def linear(self, x: Value, out: int) -> Value:
        """(..., in) to (..., out)."""
        return self._product(x, (*x.shape[:-1], out), x.shape[-1], out)

    def conv(
        self, x: Value, out: int, kernel: int, stride: int = 1, padding: int = 0, bias: bool = True
    ) -> Value:
        """(channels, rows, columns) by square kernels."""
        shape = (out, *(_windows(size, kernel, stride, padding) for size in x.shape[1:]))
        window = x.shape[0] * kernel**2
        return self._product(x, shape, window, out, bias=bias, keeps_both=True)

    def _product(
        self,
        x: Value,
        shape: tuple[int, ...],
        window: int,
        out: int,
        *,
        bias: bool = True,
        keeps_both: bool = False,
    ) -> Value:
        """A product of a value and weights, in which a result is a sum over a window.

        For the gradient of one, the backward pass needs the other. That of a convolution is one
        function of both, so autograd `keeps_both` if either has a gradient.
        """
        trains, weights = self.layer((window + bias) * out), window * out
        flops = 2 * math.prod(shape) * window
        x = self.low(x)
        self.forward += flops
        self.backward += flops * (trains + x.grad)
        has_gradient = trains or x.grad
        if has_gradient if keeps_both else trains:
            self.save(x)
        if self.item < FLOAT and (has_gradient if keeps_both else x.grad):
            self.copies += self.item * weights
        return Value(shape, self.item, has_gradient)

    def embedding(self, tokens: Value, rows: int, width: int) -> Value:
        """Rows of a table; keeps the tokens."""
        trains = self.layer(rows * width)
        if trains:
            self.save(tokens)
        return Value((*tokens.shape, width), grad=trains)

    def positions(self, tokens: Value, rows: int, width: int, *, made: bool = False) -> Value:
        """Rows in order for all samples; keeps their indices if these are `made` each time."""
        trains = self.layer(rows * width)
        self.unshared += INDEX * math.prod(tokens.shape) * (trains and made)
        return Value((*tokens.shape, width), grad=trains)

    def layer_norm(self, x: Value) -> Value:
        """Normalize the last axis; keeps its input, and the mean and deviation of each row."""
        return self._norm(x, x.shape[-1], self.samples * math.prod(x.shape[:-1]))

    def batch_norm(self, x: Value, config: CNN) -> Value:
        """Normalize channels; keeps their mean and deviation, unless frozen."""
        return self._norm(x, x.shape[0], 0 if config.batch_norm == "frozen" else x.shape[0])

    def _norm(self, x: Value, width: int, rows: int) -> Value:
        y = Value(x.shape, x.item, self.layer(2 * width) or x.grad)
        if y.grad:
            self.save(x)
            self.unshared += 2 * FLOAT * rows
        return y

    def relu(self, x: Value) -> Value:
        """In place: the backward pass needs the result."""
        if x.grad:
            self.save(x)
        return x

    def gelu(self, x: Value) -> Value:
        """Keeps its input."""
        return self.relu(x).like()

    def dropout(self, x: Value, rate: float) -> Value:
        """Keeps its mask, one factor per element as on CPUs."""
        if not rate:
            return x
        self.unshared += self.samples * math.prod(x.shape) * x.item * x.grad
        return x.like()

    def add(self, x: Value, y: Value) -> Value:
        """A new sum; keeps nothing."""
        return Value(x.shape, max(x.item, y.item), x.grad or y.grad)

    def concatenate(self, values: Sequence[Value]) -> Value:
        """Concatenates the channels of several values."""
        channels, grad = sum(x.shape[0] for x in values), any(x.grad for x in values)
        return Value((channels, *values[0].shape[1:]), values[0].item, grad)

    def max_pool(self, x: Value, kernel: int, *, padding: int = 0, ceil: bool = False) -> Value:
        """With a stride of 2; keeps its input and the position of each maximum."""
        sides = (_windows(size, kernel, 2, padding, ceil=ceil) for size in x.shape[1:])
        y = self.relu(x).like(x.shape[0], *sides)
        self.unshared += self.samples * INDEX * math.prod(y.shape) * x.grad
        return y

    def average_pool(self, x: Value, size: int) -> Value:
        """To `size` rows and columns; keeps its input."""
        return self.relu(x).like(x.shape[0], size, size)

    def attention(self, projected: Sequence[Value], heads: int, *, mask: int = 0) -> Value:
        """Fused self-attention of queries, keys and values, (tokens, width) each or in one.

        Keeps them, the result and a sum per row; for padded texts also a mask of `mask` elements.
        """
        tokens, width = projected[0].shape[0], sum(x.shape[1] for x in projected) // 3
        y = Value((tokens, width), projected[0].item, any(x.grad for x in projected))
        flops = 4 * tokens**2 * width
        self.forward += flops
        if y.grad:
            self.backward += 2 * flops
            self.save(*projected, y)
            self.unshared += self.samples * (FLOAT * tokens * heads + y.item * mask)
        return y

    def first(self, x: Value) -> Value:
        """The first token, as a view: keeping it keeps all tokens."""
        y = x.like(*x.shape[1:])
        self.views[y] = x
        return y

    def mean_of_tokens(self, x: Value) -> Value:
        """A weighted mean, as a product of token weights and tokens."""
        x = self.low(x)
        flops = 2 * math.prod(x.shape)
        self.forward += flops
        self.backward += flops * x.grad
        self.unshared += self.samples * x.shape[0] * self.item * x.grad
        return x.like(x.shape[1])

    def cross_entropy(self, logits: Value) -> None:
        """Keeps the log-probabilities and the targets."""
        if logits.grad:
            rows = math.prod(logits.shape[:-1])
            self.unshared += self.samples * (FLOAT * math.prod(logits.shape) + INDEX * rows) + FLOAT


def _windows(size: int, kernel: int, stride: int, padding: int, *, ceil: bool = False) -> int:
    """Positions of a window along an axis."""
    steps = (size + 2 * padding - kernel) / stride
    return (math.ceil(steps) if ceil else math.floor(steps)) + 1


def _trace(run: Run, frozen: int) -> Trace:
    """The run's model up to its loss."""
    trace = Trace(run.stated.micro_batch_size, run.stated.precision, frozen)
    model, data = run.architecture, run.dataset
    match model:
        case GPT():
            _gpt(trace, model, vocab_size_of(model, data))
        case TextClassifier():
            x = trace.layer_norm(_blocks(trace, model, vocab_size_of(model, data)))
            trace.cross_entropy(trace.linear(trace.mean_of_tokens(x), _classes(data)))
        case DistilBERT():
            trace.cross_entropy(trace.linear(_distilbert(trace, model), _classes(data)))
        case CNN():
            assert isinstance(data, Images | Synthetic)
            image = Value((data.channels, model.image_size, model.image_size))
            trace.cross_entropy(_NETWORKS[model.network](trace, image, model, _classes(data)))
        case PythonModel() | Script():
            raise LabError(f"the layers of {model.label} are known only to its own code")
        case _:
            assert_never(model)
    return trace


def _classes(data: Data) -> int:
    assert isinstance(data, LabelledTexts | Images | Synthetic)
    return data.classes


def _gpt(trace: Trace, config: GPT, vocab_size: int) -> None:
    """GPT-2 with a tied head."""
    hidden = trace.low(trace.layer_norm(_blocks(trace, config, vocab_size)))
    tokens, width = hidden.shape
    # The head shares the embedding's weight: it trains, and its parameters count there. Its loss
    # computes both gradients in the forward pass, and keeps them instead of their inputs.
    trace.forward += 3 * 2 * tokens * vocab_size * width
    trace.save(hidden)
    trace.unshared += FLOAT * (vocab_size * width + 1)


def _blocks(trace: Trace, config: GPT | TextClassifier, vocab_size: int) -> Value:
    mask = config.block_size if isinstance(config, TextClassifier) else 0
    tokens = Value((config.block_size,), INDEX)
    words = trace.embedding(tokens, vocab_size, config.width)
    places = trace.positions(tokens, config.block_size, config.width, made=True)
    x = trace.dropout(trace.add(words, places), config.dropout)
    for _ in range(config.layers):
        projected = trace.linear(trace.layer_norm(x), 3 * config.width)
        mixed = trace.attention([projected], config.heads, mask=mask)
        x = trace.add(x, trace.dropout(trace.linear(mixed, config.width), config.dropout))
        hidden = trace.gelu(trace.linear(trace.layer_norm(x), 4 * config.width))
        x = trace.add(x, trace.dropout(trace.linear(hidden, config.width), config.dropout))
    return x


def _distilbert(trace: Trace, config: DistilBERT) -> Value:
    """The encoder of Sanh et al. (2019), and transformers' head up to the last layer."""
    rate = DISTILBERT_DROPOUT if config.dropout is None else config.dropout
    width, mask = config.width, config.block_size**2
    tokens = Value((config.block_size,), INDEX)
    words = trace.embedding(tokens, config.vocab_size, width)
    places = trace.positions(tokens, config.positions, width)
    x = trace.dropout(trace.layer_norm(trace.add(words, places)), rate)
    for _ in range(config.layers):
        projected = [trace.linear(x, width) for _ in range(3)]
        mixed = trace.linear(trace.attention(projected, config.heads, mask=mask), width)
        x = trace.layer_norm(trace.add(mixed, x))
        hidden = trace.linear(trace.gelu(trace.linear(x, 4 * width)), width)
        x = trace.layer_norm(trace.add(trace.dropout(hidden, rate), x))
    first = trace.relu(trace.linear(trace.first(x), width))
    return trace.dropout(first, DISTILBERT_HEAD_DROPOUT if config.dropout is None else rate)


def _rate(config: CNN) -> float:
    return DROPOUT if config.dropout is None else config.dropout


def _alexnet(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    x = trace.relu(trace.conv(x, 64, 11, stride=4, padding=2))
    x = trace.relu(trace.conv(trace.max_pool(x, 3), 192, 5, padding=2))
    x = trace.max_pool(x, 3)
    for channels in (384, 256, 256):
        x = trace.relu(trace.conv(x, channels, 3, padding=1))
    x = _flat(trace.average_pool(trace.max_pool(x, 3), 6))
    for _ in range(2):
        x = trace.relu(trace.linear(trace.dropout(x, _rate(config)), 4096))
    return trace.linear(x, classes)


def _vgg16(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    for channels, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            x = trace.relu(trace.conv(x, channels, 3, padding=1))
        x = trace.max_pool(x, 2)
    x = _flat(trace.average_pool(x, 7))
    for _ in range(2):
        x = trace.dropout(trace.relu(trace.linear(x, 4096)), _rate(config))
    return trace.linear(x, classes)


def _squeezenet(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    x = trace.relu(trace.conv(x, 96, 7, stride=2))
    for number, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        if number in {0, 3, 7}:
            x = trace.max_pool(x, 3, ceil=True)
        x = trace.relu(trace.conv(x, squeeze, 1))
        pair = [trace.conv(x, 4 * squeeze, kernel, padding=kernel // 2) for kernel in (1, 3)]
        x = trace.concatenate([trace.relu(half) for half in pair])
    x = trace.relu(trace.conv(trace.dropout(x, _rate(config)), classes, 1))
    return x.like(x.shape[0])  # the mean over positions


def _resnet18(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    def conv_norm(x: Value, channels: int, kernel: int, stride: int = 1) -> Value:
        y = trace.conv(x, channels, kernel, stride, padding=kernel // 2, bias=False)
        return trace.batch_norm(y, config)

    x = trace.max_pool(trace.relu(conv_norm(x, 64, 7, 2)), 3, padding=1)
    for channels, strides in ((64, (1, 1)), (128, (2, 1)), (256, (2, 1)), (512, (2, 1))):
        for stride in strides:
            y = trace.relu(conv_norm(x, channels, 3, stride))
            y = conv_norm(y, channels, 3)
            short = x if stride == 1 else conv_norm(x, channels, 1, stride)
            y.grad = y.grad or short.grad
            x = trace.relu(y)  # the sum is computed in place
    return trace.linear(x.like(x.shape[0]), classes)


def _densenet121(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    def norm(x: Value) -> Value:
        return trace.relu(trace.batch_norm(x, config))

    growth, blocks = 32, (6, 12, 24, 16)
    x = norm(trace.conv(x, 2 * growth, 7, stride=2, padding=3, bias=False))
    x = trace.max_pool(x, 3, padding=1)
    for number, layers in enumerate(blocks, start=1):
        features = [x]
        for _ in range(layers):
            y = trace.conv(norm(trace.concatenate(features)), 4 * growth, 1, bias=False)
            features.append(trace.conv(norm(y), growth, 3, padding=1, bias=False))
        x = trace.concatenate(features)
        if number < len(blocks):
            x = trace.conv(norm(x), x.shape[0] // 2, 1, bias=False)
            x = trace.average_pool(x, x.shape[1] // 2)
    x = norm(x)
    return trace.linear(x.like(x.shape[0]), classes)


def _flat(x: Value) -> Value:
    """The same storage as one axis."""
    x.shape = (math.prod(x.shape),)
    return x


_NETWORKS: dict[Network, Callable[[Trace, Value, CNN, int], Value]] = {
    "alexnet": _alexnet,
    "vgg16": _vgg16,
    "squeezenet1_0": _squeezenet,
    "resnet18": _resnet18,
    "densenet121": _densenet121,
}
