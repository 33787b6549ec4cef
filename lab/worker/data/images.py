"""Image classification: MNIST and scikit-learn's digits as bytes, kept in the cache."""

from __future__ import annotations

import gzip
import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lab.config.datasets import Images
from lab.config.paths import MNIST
from lab.config.run import Run
from lab.worker.context import Progress
from lab.worker.data.cache import CachedArrays, cached_arrays, fetch
from lab.worker.data.dataset import HELD_OUT, Array, Dataset, Labelled

DIGITS = "sklearn/datasets/data/digits.csv.gz"  # 64 pixels and the digit of each image


def prepare(run: Run, *, pretrained: Path | None, data_root: Path, progress: Progress) -> Dataset:
    """Labelled images of one channel; raises LabError like `fetch`."""
    config = run.dataset
    assert isinstance(config, Images)
    name, read = SOURCES[config.kind]
    cached = read(progress)
    train, held_out = (
        Labelled(cached.arrays[part], cached.arrays[f"{part}_labels"])
        for part in ("train", "held_out")
    )
    _, channels, rows, columns = train.inputs.shape
    size = f"{len(train)} images of {rows} x {columns} and {len(held_out)} held out"
    return Dataset(
        train,
        held_out,
        sha256=cached.sha256,
        description=f"{name}, {size}",
        classes=config.classes,
        channels=channels,
    )


def mnist(progress: Progress) -> CachedArrays:
    """MNIST with its published split; raises LabError like `fetch`."""
    files = [fetch(download, instead="digits", progress=progress) for download in MNIST]

    def build(folder: Path) -> dict[str, Array]:
        return _arrays(*map(_read_idx, files))

    key = " ".join(download.sha256 for download in MNIST)
    return cached_arrays("images", f"mnist {key}", build, progress=progress)


def digits(progress: Progress) -> CachedArrays:
    """scikit-learn's digits, shuffled, a tenth held out; grey levels 0 to 16 become 0 to 255."""

    def build(folder: Path) -> dict[str, Array]:
        # The file in scikit-learn's wheel, as importing its code would take more than a second.
        path = importlib.metadata.distribution("scikit-learn").locate_file(DIGITS)
        with gzip.open(str(path), "rt") as lines:
            published = np.loadtxt(lines, delimiter=",")
        # The end of the published order need not be representative.
        rows = np.random.Generator(np.random.Philox(0)).permutation(published)
        images = np.round(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        labels = rows[:, -1].astype(np.uint8)
        split = round(len(labels) * (1 - HELD_OUT))
        return _arrays(images[:split], labels[:split], images[split:], labels[split:])

    key = f"digits {importlib.metadata.version('scikit-learn')}"
    return cached_arrays("images", key, build, progress=progress)


def _arrays(*parts: Array) -> dict[str, Array]:
    names = ("train", "train_labels", "held_out", "held_out_labels")
    # Add an axis for the single channel.
    channels = [part[:, None] if part.ndim == 3 else part for part in parts]
    return dict(zip(names, channels, strict=True))


def _read_idx(path: Path) -> Array:
    """Read an IDX file: two zeros, 8 for bytes as the type, the number of axes, lengths, bytes."""
    content = gzip.decompress(path.read_bytes())
    axes = content[3]
    shape = [int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes)]
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


SOURCES: dict[str, tuple[str, Callable[[Progress], CachedArrays]]] = {
    "mnist": ("MNIST", mnist),
    "digits": ("scikit-learn's digits", digits),
}
