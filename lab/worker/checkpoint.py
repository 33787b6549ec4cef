"""Checkpoints: a training's state as safetensors and JSON, in a folder that is whole or absent.

They hold trained models that a run keeps, and the state from which an interrupted run is resumed.
"""

from __future__ import annotations

import importlib
import json
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch import distributed as dist

from lab.config.run import Run
from lab.errors import LabError
from lab.files import read_json, whole_folder
from lab.worker import distributed
from lab.worker.context import preemption_noticed
from lab.worker.distributed import RankJob
from lab.worker.measure.clock import synchronize

FORMAT = 1
FINAL = "final"
MODEL, OPTIMIZER, HISTORY = "model.safetensors", "optimizer.safetensors", "history.safetensors"
RUN, TOKENIZER, META = "run.json", "tokenizer.json", "checkpoint.json"

Tensors = Mapping[str, Tensor]
PACE_STEPS = 3  # the last of the warm-up, which determine the interval in steps
MIN_MEASURED_STEPS = 5
NOTICE, NOTICE_S = "lab/save-after-step", 2.0


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: the contents of `checkpoint.json` and `run.json` in its folder.

    `model.safetensors` holds the whole model under the names of the unwrapped module, however it
    was trained. A checkpoint from which training can resume also has `optimizer.safetensors`
    (`<parameter>/<state>`) and `history.safetensors` (the `loss` of each step and the states of
    each rank's random generators).
    """

    folder: Path
    run: Run
    step: int  # optimizer steps done
    vocab_size: int  # of the data
    data_sha256: str
    scaler: dict[str, Any]
    groups: list[dict[str, Any]]  # the optimizer's parameter groups

    def tensors(self, name: str) -> dict[str, Tensor]:
        """One of MODEL, OPTIMIZER, HISTORY, read onto the CPU; LabError if missing or damaged."""
        path = self.folder / name
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise LabError(
                f"{path} is missing or damaged ({error}): remove its folder, then measure again"
            ) from None


def read(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder, None if it holds none of a known format."""
    meta = read_json(folder / META)
    names = ("step", "vocab_size", "data_sha256", "scaler", "groups")
    if meta is None or meta.get("format") != FORMAT or not meta.keys() >= set(names):
        return None
    try:
        run = Run.model_validate_json((folder / RUN).read_bytes())
    except (OSError, ValidationError):
        return None
    return Checkpoint(folder, run, **{name: meta[name] for name in names})


def newest(root: Path) -> Checkpoint | None:
    """The latest checkpoint below `root` from which training can resume."""
    folders = sorted(root.glob("[0-9]*"), reverse=True)  # names have leading zeros
    return next(filter(None, map(read, folders)), None)


def kept_model(repeat: Path) -> Checkpoint | None:
    """The trained model in a repeat's folder, None unless the run completed and kept it."""
    return read(repeat / "checkpoint" / FINAL)


def describe(run: Run, *, tokenizer: Path | None, **meta: Any) -> dict[str, bytes]:
    """The files of a checkpoint without tensors; `meta` are the other fields of Checkpoint."""
    meta |= {"format": FORMAT, "torch": str(torch.__version__)}
    files = {RUN: run.model_dump_json(indent=1).encode(), META: json.dumps(meta, indent=1).encode()}
    return files if tokenizer is None else files | {TOKENIZER: tokenizer.read_bytes()}


def write(folder: Path, files: Mapping[str, bytes | Tensors]) -> None:
    """Write a checkpoint atomically: at any moment, `folder` is complete or absent."""
    with whole_folder(folder) as building:
        for name, content in files.items():
            if isinstance(content, bytes):
                (building / name).write_bytes(content)
            else:
                save_file(_unshared(content), building / name)


def _unshared(tensors: Tensors) -> dict[str, Tensor]:
    """Contiguous tensors; safetensors rejects two that share memory, as tied weights do."""
    storages: set[int] = set()
    unshared = {}
    for name, tensor in tensors.items():
        contiguous = tensor.detach().contiguous()
        storage = contiguous.untyped_storage().data_ptr()
        unshared[name] = contiguous.clone() if storage in storages else contiguous
        storages.add(storage)
    return unshared


def _state_dict() -> ModuleType:
    """torch's module; imported late, as it loads all of DTensor and most ranks need none of it."""
    return importlib.import_module("torch.distributed.checkpoint.state_dict")


def _options(*, gathered: bool = False) -> Any:
    """Options for whole models; gathered on the CPU, as a second copy would not fit on the GPU."""
    return _state_dict().StateDictOptions(full_state_dict=True, cpu_offload=gathered)


def full_model(model: nn.Module) -> dict[str, Tensor]:
    """The whole model on rank 0's CPU, empty on the others; all ranks must call it."""
    states = _state_dict().get_model_state_dict(model, options=_options(gathered=True))
    return cast(dict[str, Tensor], states)


def full_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The optimizer's tensors as `<parameter>/<state>` and its groups, on rank 0 like the model."""
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
    """Load the checkpoint's weights into a model, sharded or not; all ranks must call it.

    Raises LabError if they are missing, damaged, or those of another model.
    """
    tensors = {**checkpoint.tensors(MODEL)}
    try:
        _state_dict().set_model_state_dict(model, tensors, options=_options())
    except RuntimeError as error:
        if "loading state_dict" not in str(error):  # a missing tensor, or one of another shape
            raise
        raise LabError(f"{checkpoint.folder} does not hold this model: {error}") from None


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint
) -> None:
    """Load the checkpoint's state into an optimizer, sharded or not; all ranks must call it."""
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
        for rank, of_rank in enumerate(distributed.gather(states) or ())
        for kind, state in of_rank.items()
    }


@dataclass
class Checkpoints:
    """The checkpoints of one repeat, saved by all ranks together between training steps.

    A resumed training measures only its own steps, after another warm-up, so nothing is saved if
    too few steps would be left.
    """

    job: RankJob
    repeat: Path | None  # its folder; without one nothing is saved
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    losses: Tensor  # of this rank (steps, grad_accum), filled while training
    _first: int = 0
    _pace_from: float = 0.0
    _pace_s: float = 1.0  # of a step
    _every: int | None = None  # steps; None until the pace is known
    _saved_on_notice: bool = False

    @property
    def root(self) -> Path:
        """The folder that holds one folder for each checkpoint."""
        assert self.repeat is not None
        return self.repeat / "checkpoint"

    def resume(self) -> int:
        """Resume from the newest checkpoint of this run and data; returns the steps done so far."""
        saved = None if self.repeat is None else newest(self.root)
        if saved and (saved.run.id, saved.data_sha256) != (
            self.job.run.id,
            self.job.dataset.sha256,
        ):
            saved = None
        self._pace_from = self._now()
        # A rank on a slow file system may not see it yet; then all start from scratch.
        steps = set(distributed.all_gather_object(saved.step if saved else 0))
        if saved is None or len(steps) > 1:
            return 0
        load_model(self.model, saved)
        load_optimizer(self.model, self.optimizer, saved)
        history = saved.tensors(HISTORY)
        # Dropout continues as it would have without the interruption.
        rank, device = self.job.context.rank, self.job.device
        torch.set_rng_state(history[f"cpu/{rank}"])
        if device.type == "cuda" and f"cuda/{rank}" in history:
            torch.cuda.set_rng_state(history[f"cuda/{rank}"], device)
        # The mean over all ranks, restored as each rank's own, which leaves the mean unchanged.
        self.losses[: saved.step] = history["loss"].to(self.losses)[:, None]
        if saved.scaler:
            self.scaler.load_state_dict(saved.scaler)
        self._first = saved.step
        return saved.step

    def after(self, done: int) -> None:
        """Save after `done` steps if it is time to; all ranks must call it after each step."""
        every_s = self.job.context.checkpoint_every_s
        if self.repeat is None or every_s is None or not _can_resume(self.job.run):
            return
        # In the warm-up, so that this synchronization does not come between measured steps.
        paced = self._first + max(self.job.run.warmup_steps, 1)
        begin = max(paced - PACE_STEPS, self._first)
        if done == begin:
            self._pace_from = self._now()
        elif done == paced:
            self._pace_s = (self._now() - self._pace_from) / (paced - begin)
            # Rank 0's value: ranks that saved after different steps would wait for each other.
            self._every = distributed.all_gather_object(max(round(every_s / self._pace_s), 1))[0]
            return
        due = self._every is not None and (done - paced) % self._every == 0
        # A training resumed from here needs steps of its own to measure.
        needed = self.job.run.warmup_steps + MIN_MEASURED_STEPS
        if (due or self._on_notice(done)) and self.job.run.steps - done >= needed:
            self._save(done)

    def _on_notice(self, done: int) -> bool:
        """Whether to save after this step because the job is about to be ended."""
        if not preemption_noticed() or self._every is None or self._saved_on_notice:
            return False
        if not dist.is_initialized():
            self._saved_on_notice = True
            return True
        store = distributed.default_store()
        if self.job.context.rank == 0 and not store.check([NOTICE]):
            # One step for all, a few seconds ahead: the notice does not reach all ranks at once.
            store.set(NOTICE, str(done + max(math.ceil(NOTICE_S / self._pace_s), 2)))
        step = int(store.get(NOTICE)) if store.check([NOTICE]) else None
        self._saved_on_notice = step == done
        return self._saved_on_notice

    def finish(self) -> None:
        """Keep the trained model if the run asks for it. All ranks must call it."""
        if self.repeat is not None and self.job.run.keep_model:
            model = full_model(self.model)
            self._write(FINAL, self.job.run.steps, [], {MODEL: model})

    def _save(self, done: int) -> None:
        self.job.progress("checkpoint", done, self.job.run.steps)
        model = full_model(self.model)
        optimizer, groups = full_optimizer(self.model, self.optimizer)
        losses = self.losses[:done].double().mean(dim=1).cpu().numpy()
        loss = torch.from_numpy(distributed.mean_over_ranks(losses, device=self.job.device))
        tensors = {
            MODEL: model,
            OPTIMIZER: optimizer,
            HISTORY: {"loss": loss} | random_states(self.job.device),
        }
        self._write(f"{done:09d}", done, groups, tensors)
        if self.job.context.rank == 0:
            forget(self.root, keep=f"{done:09d}")
        if dist.is_initialized():
            dist.barrier()  # else the others' next step would wait for rank 0
        self.job.progress("measuring", done, self.job.run.steps)

    def _write(
        self,
        name: str,
        step: int,
        groups: list[dict[str, object]],
        tensors: dict[str, dict[str, Tensor]],
    ) -> None:
        if self.job.context.rank != 0:  # the tensors of all ranks were gathered on rank 0
            return
        described = describe(
            self.job.run,
            step=step,
            vocab_size=self.job.dataset.vocab_size,
            data_sha256=self.job.dataset.sha256,
            tokenizer=self.job.dataset.tokenizer,
            scaler=self.scaler.state_dict(),
            groups=groups,
        )
        write(self.root / name, {**described, **tensors})

    def _now(self) -> float:
        synchronize(self.job.device)
        return time.monotonic()


def forget(root: Path, *, keep: str = "") -> None:
    """Remove unfinished and resumable checkpoints, all but the one to keep."""
    for folder in [*root.glob("[0-9]*"), *root.glob(".[0-9]*")]:
        if folder.name != keep:
            shutil.rmtree(folder, ignore_errors=True)


def _can_resume(run: Run) -> bool:
    """Whether rank 0 can gather all that the training's next step depends on.

    PowerSGD carries its approximation error from step to step in a separate place; ZeRO-1's
    optimizer, a pipeline's stages and shards of matrices lie on the ranks under separate names; a
    DataLoader begins at step 0.
    """
    resumable = run.facts.resumable
    return resumable and run.compression != "powersgd" and run.loader == "fast"
