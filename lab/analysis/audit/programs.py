"""Columns of several programs or sizes, such as "MPI time" or "time_1000", become rows."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from lab.analysis.audit.columns import (
    IDEAL,
    NOT_TRAINING,
    ROUNDED,
    TIMES,
    Guess,
    guess,
    normal,
    parse_name,
    quantities,
)
from lab.analysis.audit.reshape import are_timed, in_seconds, listed, stacked

PARALLEL = (
    "open_?mp|omp|mpi|p_?threads?|open_?acc|cuda|open_?cl|hybrid|parallel|multi_?thread(?:ed)?"
)
SERIAL = "serial|sequential|seq|single[_ ]?thread(?:ed)?"
FILLING = "_|execution|exec|run|total|avg|average|mean|wall|elapsed"
OF_PROGRAM = re.compile(
    rf"(?:{FILLING})*(?P<program>(?:{PARALLEL}|{SERIAL})(?:_(?:and_|plus_)?(?:{PARALLEL}))*)"
    rf"(?:{FILLING})*(?P<what>times?|runtime|duration|speed_?up|efficiency|eff)?"
)
RATIO = re.compile(r"(?P<what>speed_?up|efficiency)_(?P<program>.+)")
OF_SIZE = re.compile(r"(?P<name>.*[a-z])_(?:n_?|size_?)?(?P<size>\d{2,12})")
UNIT = re.compile(r"\s*[\[(][^\[(]*[\])]\s*$")
OF_EACH = {"time", "rate", "speedup", "efficiency"}
RANKS = {"world_size", "nodes", "threads", "cpus"}
OF_SPEED = {*TIMES, *ROUNDED}


def by_program(frame: pd.DataFrame, mapped: Mapping[str, Guess]) -> tuple[pd.DataFrame, list[str]]:
    """Turn a table of ranks with a column of times for each of several programs into a long one
    with the columns `setting`, `time_s`, `speedup` and `efficiency`, and state what that assumes;
    leave other tables as they are. The time of a serial program stays in every row.
    """
    parts: dict[str, dict[str, str]] = {}
    for column in frame.columns:
        program, what = _of_program(column)
        if what:
            parts.setdefault(program, {}).setdefault(what, column)
    timed = {program: part for program, part in parts.items() if "time" in part}
    parallel = {name: part for name, part in timed.items() if not re.fullmatch(SERIAL, name)}
    used = [column for part in parallel.values() for column in part.values()]
    rest = frame.drop(columns=used)
    known = quantities(rest.columns)
    if mapped or not parallel or len(timed) < 2 or not known & RANKS or known & {"time", "rate"}:
        return frame, []
    return _as_rows(frame, rest, parallel)


def by_unknown_program(
    frame: pd.DataFrame, mapped: Mapping[str, Guess]
) -> tuple[pd.DataFrame, list[str]]:
    """The same for programs that only their columns' unit of time reveals, such as "ScaLAPACK (s)",
    without a speedup, which may be of one over another."""
    names = {str(column): parse_name(str(column)) for column in frame.columns}
    programs = {
        UNIT.sub("", column): {"time": column}
        for column, name in names.items()
        if name.family == "time" and name.statistic is None and re.search("[a-z]{2}", name.stem)
        if guess(column) is None and not re.search(f"{NOT_TRAINING}|{IDEAL}", name.stem)
    }
    rest = frame.drop(columns=[part["time"] for part in programs.values()])
    ranks = [name for name in rest if quantities([str(name)]) & RANKS]
    varied = any(rest[name].astype(str).nunique() > 1 for name in ranks)
    if mapped or len(programs) < 2 or not varied or quantities(rest.columns) & OF_SPEED:
        return frame, []
    return _as_rows(frame, rest, programs)


def _as_rows(
    frame: pd.DataFrame, rest: pd.DataFrame, programs: Mapping[str, Mapping[str, str]]
) -> tuple[pd.DataFrame, list[str]]:
    """A row for each program, with its columns and the rest; and how they are read."""
    rows = []
    for program, part in programs.items():
        cells = {what: frame[column] for what, column in part.items()}
        times = in_seconds(cells.pop("time"), part["time"])
        rows.append(rest.assign(setting=program, time_s=times, **cells)[times.notna()])
    long = pd.concat(rows, ignore_index=True)
    names = ", ".join(repr(part["time"]) for part in programs.values())
    read = f"{names} {'are' if len(programs) > 1 else 'is'} read as the time of a program"
    return (long if len(programs) > 1 else long.drop(columns="setting")), [read]


def over_serial(frame: pd.DataFrame, mapped: Mapping[str, Guess]) -> tuple[pd.DataFrame, list[str]]:
    """Turn a table of problems, with the times of a serial and a parallel program and the speedup
    of one over the other, into one with a row for each program, in which this speedup is a ratio of
    their times; leave other tables as they are."""
    parsed = {column: _of_program(column) for column in frame.columns}
    programs = {
        column: program
        for column, (program, what) in parsed.items()
        if what == "time" or (program and not what and are_timed(frame[column]))
    }
    serial = [column for column, name in programs.items() if re.fullmatch(SERIAL, name)]
    quoted = [column for column in frame.columns if re.fullmatch("speed_?up", normal(column))]
    known = quantities(frame.columns)
    if mapped or len(programs) != 2 or len(serial) != 1 or len(quoted) != 1 or known & RANKS:
        return frame, []
    if frame[quoted[0]].astype(str).str.contains("%").any():
        return frame, []  # an increase
    one, other = serial[0], next(column for column in programs if column not in serial)
    rest = frame.drop(columns=[*programs, *quoted])
    rest = rest.drop(columns=[name for name in rest if "efficiency" in quantities([str(name)])])
    parts = [
        rest.assign(setting=column, time_s=in_seconds(frame[column], column))
        for column in (one, other)
    ]
    parts[1] = parts[1].assign(ratio_of_times=frame[quoted[0]], ratio_over=one)
    read = f"{quoted[0]!r} is read as the ratio of {one!r} to {other!r}"
    return pd.concat(parts, ignore_index=True), [read]


def _of_program(column: str) -> tuple[str, str]:
    """The program that a column is for and what it holds, "" if its name does not say."""
    name = parse_name(column)
    match = OF_PROGRAM.fullmatch(name.stem) or RATIO.fullmatch(normal(column))
    if match is None or not OF_PROGRAM.fullmatch(match["program"]):
        return "", ""
    what = match["what"] or ("time" if name.family == "time" else "")
    kind = {"spe": "speedup", "eff": "efficiency"}.get(what[:3], "time" if what else "")
    return match["program"].replace("_", " "), kind


def by_size(frame: pd.DataFrame, mapped: Mapping[str, Guess]) -> tuple[pd.DataFrame, list[str]]:
    """Turn a table of ranks with columns for several sizes of a problem, such as time_1000 and
    time_2000, into a long one with a column for the size; leave other tables as they are."""
    parts: dict[str, dict[str, str]] = {}
    for column in frame.columns:
        match = OF_SIZE.fullmatch(normal(column))
        if match and quantities([match["name"]]) & OF_EACH:
            parts.setdefault(match["size"], {})[match["name"]] = column
    used = [column for part in parts.values() for column in part.values()]
    known = quantities(frame.columns.difference(used))
    alike = len({tuple(part) for part in parts.values()}) == 1
    if mapped or len(parts) < 2 or not alike or not known & RANKS or known & OF_EACH:
        return frame, []
    read = f"the sizes are read from the names {listed(used)}"
    return stacked(frame, parts, "problem size"), [read]
