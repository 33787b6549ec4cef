"""Random samples of any size for each kind of model, made from a seed, with something to learn in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.config.datasets import Synthetic
from lab.config.models import CNN, GPT, Model
from lab.worker.context import Progress
from lab.worker.data.cache import Array, stored
from lab.worker.data.dataset import Dataset, Labelled, Windows

HELD_OUT = 10  # one in so many
TOPIC_TOKENS = 0.2  # of a labelled text's tokens are those of its class
NOISE = 48  # standard deviation of the noise on an image, of 255 levels


def dataset(config: Synthetic, model: Model, *, progress: Progress) -> Dataset:
    """Samples of the form that the model takes.

    Tokens follow Zipf's law; a fifth of those of a labelled text come from its class's own part of the vocabulary; an
    image is its class's pattern under noise.
    """
    block_size = 0 if isinstance(model, CNN) else model.block_size
    key = f"{config.model_dump_json()} {model.task} {block_size}"
    build = _images if isinstance(model, CNN) else _stream if isinstance(model, GPT) else _texts

    def make(folder: Path) -> dict[str, Array]:
        progress("data", 0, 1)
        return build(config, block_size, np.random.Generator(np.random.Philox(config.seed)))

    found = stored("synthetic", key, make, progress=progress)
    inputs, held = found.arrays["inputs"], max(config.samples // HELD_OUT, 1)
    what = f"synthetic, seed {config.seed}, {config.samples} samples"
    if isinstance(model, GPT):
        cut = len(inputs) - held * block_size - 1
        parts = (
            Windows(inputs[:cut], block_size=block_size),
            Windows(inputs[cut:], block_size=block_size),
        )
        return Dataset(
            *parts,
            found.sha256,
            f"{what} of {block_size} tokens",
            tokens_per_sample=block_size,
            vocab_size=config.vocab_size,
        )
    labels = found.arrays["labels"]
    train, held_out = (
        Labelled(inputs[:-held], labels[:-held]),
        Labelled(inputs[-held:], labels[-held:]),
    )
    common = {"classes": config.classes, "sha256": found.sha256}
    if isinstance(model, CNN):
        size = f"{config.channels} x {config.image_size} x {config.image_size}"
        return Dataset(
            train,
            held_out,
            description=f"{what} of {size} bytes",
            channels=config.channels,
            **common,
        )  # type: ignore[arg-type]
    return Dataset(
        train,
        held_out,
        description=f"{what} of {block_size} tokens",
        tokens_per_sample=block_size,
        vocab_size=config.vocab_size,
        **common,  # type: ignore[arg-type]
    )


def _zipf(count: int, vocab_size: int, draw: np.random.Generator) -> Array:
    """Tokens 1 to vocab_size - 1, the k-th as often as 1/k; 0 is left to padding."""
    shares = np.cumsum(1 / np.arange(1, vocab_size))
    return (1 + np.searchsorted(shares / shares[-1], draw.random(count))).astype(np.uint16)


def _stream(config: Synthetic, block_size: int, draw: np.random.Generator) -> dict[str, Array]:
    held = max(config.samples // HELD_OUT, 1)
    return {
        "inputs": _zipf(max(config.samples, held + 2) * block_size + 2, config.vocab_size, draw)
    }


def _texts(config: Synthetic, block_size: int, draw: np.random.Generator) -> dict[str, Array]:
    labels = draw.integers(0, config.classes, config.samples).astype(np.uint16)
    tokens = _zipf(config.samples * block_size, config.vocab_size, draw).reshape(
        config.samples, block_size
    )
    own = max((config.vocab_size - 1) // config.classes, 1)
    of_class = 1 + (labels[:, None] * own + draw.integers(0, own, tokens.shape)) % (
        config.vocab_size - 1
    )
    return {
        "inputs": np.where(draw.random(tokens.shape) < TOPIC_TOKENS, of_class, tokens).astype(
            np.uint16
        ),
        "labels": labels,
    }


def _images(config: Synthetic, block_size: int, draw: np.random.Generator) -> dict[str, Array]:
    shape = (config.channels, config.image_size, config.image_size)
    patterns = draw.integers(64, 192, (config.classes, *shape)).astype(np.float32)
    labels = draw.integers(0, config.classes, config.samples).astype(np.uint16)
    images = np.empty((config.samples, *shape), dtype=np.uint8)
    for index, label in enumerate(
        labels
    ):  # one by one: the noise of all at once would need eight times their memory
        images[index] = np.clip(patterns[label] + draw.normal(0, NOISE, shape), 0, 255)
    return {"inputs": images, "labels": labels}
