"""Rule about links: bytes over communication time must be what a link can carry."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.analysis.audit.observations import Observations, UncheckedError, largest
from lab.analysis.audit.points import Point
from lab.analysis.audit.rule import Fault, rule, seconds
from lab.formatting import message_size, plain
from lab.perfmodel.hardware import LINKS, named_link

LINK_COLUMNS = ("link", "key:link", "key:strategy", "key:setting", "gpu")
# 25 Gbit/s, 100Gb/s, 10GbE; a capital B alone means bytes.
RATE = re.compile(
    r"(\d+(?:\.\d+)?)\s*([GgMm])(?:(B/s|Bps)|\s*[Bb][Ii][Tt](?:/s|ps)?|[Bb]ps|[Bb]/s|[Bb]?[Ee]\b)"
)
NO_UNIT = "names no unit and is read as GB/s"
FASTEST = max(link.bytes_per_s for link in LINKS.values())
SINGLE_NODE = LINKS["pcie3"].bytes_per_s  # the slowest usual link between the GPUs of one node
IN_NETWORK = 1.25  # a switch that reduces saves more than the factor of a bus bandwidth assumes
CALIBRATED = 1.25  # calibrations on different days differ by less
FAR_BELOW = 0.1
CARRIED = 0.4  # of an emulated link's bandwidth; a machine with enough cores carries 0.9
LATENCY_BOUND = 2**20  # smaller messages are bound by latency, not bandwidth
NON_MONOTONIC = 0.9


class Link(NamedTuple):
    """A link's bandwidth in bytes/s, its description, and whether it is measured or nominal."""

    bytes_per_s: float = math.nan
    words: str = ""
    certain: bool = False

    @property
    def limit(self) -> float:
        """The highest plausible measurement on it, in bytes/s."""
        return self.bytes_per_s * CALIBRATED if self.certain else FASTEST * IN_NETWORK


@rule(
    "plausible-bandwidth",
    "bytes or parameters or algbw or busbw, world_size or busbw",
    severity="error",
)
def plausible_bandwidth(observations: Observations) -> Iterator[Fault]:
    """Bytes over communication time beyond the link, or far below what it should carry."""
    checked = bool({"algbw", "busbw"} & observations.known)
    if checked:
        yield from _quoted(observations)
    if observations.kind == "collectives":
        if not checked or (observations.frame["world_size"] > 1).any():
            yield from _collectives(observations)
        return
    link_of = _links(observations)
    for point in observations.points:
        size = observations.gradient_bytes(point)
        transfer = _transfer(point, observations)
        if point.world_size > 1 and size > 0 and transfer is not None:
            checked = True
            yield from _judged(point, size, transfer, link_of(point))
    if not checked:
        what = "communication time per step on more than one rank"
        raise UncheckedError("bytes or parameters", what)


def _steps(point: Point, observations: Observations) -> float:
    """Optimizer steps that the times cover, NaN if unknown."""
    if observations.per == "step":
        return 1.0
    if point.steps > 0:
        return point.steps
    samples = observations.samples_of(point)
    known = samples > 0 and point.global_batch_size > 0 and observations.per == "epoch"
    return math.ceil(samples / point.global_batch_size) if known else math.nan


def _transfer(point: Point, observations: Observations) -> tuple[float, bool] | None:
    """The communication time of a step in s, and whether it is only an upper bound."""
    steps = _steps(point, observations)
    if not math.isfinite(steps):
        return None
    if point.communication > 0:
        return point.communication / steps, False
    base = point.base
    if base is None or base.world_size != 1 or observations.kind == "records":
        return None
    # With equal work per rank, the extra step time on N ranks bounds the communication.
    equal = abs(point.micro_batch_size / (base.micro_batch_size or math.nan) - 1) < 0.01
    added = point.time / steps - base.time / _steps(base, observations)
    return (added, True) if equal and added > 0 else None


def _link(
    rows: pd.DataFrame,
    observations: Observations,
    columns: Sequence[str] = LINK_COLUMNS,
    *,
    emulated: bool = False,
) -> Link:
    """The link for rows of one configuration: as calibrated, else as named, else within a node."""
    calibrated = observations.calibrated
    if calibrated and not emulated:  # an emulated link is judged by its nominal bandwidth
        world_size = rows["world_size"].fillna(2).iloc[0]
        best = float(calibrated.get(int(world_size), max(calibrated.values())))
        return Link(best, f"calibrated at {_gigabytes(best)}", certain=True)
    nodes = rows["nodes"].median()
    # What links the GPUs of a node tells nothing of the network between nodes.
    columns = [name for name in columns if name in rows and not (name == "gpu" and nodes > 1)]
    names = [str(value) for name in columns for value in rows[name].dropna().unique()[:1]]
    text = " ".join(dict.fromkeys(names))
    rate = RATE.search(text)
    if rate:
        value = float(rate[1]) * (1e9 if rate[2].lower() == "g" else 1e6) / (1 if rate[3] else 8)
        words = rate[0] if rate[3] else f"{rate[0]}, {_gigabytes(value)}"
        return Link(value, words, certain=True)
    link = named_link(text)
    if link:
        naming = next(filter(named_link, names), text.strip())  # not the strategy beside it
        words = f"{naming}, at most {_gigabytes(link.bytes_per_s)}"
        return Link(link.bytes_per_s, words, certain=True)
    # On CPUs, gloo over loopback reaches anything from 0.1 to 2 GB/s: it has to be calibrated.
    on_cpu = observations.frame["device"].eq("cpu").any()
    if (nodes == 1 or observations.noted(r"\b(one|single|1)[- ]node\b")) and not on_cpu:
        noted = named_link(" ".join(observations.notes))
        if noted:
            words = f"{noted.name} according to the notes, at most {_gigabytes(noted.bytes_per_s)}"
            return Link(noted.bytes_per_s, words, certain=True)
        where = "one node" if nodes == 1 else "one node according to the notes"
        return Link(SINGLE_NODE, f"{where}, where PCIe 3.0 x16 carries {_gigabytes(SINGLE_NODE)}")
    return Link()


def _links(observations: Observations) -> Callable[[Point], tuple[Link, bool]]:
    """The link of a point, and whether it is emulated; looked up once for points placed alike."""
    frame = observations.frame
    columns = ["world_size", "nodes", "emulated"]
    columns += [name for name in LINK_COLUMNS if name in frame]
    placements = list(zip(*(frame[name].map(str) for name in columns), strict=True))
    known: dict[tuple[str, ...], tuple[Link, bool]] = {}

    def link_of(point: Point) -> tuple[Link, bool]:
        placement = placements[observations.places_of(point.labels)[0]]
        if placement not in known:
            rows = observations.rows_of(point)
            emulated = bool(rows["emulated"].astype(str).str.startswith("link").any())
            known[placement] = _link(rows, observations, emulated=emulated), emulated
        return known[placement]

    return link_of


def _judged(
    point: Point, size: float, transfer: tuple[float, bool], on: tuple[Link, bool]
) -> Iterator[Fault]:
    n, (time, bound) = point.world_size, transfer
    bandwidth = 2 * (n - 1) / n * size / time
    words = "the whole increase of the step time" if bound else "communication"
    link, emulated = on
    source = "bytes given" if point.bytes > 0 else f"{point.parameters:,.0f} parameters in fp32"
    evidence = (
        f"{plain(size / 1e6)} MB per step ({source}) over {seconds(time)} "
        f"({words}) on {n:g} ranks is a bus bandwidth of {_gigabytes(bandwidth)}"
    )
    share = bandwidth / link.bytes_per_s
    if bandwidth > link.limit and not bound:
        fastest = f"the fastest link known here carries {FASTEST / 1e9:.0f} GB/s"
        yield Fault(
            point.labels,
            f"{evidence}, more than the link carries ({link.words if link.certain else fastest}).",
            "The time is too short, or not all of the bytes are sent: wait for completion before "
            "reading the clock.",
        )
    elif emulated and share < CARRIED and size > LATENCY_BOUND:
        yield Fault(
            point.labels,
            f"{evidence}, {100 * share:.0f} % of the emulated link ({link.words}).",
            "Either ranks wait for each other in this time, or this machine cannot sustain what it "
            "emulates: use fewer ranks or a slower link, and run nothing else on it.",
            "warning",
        )
    elif share < FAR_BELOW and size > LATENCY_BOUND:
        yield Fault(
            point.labels,
            f"{evidence}, less than a tenth of the link ({link.words}).",
            "The link is slower than its name, or this time includes something else, such as "
            "waiting for a straggler, the loader or launches: measure the transfer by itself.",
            "warning",
        )


def _gigabytes(bandwidth: float) -> str:
    return f"{plain(bandwidth / 1e9)} GB/s"


def _quoted(observations: Observations) -> Iterator[Fault]:
    frame = observations.frame
    rows = frame[frame["busbw"].notna() | frame["algbw"].notna()]
    n = rows["world_size"]
    bandwidths = rows["busbw"].fillna(rows["algbw"] * (2 * (n - 1) / n).where(n > 1, 1.0))
    limits = pd.Series(math.nan, rows.index)
    columns = ["link", "gpu"]
    for _, group in rows.groupby(["world_size", "nodes", *columns], dropna=False):
        limits[group.index] = _link(group, observations, columns).limit
    wrong = bandwidths[bandwidths > limits]
    if len(wrong):
        worst = largest(rows, wrong.reindex(rows.index))
        no_unit = any(text.endswith(NO_UNIT) for text in observations.assumptions)
        assumed = ", if its column, which names no unit, is in GB/s" * no_unit
        yield Fault(
            rows.loc[wrong.index, "label"],
            f"A bus bandwidth of {_gigabytes(wrong[worst.name])} is quoted in "
            f"{worst['label']}{assumed}, more than the {_gigabytes(limits[worst.name])} that is "
            "plausible there.",
            "Check bits against bytes, and algorithm against bus bandwidth.",
            "warning" if assumed else None,
        )


def _collectives(observations: Observations) -> Iterator[Fault]:
    groups = [group for group in observations.collectives if group["world_size"].iloc[0] > 1]
    if not groups:
        raise UncheckedError("bytes, time and world_size together")
    for group in groups:
        yield from _one_collective(group, observations)


def _one_collective(group: pd.DataFrame, observations: Observations) -> Iterator[Fault]:
    n = group["world_size"].iloc[0]
    size, times = group["bytes"].to_numpy(), group["time"].to_numpy()
    # Any collective without a bus bandwidth is treated as an all-reduce.
    bus = group["busbw"].fillna(2 * (n - 1) / n * group["bytes"] / group["time"]).to_numpy()
    limit = _link(group, observations).limit
    best = int(bus.argmax())
    if bus[best] > limit:
        yield Fault(
            group.loc[bus > limit, "label"],
            f"{message_size(size[best])} in {seconds(times[best])} on {n:g} ranks is a bus "
            f"bandwidth of {_gigabytes(bus[best])}, more than {_gigabytes(limit)}.",
            "Check the unit of the times and of the sizes.",
        )
    faster = np.flatnonzero(times[1:] < NON_MONOTONIC * times[:-1]) + 1
    if faster.size:
        first = int(faster[0])
        yield Fault(
            group["label"].iloc[faster],
            f"{message_size(size[first])} take {seconds(times[first])} on {n:g} ranks, less than "
            "the next smaller message.",
            "A change of algorithm can do this; so can a cold first call.",
            "note",
        )
