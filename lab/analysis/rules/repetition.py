"""Rules about repetition: how often something was measured, and by how many writers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from lab.analysis.observations import Observations
from lab.analysis.points import Line, Point
from lab.analysis.rule import Finding, Rule, UncheckedError, found, seconds
from lab.analysis.series import lines

# Ranges of n and n repeats of equal runs lie apart by chance in 2 / binomial(2n, n): 1 in 3 for two, 1 in 10 for three.
FEWEST = 3
# A smaller difference is none that anybody would claim.
CLAIM = 0.05


def repeats(seen: Observations) -> Iterator[Finding]:
    """One repeat where more are needed, and intervals that overlap where a difference is claimed."""
    if seen.kind == "collectives":
        unsaid = seen.frame[seen.frame["repeats"].isna()]
        if len(unsaid):
            yield _unsaid(list(unsaid["label"]))
        return
    known = lines(seen)
    points = [point for line in known for point in line.points if point.times or point.rate > 0 or point.speedup > 0]
    if not points:
        raise UncheckedError("world_size")
    counts = {id(point): point.repeats if point.repeats > 0 else max(len(point.times), 1) for point in points}
    said = "repeats" in seen.known or seen.frame["repeat"].notna().any() or any(len(point.times) > 1 for point in points)
    spread = [point for point in points if counts[id(point)] < 2 and point.bounds is not None]
    once = [point for point in points if counts[id(point)] < 2 and point.bounds is None]
    if seen.summarised and not said and once:
        yield _unsaid([label for point in once for label in point.labels])
    elif once:
        labels = [label for point in once for label in point.labels]
        evidence = (
            f"{len(once)} of {len(points)} configurations were measured once, so nothing tells their differences from chance."
        )
        yield found(
            "repeats", "warning", labels, evidence, "Repeat each at least three times, interleaved, and state the spread."
        )
    if spread:
        labels = [label for point in spread for label in point.labels]
        evidence = (
            f"{len(spread)} of {len(points)} configurations have a spread, and the table does not say over how many repeats."
        )
        yield found("repeats", "note", labels, evidence, "State the number of separate runs; epochs of one run are no repeats.")
    few = [point for point in points if 2 <= counts[id(point)] < FEWEST]
    if few:
        labels = [label for point in few for label in point.labels]
        evidence = f"{len(few)} of {len(points)} configurations have 2 repeats: ranges of equal runs lie apart by chance in 1 of 3 cases."
        yield found("repeats", "note", labels, evidence, "Repeat each at least three times.")
    for line in known:
        yield from _overlaps(line, seen)


def _unsaid(labels: list[str]) -> Finding:
    evidence = f"{len(labels)} values stand alone: the table does not say how often each was measured, nor with what spread."
    return found("repeats", "note", labels, evidence, "State the number of repeats and the spread.")


def _overlaps(line: Line, seen: Observations) -> Iterator[Finding]:
    for first, second in itertools.pairwise(point for point in line.points if point.bounds is not None):
        if first.world_size == second.world_size or not _overlap(first, second):
            continue
        if abs(first.time / second.time - 1) > CLAIM:
            assert first.bounds and second.bounds
            evidence = (
                f"World sizes {first.world_size:g} and {second.world_size:g} differ by {100 * abs(first.time / second.time - 1):.0f} %, and "
                f"their ranges overlap: {seconds(first.bounds[0])} to {seconds(first.bounds[1])} and {seconds(second.bounds[0])} to "
                f"{seconds(second.bounds[1])}."
            )
            # The lab's own report claims nothing where intervals overlap; a table's numbers stand without them.
            severity = "note" if seen.kind == "records" else "warning"
            labels = [*first.labels, *second.labels]
            yield found("repeats", severity, labels, evidence, "Repeat more often before calling this a difference.")  # type: ignore[arg-type]


def _overlap(first: Point, second: Point) -> bool:
    assert first.bounds and second.bounds
    return max(first.bounds[0], second.bounds[0]) <= min(first.bounds[1], second.bounds[1])


def two_writers(seen: Observations) -> Iterator[Finding]:
    """Repeated or out-of-order epochs or steps in one record."""
    if seen.kind == "records":
        yield from _same_record(seen)
        return
    columns = [name for name in ("epoch", "step") if seen.frame[name].notna().any()]
    rows = seen.frame[seen.frame[columns].notna().all(axis=1) & ~seen.frame["aggregate"]]
    names = [*seen.keys, "world_size", "nodes", "global_batch_size", "batch", "rank", "repeat"]
    for _, group in rows.groupby([name for name in names if name in rows], sort=False, dropna=False):
        index = list(zip(*(group[name] for name in columns), strict=True))
        again = _again(index)
        back = [place for place in range(1, len(index)) if index[place] < index[place - 1]]
        if not again and not back:
            continue
        parts = [index[start:end] for start, end in itertools.pairwise([0, *back, len(index)])]
        # Whole series one after the other are runs that were appended, not two jobs at once.
        restarted = len(parts[0]) == len(set(index)) and all(part == parts[0] for part in parts)
        what = " and ".join(columns)
        labels = [group["label"].iloc[place] for place in (again or back)]
        size = group["world_size"].iloc[0]
        where = f" at world size {size:g}" if size == size else ""
        first = index[(again or back)[0]][-1]
        evidence = (
            f"{len(index)} rows{where} hold {len(set(index))} different values of {what}: {first:g} is there again, and the order goes "
            f"back {len(back)} times."
        )
        advice = "Two jobs wrote one file, or runs were appended: give each run its own record and number the repeats."
        yield found("two-writers", "warning" if restarted else "error", labels, evidence, advice)


def _again(index: list[tuple[float, ...]]) -> list[int]:
    known: set[tuple[float, ...]] = set()
    places = []
    for place, value in enumerate(index):
        if value in known:
            places.append(place)
        known.add(value)
    return places


def _same_record(seen: Observations) -> Iterator[Finding]:
    quoted = seen.frame[seen.frame["aggregate"]]
    for (run, repeat), rows in quoted.groupby(["run_id", "repeat"], sort=False):
        if len(rows) > 1:
            evidence = f"Repeat {repeat} of run {run} has {len(rows)} records."
            yield found(
                "two-writers", "error", [f"{run}/{repeat}"], evidence, "Keep one, and find out which job wrote the other."
            )
        curve, steps = rows["loss_curve"].iloc[0], rows["total_steps"].iloc[0]
        if isinstance(curve, list) and curve and len(curve) != steps:
            evidence = f"{len(curve)} losses stand in a record of {steps:g} steps."
            yield found(
                "two-writers", "error", [f"{run}/{repeat}"], evidence, "Run it again with `--fresh`: one step writes one loss."
            )


RULES = (
    Rule("two-writers", (("epoch", "step", "run_id"),), two_writers),
    Rule("repeats", (("time", "rate", "speedup"),), repeats),
)
