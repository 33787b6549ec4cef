"""Checkpoints: a training's state as safetensors and JSON, in a folder that is there whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

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
    """A checkpoint on disk: what `checkpoint.json` and `run.json` in its folder say; tensors are read when asked for.

    `model.safetensors` holds the whole model under the names of the unwrapped module, however it was trained. One from
    which training can go on has `optimizer.safetensors` (`<parameter>/<state>`) and `history.safetensors` (`loss` of
    each step, the state of each rank's random generators) beside it.
    """

    folder: Path
    run: Run
    step: int  # optimizer steps done
    vocab_size: int  # of the data
    data_sha256: str
    scaler: dict[str, Any]
    groups: list[dict[str, Any]]  # the optimizer's parameter groups

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's file, as the `tokenizers` package reads it."""
        return self.folder / TOKENIZER

    def tensors(self, name: str) -> dict[str, Tensor]:
        """One of MODEL, OPTIMIZER, HISTORY on the CPU; raises OSError where the checkpoint has none."""
        return load_file(self.folder / name)


def read(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None where there is none of a format that this lab knows."""
    meta = read_json(folder / META)
    if meta is None or meta.get("format") != FORMAT:
        return None
    try:
        run = Run.model_validate_json((folder / RUN).read_bytes())
    except (OSError, ValidationError):
        return None
    return Checkpoint(
        folder,
        run,
        meta["step"],
        meta["vocab_size"],
        meta["data_sha256"],
        meta["scaler"],
        meta["groups"],
    )


def newest(root: Path) -> Checkpoint | None:
    """The latest checkpoint below `root` from which training can go on; None where there is none."""
    found = (read(folder) for folder in sorted(root.glob("[0-9]*"), reverse=True))
    return next((checkpoint for checkpoint in found if checkpoint is not None), None)


def kept_model(repeat: Path) -> Checkpoint | None:
    """The trained model of a completed repeat, in the repeat's folder; None where the run did not keep it."""
    return read(repeat / "checkpoint" / FINAL)


def describe(
    run: Run,
    *,
    step: int,
    vocab_size: int,
    data_sha256: str,
    tokenizer: Path | None,
    scaler: Mapping[str, Any],
    groups: Any,
) -> dict[str, bytes]:
    """The files of a checkpoint that hold no tensors."""
    meta = {
        "format": FORMAT,
        "step": step,
        "vocab_size": vocab_size,
        "data_sha256": data_sha256,
        "torch": str(torch.__version__),
    }
    meta |= {"scaler": dict(scaler), "groups": groups}
    files = {RUN: run.model_dump_json(indent=1).encode(), META: json.dumps(meta, indent=1).encode()}
    return files if tokenizer is None else files | {TOKENIZER: tokenizer.read_bytes()}


def write(folder: Path, files: Mapping[str, bytes | Tensors]) -> None:
    """Write a checkpoint's files so that at every moment `folder` is there whole or not at all; raises OSError.

    What was there before under this name, and what a killed process left of it unfinished, is removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    for name, content in files.items():
        if isinstance(content, bytes):
            (building / name).write_bytes(content)
        else:
            save_file(_apart(content), building / name)
        _to_disk(building / name)
    _to_disk(building)
    if folder.exists():  # a folder cannot replace another in one step
        folder.rename(folder.with_name(f".{folder.name}.old"))
    building.rename(folder)
    _to_disk(folder.parent)
    shutil.rmtree(folder.with_name(f".{folder.name}.old"), ignore_errors=True)


def copy(found: Checkpoint, folder: Path) -> None:
    """Write the same checkpoint to another folder."""
    write(folder, {path.name: path.read_bytes() for path in found.folder.iterdir()})


def _apart(tensors: Tensors) -> dict[str, Tensor]:
    """Contiguous tensors of which no two share memory, as safetensors wants them."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        whole = tensor.detach().contiguous()
        place = whole.untyped_storage().data_ptr()
        apart[name] = whole.clone() if place in seen else whole
        seen.add(place)
    return apart


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def full_model(model: nn.Module) -> dict[str, Tensor]:
    """The whole model on rank 0's CPU, gathered where it is sharded; empty on the others. All ranks must call it."""
    return cast(dict[str, Tensor], get_model_state_dict(model, options=_FULL))


def full_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The optimizer's tensors as `<parameter>/<state>` and its groups, as `full_model` gives the model."""
    found: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=_FULL)
    states = found.get("state", {})
    tensors = {
        f"{name}/{key}": value for name, state in states.items() for key, value in state.items()
    }
    return tensors, found.get("param_groups", [])


_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def load_model(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Give a model, sharded or not, the checkpoint's weights; all ranks must call it."""
    weights: dict[str, Any] = {**checkpoint.tensors(MODEL)}
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint
) -> None:
    """Give an optimizer, sharded or not, the checkpoint's state; all ranks must call it."""
    states: dict[str, dict[str, Tensor]] = {}
    for name, tensor in checkpoint.tensors(OPTIMIZER).items():
        parameter, _, key = name.rpartition("/")
        states.setdefault(parameter, {})[key] = tensor
    content: dict[str, Any] = {"state": states, "param_groups": checkpoint.groups}
    set_optimizer_state_dict(
        model, optimizer, content, options=StateDictOptions(full_state_dict=True)
    )


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of all ranks' generators on rank 0, as `<kind of device>/<rank>`; empty on the others."""
    mine = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        mine["cuda"] = torch.cuda.get_rng_state(device)
    ranks: Sequence[dict[str, Tensor]] = gather(mine) or ()
    return {
        f"{kind}/{rank}": state
        for rank, states in enumerate(ranks)
        for kind, state in states.items()
    }


def restore_random_states(history: Tensors, *, rank: int, device: torch.device) -> None:
    """Set this rank's generators as they were."""
    torch.set_rng_state(history[f"cpu/{rank}"])
    if device.type == "cuda" and f"cuda/{rank}" in history:
        torch.cuda.set_rng_state(history[f"cuda/{rank}"], device)
