"""The planner: of all ways to train a model with a global batch, the fastest that fits.

It predicts every candidate of a search space, for a described machine or from measurements on a
cluster, and explains why the second best is slower.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from lab.config.cluster import Cluster
from lab.config.models import GPT
from lab.config.run import DEFAULT_BUCKET_CAP_MB, Run, value_bytes
from lab.config.study import Study
from lab.errors import LabError
from lab.formatting import MIB, count, format_seconds
from lab.perfmodel import hardware
from lab.perfmodel.forecast import SAME, Basis
from lab.perfmodel.frozen import basis_of
from lab.perfmodel.hardware import Machine
from lab.perfmodel.layout import (
    SCHEDULES,
    Bucket,
    Candidate,
    Checkpointing,
    Layout,
    Links,
    Profile,
    Schedule,
    Sharing,
    sent,
)
from lab.perfmodel.memory import require_known_model
from lab.perfmodel.predict import Described
from lab.perfmodel.simulate import Conditions, Prediction, predict

BUCKETS_MB = (5.0, DEFAULT_BUCKET_CAP_MB, 100.0)
MOST_BUCKETS = 16  # replaying more gains the planner nothing
MOST_TENSOR = 8
MOST_RANKED = 10
UNFIT = "does not fit into memory"


@dataclass(frozen=True)
class Ranked:
    """A candidate that fits, with its predicted step and bytes of a rank."""

    candidate: Candidate
    prediction: Prediction
    memory_bytes: float


@dataclass(frozen=True)
class Plan:
    """The candidates that fit, fastest first; how many were searched, and how many do not fit.

    `least_bytes` is the smallest memory of a rank over all candidates.
    """

    ranked: tuple[Ranked, ...]
    refused: int
    searched: int
    least_bytes: float = math.inf

    def why_second(self) -> str:
        """One sentence: what makes the second slower than the first; empty without a second."""
        if len(self.ranked) < 2:
            return ""
        first, second = self.ranked[:2]
        slower = second.prediction.step_s - first.prediction.step_s
        if slower <= 1e-6 * first.prediction.step_s:
            more = second.memory_bytes - first.memory_bytes
            memory = "more" if more > 0 else "less" if more < 0 else "as much"
            return f"The second ({second.candidate.label}) is as fast and takes {memory} memory."
        parts = first.prediction.parts
        longer = {
            name: value - parts.get(name, 0.0) for name, value in second.prediction.parts.items()
        }
        name = max(longer, key=lambda part: longer[part])
        largest = f"{format_seconds(longer[name])} more in {name.replace('_', ' ')}"
        saved = ", and less in other parts" * (longer[name] > slower)
        return (
            f"The second ({second.candidate.label}) is {format_seconds(slower)} slower: "
            f"{largest}{saved}."
        )


@dataclass(frozen=True)
class Space:
    """The search space; tensor and pipeline degrees that do not divide the ranks are left out.

    `activation_bytes_per_sample` are those that a layer passes on to the next.
    """

    layers: int
    activation_bytes_per_sample: int
    sharings: Sequence[Sharing] = ("ddp", "zero1", "fsdp")
    tensor: Sequence[int] = (1,)
    pipeline: Sequence[int] = (1,)
    checkpointing: Sequence[Checkpointing] = ("none", "full")
    precisions: Sequence[str] = ("bf16",)
    buckets_mb: Sequence[float] = BUCKETS_MB
    schedules: Sequence[Schedule] = ("1f1b",)

    def candidates(self, world_size: int, global_batch: int) -> Iterator[Candidate]:
        """All candidates, with every micro-batch and accumulation that make up the global batch."""
        for tensor, pipeline in itertools.product(self.tensor, self.pipeline):
            data, rest = divmod(world_size, tensor * pipeline)
            if rest or global_batch % data:
                continue
            share = global_batch // data
            for sharing in self.sharings if data > 1 else ("single",):
                # Stages that gather their weights for each micro-batch would send too much.
                if sharing == "fsdp" and pipeline > 1:
                    continue
                buckets = self.buckets_mb if sharing == "ddp" and data > 1 else (None,)
                for micro, schedule in itertools.product(_divisors(share), self.schedules):
                    border = self.activation_bytes_per_sample * micro
                    layout = Layout(
                        sharing, data, tensor, pipeline, self.layers, border, schedule=schedule
                    )
                    # Fewer micro-batches than a stage holds leave more of the bubble.
                    few = pipeline == 1 or share // micro < layout.in_flight
                    if schedule != "1f1b" and few:
                        continue
                    for checkpointing, precision, bucket in itertools.product(
                        self.checkpointing, self.precisions, buckets
                    ):
                        yield Candidate(
                            layout, micro, share // micro, checkpointing, precision, bucket
                        )

    @property
    def description(self) -> str:
        """One line for display."""
        degrees = [
            f"{name} x{', x'.join(map(str, sizes))}"
            for name, sizes in (("tensor", self.tensor), ("pipeline", self.pipeline))
            if max(sizes) > 1
        ]
        return "; ".join(
            [
                ", ".join(self.sharings),
                *degrees,
                *([f"schedules {', '.join(self.schedules)}"] if len(self.schedules) > 1 else []),
                "every micro-batch and accumulation that make up the global batch",
                f"checkpointing {', '.join(self.checkpointing)}",
                ", ".join(self.precisions),
                f"DDP's buckets of {', '.join(f'{size:g}' for size in self.buckets_mb)} MiB",
            ]
        )


def best(
    costing: Described | MeasuredCosting, space: Space, *, world_size: int, global_batch: int
) -> Plan:
    """Predict every candidate that fits into memory, ranked by step time, then by memory.

    Of candidates that differ only in the size of buckets, the best is ranked.
    """
    # Many candidates share the inputs of these: the degrees, one device's step, all but the
    # buckets.
    links, profile, memory = cache(costing.links), cache(costing.profile), cache(costing.memory)
    conditions = cache(costing.conditions)
    ranked: list[Ranked] = []
    searched, refused, least = 0, 0, math.inf
    for candidate in space.candidates(world_size, global_batch):
        searched += 1
        layout = candidate.layout
        memory_bytes = memory(replace(candidate, bucket_mb=None))
        least = min(least, memory_bytes)
        if memory_bytes > costing.memory_limit:
            refused += 1
            continue
        rank = Layout("single", tensor=layout.tensor, layers=layout.layers)
        alone = replace(candidate, layout=rank, grad_accum=1, bucket_mb=None)
        degrees = Layout(data=layout.data, tensor=layout.tensor, pipeline=layout.pipeline)
        prediction = _predict(candidate, profile(alone), links(degrees), conditions(degrees))
        ranked.append(Ranked(candidate, prediction, memory_bytes))
    ranked.sort(key=lambda way: (way.prediction.step_s, way.memory_bytes))
    distinct: dict[Candidate, Ranked] = {}
    for way in ranked:
        distinct.setdefault(replace(way.candidate, bucket_mb=None), way)
    return Plan(tuple(distinct.values())[:MOST_RANKED], refused, searched, least)


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def _predict(
    candidate: Candidate, profile: Profile, links: Links, conditions: Conditions
) -> Prediction:
    cap_bytes = (candidate.bucket_mb or 0.0) * MIB
    buckets = sent(profile, candidate.layout.sharing, cap_bytes=cap_bytes)
    return predict(
        profile,
        merged(buckets, MOST_BUCKETS),
        candidate.layout,
        links,
        grad_accum=candidate.grad_accum,
        conditions=conditions,
    )


def merged(buckets: Sequence[Bucket], most: int) -> tuple[Bucket, ...]:
    """At most `most` buckets: neighbours are merged, but each still counts as a message."""
    if len(buckets) <= most:
        return tuple(buckets)
    cuts = [round(nth * len(buckets) / most) for nth in range(most + 1)]
    groups = [buckets[begin:end] for begin, end in itertools.pairwise(cuts)]
    return tuple(
        Bucket(group[-1].ready_s, sum(b.bytes for b in group), sum(b.messages for b in group))
        for group in groups
    )


@dataclass(frozen=True)
class Search:
    """The request, the search space, the plan, and the search time in s."""

    work: str
    space: str
    plan: Plan
    seconds: float
    memory_limit: float

    def table(self) -> list[dict[str, Any]]:
        """The fastest candidates, one row each, for display."""
        return [
            {
                "": place,
                "way": way.candidate.label,
                "step": format_seconds(
                    way.prediction.step_s, way.prediction.low_s, way.prediction.high_s
                ),
                "memory of a rank": f"{way.memory_bytes / 1e6:,.0f} MB",
                "limited by": way.prediction.limit.replace("_", " "),
            }
            for place, way in enumerate(self.plan.ranked, start=1)
        ]

    @property
    def summary(self) -> str:
        """How many were searched and refused, and why the second is slower."""
        searched = f"{self.plan.searched:,} candidates in {self.seconds:.2f} s"
        if self.plan.refused:
            searched += f"; {self.plan.refused:,} refused: {UNFIT}"
            searched += f" (a rank has {self.memory_limit / 1e9:,.1f} GB)"
        return f"{searched}. {self.plan.why_second()}".strip()

    def content(self) -> dict[str, Any]:
        """For programs: times in s, memory in bytes."""
        return {
            "searched": self.plan.searched,
            "refused": {UNFIT: self.plan.refused} if self.plan.refused else {},
            "seconds": self.seconds,
            "space": self.space,
            "work": self.work,
            "memory_limit": self.memory_limit,
            "ranked": [
                {
                    "way": way.candidate.label,
                    "strategy": way.candidate.layout.sharing,
                    "data": way.candidate.layout.data,
                    "tensor": way.candidate.layout.tensor,
                    "pipeline": way.candidate.layout.pipeline,
                    "schedule": way.candidate.layout.schedule,
                    "micro_batch_size": way.candidate.micro_batch,
                    "grad_accum": way.candidate.grad_accum,
                    "checkpointing": way.candidate.checkpointing,
                    "precision": way.candidate.precision,
                    "bucket_cap_mb": way.candidate.bucket_mb,
                    "step_s": way.prediction.step_s,
                    "memory_bytes": way.memory_bytes,
                    "parts": way.prediction.parts,
                }
                for way in self.plan.ranked
            ],
            "why_second": self.plan.why_second(),
        }


def best_plans(
    study: Study | str | Path,
    cluster: str | Cluster = "local",
    *,
    machine: str | Machine | None = None,
    world_size: int | None = None,
) -> list[Search]:
    """Find the fastest ways to train each model and global batch of a study on `world_size` ranks.

    The default is all ranks of the cluster, or the study's largest number. Plans use records of one
    rank and the cluster's calibration, or a described `machine`. Raises InputError for unknown
    names, LabError if there are no measurements to plan from or nothing fits into memory.
    """
    study = Study.of(study)
    works: dict[Any, Run] = {}
    for run in study.runs:
        if run.task == "train":
            works.setdefault((run.architecture, run.dataset, run.global_batch_size), run)
    runs = works.values()
    if machine is not None:
        place = hardware.machine(machine)
        size = world_size or max(run.world_size for run in study.runs)
        return [_search(run, size, *_described(run, place, size)) for run in runs]
    profile = Cluster.of(cluster)
    size, basis = world_size or profile.capacity, basis_of(study, cluster)
    limit = profile.memory_bytes_per_rank or math.inf
    return [_search(run, size, *_measured(run, basis, size, limit)) for run in runs]


def _search(
    run: Run, world_size: int, costing: Described | MeasuredCosting, space: Space
) -> Search:
    began, batch = time.perf_counter(), run.stated.global_batch_size
    plan = best(costing, space, world_size=world_size, global_batch=batch)
    model = run.model if isinstance(run.model, str) else run.model.label
    ranks = count(world_size, "rank")
    work, limit = f"{model}, global batch {batch}, {ranks}", costing.memory_limit
    if not plan.searched:
        raise LabError(f"{work}: the batch cannot be divided over {ranks}")
    if not plan.ranked:
        raise LabError(
            f"{work}: nothing fits: of {plan.searched:,} ways the smallest needs "
            f"{plan.least_bytes / 1e9:.3g} GB on a rank, but a rank has {limit / 1e9:.3g} GB"
        )
    return Search(work, space.description, plan, time.perf_counter() - began, limit)


def _described(run: Run, place: Machine, world_size: int) -> tuple[Described, Space]:
    costing, model = Described.of(run, place), run.architecture
    assert isinstance(model, GPT)

    def degrees(most: int, divided: int) -> list[int]:
        powers = [2**power for power in range(most.bit_length())]
        return [size for size in powers if divided % size == 0]

    precision = run.stated.precision
    value = value_bytes(precision)
    space = Space(
        layers=model.layers,
        activation_bytes_per_sample=model.block_size * model.width * value,
        tensor=degrees(min(MOST_TENSOR, place.gpus_per_node), model.heads),
        pipeline=degrees(world_size, model.layers),
        schedules=SCHEDULES,
        precisions=("bf16",) if precision == "bf16" else ("bf16", precision),
    )
    return costing, space


def _measured(
    run: Run, basis: Basis, world_size: int, memory_limit: float
) -> tuple[MeasuredCosting, Space]:
    costing, model = MeasuredCosting(basis, run, memory_limit), run.architecture
    width = model.width * model.block_size if isinstance(model, GPT) else 0
    degrees = [1, world_size] if width and world_size > 1 else [1]
    space = Space(
        layers=getattr(model, "layers", 1),
        activation_bytes_per_sample=4 * width,
        sharings=("naive_ddp", "ddp", "zero1", "fsdp"),
        tensor=[size for size in degrees if getattr(model, "heads", 1) % size == 0],
        pipeline=degrees,
        checkpointing=("none", "full") if width else ("none",),
        precisions=costing.precisions,
    )
    return costing, space


class MeasuredCosting:
    """A model on a cluster with measured one-rank steps and links."""

    def __init__(self, basis: Basis, run: Run, memory_limit: float) -> None:
        require_known_model(run)
        self.basis, self.run, self.memory_limit = basis, run, memory_limit
        fields = [name for name in SAME if name not in {"precision", "activation_checkpointing"}]
        self.precisions: Sequence[str] = sorted(
            {
                record.run.stated.precision
                for record in basis.records
                if record.gradients
                and all(getattr(record.run, name) == getattr(run, name) for name in fields)
            }
        )
        if not self.precisions:
            raise LabError(
                "no record on one rank of this model yet: measure world size 1 with `lab run`, "
                "or name a --machine"
            )

    def profile(self, candidate: Candidate) -> Profile:
        """One device's step as measured.

        If only the other checkpointing mode was measured, a forward pass is added or removed.
        """
        run, full = self._as_run(candidate), candidate.checkpointing == "full"
        try:
            return self.basis.profile(run)[0]
        except LabError:
            other = run.model_copy(update={"activation_checkpointing": not full})
            plain = self.basis.profile(other)[0]
        backward_s = plain.backward_s + (plain.forward_s if full else -plain.forward_s)
        return plain.with_backward(max(backward_s, plain.forward_s))

    def conditions(self, layout: Layout) -> Conditions:
        """The conditions of a step on this many ranks."""
        return self.basis.links(layout.world_size).conditions

    def memory(self, candidate: Candidate) -> float:
        """Peak bytes of a rank."""
        return self.basis.memory(self._as_run(candidate)) or math.inf

    def links(self, layout: Layout) -> Links:
        """The calibrated links among the ranks that share each part of the work."""
        sizes = (layout.data, layout.tensor, layout.pipeline)
        return Links(*(self.basis.links(size).cost for size in sizes))

    def _as_run(self, candidate: Candidate) -> Run:
        layout, micro, accum = candidate.layout, candidate.micro_batch, candidate.grad_accum
        update = candidate.settings | {"world_size": layout.world_size}
        if layout.tensor > 1:
            update["strategy"] = "tensor_parallel"
        elif layout.pipeline > 1:
            # A pipeline's micro-batches are parts of the run's micro-batch.
            update |= {"strategy": "pipeline_parallel", "microbatches": accum}
            update |= {"micro_batch_size": micro * accum, "grad_accum": 1}
        return self.run.model_copy(update=update)
