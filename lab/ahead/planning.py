"""lab plan --best: of all ways to train a study's model on a cluster, the fastest that fits into memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lab.ahead.prediction import SAME, Basis
from lab.analysis import machines
from lab.analysis.described import Described
from lab.analysis.layouts import Layout, Links, Profile
from lab.analysis.machines import Machine
from lab.analysis.memory import Checkpointing
from lab.analysis.planner import Plan, Space, best
from lab.analysis.predict import Conditions
from lab.cluster import Cluster
from lab.errors import LabError
from lab.study import Run, Study
from lab.workloads import GPT, vocab_size_of

MOST_TENSOR = 8


@dataclass(frozen=True)
class Search:
    """What was looked for, in which space, what was found, and s that it took."""

    work: str
    space: str
    plan: Plan
    seconds: float
    memory_limit: float

    def table(self) -> list[dict[str, Any]]:
        """The fastest ways, one row each."""
        from lab.analysis.rounding import format_seconds

        return [
            {
                "": place,
                "way": ranked.candidate.label,
                "step": format_seconds(ranked.prediction.step_s, ranked.prediction.low_s, ranked.prediction.high_s),
                "memory of a rank": f"{ranked.memory_bytes / 1e6:,.0f} MB",
                "limited by": ranked.prediction.limit.replace("_", " "),
            }
            for place, ranked in enumerate(self.plan.ranked, start=1)
        ]

    @property
    def summary(self) -> str:
        """How much was searched and refused, and why the second is second."""
        refused = "; ".join(f"{count:,} refused: {reason}" for reason, count in self.plan.refused.items())
        room = f" (a rank has {self.memory_limit / 1e9:,.1f} GB)" if refused else ""
        told = f"{self.plan.searched:,} candidates in {self.seconds:.2f} s{'; ' if refused else ''}{refused}{room}."
        return f"{told} {self.plan.why_second()}".strip()

    def content(self) -> dict[str, Any]:
        """For programs: times in s, memory in bytes."""
        ranked = [
            {
                "way": found.candidate.label,
                "strategy": found.candidate.layout.sharing,
                "data": found.candidate.layout.data,
                "tensor": found.candidate.layout.tensor,
                "pipeline": found.candidate.layout.pipeline,
                "micro_batch_size": found.candidate.micro_batch,
                "grad_accum": found.candidate.grad_accum,
                "checkpointing": found.candidate.checkpointing,
                "precision": found.candidate.precision,
                "bucket_cap_mb": found.candidate.bucket_mb,
                "step_s": found.prediction.step_s,
                "memory_bytes": found.memory_bytes,
                "parts": found.prediction.parts,
            }
            for found in self.plan.ranked
        ]
        told = {"searched": self.plan.searched, "refused": self.plan.refused, "seconds": self.seconds, "space": self.space}
        return told | {
            "work": self.work,
            "memory_limit": self.memory_limit,
            "ranked": ranked,
            "why_second": self.plan.why_second(),
        }


def best_plans(
    study: Study, cluster: str | Cluster = "local", *, machine: str | Machine | None = None, world_size: int | None = None
) -> list[Search]:
    """The fastest ways to train each model and global batch of a study on `world_size` ranks, the cluster's or study's largest.

    From records of one rank and the cluster's calibration, or for a described `machine`. Raises InputError for unknown
    names, LabError where nothing is measured to plan from or no way fits into memory.
    """
    if machine is not None:
        place = machines.machine(machine) if isinstance(machine, str) else machine
        size = world_size or max(run.world_size for run in study.runs)
        return [_search(run, size, *_described(run, place, size)) for run in _works(study)]
    profile = cluster if isinstance(cluster, Cluster) else Cluster.load(cluster)
    size, basis = world_size or profile.capacity, Basis.of(study, cluster)
    room = profile.memory_bytes_per_rank or math.inf
    return [_search(run, size, *_measured(run, basis, size, room)) for run in _works(study)]


def _works(study: Study) -> Iterator[Run]:
    """One run of each model, data set and global batch."""
    seen = set()
    for run in study.runs:
        work = (run.architecture, run.dataset, run.global_batch_size)
        if run.task == "train" and work not in seen:
            seen.add(work)
            yield run


def _search(run: Run, world_size: int, costing: Any, space: Space, conditions: Conditions) -> Search:
    began = time.perf_counter()
    plan = best(costing, space, world_size=world_size, global_batch=run.global_batch_size, conditions=conditions)
    model = run.model if isinstance(run.model, str) else run.model.label
    work = f"{model}, global batch {run.global_batch_size}, {world_size} ranks"
    if not plan.searched:
        raise LabError(f"{work}: the batch cannot be divided over so many ranks")
    if not plan.ranked:
        need, room = plan.least_bytes / 1e9, costing.memory_limit / 1e9
        raise LabError(
            f"{work}: nothing fits: of {plan.searched:,} ways the smallest needs {need:.3g} GB of a rank that has {room:.3g} GB"
        )
    return Search(work, space.description, plan, time.perf_counter() - began, costing.memory_limit)


def _described(run: Run, place: Machine, world_size: int) -> tuple[Described, Space, Conditions]:
    model = run.architecture
    if not isinstance(model, GPT):
        raise LabError(f"a described machine trains models of kind gpt, not {model.kind}")
    costing = Described(model, vocab_size_of(model, run.dataset), place)
    tensor = [size for size in _doubling(min(MOST_TENSOR, place.gpus_per_node)) if model.heads % size == 0]
    pipeline = [size for size in _doubling(world_size) if model.layers % size == 0]
    value = 4 if run.precision == "fp32" else 2
    space = Space(
        layers=model.layers,
        activation_bytes_per_sample=model.block_size * model.width * value,
        tensor=tensor,
        pipeline=pipeline,
        precisions=("bf16",) if run.precision == "bf16" else ("bf16", run.precision),
    )
    return costing, space, Conditions(model_error=costing.error)


def _doubling(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length())]


def _measured(run: Run, basis: Basis, world_size: int, room: float) -> tuple[MeasuredCosting, Space, Conditions]:
    costing = MeasuredCosting(basis, run, room)
    _, contention, link_error, _ = basis.links(world_size)
    model = run.architecture
    width = model.width * model.block_size if isinstance(model, GPT) else 0
    whole = [1, world_size] if width and world_size > 1 else [1]
    space = Space(
        layers=getattr(model, "layers", 1),
        activation_bytes_per_sample=4 * width,
        sharings=("naive_ddp", "ddp", "zero1", "fsdp"),
        tensor=[size for size in whole if getattr(model, "heads", 1) % size == 0],
        pipeline=whole,
        checkpointing=("none", "full") if width else ("none",),
        precisions=costing.precisions,
    )
    return costing, space, Conditions(contention, link_error=link_error, model_error=basis.model_error)


class MeasuredCosting:
    """A model on a cluster whose one-rank steps and links are measured."""

    def __init__(self, basis: Basis, run: Run, room: float) -> None:
        self.basis, self.run, self.memory_limit = basis, run, room
        self.profile, self.memory = cache(self._profile), cache(self._memory)
        alike = [name for name in SAME if name not in {"precision", "activation_checkpointing"}]
        same = [r for r in basis.records if r.gradients and all(getattr(r.run, name) == getattr(run, name) for name in alike)]
        self.precisions: Sequence[str] = sorted({record.run.precision for record in same})
        if not same:
            raise LabError("no record on one rank of this model yet: run the study's world size 1")

    def _profile(self, *, micro_batch: int, precision: str, checkpointing: Checkpointing) -> Profile:
        """One device's step as measured; where blocks are computed again and that was not, with a second forward pass."""
        asked = self._as_run(Layout("single"), micro_batch, 1, precision, checkpointing)
        try:
            return self.basis.profile(asked)[0]
        except LabError:
            plain = self.basis.profile(asked.model_copy(update={"activation_checkpointing": checkpointing == "none"}))[0]
        again = plain.forward_s if checkpointing == "full" else -plain.forward_s
        return plain.with_backward(max(plain.backward_s + again, plain.forward_s))

    def _memory(
        self, layout: Layout, *, micro_batch: int, grad_accum: int, precision: str, checkpointing: Checkpointing
    ) -> float:
        """Bytes of a rank at its peak."""
        return self.basis.memory(self._as_run(layout, micro_batch, grad_accum, precision, checkpointing)) or math.inf

    def links(self, layout: Layout) -> Links:
        """The calibrated links among the ranks that share each part of the work."""
        return Links(*(self.basis.links(size)[0] for size in (layout.data, layout.tensor, layout.pipeline)))

    def _as_run(self, layout: Layout, micro_batch: int, grad_accum: int, precision: str, checkpointing: Checkpointing) -> Run:
        split = "tensor_parallel" if layout.tensor > 1 else "pipeline_parallel" if layout.pipeline > 1 else layout.sharing
        # A pipeline's micro-batches are parts of what the run calls one.
        parts = {"micro_batch_size": micro_batch * grad_accum, "grad_accum": 1, "microbatches": grad_accum}
        plain = {"micro_batch_size": micro_batch, "grad_accum": grad_accum}
        return self.run.model_copy(
            update={
                "strategy": split,
                "world_size": layout.world_size,
                "precision": precision,
                "activation_checkpointing": checkpointing == "full",
                **(parts if split == "pipeline_parallel" else plain),
            }
        )
