"""The lab's models as layers: the shapes that their forward pass goes through."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lab.analysis.layers import FLOAT, INDEX, Trace, Value
from lab.workloads import CNN, GPT, DistilBERT, TextClassifier

CHUNK_LOGITS = 2**24  # 64 MiB in fp32; the head of a language model never keeps more than twice as many
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
        mixed = trace.attention([trace.linear(x, config.width) for _ in range(3)], config.heads, mask=config.block_size**2)
        x = trace.layer_norm(trace.add(trace.linear(mixed, config.width), x))
        hidden = trace.gelu(trace.linear(x, 4 * config.width))
        x = trace.layer_norm(trace.add(trace.dropout(trace.linear(hidden, config.width), rate), x))
    first = trace.relu(trace.linear(trace.first(x), config.width))
    first = trace.dropout(first, DISTILBERT_HEAD_DROPOUT if config.dropout is None else config.dropout)
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
    mixed = trace.attention([trace.linear(trace.layer_norm(x), 3 * config.width)], config.heads, mask=mask)
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
        return trace.concatenate([trace.relu(trace.conv(x, expand, kernel, padding=kernel // 2)) for kernel in (1, 3)])

    x = trace.relu(trace.conv(x, 96, 7, stride=2))
    for fires in (((16, 64), (16, 64), (32, 128)), ((32, 128), (48, 192), (48, 192), (64, 256)), ((64, 256),)):
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
            short = x if stride == 1 else norm(trace.conv(x, channels, 1, stride=stride, bias=False))
            y.grad = y.grad or short.grad
            x = trace.relu(y)  # the sum is made in place
    return trace.linear(trace.mean_of_places(x), classes)


def _densenet121(trace: Trace, x: Value, config: CNN, classes: int) -> Value:
    def norm(x: Value) -> Value:
        return trace.relu(trace.batch_norm(x, frozen=config.batch_norm == "frozen"))

    growth = 32
    x = trace.max_pool(norm(trace.conv(x, 2 * growth, 7, stride=2, padding=3, bias=False)), 3, 2, padding=1)
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
