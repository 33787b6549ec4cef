"""Pipeline parallelism: ranks hold consecutive blocks, through which microbatches pass.

The head is tied to the embedding: the first and the last rank each hold a copy and sum its
gradients.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from lab.config import models
from lab.errors import InputError
from lab.worker.measure.clock import Clock
from lab.worker.models.gpt import GPT, linear_cross_entropy
from lab.worker.strategies.base import Setup, Strategy, clip


class GPipe(ScheduleGPipe):
    """torch's GPipe, but with each microbatch's loss right before its backward pass.

    The head computes its gradients with the loss. If all losses came first, a gradient of its
    weight would be kept for each microbatch.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._losses_due: deque[Callable[[], None]] = deque()

    def _maybe_compute_loss(self, *arguments: Any, **options: Any) -> None:
        self._losses_due.append(partial(super()._maybe_compute_loss, *arguments, **options))

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Any:
        self._losses_due.popleft()()  # backward passes come in the order of forward passes
        return super()._maybe_get_loss(stage, mb_index)  # type: ignore[no-untyped-call]


SCHEDULES: dict[str, Any] = {"gpipe": GPipe, "1f1b": Schedule1F1B}


class PipelineParallelism(Strategy["Pipeline"]):
    """torch's GPipe (Huang et al., 2019) and 1F1B (Narayanan et al., 2019) over a GPT's blocks."""

    def wrap(self, model: nn.Module, setup: Setup) -> Pipeline:
        """This rank's stage; the rest is freed. Raises InputError if torch is too old."""
        if "return_outputs" not in inspect.signature(ScheduleGPipe.step).parameters:
            what = (
                f"the schedules of torch {torch.__version__} keep the shapes of the first batch, "
                "and all outputs"
            )
            advice = "use a later torch, or another strategy"
            raise InputError.of("run", "strategy", what, advice)
        assert isinstance(model, GPT)
        return Pipeline(model, setup)

    def synchronize(self, parallel: Pipeline) -> None:
        """Sum the gradients of the embedding and of the head."""
        if parallel.stage.tied is not None:
            dist.all_reduce(parallel.stage.tied.grad, group=parallel.ends)

    def clip(self, parallel: Pipeline, max_norm: float) -> torch.Tensor:
        """Clip by the norm of all stages, counting the tied matrix once."""
        stage = parallel.stage
        gradients = {name: p.grad for name, p in stage.named_parameters() if p.grad is not None}
        # The first stage counts the tied matrix; the last one only scales its copy.
        copies = []
        if stage.tied is not None and stage.last:
            copies.append(gradients.pop("embedding.weight"))
        return clip(list(gradients.values()), max_norm, copies=copies)

    def all_losses(self, losses: torch.Tensor) -> torch.Tensor:
        """The losses of the last stage, the only one that computes them."""
        dist.broadcast(losses, src=dist.get_world_size() - 1)
        return losses

    def replicated(self, parallel: Pipeline) -> Iterable[torch.Tensor]:
        """The tied matrix, on the first and the last rank."""
        return [] if parallel.stage.tied is None else [parallel.stage.tied]


class Stage(nn.Module):
    """Consecutive blocks of a GPT, the embedding before the first, the norm after the last."""

    def __init__(self, model: GPT, *, stage: int, stages: int) -> None:
        super().__init__()
        self.first, self.last = stage == 0, stage == stages - 1
        # The layers of other stages are not kept, so their memory is freed.
        begin, end = (len(model.blocks) * cut // stages for cut in (stage, stage + 1))
        self.blocks = model.blocks[begin:end]
        self.embedding: nn.Embedding | None = model.embedding if self.first or self.last else None
        self.positions = model.positions if self.first else nn.Identity()
        self.dropout = model.dropout
        self.norm = model.norm if self.last else nn.Identity()

    @property
    def tied(self) -> nn.Parameter | None:
        """The matrix that another stage also has a copy of."""
        if self.embedding is None or self.first == self.last:
            return None
        assert isinstance(self.embedding.weight, nn.Parameter)
        return self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens (samples, tokens), or hidden states, to (samples, tokens, width)."""
        if self.first and self.embedding is not None:
            positions = self.positions(torch.arange(x.shape[1], device=x.device))
            x = self.dropout(self.embedding(x) + positions)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def loss(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss from the last stage's output."""
        assert self.embedding is not None
        return linear_cross_entropy(hidden.flatten(0, 1), self.embedding.weight, targets.flatten())


class TimedStage(PipelineStage):
    """A stage whose passes are laps of the step's clock, each including the wait for its inputs.

    The loop cannot time them, as it sees one call in which microbatches' passes alternate.
    """

    clock: Clock

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Forward pass of one microbatch."""
        output = super().forward_one_chunk(*arguments, **options)
        self.clock.lap("forward")
        return output

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Backward pass of one microbatch."""
        super().backward_one_chunk(*arguments, **options)
        self.clock.lap("backward")


class Pipeline(nn.Module):
    """A stage and its schedule; in training, a call does the backward passes too."""

    def __init__(self, model: GPT, setup: Setup) -> None:
        super().__init__()
        run = setup.run
        assert isinstance(run.architecture, models.GPT)
        self.rank, self.size, self.width = dist.get_rank(), run.world_size, run.architecture.width
        self.stage, self.clock = Stage(model, stage=self.rank, stages=self.size), setup.clock
        timed = TimedStage(self.stage, self.rank, self.size, setup.device)
        timed.clock = setup.clock
        self.schedule = SCHEDULES[run.schedule](timed, run.passes, loss_fn=self._loss)
        # Every rank must call it, even those in the middle, which are not members.
        self.ends = dist.new_group(sorted({0, self.size - 1}))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss; in training, gradients are ready, and it is 0 except on the last stage."""
        if not self.training:
            return self._evaluate(inputs, targets)
        losses: list[torch.Tensor] = []
        self.schedule.step(
            # torch before 2.13 refuses inputs whose strides are not those of its first example.
            *([inputs.contiguous()] if self.stage.first else []),
            target=targets if self.stage.last else None,
            losses=losses if self.stage.last else None,
            return_outputs=False,  # which would keep every microbatch's until the end
        )
        # After its last pass, the schedule waits for the messages that it sent.
        self.clock.lap("backward")
        loss = torch.stack(losses).mean() if losses else torch.zeros((), device=inputs.device)
        return loss.detach().requires_grad_()  # a leaf, at which the loop's own backward pass ends

    def _loss(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = self.stage.loss(hidden, targets)
        self.clock.lap("forward")
        return loss

    def _evaluate(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss on every rank, from one pass through the stages."""
        # Without the schedule, which would also run backward passes.
        x = inputs
        if not self.stage.first:
            x = torch.empty(*inputs.shape, self.width, device=inputs.device)
            dist.recv(x, self.rank - 1)
        hidden = self.stage(x)
        loss = torch.zeros((), device=inputs.device)
        if self.stage.last:
            loss = self.stage.loss(hidden, targets).float()
        else:
            dist.send(hidden.contiguous(), self.rank + 1)
        dist.broadcast(loss, src=self.size - 1)
        return loss


STRATEGY = PipelineParallelism()
