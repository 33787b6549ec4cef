"""Layouts: how ranks share a training step, and its replay on device and link.

A layout turns a profile of one device into work items of one rank; `replay` runs them event by
event, with mutual slowdown if they share cores.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from lab.config.strategies import STRATEGIES, State
from lab.perfmodel.collectives import Collective, CollectiveSeconds

Where = Literal["device", "link"]


@dataclass(frozen=True)
class Work:
    """Work that takes `seconds` alone, once all of `after` (indices in the list) and its queue are
    done.
    """

    name: str
    where: Where
    seconds: float
    after: tuple[int, ...] = ()
    bytes: int | None = None


@dataclass(frozen=True)
class Span:
    """When a piece of work ran, in s from the start of the step."""

    work: Work
    start: float
    end: float


@dataclass(frozen=True)
class Contention:
    """The slowdown of the device and of the link while the other one is busy too.

    `neighbours` is the slowdown of the device while those of the other ranks are busy too.
    """

    device: float = 1.0
    link: float = 1.0
    neighbours: float = 1.0


NO_CONTENTION = Contention()


@dataclass
class _Running:
    place: int
    start: float
    left: float  # s, without slowdown


def replay(works: Sequence[Work], contention: Contention = NO_CONTENTION) -> list[Span]:
    """When each work item runs; device and link each process theirs in list order.

    Raises ValueError if an item waits for one that comes later in its own queue, or for itself.
    """
    queues: dict[Where, deque[int]] = {"device": deque(), "link": deque()}
    for place, work in enumerate(works):
        queues[work.where].append(place)
    slow = {"device": contention.device, "link": contention.link}
    running: dict[Where, _Running] = {}
    spans: dict[int, Span] = {}
    now = 0.0
    while len(spans) < len(works):
        for where, queue in queues.items():
            if where not in running and queue and all(at in spans for at in works[queue[0]].after):
                place = queue.popleft()
                running[where] = _Running(place, now, works[place].seconds)
        if not running:
            raise ValueError("work that waits for itself: no step can do that")
        rate = {where: 1 / slow[where] if len(running) == 2 else 1.0 for where in running}
        passed = min(current.left / rate[where] for where, current in running.items())
        now += passed
        for where, current in list(running.items()):
            current.left -= passed * rate[where]
            if current.left <= 1e-12 * max(now, 1e-9):
                spans[current.place] = Span(works[current.place], current.start, now)
                del running[where]
    return [spans[place] for place in range(len(works))]


def covered(spans: Sequence[Span]) -> float:
    """Seconds during which at least one of the spans ran."""
    total = reached = 0.0
    for span in sorted(spans, key=lambda span: span.start):
        total += max(span.end - max(span.start, reached), 0.0)
        reached = max(reached, span.end)
    return total


def alone(spans: Sequence[Span]) -> float:
    """Seconds the link was busy while the device waited for it: the exposed communication."""
    device = [(span.start, span.end) for span in spans if span.work.where == "device"]
    link = [(span.start, span.end) for span in spans if span.work.where == "link"]
    exposed, reached, first = 0.0, 0.0, 0
    # Both are in time order; a gap of the device ends when its next work begins.
    for begin, end in [*device, (float("inf"), float("inf"))]:
        while begin > reached and first < len(link) and link[first][0] < begin:
            exposed += max(min(link[first][1], begin) - max(link[first][0], reached), 0.0)
            if link[first][1] > begin:
                break
            first += 1
        reached = max(reached, end)
    return exposed


# How ranks with whole layers share a model: one device, replicas, shards.
Sharing = Literal["single", "naive_ddp", "ddp", "zero1", "zero2", "fsdp"]
SHARDED: dict[Sharing, frozenset[State]] = {
    sharing: STRATEGIES[sharing].sharded for sharing in get_args(Sharing) if sharing != "zero2"
} | {"zero2": frozenset({"gradients", "optimizer"})}  # ZeRO-2 is planned for but not trained
SHARINGS: dict[str, Sharing] = {sharing: sharing for sharing in SHARDED if sharing in STRATEGIES}
Checkpointing = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "zb-h1", "zb-h2"]
# Passes for the weights' gradients that a schedule takes off a bubble of F + B; 1F1B adds one.
FILLED: dict[Schedule, int] = {"1f1b": -1, "zb-h1": 1, "zb-h2": 2}
SCHEDULES: tuple[Schedule, ...] = tuple(FILLED)
# The times of a profile: per micro-batch, then per step.
MICRO_BATCH, STEP = ("data_s", "forward_s", "backward_s"), ("optimizer_s", "other_s")


@dataclass(frozen=True)
class Bucket:
    """Gradients sent together, and how far into the backward pass (s) the last is ready.

    `block` is the number of the model's block that they belong to, if it is known and only one.
    """

    ready_s: float
    bytes: int
    messages: int = 1
    block: int | None = None

    def later(self, factor: float) -> Bucket:
        """The same for a backward pass that takes `factor` times as long."""
        return replace(self, ready_s=self.ready_s * factor)


@dataclass(frozen=True)
class Profile:
    """One device's step by itself: s of each part of a micro-batch, gradients as they become ready.

    `spread` is the relative standard deviation of its steps, `error` that of their median, and
    `basis` the origin of the numbers.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    gradients: tuple[Bucket, ...] = field(repr=False)
    data_s: float = 0.0
    other_s: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    basis: str = "given"

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(bucket.bytes for bucket in self.gradients)

    def step_s(self, grad_accum: int = 1) -> float:
        """Seconds of a step on one device."""
        micro_batch_s = self.data_s + self.forward_s + self.backward_s
        return grad_accum * micro_batch_s + self.optimizer_s + self.other_s

    def with_backward(self, seconds: float) -> Profile:
        """The same with another backward time, gradients ready at the same shares of it."""
        factor = seconds / self.backward_s
        gradients = tuple(bucket.later(factor) for bucket in self.gradients)
        return replace(self, backward_s=seconds, gradients=gradients)

    def scaled(self, factor: float, names: Sequence[str] = MICRO_BATCH + STEP) -> Profile:
        """The same with these times, which include the backward pass, multiplied by `factor`."""
        times = {name: getattr(self, name) * factor for name in names}
        return replace(self.with_backward(times.pop("backward_s")), **times)


def buckets_of(
    gradients: Sequence[Bucket], cap_bytes: float, *, first_bytes: float | None = None
) -> tuple[Bucket, ...]:
    """Gradients in buckets as in DDP (Li et al. 2020): in order, until a bucket reaches the cap.

    `first_bytes` is the smaller cap for the first bucket.
    """
    buckets: list[Bucket] = []
    size = 0
    for gradient in gradients:
        size += gradient.bytes
        if size >= (first_bytes if first_bytes is not None and not buckets else cap_bytes):
            buckets.append(Bucket(gradient.ready_s, size))
            size = 0
    if size:
        buckets.append(Bucket(gradients[-1].ready_s, size))
    return tuple(buckets)


def units_of(gradients: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Gradients by FSDP's units, as they become ready: each block, and all that is in none."""
    units: dict[int | None, Bucket] = {}
    for gradient in gradients:
        unit = units.get(gradient.block, Bucket(0.0, 0, block=gradient.block))
        ready = max(unit.ready_s, gradient.ready_s)
        units[gradient.block] = replace(unit, ready_s=ready, bytes=unit.bytes + gradient.bytes)
    return tuple(sorted(units.values(), key=lambda unit: unit.ready_s))


def sent(
    profile: Profile, sharing: Sharing, *, cap_bytes: float, first_bytes: float | None = None
) -> tuple[Bucket, ...]:
    """What is sent at a time: DDP's buckets of `cap_bytes`, all of ZeRO-1, FSDP's units.

    Others send each gradient by itself.
    """
    match sharing:
        case "ddp":
            return buckets_of(profile.gradients, cap_bytes, first_bytes=first_bytes)
        case "zero1":
            return (Bucket(profile.backward_s, profile.gradient_bytes),)
        case "fsdp":
            return units_of(profile.gradients)
    return profile.gradients


@dataclass(frozen=True)
class Layout:
    """How ranks share a model: `data` replicas or shards, each of `tensor` times `pipeline` ranks.

    `activation_bytes` are those that a layer passes on per micro-batch, `layers` the layers whose
    activations tensor parallelism sums twice in each direction (Shoeybi et al. 2019). It divides
    the share `divided` of the passes and `divided_parameters` of the model. `busiest` is the share
    of the passes in a pipeline's longest stage, `largest` that of the parameters in its largest
    stage; 0 means equal parts. `tied_bytes` are summed over the first and the last stage.
    `context` ranks share each sequence, `expert` of the data-parallel ones the experts; a rank has
    `interleave` stages. `sequence_parallel` splits what tensor parallelism leaves undivided. FSDP
    shards within each of `replicas` groups, which only sum their shards' gradients (HSDP).
    """

    sharing: Sharing = "ddp"
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    layers: int = 1
    activation_bytes: int = 0
    divided: float = 1.0
    divided_parameters: float = 1.0
    busiest: float = 0.0
    largest: float = 0.0
    tied_bytes: int = 0
    context: int = 1
    expert: int = 1
    interleave: int = 1
    sequence_parallel: bool = False
    schedule: Schedule = "1f1b"
    replicas: int = 1

    @property
    def copies(self) -> int:
        """Ranks that have the same weights: also those that share sequences."""
        return self.data * self.context

    @property
    def shards(self) -> int:
        """Ranks among which the strategy divides its state: those of one group."""
        return self.copies // self.replicas

    @property
    def optimizer_shards(self) -> int:
        """Among how many ranks the optimizer's state of a parameter is divided."""
        return self.shards if "optimizer" in SHARDED[self.sharing] else 1

    @property
    def compute_share(self) -> float:
        """A rank's mean share, over stages, of the time of one device's passes."""
        return (self.divided / self.tensor + 1 - self.divided) / self.pipeline

    @property
    def parameter_share(self) -> float:
        """The largest share of the parameters on one rank, before data parallelism shards them."""
        divided = self.divided_parameters / self.tensor + 1 - self.divided_parameters
        return divided * (self.largest or 1 / self.pipeline)

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def sums(self) -> int:
        """Activation sums of tensor parallelism in a pass of a rank's layers: two per layer."""
        return 2 * -(-self.layers // self.pipeline) if self.tensor > 1 else 0

    def waits(self, micro_batches: int, units: int) -> int:
        """How often a rank waits for the others in a step, its end included.

        It does so for each sum of activations in both passes, and for FSDP's gathers and scatters
        of each of its `units`.
        """
        gathered = units * (2 * micro_batches + 1) if self.sharing == "fsdp" else 0
        return 2 * self.sums * micro_batches + (gathered if self.data > 1 else 0) + 1

    def bubble(self, micro_batches: int, *, passes: float = 3.0) -> float:
        """Idle time of a pipeline's rank over its useful time.

        The first micro-batch passes through all stages, and each further one ends later by the time
        of the longest stage. With equal stages it is `(p - 1) / m` (Narayanan et al. 2021), of
        which a zero-bubble schedule leaves the share `idle`.
        """
        longest = self.busiest or 1 / self.pipeline
        idle = (1 - longest) * self.idle(passes)
        return (idle + micro_batches * longest) * self.pipeline / micro_batches - 1

    def idle(self, passes: float) -> float:
        """The share of 1F1B's bubble that the schedule leaves, from 0 to 1.

        Of a rank's `interleave` stages, only one is waited for (Narayanan et al. 2021).
        ZB-H1 waits `(p - 1) (F + B - W)` and ZB-H2 `(p - 1) (F + B - 2 W)` instead of
        `(p - 1) (F + B + W)`, where B and W are the passes for the gradients of inputs and of
        weights (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", table 1). A micro-batch takes
        `passes` forward passes, W one of them, and B also those that recompute activations.
        """
        return max(passes - 1 - FILLED[self.schedule], 0.0) / passes / self.interleave

    @property
    def in_flight(self) -> int:
        """The most micro-batches whose activations a stage holds: 2p - 1 with ZB-H2 (Qi et al.)."""
        return 2 * self.pipeline - 1 if self.schedule == "zb-h2" else self.pipeline


@dataclass(frozen=True)
class Candidate:
    """One way to train: `bucket_mb` in MiB, None if gradients are not sent in DDP's buckets."""

    layout: Layout
    micro_batch: int
    grad_accum: int = 1
    checkpointing: Checkpointing = "none"
    precision: str = "bf16"
    bucket_mb: float | None = None

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self.micro_batch * self.grad_accum * self.layout.data

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of a run of the lab, apart from its ranks, where none of them share a model."""
        return {
            "strategy": self.layout.sharing,
            "precision": self.precision,
            "activation_checkpointing": self.checkpointing == "full",
            "micro_batch_size": self.micro_batch,
            "grad_accum": self.grad_accum,
        }

    @property
    def label(self) -> str:
        """Formatted for display."""
        layout = self.layout
        parts = {
            f"{layout.sharing} x{layout.data}": True,
            f"replicas x{layout.replicas}": layout.replicas > 1,
            f"tensor x{layout.tensor}": layout.tensor > 1,
            f"pipeline x{layout.pipeline}": layout.pipeline > 1,
            f"schedule {layout.schedule}": layout.schedule != "1f1b",
            f"micro-batch {self.micro_batch}": True,
            f"accumulation {self.grad_accum}": self.grad_accum > 1,
            f"{self.checkpointing} checkpointing": self.checkpointing != "none",
            self.precision: True,
            f"buckets {self.bucket_mb or 0:g} MiB": bool(self.bucket_mb),
        }
        return ", ".join(part for part, shown in parts.items() if shown)


@dataclass(frozen=True)
class Links:
    """The cost of collectives among the ranks that share each part of the work."""

    data: CollectiveSeconds
    tensor: CollectiveSeconds
    pipeline: CollectiveSeconds


def works_of(
    profile: Profile,
    buckets: Sequence[Bucket],
    layout: Layout,
    links: Links,
    *,
    grad_accum: int = 1,
) -> list[Work]:
    """The step of one rank as work on its device and link, to be replayed in order.

    `buckets` are the units of transfer: DDP's buckets, the tensors of naive DDP, the flat buffers
    of ZeRO-1, the units of FSDP.
    """
    step = _Step(links, layout)
    share, compute = layout.tensor * layout.pipeline, layout.compute_share
    forward, backward = profile.forward_s * compute, profile.backward_s * compute
    # All micro-batches but the last are equal and send no gradients, so they are replayed as one.
    for times, last in ((grad_accum - 1, False), (1, True)):
        if not times:
            continue
        step.device("data", times * profile.data_s)
        if layout.sharing == "fsdp" and layout.data > 1:
            _sharded_pass(step, profile, buckets, share, times=times, reduce=last)
            step.tensor_sums(2 * times)
            continue
        step.device("forward", times * forward)
        if last:
            step.tensor_sums()
            _backward(step, profile, buckets, share)
            step.tensor_sums()
        else:
            step.device("backward", times * backward)
            step.tensor_sums(2 * times)
    passes = (forward + backward) / forward if forward else 3.0
    idle = layout.bubble(grad_accum, passes=passes)
    step.device("bubble", idle * grad_accum * (forward + backward))
    step.hand_on(grad_accum)
    if layout.tied_bytes:
        seconds = links.pipeline("all_reduce", layout.tied_bytes)
        step.link("tied gradients", seconds, layout.tied_bytes, after=step.last("device"))
    own_s = profile.optimizer_s * layout.parameter_share / layout.optimizer_shards
    step.device("optimizer", own_s, after=step.last("link"))
    if layout.sharing == "zero1" and layout.data > 1:
        size = profile.gradient_bytes // share
        step.link("parameters", links.data("all_gather", size), size, after=step.last("device"))
    step.device("other", profile.other_s, after=step.last("link"))
    return step.works


class _Step:
    """A step under construction."""

    def __init__(self, links: Links, layout: Layout) -> None:
        self.works: list[Work] = []
        self.links, self.layout = links, layout

    def device(self, name: str, seconds: float, *, after: tuple[int, ...] = ()) -> int:
        """Add work of the device; nothing if it takes no time and waits for nothing."""
        if seconds > 0 or after:
            self.works.append(Work(name, "device", max(seconds, 0.0), after))
        return len(self.works) - 1

    def link(self, name: str, seconds: float, size: float, *, after: tuple[int, ...] = ()) -> int:
        """Add work of the link."""
        self.works.append(Work(name, "link", seconds, after, int(size)))
        return len(self.works) - 1

    def last(self, where: Where) -> tuple[int, ...]:
        """The index of the last work item of that queue, if any; both queues are in order."""
        places = reversed(range(len(self.works)))
        return next(((place,) for place in places if self.works[place].where == where), ())

    def tensor_sums(self, passes: int = 1) -> None:
        """Add the activation sums of these passes, which tensor parallelism waits for."""
        if sums := self.layout.sums * passes:
            seconds = self.links.tensor("all_reduce", self.layout.activation_bytes)
            self._wait_for("activations", sums, seconds)

    def hand_on(self, micro_batches: int) -> None:
        """Add the last micro-batch's path through the stages, forward and back."""
        if self.layout.pipeline > 1:
            hops = 2 * (micro_batches + self.layout.pipeline - 2)
            seconds = self.links.pipeline("broadcast", self.layout.activation_bytes)
            self._wait_for("stages", hops, seconds)

    def _wait_for(self, name: str, messages: int, seconds: float) -> None:
        size = messages * self.layout.activation_bytes
        place = self.link(name, messages * seconds, size, after=self.last("device"))
        self.device("", 0.0, after=(place,))


def _backward(step: _Step, profile: Profile, buckets: Sequence[Bucket], share: int) -> None:
    """The backward pass: DDP sends each bucket when it is ready, others send all at the end."""
    exchanged = buckets if step.layout.data > 1 and step.layout.sharing != "single" else ()
    overlapped, compute = step.layout.sharing == "ddp", step.layout.compute_share
    collective: Collective = "reduce_scatter" if step.layout.sharing == "zero1" else "all_reduce"
    sizes = [bucket.bytes / share for bucket in exchanged]
    seconds = [
        bucket.messages * step.links.data(collective, size / bucket.messages)
        for bucket, size in zip(exchanged, sizes, strict=True)
    ]
    done = 0.0
    for number, bucket in enumerate(exchanged if overlapped else ()):
        step.device("backward", (bucket.ready_s - done) * compute)
        done = max(done, bucket.ready_s)
        step.link(f"bucket {number}", seconds[number], sizes[number], after=step.last("device"))
    step.device("backward", (profile.backward_s - done) * compute)
    if exchanged and not overlapped:
        step.link("gradients", sum(seconds), sum(sizes), after=step.last("device"))


def _sharded_pass(
    step: _Step, profile: Profile, units: Sequence[Bucket], share: int, *, times: int, reduce: bool
) -> None:
    """FSDP (Zhao et al. 2023): weights gathered a unit ahead, gradients scattered when ready."""

    def seconds(collective: Collective, unit: int) -> float:
        messages = units[unit].messages
        return messages * step.links.data(collective, sizes[unit] / messages)

    sizes = [unit.bytes / share for unit in units]
    gather = [times * seconds("all_gather", unit) for unit in range(len(units))]
    compute = times * step.layout.compute_share
    forward = compute * profile.forward_s / (sum(sizes) or 1.0)
    previous: tuple[int, ...] = ()
    gathered = 0
    # The first unit that needs weights is the last whose gradients are ready.
    for unit in range(len(units) - 1, -1, -1):
        gathered = step.link(f"gather {unit}", gather[unit], times * sizes[unit], after=previous)
        previous = step.last("device")  # at most one unit is gathered ahead
        step.device("forward", forward * sizes[unit], after=(gathered,))
    ends = [0.0, *(unit.ready_s for unit in units[:-1]), profile.backward_s]
    for unit, (begin, end) in enumerate(itertools.pairwise(ends)):
        computed = step.device("backward", compute * (end - begin), after=(gathered,))
        if unit + 1 < len(units):
            gathered = step.link(f"gather {unit + 1}", gather[unit + 1], times * sizes[unit + 1])
        if reduce:
            scatter = seconds("reduce_scatter", unit)
            step.link(f"bucket {unit}", scatter, sizes[unit], after=(computed,))
