"""The planner: of all ways to train a model on a cluster with a global batch, the fastest that fits, and why the next is slower."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from lab.analysis.layouts import Bucket, Layout, Links, Profile, Sharing, buckets_of
from lab.analysis.memory import Checkpointing
from lab.analysis.predict import Conditions, Prediction, predict
from lab.analysis.rounding import format_seconds

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
        parts += [f"tensor x{layout.tensor}"] * (layout.tensor > 1) + [f"pipeline x{layout.pipeline}"] * (layout.pipeline > 1)
        parts += [f"micro-batch {self.micro_batch}"] + [f"accumulation {self.grad_accum}"] * (self.grad_accum > 1)
        parts += [f"{self.checkpointing} checkpointing"] * (self.checkpointing != "none") + [self.precision]
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
        more = {name: value - parts.get(name, 0.0) for name, value in second.prediction.parts.items()}
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

    def memory(self, layout: Layout, *, micro_batch: int, grad_accum: int, precision: str, checkpointing: Checkpointing) -> float:
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
                sized = Layout(layout.sharing, layout.data, layout.tensor, layout.pipeline, self.layers, activations)
                buckets = self.buckets_mb if layout.sharing == "ddp" and layout.data > 1 else (None,)
                for checkpointing in self.checkpointing:
                    for precision in self.precisions:
                        for bucket in buckets:
                            yield Candidate(sized, micro, share // micro, checkpointing, precision, bucket)

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
                    if sharing != "fsdp" or pipeline == 1:  # stages that gather their weights for each micro-batch send too much
                        yield Layout(sharing, data, tensor, pipeline)


def best(costing: Costing, space: Space, *, world_size: int, global_batch: int, conditions: Conditions, keep: int = 10) -> Plan:
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
        found.append(Ranked(candidate, _predicted(candidate, profiles[key], links[place], conditions), memory))
    found.sort(key=lambda ranked: (ranked.prediction.step_s, ranked.memory_bytes))
    return Plan(tuple(found[:keep]), dict(refused), searched, least)


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def _predicted(candidate: Candidate, profile: Profile, links: Links, conditions: Conditions) -> Prediction:
    cap = (candidate.bucket_mb or 0.0) * 2**20
    buckets = buckets_of(profile.gradients, cap) if candidate.layout.sharing == "ddp" else profile.gradients
    if candidate.layout.sharing == "zero1":
        buckets = (Bucket(profile.backward_s, profile.gradient_bytes),)
    return predict(
        profile, merged(buckets, MOST_BUCKETS), candidate.layout, links, grad_accum=candidate.grad_accum, conditions=conditions
    )


def merged(buckets: Sequence[Bucket], most: int) -> tuple[Bucket, ...]:
    """At most so many buckets: neighbours together, each still sent by itself."""
    if len(buckets) <= most:
        return tuple(buckets)
    cuts = [round(nth * len(buckets) / most) for nth in range(most + 1)]
    groups = [buckets[begin:end] for begin, end in itertools.pairwise(cuts)]
    return tuple(Bucket(group[-1].ready_s, sum(b.bytes for b in group), sum(b.messages for b in group)) for group in groups)
