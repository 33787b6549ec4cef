"""Random but learnable samples of any size for each kind of model, from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.config.datasets import Synthetic
from lab.config.models import CNN, GPT, Transformer
from lab.config.run import Run
from lab.worker.context import Progress
from lab.worker.data.cache import cached_arrays
from lab.worker.data.dataset import HELD_OUT_EVERY, Array, Dataset, Labelled, Samples, Windows

TOPIC_TOKENS = 0.2  # share of a labelled text's tokens that come from its class
NOISE = 48  # standard deviation of the noise on an image, of 255 levels


def prepare(run: Run, *, pretrained: Path | None, data_root: Path, progress: Progress) -> Dataset:
    """Samples of the form that the model takes.

    Tokens follow Zipf's law. A fifth of the tokens of a labelled text come from its class's own
    part of the vocabulary. An image is its class's pattern with noise.
    """
    config, model = run.dataset, run.architecture
    assert isinstance(config, Synthetic)
    block_size = model.block_size if isinstance(model, Transformer) else 0
    count = config.samples // HELD_OUT_EVERY
    make = _images if isinstance(model, CNN) else _stream if isinstance(model, GPT) else _texts

    def build(folder: Path) -> dict[str, Array]:
        progress("data", 0, 1)
        return make(config, block_size, np.random.Generator(np.random.Philox(config.seed)))

    key = f"{config.model_dump_json()} {model.task} {block_size}"
    cached = cached_arrays("synthetic", key, build, progress=progress)
    inputs = cached.arrays["inputs"]
    train: Samples
    held_out: Samples
    if isinstance(model, GPT):
        # No window spans both parts.
        split = len(inputs) - count * block_size - 1
        train = Windows(inputs[:split], block_size=block_size)
        held_out = Windows(inputs[split:], block_size=block_size)
    else:
        labels = cached.arrays["labels"]
        train = Labelled(inputs[:-count], labels[:-count])
        held_out = Labelled(inputs[-count:], labels[-count:])
    image = f"{config.channels} x {config.image_size} x {config.image_size} bytes"
    size = image if isinstance(model, CNN) else f"{block_size} tokens"
    return Dataset(
        train,
        held_out,
        sha256=cached.sha256,
        description=f"synthetic, seed {config.seed}, {config.samples} samples of {size}",
        tokens_per_sample=block_size or None,
        vocab_size=0 if isinstance(model, CNN) else config.vocab_size,
        classes=0 if isinstance(model, GPT) else config.classes,
        channels=config.channels if isinstance(model, CNN) else 0,
    )


def _zipf(count: int, vocab_size: int, draw: np.random.Generator) -> Array:
    """Tokens 1 to vocab_size - 1, the k-th with frequency 1/k; 0 is reserved for padding."""
    shares = np.cumsum(1 / np.arange(1, vocab_size))
    return (1 + np.searchsorted(shares / shares[-1], draw.random(count))).astype(np.uint16)


def _stream(config: Synthetic, block_size: int, draw: np.random.Generator) -> dict[str, Array]:
    # Each of the two parts needs one token more than its windows, for the last target.
    return {"inputs": _zipf(config.samples * block_size + 2, config.vocab_size, draw)}


def _texts(config: Synthetic, block_size: int, draw: np.random.Generator) -> dict[str, Array]:
    labels = draw.integers(0, config.classes, config.samples).astype(np.uint16)
    shape, others = (config.samples, block_size), config.vocab_size - 1
    tokens = _zipf(config.samples * block_size, config.vocab_size, draw).reshape(shape)
    own = max(others // config.classes, 1)
    # With more classes than tokens, the classes' parts of the vocabulary overlap.
    of_class = 1 + (labels[:, None] * own + draw.integers(0, own, shape)) % others
    inputs = np.where(draw.random(shape) < TOPIC_TOKENS, of_class, tokens).astype(np.uint16)
    return {"inputs": inputs, "labels": labels}


def _images(config: Synthetic, block_size: int, draw: np.random.Generator) -> dict[str, Array]:
    shape = (config.channels, config.image_size, config.image_size)
    patterns = draw.integers(64, 192, (config.classes, *shape)).astype(np.float32)
    labels = draw.integers(0, config.classes, config.samples).astype(np.uint16)
    images = np.empty((config.samples, *shape), dtype=np.uint8)
    # One by one, as noise for all at once would need eight times their memory.
    for index, label in enumerate(labels):
        images[index] = np.clip(patterns[label] + draw.normal(0, NOISE, shape), 0, 255)
    return {"inputs": images, "labels": labels}
