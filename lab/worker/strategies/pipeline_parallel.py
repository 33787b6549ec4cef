"""Pipeline parallelism: each rank has some of the blocks, and microbatches pass through the ranks one after the other.

The head is tied to the embedding: the first and the last rank each hold a copy of it, and add up its gradients.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from lab.config import models
from lab.config.run import Run
from lab.errors import InputError, Problem
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.measure.ddp_hook import BucketRecorder
from lab.worker.models.gpt import GPT, linear_cross_entropy
from lab.worker.strategies.base import Strategy, clip

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class PipelineParallelism(Strategy):
    """torch's schedules (GPipe: Huang et al., 2019; 1F1B: Narayanan et al., 2019) over the blocks of a GPT."""

    def wrap(
        self,
        model: nn.Module,
        *,
        run: Run,
        device: torch.device,
        clock: Clock,
        recorder: BucketRecorder | CallRecorder | None,
    ) -> nn.Module:
        """This rank's stage of the model; the rest of it is let go. Raises InputError where torch is too old for it."""
        if "return_outputs" not in inspect.signature(ScheduleGPipe.step).parameters:
            what = f"the schedules of torch {torch.__version__} fix the shapes of the first batch, and keep all outputs"
            raise InputError(
                "run", [Problem("strategy", what, "a later torch, or another strategy")]
            )
        assert isinstance(model, GPT)
        return Pipeline(
            Stage(model, stage=dist.get_rank(), stages=run.world_size),
            run=run,
            device=device,
            clock=clock,
        )

    def synchronize(self, parallel: nn.Module) -> None:
        """Add up the gradients of the embedding and of the head."""
        pipeline = _pipeline(parallel)
        if pipeline.stage.tied is not None:
            dist.all_reduce(pipeline.stage.tied.grad, group=pipeline.ends)

    def clip(self, parallel: nn.Module, max_norm: float) -> torch.Tensor:
        """By the norm of all stages, the tied matrix counted once."""
        stage = _pipeline(parallel).stage
        gradients = {name: p.grad for name, p in stage.named_parameters() if p.grad is not None}
        copy = gradients.pop("embedding.weight") if stage.tied is not None and stage.last else None
        return clip(list(gradients.values()), max_norm, copies=[] if copy is None else [copy])

    def all_losses(self, losses: torch.Tensor) -> torch.Tensor:
        """As the last stage noted them."""
        dist.broadcast(losses, src=dist.get_world_size() - 1)
        return losses

    def replicated(self, parallel: nn.Module) -> Iterable[torch.Tensor]:
        """The tied matrix, on the first and the last rank."""
        stage = _pipeline(parallel).stage
        return [] if stage.tied is None else [stage.tied]


class Stage(nn.Module):
    """Consecutive blocks of a GPT, with the embedding before the first of all and the norm behind the last."""

    def __init__(self, model: GPT, *, stage: int, stages: int) -> None:
        super().__init__()
        self.first, self.last = stage == 0, stage == stages - 1
        cuts = [len(model.blocks) * cut // stages for cut in (stage, stage + 1)]
        self.blocks = model.blocks[cuts[0] : cuts[1]]
        self.embedding: nn.Embedding | None = model.embedding if self.first or self.last else None
        self.positions = model.positions if self.first else nn.Identity()
        self.dropout = model.dropout
        self.norm = model.norm if self.last else nn.Identity()

    @property
    def tied(self) -> nn.Parameter | None:
        """The matrix of which another stage has a copy."""
        if self.embedding is None or self.first == self.last:
            return None
        assert isinstance(self.embedding.weight, nn.Parameter)
        return self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens (samples, tokens) in the first stage, else (samples, tokens, width), to (samples, tokens, width)."""
        if self.first and self.embedding is not None:
            x = self.dropout(
                self.embedding(x) + self.positions(torch.arange(x.shape[1], device=x.device))
            )
        for block in self.blocks:
            x = block(x)
        hidden: torch.Tensor = self.norm(x)
        return hidden

    def loss(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss of what the last stage puts out."""
        assert self.embedding is not None
        return linear_cross_entropy(hidden.flatten(0, 1), self.embedding.weight, targets.flatten())


class TimedStage(PipelineStage):
    """A stage whose passes are laps of the step's clock, each with the wait for its inputs."""

    clock: Clock

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Forward of one microbatch."""
        output = super().forward_one_chunk(*arguments, **options)
        self.clock.lap("forward")
        return output

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Backward of one microbatch."""
        super().backward_one_chunk(*arguments, **options)
        self.clock.lap("backward")


class Pipeline(nn.Module):
    """A stage and the schedule that it works by. In training, a call does the backward passes too."""

    def __init__(self, stage: Stage, *, run: Run, device: torch.device, clock: Clock) -> None:
        super().__init__()
        self.stage, self.clock = stage, clock
        self.rank, self.size = dist.get_rank(), run.world_size
        assert isinstance(run.architecture, models.GPT)
        self.width = run.architecture.width
        timed = TimedStage(stage, self.rank, self.size, device)
        timed.clock = clock
        self.schedule = SCHEDULES[run.schedule](
            timed, run.microbatches or run.world_size, loss_fn=self._loss
        )
        self.ends = dist.new_group(sorted({0, self.size - 1}))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss: in training known to the last stage alone, 0 on the others, and its gradients are there already."""
        if not self.training:
            return self._evaluate(inputs, targets)
        losses: list[torch.Tensor] = []
        self.schedule.step(
            *([inputs] if self.stage.first else []),
            target=targets if self.stage.last else None,
            losses=losses if self.stage.last else None,
            return_outputs=False,
        )
        self.clock.lap("backward")
        loss = (
            torch.stack(losses).mean() if self.stage.last else torch.zeros((), device=inputs.device)
        )
        return loss.detach().requires_grad_()  # here the loop's own backward pass ends

    def _loss(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = self.stage.loss(hidden, targets)
        self.clock.lap("forward")
        return loss

    def _evaluate(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss on every rank, by one pass through the stages."""
        x = inputs
        if not self.stage.first:
            x = torch.empty(*inputs.shape, self.width, device=inputs.device)
            dist.recv(x, self.rank - 1)
        hidden = self.stage(x)
        if not self.stage.last:
            dist.send(hidden.contiguous(), self.rank + 1)
        loss = (
            self.stage.loss(hidden, targets).float()
            if self.stage.last
            else torch.zeros((), device=inputs.device)
        )
        dist.broadcast(loss, src=self.size - 1)
        return loss


def _pipeline(parallel: nn.Module) -> Pipeline:
    assert isinstance(parallel, Pipeline)
    return parallel


STRATEGY = PipelineParallelism()
