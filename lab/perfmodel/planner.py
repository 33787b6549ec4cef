"""The planner: of all ways to train a model on a cluster with a global batch, the fastest that fits, and why the next is slower."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from lab.config.cluster import Cluster
from lab.config.datasets import vocab_size_of
from lab.config.models import GPT
from lab.config.run import Run
from lab.config.study import Study
from lab.errors import LabError
from lab.formatting import format_seconds
from lab.perfmodel import hardware
from lab.perfmodel.forecast import SAME, Basis
from lab.perfmodel.frozen import basis_of
from lab.perfmodel.hardware import Described, Machine
from lab.perfmodel.layout import Bucket, Layout, Links, Profile, Sharing, buckets_of
from lab.perfmodel.memory import Checkpointing
from lab.perfmodel.simulate import Conditions, Prediction, predict

BUCKETS_MB = (5.0, 25.0, 100.0)
# A replay of more buckets than this tells the planner nothing new.
MOST_BUCKETS = 16


@dataclass(frozen=True)
class Candidate:
    """One way to train: `bucket_mb` in MiB, None where gradients are not sent in DDP's buckets."""

    layout: Layout
    micro_batch: int
    grad_accum: int
    checkpointing: Checkpointing
    precision: str
    bucket_mb: float | None

    @property
    def label(self) -> str:
        """For people."""
        layout = self.layout
        parts = [f"{layout.sharing} x{layout.data}"]
        parts += [f"tensor x{layout.tensor}"] * (layout.tensor > 1) + [
            f"pipeline x{layout.pipeline}"
        ] * (layout.pipeline > 1)
        parts += [f"micro-batch {self.micro_batch}"] + [f"accumulation {self.grad_accum}"] * (
            self.grad_accum > 1
        )
        parts += [f"{self.checkpointing} checkpointing"] * (self.checkpointing != "none") + [
            self.precision
        ]
        return ", ".join(parts + ([f"buckets {self.bucket_mb:g} MiB"] if self.bucket_mb else []))


@dataclass(frozen=True)
class Ranked:
    """A candidate that fits, with its predicted step and bytes of a rank."""

    candidate: Candidate
    prediction: Prediction
    memory_bytes: float


@dataclass(frozen=True)
class Plan:
    """What a search found, the fastest first; how many were looked at, and how many were refused for which reason."""

    ranked: tuple[Ranked, ...]
    refused: dict[str, int]
    searched: int
    least_bytes: float = math.inf  # of a rank, over all candidates

    def why_second(self) -> str:
        """One sentence: what makes the second slower than the first; empty where there is none."""
        if len(self.ranked) < 2:
            return ""
        first, second = self.ranked[:2]
        parts = first.prediction.parts
        more = {
            name: value - parts.get(name, 0.0) for name, value in second.prediction.parts.items()
        }
        name = max(more, key=lambda part: more[part])
        slower = second.prediction.step_s - first.prediction.step_s
        if slower <= 1e-6 * first.prediction.step_s:
            memory = "as much" if second.memory_bytes == first.memory_bytes else "more"
            return f"The second ({second.candidate.label}) is as fast and takes {memory} memory."
        return (
            f"The second ({second.candidate.label}) is {format_seconds(slower)} slower, most of it in {name.replace('_', ' ')} "
            f"({format_seconds(more[name])} more)."
        )


class Costing(Protocol):
    """What the planner must know of a model on a machine."""

    @property
    def memory_limit(self) -> float:
        """Bytes that a rank may take."""

    def profile(self, *, micro_batch: int, precision: str, checkpointing: Checkpointing) -> Profile:
        """One device's step."""

    def memory(
        self,
        layout: Layout,
        *,
        micro_batch: int,
        grad_accum: int,
        precision: str,
        checkpointing: Checkpointing,
    ) -> float:
        """Bytes of a rank at its peak."""

    def links(self, layout: Layout) -> Links:
        """The cost of collectives."""


@dataclass(frozen=True)
class Space:
    """What may be varied; degrees of tensor and pipeline parallelism that do not divide the ranks are left out.

    `activation_bytes_per_sample` are those that a layer hands on to the next.
    """

    layers: int
    activation_bytes_per_sample: int
    sharings: Sequence[Sharing] = ("ddp", "zero1", "fsdp")
    tensor: Sequence[int] = (1,)
    pipeline: Sequence[int] = (1,)
    checkpointing: Sequence[Checkpointing] = ("none", "selective", "full")
    precisions: Sequence[str] = ("bf16",)
    buckets_mb: Sequence[float] = BUCKETS_MB

    def candidates(self, world_size: int, global_batch: int) -> Iterator[Candidate]:
        """All of them, each with a micro-batch and an accumulation that make up the global batch."""
        for layout in self._layouts(world_size):
            if global_batch % layout.data:
                continue
            share = global_batch // layout.data
            for micro in _divisors(share):
                activations = self.activation_bytes_per_sample * micro
                sized = Layout(
                    layout.sharing,
                    layout.data,
                    layout.tensor,
                    layout.pipeline,
                    self.layers,
                    activations,
                )
                buckets = (
                    self.buckets_mb if layout.sharing == "ddp" and layout.data > 1 else (None,)
                )
                for checkpointing in self.checkpointing:
                    for precision in self.precisions:
                        for bucket in buckets:
                            yield Candidate(
                                sized, micro, share // micro, checkpointing, precision, bucket
                            )

    @property
    def description(self) -> str:
        """One line for people."""
        degrees = [
            f"{name} x{', x'.join(map(str, sizes))}"
            for name, sizes in (("tensor", self.tensor), ("pipeline", self.pipeline))
            if max(sizes) > 1
        ]
        return "; ".join(
            [
                ", ".join(self.sharings),
                *degrees,
                "every micro-batch and accumulation that make up the global batch",
                f"checkpointing {', '.join(self.checkpointing)}",
                ", ".join(self.precisions),
                f"DDP's buckets of {', '.join(f'{size:g}' for size in self.buckets_mb)} MiB",
            ]
        )

    def _layouts(self, world_size: int) -> Iterator[Layout]:
        for tensor in self.tensor:
            for pipeline in self.pipeline:
                if world_size % (tensor * pipeline):
                    continue
                data = world_size // (tensor * pipeline)
                for sharing in self.sharings if data > 1 else ("single",):
                    if (
                        sharing != "fsdp" or pipeline == 1
                    ):  # stages that gather their weights for each micro-batch send too much
                        yield Layout(sharing, data, tensor, pipeline)


def best(
    costing: Costing,
    space: Space,
    *,
    world_size: int,
    global_batch: int,
    conditions: Conditions,
    keep: int = 10,
) -> Plan:
    """Predict every candidate that fits into memory and rank them by the time of a step, then by memory."""
    refused: Counter[str] = Counter()
    found: list[Ranked] = []
    searched, least = 0, math.inf
    links: dict[tuple[int, int, int], Links] = {}
    profiles: dict[tuple[int, str, Checkpointing], Profile] = {}
    for candidate in space.candidates(world_size, global_batch):
        searched += 1
        settings = {
            "micro_batch": candidate.micro_batch,
            "precision": candidate.precision,
            "checkpointing": candidate.checkpointing,
        }
        memory = costing.memory(candidate.layout, grad_accum=candidate.grad_accum, **settings)  # type: ignore[arg-type]
        least = min(least, memory)
        if memory > costing.memory_limit:
            refused["does not fit into memory"] += 1
            continue
        place = (candidate.layout.data, candidate.layout.tensor, candidate.layout.pipeline)
        if place not in links:
            links[place] = costing.links(candidate.layout)
        key = (candidate.micro_batch, candidate.precision, candidate.checkpointing)
        if key not in profiles:
            profiles[key] = costing.profile(**settings)  # type: ignore[arg-type]
        found.append(
            Ranked(
                candidate, _predicted(candidate, profiles[key], links[place], conditions), memory
            )
        )
    found.sort(key=lambda ranked: (ranked.prediction.step_s, ranked.memory_bytes))
    return Plan(tuple(found[:keep]), dict(refused), searched, least)


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def _predicted(
    candidate: Candidate, profile: Profile, links: Links, conditions: Conditions
) -> Prediction:
    cap = (candidate.bucket_mb or 0.0) * 2**20
    buckets = (
        buckets_of(profile.gradients, cap)
        if candidate.layout.sharing == "ddp"
        else profile.gradients
    )
    if candidate.layout.sharing == "zero1":
        buckets = (Bucket(profile.backward_s, profile.gradient_bytes),)
    return predict(
        profile,
        merged(buckets, MOST_BUCKETS),
        candidate.layout,
        links,
        grad_accum=candidate.grad_accum,
        conditions=conditions,
    )


def merged(buckets: Sequence[Bucket], most: int) -> tuple[Bucket, ...]:
    """At most so many buckets: neighbours together, each still sent by itself."""
    if len(buckets) <= most:
        return tuple(buckets)
    cuts = [round(nth * len(buckets) / most) for nth in range(most + 1)]
    groups = [buckets[begin:end] for begin, end in itertools.pairwise(cuts)]
    return tuple(
        Bucket(group[-1].ready_s, sum(b.bytes for b in group), sum(b.messages for b in group))
        for group in groups
    )


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
        from lab.formatting import format_seconds

        return [
            {
                "": place,
                "way": ranked.candidate.label,
                "step": format_seconds(
                    ranked.prediction.step_s, ranked.prediction.low_s, ranked.prediction.high_s
                ),
                "memory of a rank": f"{ranked.memory_bytes / 1e6:,.0f} MB",
                "limited by": ranked.prediction.limit.replace("_", " "),
            }
            for place, ranked in enumerate(self.plan.ranked, start=1)
        ]

    @property
    def summary(self) -> str:
        """How much was searched and refused, and why the second is second."""
        refused = "; ".join(
            f"{count:,} refused: {reason}" for reason, count in self.plan.refused.items()
        )
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
        told = {
            "searched": self.plan.searched,
            "refused": self.plan.refused,
            "seconds": self.seconds,
            "space": self.space,
        }
        return told | {
            "work": self.work,
            "memory_limit": self.memory_limit,
            "ranked": ranked,
            "why_second": self.plan.why_second(),
        }


def best_plans(
    study: Study,
    cluster: str | Cluster = "local",
    *,
    machine: str | Machine | None = None,
    world_size: int | None = None,
) -> list[Search]:
    """The fastest ways to train each model and global batch of a study on `world_size` ranks, the cluster's or study's largest.

    From records of one rank and the cluster's calibration, or for a described `machine`. Raises InputError for unknown
    names, LabError where nothing is measured to plan from or no way fits into memory.
    """
    if machine is not None:
        place = hardware.machine(machine) if isinstance(machine, str) else machine
        size = world_size or max(run.world_size for run in study.runs)
        return [_search(run, size, *_described(run, place, size)) for run in _works(study)]
    profile = cluster if isinstance(cluster, Cluster) else Cluster.load(cluster)
    size, basis = world_size or profile.capacity, basis_of(study, cluster)
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


def _search(
    run: Run, world_size: int, costing: Any, space: Space, conditions: Conditions
) -> Search:
    began = time.perf_counter()
    plan = best(
        costing,
        space,
        world_size=world_size,
        global_batch=run.global_batch_size,
        conditions=conditions,
    )
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
    tensor = [
        size for size in _doubling(min(MOST_TENSOR, place.gpus_per_node)) if model.heads % size == 0
    ]
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


def _measured(
    run: Run, basis: Basis, world_size: int, room: float
) -> tuple[MeasuredCosting, Space, Conditions]:
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
    return (
        costing,
        space,
        Conditions(contention, link_error=link_error, model_error=basis.model_error),
    )


class MeasuredCosting:
    """A model on a cluster whose one-rank steps and links are measured."""

    def __init__(self, basis: Basis, run: Run, room: float) -> None:
        self.basis, self.run, self.memory_limit = basis, run, room
        self.profile, self.memory = cache(self._profile), cache(self._memory)
        alike = [name for name in SAME if name not in {"precision", "activation_checkpointing"}]
        same = [
            r
            for r in basis.records
            if r.gradients and all(getattr(r.run, name) == getattr(run, name) for name in alike)
        ]
        self.precisions: Sequence[str] = sorted({record.run.precision for record in same})
        if not same:
            raise LabError("no record on one rank of this model yet: run the study's world size 1")

    def _profile(
        self, *, micro_batch: int, precision: str, checkpointing: Checkpointing
    ) -> Profile:
        """One device's step as measured; where blocks are computed again and that was not, with a second forward pass."""
        asked = self._as_run(Layout("single"), micro_batch, 1, precision, checkpointing)
        try:
            return self.basis.profile(asked)[0]
        except LabError:
            plain = self.basis.profile(
                asked.model_copy(update={"activation_checkpointing": checkpointing == "none"})
            )[0]
        again = plain.forward_s if checkpointing == "full" else -plain.forward_s
        return plain.with_backward(max(plain.backward_s + again, plain.forward_s))

    def _memory(
        self,
        layout: Layout,
        *,
        micro_batch: int,
        grad_accum: int,
        precision: str,
        checkpointing: Checkpointing,
    ) -> float:
        """Bytes of a rank at its peak."""
        return (
            self.basis.memory(
                self._as_run(layout, micro_batch, grad_accum, precision, checkpointing)
            )
            or math.inf
        )

    def links(self, layout: Layout) -> Links:
        """The calibrated links among the ranks that share each part of the work."""
        return Links(
            *(self.basis.links(size)[0] for size in (layout.data, layout.tensor, layout.pipeline))
        )

    def _as_run(
        self,
        layout: Layout,
        micro_batch: int,
        grad_accum: int,
        precision: str,
        checkpointing: Checkpointing,
    ) -> Run:
        split = (
            "tensor_parallel"
            if layout.tensor > 1
            else "pipeline_parallel"
            if layout.pipeline > 1
            else layout.sharing
        )
        # A pipeline's micro-batches are parts of what the run calls one.
        parts = {
            "micro_batch_size": micro_batch * grad_accum,
            "grad_accum": 1,
            "microbatches": grad_accum,
        }
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
