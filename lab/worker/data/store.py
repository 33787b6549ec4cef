"""Arrays that are made once, kept in the cache, and mapped into memory from then on."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.jobs.place import Progress
from lab.worker.data.cache import cache_folder, locked

FORMAT = 2
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Stored:
    """Named arrays, mapped from the files of a folder."""

    arrays: Mapping[str, Array]
    sha256: str  # of their names, shapes, types and contents
    folder: Path


def stored(kind: str, key: str, build: Callable[[Path], Mapping[str, Array]], *, progress: Progress) -> Stored:
    """What the cache holds under this key, or what `build` makes for it; `build` may leave further files in its folder.

    Safe beside other ranks and jobs that want the same: one builds under a lock, and what it built appears at once.
    """
    root = cache_folder(kind)
    folder = root / hashlib.sha256(f"{FORMAT} {key}".encode()).hexdigest()[:32]
    found = _load(folder)
    if found is None:
        with locked(folder.with_suffix(".lock"), waiting=lambda: progress("data", 0, 1)):
            found = _load(folder)
            if found is None:
                _build(folder, build)
                found = _load(folder)
    if found is None:
        raise OSError(f"{folder}: written just now and not readable: is the disk full?")
    return found


def _load(folder: Path) -> Stored | None:
    """What is in the cache; None where there is nothing, or something torn."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        # Plain views of the mapped files: numpy's memmap class costs time at every slice.
        arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in meta["shapes"]}
        whole = all(list(arrays[name].shape) == shape for name, shape in meta["shapes"].items())
        return Stored(arrays, str(meta["sha256"]), folder) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _build(folder: Path, build: Callable[[Path], Mapping[str, Array]]) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.*"):  # of a process that was killed while it built
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    arrays = {name: np.ascontiguousarray(array) for name, array in sorted(build(building).items())}
    digest = hashlib.sha256()
    for name, array in arrays.items():
        np.save(building / f"{name}.npy", array)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data.cast("B"))
    meta = {"format": FORMAT, "sha256": digest.hexdigest(), "shapes": {name: array.shape for name, array in arrays.items()}}
    (building / "meta.json").write_text(json.dumps(meta))
    building.replace(folder)
