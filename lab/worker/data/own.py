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
        item = self[0]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise LabError(f"a sample of {name} is not a pair of input and target: {type(item)}")
        for part, value in zip(("input", "target"), item, strict=True):
            if not isinstance(value, Tensor | np.ndarray | np.generic | int | float):
                raise LabError(
                    f"the {part} of a sample of {name} is of type {type(value).__name__}; return "
                    "a tensor, an array or a number"
                )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        with own.blamed(self._name):
            return self._items[index]

    def take(self, indices: Indices) -> Any:
        """Inputs and targets of these samples, each stacked along a new first axis."""
        samples = [self[int(index)] for index in indices]
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
