"""Columns of several programs, ranks, batches or sizes, such as "MPI time" or "b64", become rows.

Each function returns the table in this long form and states what that assumes, or returns a table
that is not for it as it is. `FORMS` are tried on tables of which the user has mapped no column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from statistics import median
from typing import Any

import pandas as pd

from lab.analysis.audit.columns import (
    COUNTED_RANKS,
    IDEAL,
    MEASURED,
    NOT_TRAINING,
    NUMERIC,
    OF_SAMPLES,
    OF_SPEED,
    PERCENTILE,
    RATIOS,
    TIMES,
    guess,
    is_serial,
    normal,
    parse_name,
    quantities,
    setting_of,
)
from lab.analysis.audit.keys import NO_REPEATS
from lab.analysis.audit.observations import ROW
from lab.analysis.audit.reshape import (
    GROWN,
    INDEXED,
    OF_PROBLEMS,
    are_rated,
    are_ratios,
    are_timed,
    growth,
    is_known,
    listed,
    noted_alone,
    noted_quantity,
    ranks_in,
    timed_programs,
    timed_statistics,
    without,
)
from lab.analysis.audit.values import TIME_UNITS, numbers

Long = tuple[pd.DataFrame, list[str]]

PARALLEL = (
    "open_?mp|omp|mpi|p_?threads?|open_?acc|cuda|open_?cl|hybrid|par(?:allel)?|multi_?thread(?:ed)?"
    "|nccl|gloo"
)
SERIAL = "serial|sequential|seq|single[_ ]?thread(?:ed)?"
FILLING = "_|execution|exec|run|total|avg|average|mean|wall|elapsed|pure|plain|only"
OF_PROGRAM = re.compile(
    rf"(?:{FILLING})*(?P<program>(?:{PARALLEL}|{SERIAL})(?:_(?:and_|plus_)?(?:{PARALLEL}))*)"
    rf"(?:{FILLING})*(?P<what>times?|runtime|duration|speed_?up|efficiency|eff)?"
)
BEFORE = re.compile(r"(?P<what>speed_?up|efficiency|time)_(?P<program>.+)")
BATCH = re.compile(
    r"(?:^|_)(?:(?:max_)?(?:batch(?:_?size)?|bsz?)_?|b_?(?=\d\d))(?P<n>\d{1,9})(?=_|$)"
)
BATCHES = {"batch", "global_batch_size", "micro_batch_size"}
OF_SIZE = re.compile(
    r"(?P<name>.*[a-z])_(?:n_?|size_?)?(?P<size>\d{2,12})|(?P<grid>\d+(?:_?x_?\d+)+)_(?P<of>[a-z].*)"
)
CORNER = re.compile(r"(?P<rows>[^\\/|]*\w)\s*[\\/|]\s*(?P<columns>\w[^\\/|]*)")  # of "N \ P"
CROSSED = re.compile(r"(?P<named>(?:n|size|matrix(?:_size)?)_?)?(?P<size>\d{1,12})(?:_?x_?\d+)*")
UNIT = re.compile(r"\s*[\[(][^\[(]*[\])]\s*$")
RANKS = {*COUNTED_RANKS}
PROCESSES = "mpi|ranks|tasks|process(?:es)?|procs"
OF_PAIR = re.compile(
    rf"(?:.*_)?(?:(?:{PROCESSES})_(?:x_|by_|times_)?(?:omp|open_?mp|threads)"
    rf"|(?P<nodes>nodes?)_(?:x_|by_|times_)?(?:gpus?|{PROCESSES}))"
)
PAIR = re.compile(r"^\s*(\d{1,5})\s*[x×*]\s*(\d{1,5})(?!\d)")
# Of labels, as words; "gpu 2" and "phase 2 process" number them.
COUNTED = re.compile(
    r"(?<![\w.])(?:(\d{1,5}) ?(?:(?:gpu|rank|proc|thread|core|worker|node)s?|processes|jobs)"
    r"|(1) (?:process|job))\b"
    r"|(?<!\w)(?:(?:rank|proc|thread|worker|job)s|processes|nproc|np) (\d{1,5})(?![\d.])"
)
BASELINE = re.compile(r"\b(?:baseline|reference|ref)\b")  # of "1 worker (baseline)"
BOTH = re.compile(r"\s*(.*\S)\s*[(/\[]\s*([^()/\[\]]+?)\s*[)\]]?\s*$")
PAIRED = re.compile(r"^\s*[~≈]?(\d[\d.,]*)\s*/\s*(\d[\d.,]*)\s*$")
OF_NO_PROGRAM = re.compile(
    rf"{'|'.join(OF_SAMPLES)}|total|aggregate|overall|peak|output|input|{NOT_TRAINING}|{IDEAL}"
    f"|{PERCENTILE}"
)
NO_WORD = re.compile(
    f"{OF_NO_PROGRAM.pattern}|strong|weak|absolute|relative|amdahl|gustafson|model|theory|computed"
)
MOST_NAMES = 20  # columns whose cells are looked at
OF_RUN = re.compile(
    r"(?P<stem>(?:.*_)?(?:run|trial|repeat|repetition|attempt|measurement|time))_?(?P<n>\d{1,2})"
)
AGAIN = re.compile(r"(?P<name>.+) \(\d+\)")  # a column of the name of an earlier one


def by_rank(frame: pd.DataFrame, mapped: Collection[str]) -> Long:
    """A time for each rank becomes a column `rank`, in which any other time covers all ranks."""
    matches = {
        column: match
        for column in frame.columns
        if (match := INDEXED.match(normal(column))) and column not in mapped
    }
    indices = sorted(int(match["n"]) for match in matches.values())
    named = all(match["what"] == "rank" for match in matches.values())
    first = int(named and indices[:1] == [1])  # what is called rank may be numbered from 1
    if len(indices) < 2 or indices != list(range(first, first + len(indices))):
        return frame, []
    others = [column for column in frame.columns if column not in matches]
    whole = next((name for name in others if quantities([name]) == {"time"}), "")
    parts = {"all": {whole: whole}} if whole else {}
    parts |= {match["n"]: {whole or "time": column} for column, match in matches.items()}
    assumption = f"the ranks are read from the column names {listed(matches)}"
    return _stacked(frame, parts, "rank", times=whole or "time"), [assumption]


def of_shells(frame: pd.DataFrame) -> Long:
    """The real time of a command, which shells print beside those of the user and the system,
    becomes a column of times."""
    named = {normal(name): name for name in frame.columns}
    if not {"real", "user", "sys"} <= set(named):
        return frame, []
    real = named["real"]
    return frame.rename(columns={real: "real time"}), [f"{real!r} is the time of a command"]


def of_commands(frame: pd.DataFrame) -> Long:
    """Means of the times of commands, which hyperfine saves in s beside those of the user and the
    system, become a column of times, and parameters columns by their own names."""
    if not {"command", "mean", "user", "system"} <= set(frame.columns):
        return frame, []
    names = {name: name.removeprefix("parameter_") for name in map(str, frame)}
    names |= {"mean": "mean time (s)"}
    if len(set(names.values())) < len(names):
        return frame, []
    rest = [name for name in frame if name not in {"user", "system", "median", "min", "max"}]
    return frame[rest].rename(columns=names), ["'mean' is the time of a command in s"]


def of_samples(frame: pd.DataFrame) -> Long:
    """Columns that are called after statistics and whose cells are times become columns of times,
    and `samples` beside them counts the repeats."""
    timed = timed_statistics(frame)
    if not timed:
        return frame, []
    names = {name: re.sub("( time)?$", " time", name, count=1) for name in timed}
    names |= {name: "repeats" for name in map(str, frame) if normal(name) == "samples"}
    return frame.rename(columns=names), [f"{listed(timed)} are statistics of a time"]


def of_runs(frame: pd.DataFrame) -> Long:
    """Columns of times numbered from 1 on that are alike, such as "Run 1 (s)" and "Run 2 (s)",
    beside the ranks become rows of a column `repeat`."""
    names = {name: parse_name(name) for name in map(str, frame)}
    runs = {name: match for name, of in names.items() if (match := OF_RUN.fullmatch(of.stem))}
    others = quantities(frame.columns.difference([*runs]))
    numbered = sorted(int(match["n"]) for match in runs.values()) == [*range(1, len(runs) + 1)]
    stems = {match["stem"] for match in runs.values()}
    of_times = "time" in "".join(stems)  # of which two may be of two programs
    if len(runs) < 2 + of_times or len(stems) > 1 or not numbered:
        return frame, []
    with_unit = all(names[name].family == "time" or are_timed(frame[name]) for name in runs)
    if not others & RANKS or others & OF_SPEED or not (with_unit or of_times):
        return frame, []
    times = [
        numbers(frame[name], units=TIME_UNITS, factor=names[name].factor or 1.0) for name in runs
    ]
    each = pd.concat(times, axis="columns")
    if not (each.max(axis="columns") / each.min(axis="columns")).median() < NO_REPEATS:
        return frame, []
    parts = {match["n"]: {"time": name} for name, match in runs.items()}
    long = _stacked(frame, parts, "repeat", times="time" if with_unit else "")
    return long, [f"{listed(runs)} are read as repeats"]


def by_grid(frame: pd.DataFrame) -> Long:
    """The rows and columns of a grid of processes, as the Linpack benchmark has them beside the
    order N and the block NB of a matrix, become a column `ranks`, and N a problem's size."""
    of = {normal(column): column for column in frame.columns}
    if not {"p", "q", "n", "nb"} <= set(of):
        return frame, []
    sides = [of["p"], of["q"]]
    ranks = numbers(frame[sides[0]]) * numbers(frame[sides[1]])
    named = frame.drop(columns=sides).rename(columns={of["n"]: "problem size"})
    return named.assign(ranks=ranks), [f"{sides[0]!r} times {sides[1]!r} counts the ranks"]


def by_pair(frame: pd.DataFrame) -> Long:
    """Cells such as "2 x 8" of a column called "MPI x OMP" or "Nodes x GPUs" become the columns of
    its two words, where no other column counts ranks."""
    matches = {
        column: match for column in frame.columns if (match := OF_PAIR.fullmatch(normal(column)))
    }
    names = list(matches)
    if len(names) != 1 or quantities(frame.columns.difference(names)) & RANKS:
        return frame, []
    pairs = frame[names[0]].astype(str).str.extract(PAIR)
    if pairs.isna().any(axis=None):
        return frame, []
    of_nodes = bool(matches[names[0]]["nodes"])
    words = ["nodes", "ranks per node"] if of_nodes else ["processes", "threads"]
    pairs.columns = pd.Index(words)
    read = f"{names[0]!r} is read as {words[0]} times {words[1]}"
    return pd.concat([pairs, frame.drop(columns=names)], axis="columns"), [read]


def by_label(frame: pd.DataFrame) -> Long:
    """A column of labels that differ in nothing but what they count, such as "MPI (2 threads)" and
    "--jobs 4", becomes one without this and a column `ranks`, where no other column counts ranks; a
    serial program runs on one."""
    sizes = {size for name in map(str, frame) if (size := ranks_in(name)[0]) > 0}
    counted = quantities(frame.columns) & RANKS or len(sizes) > 1
    labelled = [] if counted else _counted_labels(frame)
    if len(labelled) != 1:
        return frame, []
    name, counts, bare = labelled[0]
    split = frame.assign(**{name: bare, "ranks": counts})
    if not guess(name) and "strategy" not in quantities(frame.columns):
        split = split.rename(columns={name: "strategy"})
    return split, [f"the ranks are read from the cells of {name!r}"]


def _counted_labels(frame: pd.DataFrame) -> list[tuple[str, pd.Series, pd.Series]]:
    """The columns of such labels, with what they count, and without it."""
    labelled = []
    for name in [name for name in frame.columns if name != ROW][:MOST_NAMES]:
        # Lists, as pandas takes ten times as long for the few rows of most tables.
        texts = [normal(str(cell)).replace("_", " ") for cell in frame[name].astype(str).tolist()]
        bare = [BASELINE.sub("", COUNTED.sub("", text)).strip() for text in texts]
        counts = [_count_in(text) for text in texts]
        numbers_alone = not any(bare)  # as in a column of ranks
        pairs = {pair for pair in zip(bare, counts, strict=True) if pair[1] == pair[1]}
        if not numbers_alone and len(pairs) > len({label for label, _ in pairs}):
            serial = [1.0 if is_serial(text) else math.nan for text in texts]
            ranks = pd.Series(counts, frame.index).fillna(pd.Series(serial, frame.index))
            labelled.append((name, ranks, pd.Series(bare, frame.index)))
    return labelled


def _count_in(text: str) -> float:
    """What a label counts; NaN if nothing."""
    match = COUNTED.search(text)
    return float(match[match.lastindex or 0]) if match else math.nan


def by_slash(frame: pd.DataFrame) -> Long:
    """Cells such as "7,266 / 129" in columns for several numbers of ranks, which hold two results
    of what the lines around the table name, become two rows."""
    sized = [name for name in map(str, frame) if ranks_in(name)[0] > 0]
    if len(sized) < 2 or not noted_quantity(frame.attrs.get("around", "")):
        return frame, []
    parts = {name: frame[name].astype(str).str.extract(PAIRED) for name in sized}
    pairs = {name: cells for name, cells in parts.items() if cells.notna().any(axis=None)}
    mixed = any((frame[name].map(is_known) & pairs[name][0].isna()).any() for name in pairs)
    if len(pairs) < 2 or mixed:
        return frame, []
    rows = [
        frame.assign(result=which, **{name: cells[place] for name, cells in pairs.items()})
        for place, which in enumerate(("first", "second"))
    ]
    return pd.concat(rows, ignore_index=True), [f"each cell of {listed(pairs)} has two results"]


def by_bracket(frame: pd.DataFrame) -> Long:
    """Cells such as "1.83 s (1.76x)" of a column that is called after a time or a rate and a ratio,
    such as "Time (speedup)" or "img/s / efficiency", become two columns."""
    read: list[str] = []
    for column in [name for name in map(str, frame.columns) if name != ROW]:
        named = BOTH.fullmatch(column)
        what = [quantities([name]) for name in named.groups()] if named else [set(), set()]
        both = frame[column].astype(str).str.extract(BOTH).fillna("")
        paired = both[1].str.match(r"[~≈]?\d")
        if named and what[0] & {"time", "rate"} and what[1] & RATIOS and paired.any():
            cells = {named[1]: both[0].where(paired, frame[column]), named[2]: both[1]}
            frame = frame.drop(columns=[column, *cells], errors="ignore").assign(**cells)
            read.append(f"each cell of {column!r} holds both")
    return frame, read


def by_program(frame: pd.DataFrame) -> Long:
    """Times, and speedups and efficiencies, of several programs on the same ranks become columns
    `setting`, `time`, `speedup` and `efficiency`. The time of a serial program stays in all rows.
    """
    parts: dict[str, dict[str, str]] = {}
    for column in frame.columns:
        program, what = _of_program(column, frame)
        if what:
            parts.setdefault(program, {}).setdefault(what, column)
    timed = {program: part for program, part in parts.items() if "time" in part}
    parallel = {name: part for name, part in timed.items() if not re.fullmatch(SERIAL, name)}
    used = [column for part in parallel.values() for column in part.values()]
    # Of a single program, unless its name may mean a part of the time, such as "MPI time".
    unknown = not any(guess(part["time"]) for part in parallel.values())
    if not parallel or not (len(timed) > 1 or unknown):
        return frame, []
    known = quantities(frame.columns.difference(used))
    if not known & RANKS or known & {"time", "rate"}:
        return frame, []
    names = ", ".join(repr(part["time"]) for part in parallel.values())
    read = f"{names} {'are' if len(parallel) > 1 else 'is'} read as the time of a program"
    long = _stacked(frame, parallel, "setting", times="time")
    return (long if len(parallel) > 1 else long.drop(columns="setting")), [read]


def by_word(frame: pd.DataFrame) -> Long:
    """Times or rates and their ratios of several programs that a first word tells apart, such as
    "Static time" and "Static speedup" beside "Dynamic time" and "Dynamic speedup", become rows of a
    setting."""
    parts: dict[str, dict[str, str]] = {}
    for column in map(str, frame):
        word, *rest = re.split("[ _]+", column, maxsplit=1)
        unknown = not quantities([word]) and not NO_WORD.fullmatch(normal(word))
        if unknown and quantities(rest) & {"time", "rate", *RATIOS}:
            parts.setdefault(word, {})[rest[0]] = column
    used = [column for part in parts.values() for column in part.values()]
    known = quantities(name for part in parts.values() for name in part)
    others = quantities(frame.columns.difference(used))
    alike = len(parts) > 1 and len({frozenset(part) for part in parts.values()}) == 1
    if not alike or not known & RATIOS or known <= RATIOS:
        return frame, []
    if not others & RANKS or others & OF_SPEED:
        return frame, []
    return _stacked(frame, parts, "setting"), [f"{listed(parts)} are read as programs"]


def by_unit(frame: pd.DataFrame) -> Long:
    """Several columns that only units in names or cells show to be times, such as "ScaLAPACK (s)",
    or rates, such as "320 img/s" below "Horovod", become rows of a setting, each with its own
    speedup and efficiency or without, as one may be of one over another. So do rates that are
    called the same but for a program, such as "Nginx QPS"."""
    timed = timed_programs(frame)
    unnamed = [name for name in map(str, frame) if not quantities([name]) & {*NUMERIC}]
    rated = [name for name in unnamed if are_rated(frame[name])]
    rated = rated or _rates_of_programs(map(str, frame))
    quantity, columns = ("time", timed) if timed else ("throughput", rated)
    parts = {UNIT.sub("", column): {quantity: column} for column in columns}
    if len(parts) < 2:
        return frame, []
    _add_ratios(parts, frame)
    rest = frame.drop(columns=[column for part in parts.values() for column in part.values()])
    counts = [rest[name] for name in map(str, rest) if quantities([name]) & RANKS]
    vary = any(cells.astype(str).nunique() > 1 for cells in counts)
    if not counts or (timed and not vary) or quantities(rest.columns) & OF_SPEED:
        return frame, []
    read = f"{listed(columns)} are read as {'times' if timed else 'rates'} of what their names say"
    return _stacked(frame, parts, "setting", times="time" if timed else ""), [read]


def _rates_of_programs(columns: Iterable[str]) -> list[str]:
    """The columns of rates, if their names end alike and differ in a first word that is unknown."""
    parts = {name: re.split("[ _]", name, maxsplit=1) for name in columns}
    rates = [name for name in parts if quantities(parts[name][1:]) == {"rate"}]
    firsts = {normal(parts[name][0]) for name in rates}
    alike = len({normal(parts[name][1]) for name in rates}) == 1
    unknown = not quantities(firsts) and not any(map(OF_NO_PROGRAM.fullmatch, firsts))
    return rates if alike and unknown and len(firsts) == len(rates) else []


def by_noted(frame: pd.DataFrame) -> Long:
    """Several columns of numbers whose names say nothing, such as "static" and "dynamic", become
    rows of a setting, if the lines around the table name one quantity and all of them behave like
    it: times fall with the ranks, rates and speedups rise. Those of frameworks are rates without
    being called so if they rise, most of them at least half as much as the ranks."""
    names = [str(name) for name in frame.columns if name != ROW]
    counts = [name for name in names if quantities([name]) & RANKS]
    # Versions do not all differ, unlike what a framework reaches on each number of ranks.
    reached = {name for name in names if _is_framework(name) and frame[name].is_unique}
    named = [name for name in names if name not in {*counts, *reached} and guess(name)]
    others = [name for name in names if name not in {*counts, *named}]
    ratios = bool(others) and all(are_ratios(frame[name].tolist()) for name in others)
    # Beside the ranks, the nodes say nothing more.
    counts = [name for name in counts if quantities([name]) != {"nodes"}] or counts
    if not (len(counts) == 1 or (ratios and counts)) or quantities(named) & OF_SPEED:
        return frame, []
    columns = {
        name: values
        for name in others
        if re.search("[a-z]{2}", normal(name)) and (values := numbers(frame[name])).count() > 0
    }
    ranks = numbers(frame[counts[0]])
    every = [growth(values, ranks) for values in columns.values()]
    grown = [one for one in every if not math.isnan(one)]  # a serial program has one number
    noted = noted_alone(frame.attrs.get("around", ""))
    quantity = "speedup" if ratios else noted
    if not quantity and median(grown or [0]) > GROWN and all(map(_is_framework, columns)):
        quantity = "rate"
    alike = all(one < 0 if quantity in TIMES else one >= 0 for one in grown)
    alike |= ratios and noted == quantity
    positive = not any((values <= 0).any() for values in columns.values())
    if not quantity or len(grown) < 2 or not alike or not positive:
        return frame, []
    parts = {name: {quantity: name} for name in columns}
    read = f"{listed(columns)} are read as the {quantity} of what their names say"
    return _stacked(frame, parts, "setting"), [read]


def _is_framework(column: str) -> bool:
    return "framework" in dict(setting_of(column).words)


def _add_ratios(timed: Mapping[str, dict[str, str]], frame: pd.DataFrame) -> None:
    """Enter the speedup and the efficiency of each program, if all have one by their name."""
    stems = {normal(name): part for name, part in timed.items()}
    for what in ("speedup", "efficiency"):
        label = re.compile(rf"{what}_(?P<of>.+)|(?P<by>.+)_{what}")
        columns = {
            match["of"] or match["by"]: name
            for name in map(str, frame)
            if (match := label.fullmatch(normal(name)))
        }
        own = {  # "Speedup A" is that of "System A (s)", and "Speedup Mem" of "Time memory-bound"
            stem: [
                name
                for of, name in columns.items()
                if f"_{stem}_".endswith(f"_{of}_") or (len(of) > 2 and f"_{of}" in f"_{stem}")
            ]
            for stem in stems
        }
        if all(len(names) == 1 for names in own.values()):
            for stem, part in stems.items():
                part[what] = own[stem][0]


def over_serial(frame: pd.DataFrame) -> Long:
    """Times of a serial and a parallel program for several problems, and the speedup of one over
    the other, become a row for each program, in which this speedup is a ratio of their times."""
    parsed = {column: _of_program(column, frame) for column in frame.columns}
    programs = {column: program for column, (program, what) in parsed.items() if what == "time"}
    serial = [column for column, name in programs.items() if re.fullmatch(SERIAL, name)]
    quoted = [column for column in frame.columns if re.fullmatch("speed_?up", normal(column))]
    known = quantities(frame.columns)
    if len(programs) != 2 or len(serial) != 1 or len(quoted) != 1 or known & RANKS:
        return frame, []
    if frame[quoted[0]].astype(str).str.contains("%").any():
        return frame, []  # an increase
    one, other = serial[0], next(column for column in programs if column not in serial)
    others = [name for name in frame if "efficiency" not in quantities([str(name)])]
    ratio = {"ratio_of_times": quoted[0], "ratio_over": "ratio_over"}
    parts = {one: {"time": one}, other: {"time": other, **ratio}}
    read = f"{quoted[0]!r} is read as the ratio of {one!r} to {other!r}"
    long = _stacked(frame[others].assign(ratio_over=one), parts, "setting", times="time")
    return long, [read]


def _of_program(column: str, frame: pd.DataFrame) -> tuple[str, str]:
    """The program that a column is for and what it holds, "" if neither name nor cells say."""
    name = parse_name(column)
    match = OF_PROGRAM.fullmatch(name.stem) or BEFORE.fullmatch(name.stem)
    if match is None or not OF_PROGRAM.fullmatch(match["program"]):
        return "", ""
    what = match["what"] or ""
    if not what and (name.family == "time" or are_timed(frame[column])):
        what = "time"
    kind = {"spe": "speedup", "eff": "efficiency"}.get(what[:3], "time" if what else "")
    return match["program"].replace("_", " "), kind


def by_batch(frame: pd.DataFrame, mapped: Collection[str] = ()) -> Long:
    """Columns for several batches become a column `batch size`."""
    matches = {
        column: match
        for column in frame.columns
        if (match := BATCH.search(normal(column))) and column not in mapped
    }
    others = [column for column in frame.columns if column not in matches]
    numbered = any(re.match(r"b_?\d(?!\d)", normal(column)) for column in others)  # B0 and B10
    sizes = {match["n"] for match in matches.values()}
    if len(sizes) < 2 or quantities(others) & BATCHES or numbered:
        return frame, []
    parts: dict[int, dict[str, str]] = {}
    for column, match in matches.items():
        part, name = parts.setdefault(int(match["n"]), {}), without(match)
        if not name or name in TIME_UNITS:
            name = f"time_{name}".strip("_")
        if name in {*others, *part}:
            return frame, []  # two columns would become one
        part[name] = column
    alike = len({frozenset(part) for part in parts.values()}) == 1
    if not alike and not all(name == ROW or guess(name) for name in others):
        return frame, []  # the batches of some programs among others
    assumption = f"the batches are read from the column names {listed(matches)}"
    return _stacked(frame, parts, "batch size"), [assumption]


def by_size(frame: pd.DataFrame) -> Long:
    """Columns for several sizes of a problem, such as time_1000 and time_2000, beside the ranks
    become a column `problem size`; what is called the same after each of them is of this size."""
    parts: dict[str, dict[str, str]] = {}
    again = {column: match["name"] for column in frame if (match := AGAIN.fullmatch(str(column)))}
    size = ""
    for column in frame.columns:
        match = OF_SIZE.fullmatch(normal(column))
        name = (match["name"] or match["of"]) if match else again.get(column, column)
        if match and quantities([name]) & MEASURED:
            size = match["size"] or match["grid"]
            parts.setdefault(size, {})[name] = column
        elif size and name in again.values() and quantities([name]) & MEASURED:
            parts[size][name] = column
    used = [column for part in parts.values() for column in part.values()]
    known = quantities(frame.columns.difference(used))
    alike = len({tuple(part) for part in parts.values()}) == 1
    if len(parts) < 2 or not alike or not known & RANKS or known & MEASURED:
        return frame, []
    read = f"the sizes are read from the names {listed(used)}"
    return _stacked(frame, parts, "problem size"), [read]


def by_crossing(frame: pd.DataFrame) -> Long:
    """Numbers of ranks beside columns that are called after sizes of a problem, such as "1000" or
    "N=1000", become rows of each size; a corner such as "N \\ P" says which of the two is which,
    and one such as "Processes" above names or sizes that of the columns."""
    first, *columns = (name for name in frame.columns if name != ROW)
    sizes = [CROSSED.fullmatch(normal(column)) for column in columns]
    if len(sizes) < 2 or not all(sizes):
        return frame, []
    corner = CORNER.fullmatch(first)
    rows, across = (corner["rows"], corner["columns"]) if corner else (first, "")
    if corner and _counts_ranks(across) and not _counts_ranks(rows):
        name = "problem size" if normal(rows) == "n" else rows
        return frame.rename(columns={first: name}), [f"the columns of {first!r} are the ranks"]
    large = all(one and (one["named"] or int(one["size"]) >= OF_PROBLEMS) for one in sizes)
    labels = not corner and frame[first].astype(str).map(_is_label).all()
    if labels and _counts_ranks(first) and not large:
        return frame.rename(columns={first: "case"}), [f"the columns are the {first!r}"]
    quantity = noted_quantity(frame.attrs.get("around", ""))
    if not quantity or not _counts_ranks(rows) or _counts_ranks(across) or not (corner or large):
        return frame, []
    counted = "ranks" if normal(rows) == "p" else rows
    parts = {column: {quantity: column} for column in columns}
    long = _stacked(frame.rename(columns={first: counted}), parts, "problem size")
    return long, [f"the sizes of problems are read from the column names {listed(columns)}"]


def _is_label(cell: str) -> bool:
    """Whether a cell is a name or a size, such as "1000 x 1000" or "N=1000", and no number."""
    size = CROSSED.fullmatch(normal(cell))
    return bool(size and not cell.strip().isdecimal()) or not re.search(r"\d", cell)


def _counts_ranks(name: str) -> bool:
    # Beside the ranks, N is the size of a problem.
    return normal(name) == "p" or (normal(name) != "n" and bool(quantities([name]) & RANKS))


def by_group(frame: pd.DataFrame) -> Long:
    """Several columns of each of the same names, "img/s" and "img/s (2)", become a column
    `setting`, named by a first row of words."""
    again = {column: match for column in frame.columns if (match := AGAIN.fullmatch(column))}
    names = {match["name"]: [match["name"]] for match in again.values()}
    for column, match in again.items():
        names[match["name"]].append(column)
    groups = list(zip(*names.values(), strict=False))
    here = set(names) <= set(frame.columns)
    even = here and len({len(columns) for columns in names.values()}) == 1
    measured = quantities(names) & {"rate", "time", "rate_per_rank"}
    if len(names) < 2 or not even or not measured:
        return frame, []
    labels = [set(frame.loc[0, list(group)]) for group in groups]
    worded = all(len(label) == 1 and re.match(r"[^\W\d]", str(*label)) for label in labels)
    parts = {
        (str(*label) if worded else str(n)): dict(zip(names, group, strict=True))
        for n, (label, group) in enumerate(zip(labels, groups, strict=True), start=1)
    }
    long = _stacked(frame[int(worded) :], parts, "setting")
    counts = [name for name in names if quantities([name]) & RANKS]
    if not worded and len(counts) == 1 and long[counts[0]].is_unique:
        return long.drop(columns="setting"), [f"{listed(names)} go on beside their first rows"]
    return long, [f"{listed(names)} occur {len(groups)} times, each time for another setting"]


def _stacked(
    frame: pd.DataFrame, parts: Mapping[Any, Mapping[str, str]], index: str, *, times: str = ""
) -> pd.DataFrame:
    """The rows once for each of the parts, which are columns by their new names: a column `index`
    holds its key, and columns of no part stay in all. Rows without any cell of their part are left
    out. In the new column called `times` cells have a unit of their own, and rows without one are
    left out."""
    used = {column for part in parts.values() for column in part.values()}
    rest, long = frame[[column for column in frame if column not in used]], []
    for key, part in parts.items():
        rows = rest.assign(**{index: key}, **{name: frame[column] for name, column in part.items()})
        if times and part[times] != times:
            cells, factor = rows[times], parse_name(part[times]).factor
            known = numbers(cells, units=TIME_UNITS, factor=factor)
            rows[times] = cells if are_timed(cells) else known.map("{:.15e} s".format)
            rows = rows[known.notna()]
        long.append(rows[rows[[*part]].map(is_known).any(axis="columns")])
    return pd.concat(long, ignore_index=True)


# In the order in which they are tried, on a table of which no column is mapped.
FORMS = (
    *(of_commands, of_shells, of_samples, of_runs, by_grid, by_pair, by_label, by_slash),
    *(by_bracket, by_program, by_word, over_serial, by_batch, by_size, by_crossing, by_group),
    *(by_unit, by_noted),
)
