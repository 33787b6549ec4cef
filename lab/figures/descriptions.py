"""One sentence with numbers for each figure, for those who do not see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from lab.analysis.scaling_curves import baseline_name, ranks
from lab.errors import InputError, Problem, nearest
from lab.figures import breakdown, data
from lab.figures.data import Against, PlotData, Source, plot_data
from lab.formatting import format_seconds, percent, rounded
from lab.records.schema import PHASES

NO_COMMUNICATION = "An empty figure: no communication was measured."
NOTHING = "An empty figure: no run has completed yet."


def alt_text(name: str, records: Source, **against: Unpack[Against]) -> str:
    """What the figure of this name shows of these records, in one sentence.

    Raises InputError, with the nearest name, where there is no such figure.
    """
    if name not in _SENTENCES:
        raise InputError("figure", [Problem(name, "no such figure", nearest(name, _SENTENCES))])
    seen = plot_data(records, **against)
    if seen.summary.empty:
        return NOTHING
    told = f" Everything in it is of an {seen.emulated}." if seen.emulated else ""
    return (
        f"{seen.notice}. {_SENTENCES[name](seen)}" if seen.notice else _SENTENCES[name](seen)
    ) + told


def _by_world_size(seen: PlotData, name: str, what: str, text: Callable[..., str]) -> str:
    """The first and the last point of each line."""
    parts = []
    for label, points in seen.lines:
        known = points[points[name].notna()].to_dict("records")
        ends = [
            f"{_number(row, name, text)} on {ranks(row['device'], row['world_size'])}"
            for row in known[:1] + known[1:][-1:]
        ]
        if ends:
            parts.append(f"{label}, {' and '.join(ends)}")
    if not parts:
        return "An empty figure: no run of the baseline has completed yet."
    return f"{what} by world size: {'; '.join(parts)}."


def _number(row: dict[Any, Any], name: str, text: Callable[..., str]) -> str:
    return text(row[name], row[f"{name}_low"], row[f"{name}_high"])


def _speedup(seen: PlotData) -> str:
    told = _by_world_size(seen, "speedup", f"Speedup over {baseline_name(seen.summary)}", rounded)
    guesses = [
        f"{label}, {rounded(found[-1]['speedup'])} on {found[-1]['world_size']}"
        for label, points in seen.lines
        if (found := data.predicted_speedups(seen, points))
    ]
    return told + (f" Predicted beforehand: {'; '.join(guesses)}." if guesses else "")


def _breakdown(seen: PlotData) -> str:
    parts = []
    for label, points in seen.lines:
        row = points.iloc[-1]
        times = sorted(
            ((row[f"{phase}_time"], phase) for phase in PHASES if row[f"{phase}_time"] > 0),
            reverse=True,
        )[:3]
        listed = ", ".join(f"{phase} {format_seconds(time)}" for time, phase in times)
        parts.append(
            f"{label} on {ranks(row['device'], row['world_size'])}, {format_seconds(row['step_time'])} with {listed}"
        )
    return f"Bars of the time of a step by its longest phases: {'; '.join(parts)}."


def _losses(seen: PlotData, by: str) -> str:
    parts = []
    for label, points in seen.lines:
        row = points.iloc[-1]
        loss = seen.losses.get(row["run_id"])
        if loss is not None:
            length = (
                format_seconds(len(loss) * row["step_time"])
                if by == "time"
                else f"{len(loss)} steps"
            )
            workers = ranks(row["device"], row["world_size"])
            parts.append(
                f"{label} on {workers}, from {rounded(loss[0])} to {rounded(loss[-1])} in {length}"
            )
    return (
        f"Training loss by {by}: {'; '.join(parts)}."
        if parts
        else "An empty figure: no loss was recorded."
    )


def _band(seen: PlotData) -> str:
    parts = [
        f"{label} on {ranks(row['device'], row['world_size'])}, R {rounded(row['compute_time'] / row['communication_time'])} and "
        f"efficiency {percent(row['efficiency'])}"
        for label, points in seen.lines
        for row in points.to_dict("records")
        if row["communication_time"] > 0 and row["efficiency"] > 0
    ]
    return (
        f"Efficiency against R between no and perfect overlap: {'; '.join(parts)}."
        if parts
        else NO_COMMUNICATION
    )


def _timeline(seen: PlotData) -> str:
    events = breakdown.events(seen.records)
    if not events:
        return NO_COMMUNICATION
    sent = [event for event in events if event.name.startswith("bucket")]
    workers, end = len({event.rank for event in events}), max(event.end for event in events)
    return f"One step of {workers} ranks in {format_seconds(end)}, with {len(sent) // workers} buckets on the link of each rank."


_SENTENCES: dict[str, Callable[[PlotData], str]] = {
    "step_time": lambda seen: _by_world_size(seen, "step_time", "Step time", format_seconds),
    "speedup": _speedup,
    "efficiency": lambda seen: _by_world_size(seen, "efficiency", "Efficiency", percent),
    "throughput": lambda seen: _by_world_size(
        seen, "samples_per_second", "Throughput in samples per second", rounded
    ),
    "step_breakdown": _breakdown,
    "loss_by_step": lambda seen: _losses(seen, "step"),
    "loss_by_time": lambda seen: _losses(seen, "time"),
    "overlap_band": lambda seen: _band(seen),
    "step_timeline": lambda seen: _timeline(seen),
}
