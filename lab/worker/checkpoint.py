"""Checkpoints: a training's state as safetensors and JSON, in a folder that is whole or absent."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lab.config.run import Run
from lab.files import read_json
from lab.worker.distributed import gather

FORMAT = 1
FINAL = "final"
MODEL, OPTIMIZER, HISTORY = "model.safetensors", "optimizer.safetensors", "history.safetensors"
RUN, TOKENIZER, META = "run.json", "tokenizer.json", "checkpoint.json"

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: what `checkpoint.json` and `run.json` in its folder say.

    `model.safetensors` holds the whole model under the names of the unwrapped module, however it
    was trained. One from which training can go on has `optimizer.safetensors`
    (`<parameter>/<state>`) and `history.safetensors` (`loss` of each step, states of each rank's
    random generators) beside it.
    """

    folder: Path
    run: Run
    step: int  # optimizer steps done
    vocab_size: int  # of the data
    data_sha256: str
    scaler: dict[str, Any]
    groups: list[dict[str, Any]]  # the optimizer's parameter groups

    def tensors(self, name: str) -> dict[str, Tensor]:
        """One of MODEL, OPTIMIZER, HISTORY, read onto the CPU; raises OSError if it is missing."""
        return load_file(self.folder / name)


def read(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder, None without one of a known format."""
    meta = read_json(folder / META)
    if meta is None or meta.get("format") != FORMAT:
        return None
    try:
        run = Run.model_validate_json((folder / RUN).read_bytes())
    except (OSError, ValidationError):
        return None
    names = ("step", "vocab_size", "data_sha256", "scaler", "groups")
    return Checkpoint(folder, run, **{name: meta[name] for name in names})


def newest(root: Path) -> Checkpoint | None:
    """The latest checkpoint below `root` from which training can go on."""
    folders = sorted(root.glob("[0-9]*"), reverse=True)  # names have leading zeros
    return next(filter(None, map(read, folders)), None)


def kept_model(repeat: Path) -> Checkpoint | None:
    """The trained model in a repeat's folder, None unless the run completed and kept it."""
    return read(repeat / "checkpoint" / FINAL)


def describe(run: Run, *, tokenizer: Path | None, **meta: Any) -> dict[str, bytes]:
    """The files of a checkpoint that hold no tensors; `meta` are the other fields of Checkpoint."""
    meta |= {"format": FORMAT, "torch": str(torch.__version__)}
    files = {RUN: run.model_dump_json(indent=1).encode(), META: json.dumps(meta, indent=1).encode()}
    return files if tokenizer is None else files | {TOKENIZER: tokenizer.read_bytes()}


def write(folder: Path, files: Mapping[str, bytes | Tensors]) -> None:
    """Write a checkpoint so that at every moment `folder` is there whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f".{folder.name}.*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    # Beside it: a folder can be renamed within one file system only.
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    for name, content in files.items():
        if isinstance(content, bytes):
            (building / name).write_bytes(content)
        else:
            save_file(_unshared(content), building / name)
        _flush(building / name)
    # Contents reach the disk before the name: after a power cut the name never stands for less.
    _flush(building)
    replaced = folder.with_name(f".{folder.name}.old")
    if folder.exists():  # a folder cannot replace another in one step
        folder.rename(replaced)
    building.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _unshared(tensors: Tensors) -> dict[str, Tensor]:
    """Contiguous tensors; safetensors refuses two that share memory, as tied weights do."""
    storages: set[int] = set()
    unshared = {}
    for name, tensor in tensors.items():
        contiguous = tensor.detach().contiguous()
        storage = contiguous.untyped_storage().data_ptr()
        unshared[name] = contiguous.clone() if storage in storages else contiguous
        storages.add(storage)
    return unshared


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _state_dict() -> ModuleType:
    """torch's module, which imports all of DTensor: most ranks save and load nothing."""
    return importlib.import_module("torch.distributed.checkpoint.state_dict")


def _options(*, gathered: bool = False) -> Any:
    """Of whole models; gathered on the CPU, as a second copy would not fit on the GPU."""
    return _state_dict().StateDictOptions(full_state_dict=True, cpu_offload=gathered)


def full_model(model: nn.Module) -> dict[str, Tensor]:
    """The whole model on rank 0's CPU, empty on the others; all ranks must call it."""
    states = _state_dict().get_model_state_dict(model, options=_options(gathered=True))
    return cast(dict[str, Tensor], states)


def full_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The optimizer's tensors as `<parameter>/<state>` and its groups, on rank 0 as the model."""
    options = _options(gathered=True)
    content: dict[str, Any] = _state_dict().get_optimizer_state_dict(
        model, optimizer, options=options
    )
    states = content.get("state", {})
    tensors = {
        f"{name}/{key}": value for name, state in states.items() for key, value in state.items()
    }
    return tensors, content.get("param_groups", [])


def load_model(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Give a model, sharded or not, the checkpoint's weights; all ranks must call it."""
    _state_dict().set_model_state_dict(model, {**checkpoint.tensors(MODEL)}, options=_options())


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint
) -> None:
    """Give an optimizer, sharded or not, the checkpoint's state; all ranks must call it."""
    states: dict[str, dict[str, Tensor]] = {}
    for name, tensor in checkpoint.tensors(OPTIMIZER).items():
        parameter, _, key = name.rpartition("/")  # safetensors holds no nested mappings
        states.setdefault(parameter, {})[key] = tensor
    content: dict[str, Any] = {"state": states, "param_groups": checkpoint.groups}
    _state_dict().set_optimizer_state_dict(model, optimizer, content, options=_options())


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of all ranks' generators on rank 0, as `<kind of device>/<rank>`."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {
        f"{kind}/{rank}": state
        for rank, of_rank in enumerate(gather(states) or ())
        for kind, state in of_rank.items()
    }


def restore_random_states(history: Tensors, *, rank: int, device: torch.device) -> None:
    """Set this rank's generators as they were."""
    # Dropout goes on as it would have done.
    torch.set_rng_state(history[f"cpu/{rank}"])
    if device.type == "cuda" and f"cuda/{rank}" in history:
        torch.cuda.set_rng_state(history[f"cuda/{rank}"], device)
