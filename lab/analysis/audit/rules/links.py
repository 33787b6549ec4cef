"""Rule about links: bytes over communication time must be what a link can carry."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.analysis.audit.observations import Observations, samples_said
from lab.analysis.audit.rule import Finding, Rule, UncheckedError, found, seconds
from lab.analysis.audit.series import Line, Point, lines
from lab.perfmodel.hardware import LINKS, named_link

GRADIENT_BYTES = 4  # per parameter: gradients are reduced in fp32 unless a table says otherwise
# 25 Gbit/s, 100Gb/s, 10GbE; a capital B alone means bytes.
RATE = re.compile(
    r"(\d+(?:\.\d+)?)\s*([GgMm])(?:(B/s|Bps)|\s*[Bb][Ii][Tt](?:/s|ps)?|[Bb]ps|[Bb]/s|[Bb]?[Ee]\b)"
)
FASTEST = max(link.bytes_per_s for link in LINKS.values())
SINGLE_NODE = LINKS["pcie3"].bytes_per_s  # the slowest that joins the GPUs of one node as a rule
CALIBRATED = 1.25  # a calibration on another day differs by less
FAR_BELOW = 0.1
ONE_NODE = r"\b(one|single|1)[- ]node\b"
CARRIED = 0.4  # of an emulated link's bandwidth; a machine that has the cores for it carries 0.9
LATENCY_BOUND = 2**20  # smaller messages are about latency, not bandwidth
NON_MONOTONIC = 0.9


class Link(NamedTuple):
    """What a link carries in bytes/s, whether that is measured or named, and in what words."""

    bytes_per_s: float
    certain: bool
    words: str


def plausible_bandwidth(seen: Observations) -> Iterator[Finding]:
    """Bytes over communication time beyond the link, or far below what it should carry."""
    if {"algbw", "busbw"} & seen.known:
        yield from _quoted(seen)
    if seen.kind == "collectives":
        yield from _collectives(seen)
        return
    checked = bool({"algbw", "busbw"} & seen.known)
    for line in lines(seen):
        for point in line.points:
            size = point.bytes if point.bytes > 0 else GRADIENT_BYTES * point.parameters
            for told in _times(line, point, seen) if point.world_size > 1 and size > 0 else ():
                checked = True
                yield from _judged(line, point, size, told, seen)
    if not checked:
        raise UncheckedError(
            "bytes or parameters", "communication time per step at more than one rank"
        )


class Told(NamedTuple):
    """A communication time per step in s; `bound` where it is all that the ranks add to a step, `part` in words."""

    time: float
    bound: bool
    words: str


def _steps(point: Point, seen: Observations) -> float:
    """Optimizer steps that the times stand for: 1, or those of an epoch by its samples."""
    if seen.per == "step":
        return 1.0
    if point.steps > 0:
        return point.steps
    samples = point.samples if point.samples > 0 else samples_said(seen)
    return (
        math.ceil(samples / point.global_batch_size)
        if samples > 0 and point.global_batch_size > 0 and seen.per == "epoch"
        else math.nan
    )


def _times(line: Line, point: Point, seen: Observations) -> Iterator[Told]:
    steps = _steps(point, seen)
    if point.communication > 0 and math.isfinite(steps):
        yield Told(point.communication / steps, False, "communication")
        return
    base = line.base(point)
    if base is None or base.world_size != 1 or not math.isfinite(steps) or seen.kind == "records":
        return
    # Equal work per rank in a step: what is added at N ranks is the most that communication can be.
    same = (
        abs(point.micro_batch_size / base.micro_batch_size - 1) < 0.01
        if base.micro_batch_size > 0
        else False
    )
    added = point.time / steps - base.time / _steps(base, seen)
    if same and added > 0:
        yield Told(added, True, "all that a step takes longer")


def _link(
    point_world: float, nodes: float, names: str, seen: Observations, *, emulated: bool = False
) -> Link:
    calibrated = {} if emulated else seen.calibrated  # an emulated link is held to its name
    if calibrated:
        best = calibrated.get(int(point_world), max(calibrated.values()))
        return Link(float(best), True, f"calibrated at {best / 1e9:.3g} GB/s")
    rate = RATE.search(names)
    if rate:
        value = float(rate[1]) * (1e9 if rate[2].lower() == "g" else 1e6) / (1 if rate[3] else 8)
        return Link(value, True, rate[0] if rate[3] else f"{rate[0]}, {value / 1e9:.3g} GB/s")
    if named := named_link(names):
        words = f"{names.strip()}, at most {named.bytes_per_s / 1e9:.3g} GB/s"
        return Link(named.bytes_per_s, True, words)
    on_cpu = (
        seen.frame["device"].eq("cpu").any()
    )  # gloo over loopback is anywhere from 0.1 to 2 GB/s: calibrate it
    if (nodes == 1 or seen.said(ONE_NODE)) and not on_cpu:
        where = "one node" if nodes == 1 else "one node by the notes"
        return Link(
            SINGLE_NODE, False, f"{where}, where PCIe 3.0 x16 carries {SINGLE_NODE / 1e9:.3g} GB/s"
        )
    return Link(math.nan, False, "")


def _names(rows: pd.DataFrame) -> str:
    names = [
        "link",
        *(
            key
            for key in rows
            if str(key).startswith("key:") and key in {"key:link", "key:setting", "key:strategy"}
        ),
        "gpu",
    ]
    return " ".join(
        dict.fromkeys(
            str(value)
            for name in names
            if name in rows
            for value in rows[name].dropna().unique()[:1]
        )
    )


def _judged(
    line: Line, point: Point, size: float, told: Told, seen: Observations
) -> Iterator[Finding]:
    n = point.world_size
    bandwidth = 2 * (n - 1) / n * size / told.time
    rows = seen.frame[seen.frame["label"].isin(point.labels)]
    emulated = bool(rows["emulated"].astype(str).str.startswith("link").any())
    link = _link(n, point.nodes, _names(rows), seen, emulated=emulated)
    source = "bytes given" if point.bytes > 0 else f"{point.parameters:,.0f} parameters in fp32"
    said = f"{size / 1e6:.3g} MB per step ({source}) over {seconds(told.time)} ({told.words}) on {n:g} ranks are {_gigabytes(bandwidth)} of bus bandwidth"
    most = link.bytes_per_s * (CALIBRATED if link.certain else math.nan)
    if not told.bound and bandwidth > (most if math.isfinite(most) else FASTEST):
        beyond = (
            link.words
            if math.isfinite(most)
            else f"the fastest link there is carries {FASTEST / 1e9:.0f} GB/s"
        )
        advice = "The time is too short or the bytes are not all sent: wait for completion before reading the clock."
        yield found(
            "plausible-bandwidth",
            "error",
            point.labels,
            f"{said}, more than the link carries ({beyond}).",
            advice,
        )
    elif emulated and bandwidth < CARRIED * link.bytes_per_s and size > LATENCY_BOUND:
        advice = "This machine does not carry what it emulates: take fewer ranks or a slower link, and leave it to the study alone."
        share = f"{100 * bandwidth / link.bytes_per_s:.0f} % of the emulated link ({link.words})"
        yield found("plausible-bandwidth", "warning", point.labels, f"{said}, {share}.", advice)
    elif bandwidth < FAR_BELOW * link.bytes_per_s and size > LATENCY_BOUND:
        advice = "Something else is in this time: waiting for a straggler, the loader, launches. Measure the transfer by itself."
        yield found(
            "plausible-bandwidth",
            "warning",
            point.labels,
            f"{said}, less than a tenth of the link ({link.words}).",
            advice,
        )


def _gigabytes(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.3g} GB/s"


def _quoted(seen: Observations) -> Iterator[Finding]:
    rows = seen.frame[seen.frame["busbw"].notna() | seen.frame["algbw"].notna()]
    wrong: list[tuple[float, float, str]] = []
    for row in rows.to_dict("records"):
        n = row["world_size"]
        bus = (
            row["busbw"]
            if row["busbw"] == row["busbw"]
            else row["algbw"] * (2 * (n - 1) / n if n > 1 else 1.0)
        )
        words = " ".join(str(row[name]) for name in ("link", "gpu") if isinstance(row[name], str))
        link = _link(n if n == n else 2, row["nodes"], words, seen)
        limit = link.bytes_per_s * CALIBRATED if link.certain else FASTEST
        if bus > limit:
            wrong.append((bus, limit, str(row["label"])))
    if wrong:
        bus, limit, label = max(wrong)
        said = f"A bus bandwidth of {_gigabytes(bus)} is quoted in {label}, more than the {_gigabytes(limit)} that its link allows."
        labels = [item[2] for item in wrong]
        yield found(
            "plausible-bandwidth",
            "error",
            labels,
            said,
            "Check bits against bytes, and algorithm against bus bandwidth.",
        )


def _collectives(seen: Observations) -> Iterator[Finding]:
    rows = seen.frame[
        seen.frame["time"].notna() & seen.frame["bytes"].notna() & (seen.frame["world_size"] > 1)
    ]
    if rows.empty:
        raise UncheckedError("bytes, time and world_size together")
    names = [*(key for key in seen.keys if key != "key:bytes"), "world_size"]
    for _, group in rows.groupby(names, sort=False, dropna=False):
        yield from _one_collective(group.sort_values("bytes"), seen)


def _one_collective(group: pd.DataFrame, seen: Observations) -> Iterator[Finding]:
    n = float(group["world_size"].iloc[0])
    size, times = group["bytes"].to_numpy(dtype=float), group["time"].to_numpy(dtype=float)
    # What is not said to be another collective is taken for an all-reduce.
    bus = (
        group["busbw"]
        .fillna(group["bytes"] / group["time"] * 2 * (n - 1) / n)
        .to_numpy(dtype=float)
    )
    link = _link(n, float(group["nodes"].iloc[0]), _names(group), seen)
    limit = link.bytes_per_s * CALIBRATED if link.certain else FASTEST
    best = int(bus.argmax())
    if bus[best] > limit:
        said = (
            f"{size[best] / 1e6:.3g} MB in {seconds(times[best])} on {n:g} ranks are {_gigabytes(bus[best])} of bus bandwidth, "
            f"more than {_gigabytes(limit)}."
        )
        yield found(
            "plausible-bandwidth",
            "error",
            group.loc[bus > limit, "label"],
            said,
            "Check the unit of the times and of the sizes.",
        )
    back = np.flatnonzero(times[1:] < NON_MONOTONIC * times[:-1]) + 1
    if back.size:
        first = int(back[0])
        said = f"{size[first] / 1e6:.3g} MB take {seconds(times[first])} on {n:g} ranks, less than the next smaller message."
        labels = group["label"].iloc[back]
        yield found(
            "plausible-bandwidth",
            "note",
            labels,
            said,
            "A change of algorithm can do this; so can a cold first call.",
        )


LINKS_RULES = (
    Rule(
        "plausible-bandwidth",
        (("bytes", "parameters", "algbw", "busbw"), ("world_size", "busbw")),
        plausible_bandwidth,
    ),
)
