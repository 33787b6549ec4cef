"""A user's own data: two torch data sets, whose samples are made one by one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from lab.config.datasets import PythonData
from lab.config.run import Run
from lab.errors import LabError
from lab.worker import own
from lab.worker.context import Progress
from lab.worker.data.dataset import Dataset, Indices

HASHED = 16  # samples of each data set, as making all of them may take hours


class Items:
    """A torch data set with a length and an index."""

    epochs = True

    def __init__(self, items: Any, name: str) -> None:
        self._items, self._name = items, name
        if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
            raise LabError(
                f"{name} returned a {type(items).__name__}, but a data set needs a length and an "
                "index, as the lab itself chooses and batches the samples of a rank"
            )
        with own.blamed(name):
            self._count = len(items)
        if not self._count:
            raise LabError(f"{name} returned a data set without samples")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        with own.blamed(self._name):
            item = self._items[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            length = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise LabError(
                f"sample {index} of {self._name} is not a pair of input and target: "
                f"{type(item).__name__}{length}"
            )
        for part, value in zip(("input", "target"), item, strict=True):
            if not _is_number(value):
                kind = getattr(value, "dtype", type(value).__name__)
                raise LabError(
                    f"the {part} of sample {index} of {self._name} is of type {kind}; return a "
                    "tensor, an array or a number"
                )
        return item

    def take(self, indices: Indices) -> Any:
        """Inputs and targets of these samples, each stacked along a new first axis."""
        return self.collate([self[int(index)] for index in indices])

    def collate(self, samples: list[Any]) -> Any:
        """A batch of samples; LabError if they cannot be stacked."""
        try:
            return default_collate(samples)
        except (RuntimeError, TypeError) as error:
            raise LabError(f"samples of {self._name} do not make a batch: {error}") from error

    def hashed(self) -> bytes:
        """SHA-256 of HASHED samples, evenly spread, and of their number."""
        content = hashlib.sha256(str(len(self)).encode())
        for index in np.linspace(0, len(self) - 1, min(HASHED, len(self))).astype(int):
            for part in self[int(index)]:
                values = torch.as_tensor(part).detach().numpy()
                content.update(np.ascontiguousarray(values).tobytes())
        return content.digest()


def _is_number(value: object) -> bool:
    """Whether a value is one number or an array of them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, Tensor | int | float)


def prepare(run: Run, *, pretrained: Path | None, data_root: Path, progress: Progress) -> Dataset:
    """What the user's factory returns; raises LabError for anything but two data sets."""
    config = run.dataset
    assert isinstance(config, PythonData)
    made = own.make(config, seed=run.seed)
    if not isinstance(made, tuple | list) or len(made) != 2:
        what = "two data sets, one to train on and one held out"
        raise LabError(f"{config.factory} must return {what}, not {type(made).__name__}")
    train, held_out = (Items(items, config.factory) for items in made)
    digest = hashlib.sha256(config.model_dump_json().encode() + train.hashed() + held_out.hashed())
    return Dataset(
        train,
        held_out,
        sha256=digest.hexdigest(),
        description=f"{config.label}, {len(train)} samples and {len(held_out)} held out",
    )
