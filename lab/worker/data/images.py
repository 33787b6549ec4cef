"""Labelled images as bytes, kept in the cache: MNIST, scikit-learn's digits."""

from __future__ import annotations

import gzip
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lab.errors import LabError
from lab.worker.context import Progress
from lab.worker.data.cache import Array, Download, fetch, stored
from lab.worker.data.dataset import Dataset, Labelled

# The files of LeCun, Cortes and Burges as mirrored for torchvision; the original site no longer serves them.
_ROOT = "https://ossci-datasets.s3.amazonaws.com/mnist"
MNIST = tuple(
    Download(
        name=f"MNIST ({file})",
        url=f"{_ROOT}/{file}",
        file=f"mnist-{file}",
        size=size,
        sha256=sha256,
    )
    for file, size, sha256 in (
        (
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    )
)
CLASSES = 10
HELD_OUT = 0.1  # of scikit-learn's digits, which come without a split


def mnist(*, progress: Progress) -> Dataset:
    """MNIST with its published split; raises LabError where it cannot be had or is not what was published."""
    files = [fetch(download, instead="digits", progress=progress) for download in MNIST]

    def build(folder: Path) -> dict[str, Array]:
        train, train_labels, test, test_labels = map(_idx, files)
        return {
            "train": train[:, None],
            "train_labels": train_labels,
            "held_out": test[:, None],
            "held_out_labels": test_labels,
        }

    key = " ".join(download.sha256 for download in MNIST)
    found = stored("images", f"mnist {key}", build, progress=progress)
    return _dataset(found.arrays, "MNIST", found.sha256)


def digits(*, progress: Progress) -> Dataset:
    """scikit-learn's digits in an order of our own, the last tenth held out; grey levels 0 to 16 become 0 to 255."""

    def build(folder: Path) -> dict[str, Array]:
        from sklearn.datasets import load_digits

        found = load_digits()
        order = np.random.Generator(np.random.Philox(0)).permutation(len(found.target))
        images = np.round(found.images[order, None] * (255 / 16)).astype(np.uint8)
        labels = found.target[order].astype(np.uint8)
        split = round(len(labels) * (1 - HELD_OUT))
        return {
            "train": images[:split],
            "train_labels": labels[:split],
            "held_out": images[split:],
            "held_out_labels": labels[split:],
        }

    found = stored(
        "images", f"digits {importlib.metadata.version('scikit-learn')}", build, progress=progress
    )
    return _dataset(found.arrays, "scikit-learn's digits", found.sha256)


def _dataset(arrays: Mapping[str, Array], name: str, sha256: str) -> Dataset:
    train, held_out = (
        Labelled(arrays[part], arrays[f"{part}_labels"]) for part in ("train", "held_out")
    )
    _, channels, rows, columns = train.inputs.shape
    return Dataset(
        train=train,
        held_out=held_out,
        sha256=sha256,
        description=f"{name}, {len(train)} images of {rows} x {columns} and {len(held_out)} held out",
        classes=CLASSES,
        channels=channels,
    )


def _idx(path: Path) -> Array:
    """An IDX file of unsigned bytes: two zeros, the type 8, the number of axes, their lengths, the content."""
    content = gzip.decompress(path.read_bytes())
    axes = content[3] if content[:3] == b"\0\0\x08" else 0
    shape = [int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes)]
    if not axes or len(content) != 4 + 4 * axes + int(np.prod(shape)):
        raise LabError(f"{path} is no IDX file of bytes: remove it and run again")
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)
