"""What changed between the last two runs of the bench: settings, and the time of a step."""

from __future__ import annotations

from math import exp

from lab.config.study import Study
from lab.dashboard.form import NAMES, OF_RUN
from lab.dashboard.panels import CANNOT_TELL
from lab.errors import LabError
from lab.formatting import interval_of, rounded
from lab.perfmodel.calibration import load_calibration
from lab.perfmodel.intervals import (
    NORMAL_95,
    Deviation,
    half_width,
    of_foreign_load,
    of_processes,
    spread,
)
from lab.records.store import Record

Entry = tuple[Study, Record]
Interval = tuple[float, float, float]  # a value and the ends of its interval


def since_the_last(entries: list[Entry], marked: Entry) -> str:
    """The settings that changed since the run before this one, and how the steps compare.

    Empty for the first completed run, and for one that did not complete.
    """
    home, record = marked
    earlier = [
        entry
        for entry in entries
        if entry[1].completed and entry[1].finished_at < record.finished_at
    ]
    if not earlier or not record.completed:
        return ""
    last = max(earlier, key=lambda entry: entry[1].finished_at)
    before, after = _settings(last), _settings(marked)
    changes = [
        f"{NAMES[name][0]} {value} → {after[name]}"
        for name, value in before.items()
        if value != after[name]
    ]
    compared = in_words(ratio(record, last[1], known=_known(home.folder.parent.name)))
    return f"Changed since the last run: {', '.join(changes) or 'nothing'}. {compared}"


def _settings(entry: Entry) -> dict[str, str]:
    study, record = entry
    of_run = {name: str(getattr(record.run, name)) for name in OF_RUN}
    return of_run | {"cluster": study.folder.parent.name}


def _known(cluster: str) -> Deviation | None:
    """How far equal processes differ by the calibration of a cluster, if there is one."""
    try:
        calibration = load_calibration(cluster)
    except LabError:  # the profile is gone, its results are not
        return None
    return spread(calibration.processes) if calibration else None


def ratio(record: Record, last: Record, *, known: Deviation | None) -> Interval | None:
    """The ratio of the median steps of two runs; None if too few steps were timed.

    Its 95 % interval covers the spread of steps, foreign load, and how far processes that run the
    same differ: `known`, or else what was once measured.
    """
    timings = [one.timing for one in (record, last) if one.timing and one.timing.step.interval]
    if len(timings) < 2:
        return None
    deviations = [of_processes(known, basis=1, measured=1)]
    deviations += [of_foreign_load(one.foreign_share or 0.0) for one in (record, last)]
    for timing in timings:
        low, high = timing.step.interval or (0.0, 0.0)
        deviations.append(Deviation((high - low) / (2 * NORMAL_95) / timing.step.median))
    value, factor = timings[0].step.median / timings[1].step.median, exp(half_width(deviations))
    return value, value / factor, value * factor


def in_words(times: Interval | None) -> str:
    """How much longer or shorter a step became, claimed only if the interval excludes no change."""
    question = f"Whether a step became longer or shorter: {CANNOT_TELL}"
    if times is None:
        return f"{question}, too few steps were timed."
    _, low, high = times
    if low <= 1 <= high:
        return f"{question}, {interval_of(rounded(*times))} times as long."
    return f"A step takes {rounded(*times)} times as long."
