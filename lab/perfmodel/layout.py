"""Layouts: how the ranks share a model's training, and the work that each step then is for one of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from lab.perfmodel.collectives import Collective, CollectiveSeconds
from lab.perfmodel.replay import Work

Sharing = Literal["single", "naive_ddp", "ddp", "zero1", "fsdp"]
# The strategies that split samples alone and whose step is known.
SHARINGS: dict[str, Sharing] = {sharing: sharing for sharing in get_args(Sharing)}


@dataclass(frozen=True)
class Bucket:
    """Gradients that are sent together: their bytes, and how far into the backward pass (s) the last one is ready."""

    ready_s: float
    bytes: int
    messages: int = 1

    def later(self, factor: float) -> Bucket:
        """The same in a backward pass that takes so many times as long."""
        return replace(self, ready_s=self.ready_s * factor)


@dataclass(frozen=True)
class Profile:
    """One device's step by itself: s of each part for one micro-batch, and the gradients in the order of their readiness.

    `spread` is the relative standard deviation of its steps. `basis` says where the numbers come from.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    gradients: tuple[Bucket, ...] = field(repr=False)
    data_s: float = 0.0
    other_s: float = 0.0
    spread: float = 0.0
    basis: str = "given"

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(bucket.bytes for bucket in self.gradients)

    def step_s(self, grad_accum: int = 1) -> float:
        """Seconds of a step on one device."""
        return (
            grad_accum * (self.data_s + self.forward_s + self.backward_s)
            + self.optimizer_s
            + self.other_s
        )

    def with_backward(self, seconds: float) -> Profile:
        """The same with a backward pass of so many s, its gradients ready at the same shares of it."""
        factor = seconds / self.backward_s
        gradients = tuple(bucket.later(factor) for bucket in self.gradients)
        return replace(self, backward_s=seconds, gradients=gradients)

    def slower(self, factor: float) -> Profile:
        """The same on a device that is so many times slower."""
        return replace(
            self,
            **{
                name: getattr(self, name) * factor
                for name in ("forward_s", "backward_s", "optimizer_s", "data_s", "other_s")
            },
            gradients=tuple(bucket.later(factor) for bucket in self.gradients),
        )


def buckets_of(
    gradients: Sequence[Bucket], cap_bytes: float, *, first_bytes: float | None = None
) -> tuple[Bucket, ...]:
    """Gradients put together as DDP does (Li et al. 2020): in their order, until a bucket holds the cap or more.

    `first_bytes` is the smaller cap of the first bucket.
    """
    found: list[Bucket] = []
    held = 0
    for gradient in gradients:
        held += gradient.bytes
        if held >= (first_bytes if first_bytes is not None and not found else cap_bytes):
            found.append(Bucket(gradient.ready_s, held))
            held = 0
    if held:
        found.append(Bucket(gradients[-1].ready_s, held))
    return tuple(found)


@dataclass(frozen=True)
class Layout:
    """How many ranks share what: `data` replicas or shards, each of `tensor` times `pipeline` ranks.

    `activation_bytes` are those that one layer's border hands on per micro-batch, `layers` the borders that tensor
    parallelism must sum twice in each direction (Shoeybi et al. 2019).
    """

    sharing: Sharing = "ddp"
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    layers: int = 1
    activation_bytes: int = 0

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.data * self.tensor * self.pipeline

    def bubble(self, micro_batches: int) -> float:
        """Idle time of a pipeline over its useful time: `(p - 1) / m` (Narayanan et al. 2021)."""
        return (self.pipeline - 1) / micro_batches


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
    """The step of one rank as work on its device and its link, in order; replaying it gives the time.

    `buckets` are what is sent at a time: DDP's buckets, the tensors of naive DDP, the flat buffers of ZeRO-1, the units
    of FSDP.
    """
    step = _Step(links, layout)
    share = layout.tensor * layout.pipeline
    if layout.sharing == "fsdp" and layout.data > 1:
        for times, last in (
            (grad_accum - 1, False),
            (1, True),
        ):  # all but the last micro-batch are alike: replayed as one
            if times:
                step.device("data", times * profile.data_s)
                _sharded_pass(step, profile, buckets, share, times=times, reduce=last)
                for _ in range(2):
                    step.tensor_sums(times)
        step.device("optimizer", profile.optimizer_s / layout.world_size, after=step.sent())
    else:
        forward, backward = profile.forward_s / share, profile.backward_s / share
        step.micro_batches(grad_accum - 1, profile.data_s, forward, backward)
        step.device("data", profile.data_s)
        step.device("forward", forward)
        step.tensor_sums()
        _backward(step, profile, buckets, share)
        step.tensor_sums()
        step.device("bubble", layout.bubble(grad_accum) * grad_accum * (forward + backward))
        step.hand_on(grad_accum)
        own = share * (layout.data if layout.sharing == "zero1" else 1)
        step.device("optimizer", profile.optimizer_s / own, after=step.sent())
        if layout.sharing == "zero1" and layout.data > 1:
            size = profile.gradient_bytes // share
            step.link("parameters", links.data("all_gather", size), size, after=step.last_device())
    step.device("other", profile.other_s, after=step.sent())
    return step.works


class _Step:
    """A step that is being written down."""

    def __init__(self, links: Links, layout: Layout) -> None:
        self.works: list[Work] = []
        self.links, self.layout = links, layout

    def device(self, name: str, seconds: float, *, after: tuple[int, ...] = ()) -> int:
        """Add work of the device; nothing where it takes no time and waits for nothing."""
        if seconds > 0 or after:
            self.works.append(Work(name, "device", max(seconds, 0.0), after))
        return len(self.works) - 1

    def link(self, name: str, seconds: float, size: float, *, after: tuple[int, ...] = ()) -> int:
        """Add work of the link."""
        self.works.append(Work(name, "link", seconds, after, int(size)))
        return len(self.works) - 1

    def last_device(self) -> tuple[int, ...]:
        """The place of the device's last work."""
        return next(
            (
                (place,)
                for place in range(len(self.works) - 1, -1, -1)
                if self.works[place].where == "device"
            ),
            (),
        )

    def sent(self) -> tuple[int, ...]:
        """The place of the link's last work: it does its own in order."""
        return next(
            (
                (place,)
                for place in range(len(self.works) - 1, -1, -1)
                if self.works[place].where == "link"
            ),
            (),
        )

    def micro_batches(self, count: int, data: float, forward: float, backward: float) -> None:
        """Add micro-batches that send no gradients, as one."""
        if count:
            self.device("data", count * data)
            self.device("forward", count * forward)
            self.device("backward", count * backward)
            for _ in range(2):
                self.tensor_sums(count)

    def tensor_sums(self, count: int = 1) -> None:
        """Add the sums over activations that tensor parallelism waits for: two per layer and direction."""
        if self.layout.tensor > 1:
            layers = 2 * -(-self.layout.layers // self.layout.pipeline) * count
            size = self.layout.activation_bytes
            place = self.link(
                "activations",
                layers * self.links.tensor("all_reduce", size),
                layers * size,
                after=self.last_device(),
            )
            self.device("", 0.0, after=(place,))

    def hand_on(self, micro_batches: int) -> None:
        """Add what the last micro-batch waits for on its way through the stages, forward and back."""
        if self.layout.pipeline > 1:
            hops = 2 * (micro_batches + self.layout.pipeline - 2)
            size = self.layout.activation_bytes
            seconds = hops * self.links.pipeline("broadcast", size)
            place = self.link("stages", seconds, hops * size, after=self.last_device())
            self.device("", 0.0, after=(place,))


def _backward(step: _Step, profile: Profile, buckets: Sequence[Bucket], share: int) -> None:
    """The backward pass with its gradients: DDP sends each bucket when it is ready, the others all of them at the end."""
    exchanged = buckets if step.layout.data > 1 and step.layout.sharing != "single" else ()
    overlapped = step.layout.sharing == "ddp"
    collective: Collective = "reduce_scatter" if step.layout.sharing == "zero1" else "all_reduce"
    sizes = [bucket.bytes / share for bucket in exchanged]
    seconds = [
        bucket.messages * step.links.data(collective, size / bucket.messages)
        for bucket, size in zip(exchanged, sizes, strict=True)
    ]
    done = 0.0
    for number, bucket in enumerate(exchanged if overlapped else ()):
        step.device("backward", (bucket.ready_s - done) / share)
        done = max(done, bucket.ready_s)
        step.link(f"bucket {number}", seconds[number], sizes[number], after=step.last_device())
    step.device("backward", (profile.backward_s - done) / share)
    if exchanged and not overlapped:
        step.link("gradients", sum(seconds), sum(sizes), after=step.last_device())


def _sharded_pass(
    step: _Step, profile: Profile, units: Sequence[Bucket], share: int, *, times: int, reduce: bool
) -> None:
    """FSDP's passes (Zhao et al. 2023): weights are gathered a unit ahead, gradients scattered when they are ready."""
    sizes = [unit.bytes / share for unit in units]
    gather = [
        times * unit.messages * step.links.data("all_gather", unit.bytes / share / unit.messages)
        for unit in units
    ]
    whole = sum(sizes) or 1.0
    ends = [unit.ready_s for unit in units[:-1]] + [profile.backward_s]
    held: tuple[int, ...] = ()
    gathered = 0
    # The first unit that needs weights is the last whose gradients are ready.
    for unit in range(len(units) - 1, -1, -1):
        gathered = step.link(f"gather {unit}", gather[unit], times * sizes[unit], after=held)
        held = step.last_device()  # at most one unit is gathered ahead
        step.device(
            "forward", times * profile.forward_s / share * sizes[unit] / whole, after=(gathered,)
        )
    for unit, (begin, end) in enumerate(itertools.pairwise([0.0, *ends])):
        computed = step.device("backward", times * (end - begin) / share, after=(gathered,))
        if unit + 1 < len(units):
            gathered = step.link(f"gather {unit + 1}", gather[unit + 1], times * sizes[unit + 1])
        if reduce:
            messages = units[unit].messages
            seconds = messages * step.links.data("reduce_scatter", sizes[unit] / messages)
            step.link(f"bucket {unit}", seconds, sizes[unit], after=(computed,))
