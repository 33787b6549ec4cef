"""What a model costs: parameters, floating-point operations, and the activations that wait for the
backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lab.config.datasets import vocab_size_of
from lab.config.models import CNN, GPT, DistilBERT, TextClassifier
from lab.config.run import Run


@dataclass(frozen=True)
class ModelCost:
    """Parameters of the whole model; FLOPs of one sample; bytes that one micro-batch keeps for its
    backward pass.

    What is frozen is not trained, and no gradient goes further back than the first layer that
    trains. Activations are those of fused attention, parameters and their copies in low precision
    left out.
    """

    parameters: int
    trainable: int
    forward_flops: int
    backward_flops: int
    activation_bytes: int


def model_cost(run: Run, *, device: Device = "cpu") -> ModelCost:
    """The cost of a run's model on its data, counted layer by layer."""
    trainable = getattr(run.architecture, "trainable", "all")
    head = DISTILBERT_HEAD if isinstance(run.architecture, DistilBERT) else 1
    sizes = _traced(run, device, frozen=0).sizes
    frozen = first_trainable(sizes, trainable, head=head)
    trace = _traced(run, device, frozen=frozen)
    return ModelCost(
        sum(sizes), sum(sizes[frozen:]), trace.forward, trace.backward, trace.activation_bytes
    )


def _traced(run: Run, device: Device, frozen: int) -> Trace:
    trace = Trace(
        samples=run.micro_batch_size, precision=run.precision, device=device, frozen=frozen
    )
    model, data = run.architecture, run.dataset
    classes, vocab_size = int(getattr(data, "classes", 0)), vocab_size_of(model, data)
    match model:
        case GPT():
            gpt(trace, model, vocab_size)
        case TextClassifier():
            text_classifier(trace, model, vocab_size, classes)
        case DistilBERT():
            distilbert(trace, model, classes)
        case CNN():
            cnn(trace, model, int(getattr(data, "channels", 0)), classes)
    return trace


def flops_per_sample(run: Run) -> int:
    """FLOPs of forward and backward of one sample, the numerator of MFU: by the published formula
    for a GPT, else as counted.
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
    """Trainable parameters of a GPT with a tied head: V d + T d + L (12 d^2 + 13 d) + 2 d, T the
    block size.

    A vocabulary that the configuration names goes before `vocab_size`, that of the data.
    """
    width, vocabulary = config.width, config.vocab_size or vocab_size
    blocks = config.layers * block_parameters(width)
    return (vocabulary + config.block_size) * width + blocks + 2 * width


def gpt_flops_per_token(config: GPT, vocab_size: int) -> int:
    """FLOPs of forward and backward per token: 6 N + 12 L T d, N without position embeddings and
    with the tied head.

    Chowdhery et al. (2022), PaLM, appendix B. What is computed twice to save memory does not count.
    """
    active = gpt_parameters(config, vocab_size) - config.block_size * config.width
    return 6 * active + 12 * config.layers * config.block_size * config.width


Precision = Literal["fp32", "bf16", "fp16"]
Device = Literal["cpu", "cuda"]
INDEX = 8  # bytes of a token, a class, a place in a pooling window: int64
FLOAT = 4


@dataclass(eq=False)
class Value:
    """A tensor of the forward pass: its shape without the batch, bytes per element, and whether a
    gradient comes back to it.
    """

    shape: tuple[int, ...]
    item: int = FLOAT
    grad: bool = False

    @property
    def bytes(self) -> int:
        """Of one sample."""
        return math.prod(self.shape) * self.item


@dataclass
class Trace:
    """Follows one forward pass of a micro-batch; each method is a layer that takes values and gives
    one.

    Only products (linear, convolution, attention) count as operations, a multiplication and an
    addition as two. The first `frozen` layers with parameters do not train. Under autocast products
    read and write two bytes an element.
    """

    samples: int = 1
    precision: Precision = "fp32"
    device: Device = "cpu"
    frozen: int = 0
    sizes: list[int] = field(
        default_factory=list
    )  # parameters of each layer that has any, in order
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
        return self._product(
            x, (*x.shape[:-1], out), 2 * math.prod(x.shape) * out, trains=trains, keep=trains
        )

    def conv(
        self,
        x: Value,
        out: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ) -> Value:
        """(channels, rows, columns) by square kernels."""
        window = x.shape[0] * kernel**2
        trains = self._layer((window + bias) * out)
        shape = (out, *(_reach(size, kernel, stride, padding) for size in x.shape[1:]))
        # Its backward pass is one function of input and weight: it keeps the input also where only
        # that has a gradient.
        return self._product(
            x, shape, 2 * math.prod(shape) * window, trains=trains, keep=trains or x.grad
        )

    def embedding(self, tokens: Value, vocab_size: int, width: int) -> Value:
        """Rows of a table; keeps the tokens."""
        y = self.positions(tokens, vocab_size, width)
        if y.grad:
            self.save(tokens)
        return y

    def positions(self, tokens: Value, count: int, width: int, *, made: bool = False) -> Value:
        """Rows of a table in their order, the same for all samples; keeps the numbers of the rows
        where they are `made` each time.
        """
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
        return Value(
            (channels, *values[0].shape[1:]), values[0].item, any(value.grad for value in values)
        )

    def max_pool(
        self, x: Value, kernel: int, stride: int, *, padding: int = 0, ceil: bool = False
    ) -> Value:
        """Keeps its input and the place of each maximum."""
        shape = (
            x.shape[0],
            *(_reach(size, kernel, stride, padding, ceil=ceil) for size in x.shape[1:]),
        )
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
        """Fused self-attention of queries, keys and values, (tokens, width) each or in one: keeps
        them, the result, a sum per row.

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

    def _product(
        self, x: Value, shape: tuple[int, ...], flops: int, *, trains: bool, keep: bool
    ) -> Value:
        x = self._low(x)
        self.forward += flops
        self.backward += flops * (trains + x.grad)
        if keep:
            self.save(x)
        return Value(shape, self._item, trains or x.grad)


def first_trainable(sizes: Sequence[int], trainable: str | float, *, head: int = 1) -> int:
    """How many of a network's first layers stay as they are; `sizes` are the parameters of each,
    `head` its last layers.

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


CHUNK_LOGITS = (
    2**24
)  # 64 MiB in fp32; the head of a language model never keeps more than twice as many
DROPOUT = 0.5  # as published for AlexNet, VGG and SqueezeNet
DISTILBERT_DROPOUT, DISTILBERT_HEAD_DROPOUT = 0.1, 0.2
DISTILBERT_HEAD = 2  # layers that transformers adds to the encoder


def gpt(trace: Trace, config: GPT, vocab_size: int) -> None:
    """GPT-2 with a tied head, up to the loss."""
    x = _embedded(trace, config, vocab_size)
    for _ in range(config.layers):
        x = _block(trace, x, config)
    hidden = trace.layer_norm(x)
    tokens, width = hidden.shape
    low = hidden if trace.precision == "fp32" else Value(hidden.shape, 2, hidden.grad)
    logits = tokens * vocab_size
    if trace.samples * logits <= 2 * CHUNK_LOGITS:
        trace.product(low, 2 * logits * width)
        trace.cross_entropy(Value((tokens, vocab_size), low.item, grad=True))
    else:
        trace.product(hidden, 2 * logits * width)
        trace.save(Value((tokens,), INDEX))


def text_classifier(trace: Trace, config: TextClassifier, vocab_size: int, classes: int) -> None:
    """The encoder with its head, up to the loss."""
    x = _embedded(trace, config, vocab_size)
    for _ in range(config.layers):
        x = _block(trace, x, config)
    trace.cross_entropy(trace.linear(trace.mean_of_tokens(trace.layer_norm(x)), classes))


def distilbert(trace: Trace, config: DistilBERT, classes: int) -> None:
    """The encoder of Sanh et al. (2019) with transformers' head, up to the loss."""
    rate = DISTILBERT_DROPOUT if config.dropout is None else config.dropout
    tokens = Value((config.block_size,), INDEX)
    words = trace.embedding(tokens, config.vocab_size, config.width)
    places = trace.positions(tokens, config.positions, config.width)
    x = trace.dropout(trace.layer_norm(trace.add(words, places)), rate)
    for _ in range(config.layers):
        mixed = trace.attention(
            [trace.linear(x, config.width) for _ in range(3)],
            config.heads,
            mask=config.block_size**2,
        )
        x = trace.layer_norm(trace.add(trace.linear(mixed, config.width), x))
        hidden = trace.gelu(trace.linear(x, 4 * config.width))
        x = trace.layer_norm(trace.add(trace.dropout(trace.linear(hidden, config.width), rate), x))
    first = trace.relu(trace.linear(trace.first(x), config.width))
    first = trace.dropout(
        first, DISTILBERT_HEAD_DROPOUT if config.dropout is None else config.dropout
    )
    trace.cross_entropy(trace.linear(first, classes))


def cnn(trace: Trace, config: CNN, channels: int, classes: int) -> None:
    """A network of torchvision, up to the loss."""
    image = Value((channels, config.image_size, config.image_size), FLOAT)
    trace.cross_entropy(_NETWORKS[config.network](trace, image, config, classes))


def _embedded(trace: Trace, config: GPT | TextClassifier, vocab_size: int) -> Value:
    tokens = Value((config.block_size,), INDEX)
    words = trace.embedding(tokens, vocab_size, config.width)
    places = trace.positions(tokens, config.block_size, config.width, made=True)
    return trace.dropout(trace.add(words, places), config.dropout)


def _block(trace: Trace, x: Value, config: GPT | TextClassifier) -> Value:
    mask = config.block_size if isinstance(config, TextClassifier) else 0
    mixed = trace.attention(
        [trace.linear(trace.layer_norm(x), 3 * config.width)], config.heads, mask=mask
    )
    x = trace.add(x, trace.dropout(trace.linear(mixed, config.width), config.dropout))
    hidden = trace.gelu(trace.linear(trace.layer_norm(x), 4 * config.width))
    return trace.add(x, trace.dropout(trace.linear(hidden, config.width), config.dropout))


def _rate(config: CNN) -> float:
    return DROPOUT if config.dropout is None else config.dropout


def _alexnet(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    x = trace.relu(trace.conv(x, 64, 11, stride=4, padding=2))
    x = trace.relu(trace.conv(trace.max_pool(x, 3, 2), 192, 5, padding=2))
    x = trace.max_pool(x, 3, 2)
    for channels in (384, 256, 256):
        x = trace.relu(trace.conv(x, channels, 3, padding=1))
    x = _flat(trace.average_pool(trace.max_pool(x, 3, 2), 6))
    for _ in range(2):
        x = trace.relu(trace.linear(trace.dropout(x, _rate(config)), 4096))
    return trace.linear(x, classes)


def _vgg16(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    for channels, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            x = trace.relu(trace.conv(x, channels, 3, padding=1))
        x = trace.max_pool(x, 2, 2)
    x = _flat(trace.average_pool(x, 7))
    for _ in range(2):
        x = trace.dropout(trace.relu(trace.linear(x, 4096)), _rate(config))
    return trace.linear(x, classes)


def _squeezenet(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    def fire(x: Value, squeeze: int, expand: int) -> Value:
        x = trace.relu(trace.conv(x, squeeze, 1))
        return trace.concatenate(
            [trace.relu(trace.conv(x, expand, kernel, padding=kernel // 2)) for kernel in (1, 3)]
        )

    x = trace.relu(trace.conv(x, 96, 7, stride=2))
    for fires in (
        ((16, 64), (16, 64), (32, 128)),
        ((32, 128), (48, 192), (48, 192), (64, 256)),
        ((64, 256),),
    ):
        x = trace.max_pool(x, 3, 2, ceil=True)
        for squeeze, expand in fires:
            x = fire(x, squeeze, expand)
    x = trace.relu(trace.conv(trace.dropout(x, _rate(config)), classes, 1))
    return trace.mean_of_places(x)


def _resnet18(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    def norm(x: Value) -> Value:
        return trace.batch_norm(x, frozen=config.batch_norm == "frozen")

    x = trace.relu(norm(trace.conv(x, 64, 7, stride=2, padding=3, bias=False)))
    x = trace.max_pool(x, 3, 2, padding=1)
    for channels, strides in ((64, (1, 1)), (128, (2, 1)), (256, (2, 1)), (512, (2, 1))):
        for stride in strides:
            y = trace.relu(norm(trace.conv(x, channels, 3, stride=stride, padding=1, bias=False)))
            y = norm(trace.conv(y, channels, 3, padding=1, bias=False))
            short = (
                x if stride == 1 else norm(trace.conv(x, channels, 1, stride=stride, bias=False))
            )
            y.grad = y.grad or short.grad
            x = trace.relu(y)  # the sum is made in place
    return trace.linear(trace.mean_of_places(x), classes)


def _densenet121(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    def norm(x: Value) -> Value:
        return trace.relu(trace.batch_norm(x, frozen=config.batch_norm == "frozen"))

    growth = 32
    x = trace.max_pool(
        norm(trace.conv(x, 2 * growth, 7, stride=2, padding=3, bias=False)), 3, 2, padding=1
    )
    blocks = (6, 12, 24, 16)
    for number, layers in enumerate(blocks, start=1):
        features: Sequence[Value] = [x]
        for _ in range(layers):
            y = trace.conv(norm(trace.concatenate(features)), 4 * growth, 1, bias=False)
            features = [*features, trace.conv(norm(y), growth, 3, padding=1, bias=False)]
        x = trace.concatenate(features)
        if number < len(blocks):
            x = trace.conv(norm(x), x.shape[0] // 2, 1, bias=False)
            x = trace.average_pool(x, x.shape[1] // 2)
    return trace.linear(trace.mean_of_places(norm(x)), classes)


def _flat(x: Value) -> Value:
    """The same storage as one axis."""
    channels, rows, columns = x.shape
    x.shape = (channels * rows * columns,)
    return x


_NETWORKS: dict[str, Callable[[Trace, Value, CNN, int], Value]] = {
    "alexnet": _alexnet,
    "vgg16": _vgg16,
    "squeezenet1_0": _squeezenet,
    "resnet18": _resnet18,
    "densenet121": _densenet121,
}
