"""Interrupted trainings: when their state is saved, and how they are resumed."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist

from lab.config.run import Run
from lab.worker import checkpoint
from lab.worker.context import preemption_noticed
from lab.worker.distributed import RankJob, all_gather_object, mean_over_ranks
from lab.worker.measure.clock import synchronize

PACE_STEPS = 3  # the last of the warm-up, which determine the interval in steps
MIN_MEASURED_STEPS = 5
NOTICE, NOTICE_S = "lab/save-after-step", 2.0


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
        saved = None if self.repeat is None else checkpoint.newest(self.root)
        if saved and (saved.run.id, saved.data_sha256) != (
            self.job.run.id,
            self.job.dataset.sha256,
        ):
            saved = None
        self._pace_from = self._now()
        # A rank on a slow file system may not see it yet; then all start from scratch.
        steps = set(all_gather_object(saved.step if saved else 0))
        if saved is None or len(steps) > 1:
            return 0
        checkpoint.load_model(self.model, saved)
        checkpoint.load_optimizer(self.model, self.optimizer, saved)
        history = saved.tensors(checkpoint.HISTORY)
        rank, device = self.job.context.rank, self.job.device
        checkpoint.restore_random_states(history, rank=rank, device=device)
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
            self._every = all_gather_object(max(round(every_s / self._pace_s), 1))[0]
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
        store = dist.distributed_c10d._get_default_store()
        if self.job.context.rank == 0 and not store.check([NOTICE]):
            # One step for all, a few seconds ahead: the notice does not reach all ranks at once.
            store.set(NOTICE, str(done + max(math.ceil(NOTICE_S / self._pace_s), 2)))
        step = int(store.get(NOTICE)) if store.check([NOTICE]) else None
        self._saved_on_notice = step == done
        return self._saved_on_notice

    def finish(self) -> None:
        """Keep the trained model if the run asks for it. All ranks must call it."""
        if self.repeat is not None and self.job.run.keep_model:
            model = checkpoint.full_model(self.model)
            self._write(checkpoint.FINAL, self.job.run.steps, [], {checkpoint.MODEL: model})

    def _save(self, done: int) -> None:
        self.job.progress("checkpoint", done, self.job.run.steps)
        model = checkpoint.full_model(self.model)
        optimizer, groups = checkpoint.full_optimizer(self.model, self.optimizer)
        losses = self.losses[:done].double().mean(dim=1).cpu().numpy()
        loss = torch.from_numpy(mean_over_ranks(losses, device=self.job.device))
        tensors = {
            checkpoint.MODEL: model,
            checkpoint.OPTIMIZER: optimizer,
            checkpoint.HISTORY: {"loss": loss} | checkpoint.random_states(self.job.device),
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
        described = checkpoint.describe(
            self.job.run,
            step=step,
            vocab_size=self.job.dataset.vocab_size,
            data_sha256=self.job.dataset.sha256,
            tokenizer=self.job.dataset.tokenizer,
            scaler=self.scaler.state_dict(),
            groups=groups,
        )
        checkpoint.write(self.root / name, {**described, **tensors})

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
