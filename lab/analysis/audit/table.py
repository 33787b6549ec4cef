"""Any results table as observations: columns are guessed by name, and assumptions listed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from lab.analysis.audit import columns, reshape, wide
from lab.analysis.audit.columns import (
    COLUMNS,
    LAYOUT,
    MEASURED,
    PHASES,
    TEXTS,
    Guess,
    guess,
    normal,
    parse_name,
)
from lab.analysis.audit.observations import ROW, Observations, setting
from lab.analysis.audit.plausible import by_numbers
from lab.analysis.audit.quantities import (
    WHOLE_NUMBERS,
    Quantities,
    as_text,
    as_texts,
    with_quoted_times,
)
from lab.analysis.audit.settings import by_setting
from lab.analysis.audit.values import CHANGE, COUNT_UNITS, numbers, ranks_of
from lab.errors import InputError, Problem, nearest
from lab.formatting import message_size, model_size
from lab.records.table import python_strings

KEYS = (
    *("model", "sequence_length", "dataset", "framework", "precision", "compile", "seed"),
    *("link", "device", "emulated", "strategy", "scaling", "recompute", "sharding", "interleave"),
    *("sequence_parallel", *LAYOUT),
)
# Columns that never appear next to the time of a collective.
TRAINING = {
    *("step", "epoch", "parameters", "loss", "accuracy", "model"),
    *("global_batch_size", "micro_batch_size", "batch"),
    *PHASES,
} - {"other"}
RATIOS = {"speedup", "efficiency"}
NUMBERED = {"strategy", "rank", "repeat", "seed", "epoch", "step"}
AFTER_WORD = "parallel|open_?mp|omp|mpi|threads|workers|multi-?process(?:ing)?"
SETTINGS = {*WHOLE_NUMBERS, *TEXTS, "bytes"}  # a size that is not read is a problem's
READ_SETTINGS = {"cpus", "threads", "steps"}  # of each rank, and of a loop that is the whole work
MOST_KEY_VALUES = 200
MOST_ROWS = 2_000_000
SIZES = re.compile(r"\d+(?:\s*[x×*]\s*\d+)+")  # of images, or nodes and ranks
SYMBOL = re.compile(r"\$?([TSE])(?:_?\{?[np]\}?|\([npNP]\)|_\{?[NP]\}?)?\$?(?: *[\[(]s[\])])?")
NOTED_SCALING = re.compile("(?:strong|weak)(?=[ _-]?scal)|^(?:strong|weak)$", re.IGNORECASE)
OF_SCALING = "(?:speed-?ups?|scaling|scalability|throughput|performance)"
PROJECTION = re.compile(
    rf"\b(?:projected|predicted|theoretical|extrapolated|estimated)\b.{{0,20}}\b{OF_SCALING}"
    rf"|\b{OF_SCALING}\s+(?:projections?|predictions?)\b",
    re.IGNORECASE,
)
LONGEST_HEADING = 80  # characters
# Rows of these are single measurements; others may stand for several.
LOGGED = {"rank", "epoch", "step"}
COUNTED = {"world_size", "threads", "cpus"}
DEGREE = r"(?<![a-z])%s[ =:_-]?(\d{1,5})(?![\d.])"
ON_CORES = re.compile(r"(?:^|_)(?:mpi\w*|ranks?|n?tasks?|n?proc\w*|np|p|n|world_?size)(?=_|$)")
OF_A_RANK = re.compile(r"(?!.*_per_)|.*_per_(?:rank|task|proc|mpi)")  # not of a block, say
FEWEST_CHANGES = 2  # cells of a row
FEW = 2  # numbers of cores that tell nothing
NEARLY = 0.02  # relative: of a ratio of two rounded rates, or a batch that ranks share
MOSTLY = 0.5  # of the rows
NO_REPEATS = 1.5  # ratio of two times on as many ranks
ANOTHER = 1.1  # ratio of the parameters of two models
Degrees = np.ndarray[Any, np.dtype[np.float64]]
# What runs may be compared by, if all of them were measured at several world sizes.
COMPARED = ("gpu", "cpu", "version", "driver")


@python_strings()
def from_table(
    frame: pd.DataFrame, *, columns: Mapping[str, str] | None = None, source: str = "table"
) -> Observations:
    """A table as observations; `columns` is {canonical name: column}, the rest is guessed.

    Raises InputError for a table without rows or with a column twice, and for a mapping that names
    what is not there or a column without numbers where numbers are needed.
    """
    notes = [str(note) for note in frame.attrs.get("notes", ())]
    name = str(frame.attrs.get("name", source))
    chosen = list(map(str, frame.attrs.get("assumptions", ())))
    _check(frame, columns or {}, source)
    frame = frame.reset_index(drop=True)
    frame.columns = pd.Index([str(column) for column in frame.columns])
    mapped = {column: _mapped(canonical, column) for canonical, column in (columns or {}).items()}
    frame, meanings, assumptions, origins, is_wide = _long_form(frame, mapped, name, notes)
    assumptions = [*chosen, *assumptions]
    quantities = Quantities(frame, meanings, mapped, notes, source)
    tidy, given = quantities.tidy, quantities.given
    assumptions += quantities.assumptions
    tidy[ROW] = frame[ROW].loc[tidy.index]
    _degrees(tidy, given)
    assumptions += _labelled(tidy, frame, given)
    assumptions += [*_of_a_node(tidy, given), *_hybrid(tidy, given)]
    if "world_size" not in given:
        tidy["world_size"], assumption = _world_size(tidy, reshape.hinted_ranks(name, notes))
        assumptions += [assumption] if assumption else []
    tidy["step_spread"] = _spread(frame, given.get("time"))
    tidy["rate"] = tidy["rate"].fillna(tidy["rate_per_rank"] * tidy["world_size"])
    tidy["rate_rounding"] = tidy["rate_rounding"].fillna(tidy["rate_per_rank_rounding"])
    assumptions += _global_batch(tidy, given)
    per = meanings[given["time"]].per if "time" in given else None
    collective = {"bytes", "time"} <= set(given) and not TRAINING & set(given)
    logged = bool(LOGGED & set(given))
    _add_keys(tidy, frame, given.values(), collective=collective, logged=logged)
    _complete_batches(tidy, given)
    tidy["label"] = _labels(tidy, given)
    return Observations(
        frame=tidy.copy(),  # in one piece for each type: rows are taken from it again and again
        kind="collectives" if collective else "table",
        per=per or "total",  # type: ignore[arg-type]
        scaling=_noted_scaling(name, notes),
        given=given,
        own_baseline=quantities.own_baseline,
        derived=frozenset({"global_batch_size", "micro_batch_size"} - set(given)),
        assumptions=assumptions,
        notes=notes,
        summarised=is_wide or not logged,
        logged=bool(frame.attrs.get("logged")),
        projected=_is_projected([*notes, *("speedup" not in given) * list(map(str, frame))]),
        reading=_reading(given, origins),
        number=int(frame.attrs.get("number", 1)),
        place=str(frame.attrs.get("place", "")),
    )


def _long_form(
    frame: pd.DataFrame, mapped: Mapping[str, Guess], name: str, notes: Sequence[str]
) -> tuple[pd.DataFrame, dict[str, Guess], list[str], dict[str, list[str]], bool]:
    """Make rows of settings, ranks and batches that a table has as columns or in its cells.

    Returns the table with a row for each measurement, what its columns mean by their names, what
    that assumes, the columns that each new one was made of, and whether ranks were columns.
    """
    frame, filled = _filled_down(frame, mapped)
    frame, assumptions = reshape.turned(frame, mapped)
    frame[ROW] = np.arange(1, len(frame) + 1)
    frame, compared = _without_changes(frame)
    frame, of_settings, origins = by_setting(frame, mapped)
    frame, of_ranks = wide.by_rank(frame, mapped)
    assumptions += compared + filled + of_settings + of_ranks
    for by in (
        *(wide.of_commands, wide.by_grid, wide.by_pair),
        *(wide.by_program, wide.over_serial, wide.by_batch, wide.by_size, wide.by_group),
        wide.by_timed,
    ):
        frame, more = by(frame, mapped)
        assumptions += more
    meanings = _meanings(frame, mapped)
    unnamed = {} if mapped else by_numbers(frame.drop(columns=ROW), meanings)
    meanings |= unnamed
    rated = {} if mapped else _rates_by_cells(frame, meanings)
    meanings, unnamed = meanings | rated, unnamed | rated
    assumptions += [f"{name!r} is read as the {what.canonical}" for name, what in unnamed.items()]
    # N is the size of a problem, unless no column's name gives a number of ranks.
    names = {meaning.canonical for name, meaning in meanings.items() if normal(name) != "n"}
    of_sizes: list[str] = []
    if "world_size" not in names and not {"per_node", "nodes"} <= names:
        hint, quantity = reshape.hinted_ranks(name, notes), reshape.noted_quantity(name, notes)
        frame, of_sizes = reshape.by_world_size(frame, hint, mapped, quantity)
        unnamed = {name: what for name, what in unnamed.items() if name in frame}
        meanings = _meanings(frame, mapped) | unnamed
        counted = {meaning.canonical for meaning in meanings.values()} & {"nodes", "world_size"}
        if not of_ranks and not of_sizes and not counted | {"dp", "gpu", "device"} & names:
            meanings |= _ranks_by_cells(frame, meanings)
            if workers := _workers(frame, meanings):
                meanings |= {workers: Guess("world_size", 1.0)}
                of_sizes = [f"{workers!r} counts the ranks, as no other column does"]
    assumptions += of_sizes
    quoted = with_quoted_times(frame, meanings, mapped)
    assumptions += [
        f"{name!r} is read as the time, as the quoted speedups are its ratios"
        for name in set(quoted) - set(meanings)
    ]
    return frame, quoted, assumptions, origins, bool(of_ranks or of_sizes)


def _complete_batches(tidy: pd.DataFrame, given: Mapping[str, str]) -> None:
    """Derive the degree of data parallelism, and batches from each other and the accumulation."""
    shards = numbers(tidy["sharding"])
    if re.search("fsdp|degree|size", normal(given.get("sharding", ""))):
        sharded = tidy["dp"] * _of_a_replica(tidy) * shards == tidy["world_size"]
        tidy["dp"] = tidy["dp"].where(~sharded, tidy["dp"] * shards)
    replicas = tidy["dp"].fillna(tidy["world_size"] / _of_a_replica(tidy))
    ranks = replicas * tidy["grad_accum"].fillna(1.0)
    accumulated = (tidy["rank_batch_size"] * replicas).fillna(
        _undivided(tidy["micro_batch_size"], ranks)
    )
    for batch, derived in (
        ("global_batch_size", accumulated),
        ("micro_batch_size", tidy["global_batch_size"] / ranks),
    ):
        tidy[batch] = tidy[batch].fillna(derived)
    accumulated = tidy["global_batch_size"] / (tidy["micro_batch_size"] * replicas)
    tidy["grad_accum"] = tidy["grad_accum"].fillna(accumulated)


def _of_a_replica(tidy: pd.DataFrame) -> Degrees:
    """The ranks that share each replica of a model, as far as the degrees are known."""
    return np.asarray(np.nanprod(tidy[list(LAYOUT)].to_numpy(dtype=float), axis=1))


def _undivided(each: pd.Series, ranks: pd.Series) -> pd.Series:
    """The batches of which these are the ranks' shares; of 256, each of 3 ranks has 85."""
    batches = each * ranks
    known = batches.dropna().unique()
    for whole in known if len(known) <= MOST_KEY_VALUES else ():
        rounded_down = (whole // ranks == each) & (batches > (1 - NEARLY) * whole)
        batches = batches.mask(rounded_down & (batches < whole), whole)
    return batches


def _without_changes(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without rows such as "change | +49.3% | -0.6%", which compare those above them."""
    if len(frame) > MOST_KEY_VALUES:
        return frame, []
    cells = frame.drop(columns=ROW).iloc[:, 1:].map(lambda cell: as_text(cell) or "")
    changes = cells.map(lambda text: bool(CHANGE.fullmatch(text))).sum(axis=1)
    compares = (changes >= FEWEST_CHANGES) & (changes == (cells != "").sum(axis=1))
    if not compares.any() or compares.all():
        return frame, []
    labels = reshape.listed(frame.iloc[:, 0][compares])
    return frame[~compares].reset_index(drop=True), [
        f"{labels} compares other rows and is left out"
    ]


def _filled_down(frame: pd.DataFrame, mapped: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """The first column with the name above in each blank cell, as where cells were merged."""
    first = frame.columns[0]
    meaning = guess(first)
    if first in mapped or (meaning is not None and meaning.canonical not in KEYS):
        return frame, []
    texts = frame[first].astype(str).where(frame[first].notna(), "").str.strip()
    blank = texts == ""
    words = texts[~blank].str.match(r"[^\W\d_]")
    some = blank.any() and not blank.iloc[0]
    if not some or not words.all():
        return frame, []
    filled = frame[first].mask(blank).ffill()
    return frame.assign(**{first: filled}), [f"a blank cell of {first!r} means the one above it"]


def _rates_by_cells(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """A column such as "Speed" whose cells are rates by their units, where no other is one."""
    if any(meaning.canonical in {"rate", "rate_per_rank"} for meaning in meanings.values()):
        return {}
    unnamed = [str(name) for name in frame if name not in meanings and name != ROW]
    rated = [name for name in unnamed if reshape.are_rated(frame[name])]
    return {rated[0]: Guess("rate", 1.0)} if len(rated) == 1 else {}


def _ranks_by_cells(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """A column without a name for ranks whose cells all differ in them, such as 1n8g and 2n8g."""
    for column in frame.columns:
        texts = as_texts(frame[column]).dropna().unique()[:MOST_KEY_VALUES]
        meaning = meanings.get(column)
        if (meaning is None or meaning.canonical == "strategy") and len(texts):
            pairs = {_ranks_in(str(text)) for text in texts if not SIZES.fullmatch(str(text))}
            named = all(
                ranks > 0 and (not name or columns.names_gpu(name)) for ranks, name in pairs
            )
            if len(pairs) == len(texts) > 1 and named:
                return {column: Guess("world_size", 1.0)}
    return {}


def _ranks_in(text: str) -> tuple[float, str]:
    """The ranks in a cell, also of a serial program, and what they are."""
    words = normal(text)
    if words in columns.SERIAL.split("|"):
        return 1.0, ""
    pair = ranks_of(text)
    return pair if pair[0] > 0 else ranks_of(words.replace("_", " "))


def _spread(frame: pd.DataFrame, time: str | None) -> pd.Series | float:
    """Half of what lies between the percentiles 10 and 90 of a time, relative to it, if known."""
    low, high = f"{time}_p10", f"{time}_p90"
    if time is None or not {low, high} <= set(frame.columns):
        return np.nan
    return (numbers(frame[high]) - numbers(frame[low])) / 2 / numbers(frame[time])


def _workers(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> str:
    """The column of threads or cores that counts ranks where no other column does, or ""."""
    kinds = {column: meaning.canonical for column, meaning in meanings.items()}
    if "world_size" in kinds.values() or not MEASURED & set(kinds.values()):
        return ""
    for column, kind in kinds.items():
        values = numbers(frame[column]).dropna()
        whole = bool(((values >= 1) & (values % 1 == 0)).all())
        counted = kind == "threads" or (kind == "cpus" and _are_steps_of_scaling(values))
        counted = counted or (kind == "strategy" and parse_name(column).stem == "parallelism")
        counted = counted or (kind == "loader_workers" and bool(RATIOS & set(kinds.values())))
        if counted and "per" not in normal(column).split("_") and whole and values.nunique() > 1:
            return column
    return ""


def _global_batch(tidy: pd.DataFrame, given: dict[str, str]) -> Iterator[str]:
    """Take a batch as the global one if it grows with the ranks in every row, or if it holds whole
    micro-batches of all replicas, and say so."""
    if "batch" not in given or "global_batch_size" in given:
        return
    batch, ranks = tidy["batch"], tidy["world_size"]
    if "micro_batch_size" in given:
        replicas = tidy["dp"].fillna(ranks / _of_a_replica(tidy))
        # A batch per rank that is divided into micro-batches would not be.
        is_global = bool((batch % (tidy["micro_batch_size"] * replicas) == 0).all())
        why = "holds whole micro-batches of all replicas"
    else:
        each = (batch / ranks).dropna()
        is_global = len(each) == len(tidy) and each.nunique() == 1 and ranks.nunique() > 1
        why = "grows with the ranks"
    if is_global:
        tidy["global_batch_size"], tidy["batch"] = batch, np.nan
        given["global_batch_size"] = name = given.pop("batch")
        yield f"{name!r} {why} and is read as the global batch"


def _reading(given: Mapping[str, str], origins: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """How each column of the table was interpreted."""
    reading: dict[str, str] = {}
    for canonical, name in given.items():
        for column in origins.get(name, [name]):
            reading[column] = " and ".join(filter(None, (reading.get(column), canonical)))
    return reading


def _is_projected(texts: Iterable[str]) -> bool:
    """Whether a heading, a caption or a column's name says that speedups were computed."""
    return any(len(text) <= LONGEST_HEADING and PROJECTION.search(text) for text in texts)


def _noted_scaling(name: str, notes: Sequence[str]) -> Literal["weak"] | None:
    """Weak, if the name or the notes say so and do not call anything else strong."""
    kinds = {kind.lower() for text in (name, *notes) for kind in NOTED_SCALING.findall(text)}
    return "weak" if kinds == {"weak"} else None


def _check(frame: pd.DataFrame, columns: Mapping[str, str], source: str) -> None:
    names = [str(column) for column in frame.columns]
    problems = [
        Problem(f"column {name!r}", "appears more than once", "rename one")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if not len(frame) or not names:
        problems.append(Problem("table", "has no rows", "a table needs measurements"))
    if len(frame) > MOST_ROWS:
        advice = "give one row per epoch or configuration"
        problems.append(Problem("table", f"more than {MOST_ROWS} rows", advice))
    for canonical, column in columns.items():
        where = f"columns.{canonical}"
        if canonical not in COLUMNS:
            problems.append(Problem(where, "unknown quantity", nearest(str(canonical), COLUMNS)))
        if column not in names:
            problems.append(Problem(where, f"no column {column!r}", nearest(str(column), names)))
    if problems:
        raise InputError(source, problems)


def _mapped(canonical: str, column: str) -> Guess:
    stem, family, factor, _ = parse_name(column)
    per = next((per for per, word in columns.PER.items() if re.search(word, stem)), "total")
    return Guess(canonical, factor if family else None, per if canonical == "time" else None)


def _meanings(frame: pd.DataFrame, mapped: Mapping[str, Guess]) -> dict[str, Guess]:
    taken = {meaning.canonical for meaning in mapped.values()}
    meanings = dict(mapped)
    for column in frame.columns:
        meaning = None if column in mapped else guess(column)
        if meaning is not None and meaning.canonical not in taken:
            meanings[column] = meaning
    # N is the size of a problem where another column counts processes, threads or cores.
    counted = [name for name, meaning in meanings.items() if meaning.canonical in COUNTED]
    sizes = [name for name in counted if normal(name) == "n" and name not in mapped]
    for name in sizes if len(counted) > len(sizes) else ():
        del meanings[name]
    return meanings | _symbols(frame.columns, meanings)


def _symbols(names: Iterable[str], meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """Columns named T(p), S(p) and E(p) beside the number of ranks, as in textbooks."""
    known = {meaning.canonical for meaning in meanings.values()}
    letters = {name: match[1] for name in names if (match := SYMBOL.fullmatch(name.strip()))}
    if "world_size" not in known or not (known & MEASURED or len(set(letters.values())) > 1):
        return {}
    # Tp and Ep are degrees of parallelism, unless they stand beside Sp.
    read = [name for name in letters if name not in meanings or "S" in letters.values()]
    return {name: Guess(columns.SYMBOLS[letters[name]], 1.0, "total") for name in read}


def _world_size(tidy: pd.DataFrame, hint: tuple[int, str] | None) -> tuple[pd.Series | float, str]:
    """World sizes by nodes, strategies or ranks, and what that assumes; NaN and "" if unknown."""
    if tidy["per_node"].notna().any():
        ranks = tidy["nodes"].fillna(1.0) * tidy["per_node"]
        return ranks, "the ranks are the nodes times the ranks per node"
    if tidy["dp"].notna().any():
        ranks = tidy[["dp", *LAYOUT]].prod(axis=1, min_count=1)
        return ranks, "the ranks are the product of the degrees of parallelism"
    total = tidy["rate"] / tidy["rate_per_rank"]
    if _are_counts(total.dropna()):
        return total.round(), "the ranks are the total rate over that of a rank"
    if tidy["nodes"].nunique() > 1:
        return tidy["nodes"], "the table does not give the ranks per node, so a node counts as one"
    if tidy["ratio_over"].notna().any():
        return np.nan, ""  # of programs that are compared in each row
    names = tidy["strategy"].fillna("").str.lower()
    parallel = names.map(columns.is_parallel).astype(bool)
    number = r"(\d{1,6})\s*x?\s*[-_ ]?(?:gpus?|ranks?|procs?|process|x)|x(\d{1,6})"
    number += rf"|^(?:{AFTER_WORD})[-_ (=]*(\d{{1,4}})\)?$"
    counts = names.str.extract(number).bfill(axis=1)[0].astype(float)
    counts = counts.where(counts > 0)
    parallel |= counts > 1
    kinds = {columns.residue(name) for name in names[parallel].unique()}
    serial = names.map(lambda name: columns.is_serial(name) or columns.residue(name) in kinds)
    if parallel.any() and not parallel.all() and (parallel | serial).all():
        unnamed = parallel & counts.isna()
        counts = counts.where(~unnamed, hint[0] if hint else np.nan)
        many = ", ".join(repr(name) for name in names[parallel].unique())
        number = f"{hint[0]} ranks by {hint[1]}" if hint else "an unknown number of ranks"
        if not unnamed.any():
            number = "as many ranks as their names say"
        return counts.where(parallel, 1.0), f"{many} ran on {number}, the others on 1"
    count = tidy["rank"].nunique()
    if count > 1:
        return float(count), f"the {count} ranks that have rows are taken for all"
    return np.nan, ""


def _of_a_node(tidy: pd.DataFrame, given: dict[str, str]) -> Iterator[str]:
    """Take ranks as those of each node if some rows have fewer of them than nodes, and say so,
    unless they are the quoted speedups over the efficiencies."""
    ranks = tidy["speedup"] / tidy["efficiency"] / tidy["world_size"]
    quoted = float(((ranks - 1).abs() < NEARLY).mean()) > MOSTLY
    if "per_node" not in given and (tidy["world_size"] < tidy["nodes"]).any() and not quoted:
        tidy["per_node"], tidy["world_size"] = tidy["world_size"], np.nan
        given["per_node"] = name = given.pop("world_size")
        yield f"{name!r} counts the ranks of each node, as there are fewer than nodes"


def _degrees(tidy: pd.DataFrame, given: dict[str, str]) -> None:
    """Enter degrees of parallelism: those that strategies name, such as dp2+tp2+pp4, if no column
    gives any, and the data parallelism of hybrid sharding, replicas times shards."""
    if "strategy" in given and not set(given) & {"dp", *LAYOUT}:
        words = tidy["strategy"].fillna("").astype(str).str.lower()
        named = {name: words.str.extract(DEGREE % name, expand=False) for name in ("dp", *LAYOUT)}
        known = {name: cells for name, cells in named.items() if cells.notna().any()}
        for name, cells in known.items() if len(known) > 1 else ():  # one may be of anything
            tidy[name], given[name] = cells.astype(float), given["strategy"]
    if "dp" not in given and {"dp_replicate", "dp_shard"} <= set(given):
        tidy["dp"], given["dp"] = tidy["dp_replicate"] * tidy["dp_shard"], given["dp_shard"]


def _labelled(tidy: pd.DataFrame, frame: pd.DataFrame, given: dict[str, str]) -> Iterator[str]:
    """Take the first column for the strategy if it has other words in each row and some rows have
    as many ranks: those are no repeats."""
    first = str(frame.columns[0])
    sizes, labels = tidy["world_size"], as_texts(frame[first]).loc[tidy.index]
    # A speedup may be over any of the rows.
    if guess(first) or (NUMBERED | RATIOS) & set(given) or not {"time", "rate"} & set(given):
        return
    if labels.isna().any() or sizes.nunique() < 2 or not sizes.duplicated().any():
        return
    words = labels.astype(str).str.match(r"[^\W\d_]|\d+ [^\W\d_]").all()
    kinds = labels.astype(str).str.replace(r"\d+", "", regex=True)
    if words and labels.is_unique and kinds.nunique() > 1:
        tidy["strategy"], given["strategy"] = labels, first
        yield f"each row of {first!r} is a configuration of its own"


def _are_steps_of_scaling(cores: pd.Series) -> bool:
    """Whether numbers of cores are those of a program, not of different machines."""
    least = cores.min()
    return bool(least == 1 or ((cores % least == 0).all() and cores.nunique() > FEW))


def _hybrid(tidy: pd.DataFrame, given: Mapping[str, str]) -> Iterator[str]:
    """Take cores for ranks if ranks on cores have various numbers of threads, and say so.

    The threads of a rank are then its strategy, where the table gives no other.
    """
    ranks = given.get("world_size", given.get("per_node", ""))
    threads = numbers(tidy["threads"])
    on_cores = ON_CORES.search(normal(ranks)) and "gpu" not in normal(ranks)
    of_a_rank = OF_A_RANK.match(normal(given.get("threads", "")))
    known = threads.dropna()  # a program on a GPU has none
    whole = bool(((known >= 1) & (known % 1 == 0)).all())
    if not on_cores or not of_a_rank or not whole or threads.nunique() < 2:
        return
    cores = tidy["world_size"].fillna(tidy["nodes"].fillna(1.0) * tidy["per_node"]) * threads
    own = "world_size" not in given or cores[tidy["speedup"] == 1].nunique() > 1  # baselines
    if own or (threads.groupby(cores).nunique() > 1).any():
        names = (threads.map("{:g}".format) + " threads").where(threads > 1, "1 thread")
        tidy["strategy"] = tidy["strategy"].fillna(names)
    tidy["threads"] = np.nan
    if own:
        yield f"each number of {given['threads']!r} has a baseline of its own"
    else:
        tidy["world_size"] = cores
        product = f"{ranks!r} times {given['threads']!r}"
        yield f"{product} counts the cores, which are taken for the ranks"


def _are_counts(values: pd.Series) -> bool:
    """Whether numbers are whole but for their rounding."""
    whole = values.round()
    exact = (values / whole - 1).abs() < NEARLY
    return len(values) > 0 and bool(((whole >= 2) & exact).all())


def _add_keys(
    tidy: pd.DataFrame,
    frame: pd.DataFrame,
    used: Collection[str],
    *,
    collective: bool,
    logged: bool,
) -> None:
    """Columns that distinguish configurations: KEYS, and others with several world sizes each."""
    compared = [name for name in COMPARED if _is_compared(tidy[name], tidy["world_size"])]
    if not logged and _is_key(tidy["host"], tidy["world_size"], least=1.0):
        compared.append("host")  # machines with a curve each
    known = tidy[[*KEYS, *compared]].notna().any()
    keys = {f"key:{name}": tidy[name] for name in known.index[known]}
    if _sizes_differ(tidy):
        sizes = tidy["parameters"].map(model_size, na_action="ignore")
        keys["key:parameters"] = sizes + " parameters"
    if collective:
        keys["key:bytes"] = tidy["bytes"].map(message_size, na_action="ignore")
    for column in frame.columns:
        name, meaning = normal(column), guess(column)
        computed = re.search(columns.IDEAL, name) or columns.VERDICT.fullmatch(name)
        if column in used or column == ROW or computed:
            continue
        # A column whose numbers cannot be parsed may still distinguish rows, as may settings.
        measured = meaning is not None and meaning.canonical not in SETTINGS
        measured = measured or bool(columns.OUTCOME.search(name))
        cells = frame[column].map(as_text).loc[tidy.index]
        if _distinguishes(cells, tidy, measured=measured, logged=logged):
            keys[f"key:{column}"] = cells
    if not logged and tidy[["speedup", "efficiency"]].isna().all(axis=None):
        keys |= _sizes_of_problems(tidy, frame, used)
    for name, cells in keys.items():
        tidy[name] = _as_key(cells)
    if not logged and tidy[["speedup", "efficiency", "repeat", "seed"]].isna().all(axis=None):
        for name, cells in _no_repeats(tidy, frame, used).items():
            tidy[name] = _as_key(cells)


def _as_key(cells: pd.Series) -> pd.Series:
    texts = cells.map("{:g}".format) if is_numeric_dtype(cells) else cells.astype(str)
    return texts.where(cells.notna(), "")


def _no_repeats(
    tidy: pd.DataFrame, frame: pd.DataFrame, used: Collection[str]
) -> dict[str, pd.Series]:
    """The columns of words or whole numbers, if any, that tell apart all rows on as many ranks
    whose times are too far apart for repeats: as few, with as few values, as will do."""
    keys = [name for name in tidy.columns if name.startswith("key:")]
    times = tidy["time"].fillna(1 / tidy["rate"])

    def far_apart(*more: pd.Series) -> pd.Series:
        groups = [*(tidy[name] for name in (*keys, "world_size")), *more]
        alike = times.groupby(groups, dropna=False)
        return alike.transform("max") > NO_REPEATS * alike.transform("min")

    apart = int(far_apart().sum()) if tidy["world_size"].nunique() > 1 else 0
    able = _able_to_tell_apart(tidy, frame, used) if apart else {}
    chosen: dict[str, pd.Series] = {}
    while apart:
        left = {name: far_apart(*chosen.values(), cells).sum() for name, cells in able.items()}
        best = min(left, key=lambda name: (left[name], able[name].nunique()), default=None)
        if best is None or left[best] >= apart:
            return {}
        apart, chosen[f"key:{best}"] = int(left[best]), able.pop(best)
    return chosen


def _able_to_tell_apart(
    tidy: pd.DataFrame, frame: pd.DataFrame, used: Collection[str]
) -> dict[str, pd.Series]:
    """The columns that may be settings, those of READ_SETTINGS even if they are read."""
    able = {}
    for column in frame.columns:
        name, meaning = normal(column), guess(column)
        read = meaning is not None and meaning.canonical in READ_SETTINGS
        computed = re.search(columns.IDEAL, name) or columns.OUTCOME.search(name)
        setting = meaning is None or meaning.canonical in SETTINGS or read
        if column == ROW or computed or not setting or (column in used and not read):
            continue
        cells = frame[column].map(as_text).loc[tidy.index]
        if cells.nunique() > 1 and not (numbers(cells) % 1 > 0).any():
            able[column] = cells.fillna("")
    return able


def _sizes_differ(tidy: pd.DataFrame) -> bool:
    """Whether models of one name have several sizes, which do not grow with the ranks."""
    if tidy["parameters"].nunique() < 2:
        return False
    of_models = tidy["parameters"].groupby(tidy["model"].fillna(""))
    each = tidy["parameters"] / tidy["world_size"]
    grows = each.max() <= ANOTHER * each.min()  # as in weak scaling
    return bool((of_models.max() > ANOTHER * of_models.min()).any() and not grows)


def _distinguishes(cells: pd.Series, tidy: pd.DataFrame, *, measured: bool, logged: bool) -> bool:
    """Whether the cells of a column tell configurations apart; if it is `measured`, only words."""
    known, sizes = cells.dropna(), tidy["world_size"]
    words = bool(pd.to_numeric(known, errors="coerce").isna().all())
    named = words and bool(known.str.match(r"[^\W\d_]").all())
    if measured and not named:
        return False
    if named and known.nunique() > 1:
        # On one number of ranks words tell configurations apart, unless they vary in a log.
        recurring = sizes.nunique() == 1 or (sizes.isna().all() and cells.duplicated().any())
        adapted = known.str.contains(columns.ADAPTED).nunique() > 1
        if adapted or (_names_series(cells, tidy) if logged else recurring):
            return True
    # Of words for settings, half may have been measured at one number of ranks.
    return _is_key(cells, sizes, least=0.5 if words else 0.51)


def _sizes_of_problems(
    tidy: pd.DataFrame, frame: pd.DataFrame, used: Collection[str]
) -> dict[str, pd.Series]:
    """Columns with several sizes of problems on one number of ranks, or a size of its own on each,
    as keys: such runs say nothing of each other. If a size grows with the ranks, this is weak
    scaling instead."""
    ranks, sizes = tidy["world_size"], {}
    for column in frame.columns:
        name, per_rank = columns.OF_EACH_RANK.subn("", normal(column))
        if column in used or not columns.PROBLEM.fullmatch(name):
            continue
        cells = frame[column].map(as_text).loc[tidy.index]
        if per_rank:
            whole = numbers(cells, units=COUNT_UNITS) * ranks
            if whole.isna().any() or whole.max() <= (1 + NEARLY) * whole.min():
                continue  # of one problem
            cells = whole.round().map("{:.0f}".format)
        key = f"key:{name if per_rank else column}"
        own = cells.groupby(ranks).nunique()
        if (own > 1).any() and cells.notna().all():
            sizes[key] = cells
            continue
        if not len(own) == cells.nunique() > 1 or cells.isna().any() or (own != 1).any():
            continue
        each = numbers(cells, units=COUNT_UNITS) / ranks
        if each.notna().all() and each.max() <= (1 + NEARLY) * each.min():
            tidy["scaling"] = tidy["scaling"].fillna("weak")
            return {}
        sizes[key] = cells
    return sizes


def _names_series(cells: pd.Series, tidy: pd.DataFrame) -> bool:
    """Whether each value of a column names one piece of a log in which the steps only increase."""
    values = cells.fillna("")
    index = tidy["step"].fillna(tidy["epoch"]).loc[values.index]
    starts = values != values.shift()
    onward = (index.diff() > 0) | starts
    pieces = starts.sum() == values.nunique() < len(values)
    return bool(pieces and index.notna().all() and onward.all())


def _is_key(cells: pd.Series, sizes: pd.Series, *, least: float = 0.51) -> bool:
    """Whether at least this share of a column's values occur at several world sizes each."""
    values = cells.dropna()
    if not 1 < values.nunique() <= min(MOST_KEY_VALUES, max(len(values) - 1, 1)):
        return False
    as_numbers = numbers(values)  # also of 39.8%
    if as_numbers.notna().all() and (as_numbers % 1 != 0).any():
        return False  # fractions are measurements
    several = sizes.loc[values.index].groupby(values).nunique() > 1
    return bool(several.mean() >= least)


def _is_compared(cells: pd.Series, sizes: pd.Series) -> bool:
    """Whether values differ on purpose: several at one number of ranks, or each at several."""
    if cells.nunique() < 2:
        return False
    at_one = cells.groupby(sizes).nunique() > 1
    return bool(at_one.any()) or _is_key(cells, sizes)


def _labels(tidy: pd.DataFrame, given: Mapping[str, str]) -> list[str]:
    """A name for each row: its number in the table from 1, and what distinguishes it."""
    keys = [name for name in tidy.columns if name.startswith("key:") and tidy[name].nunique() > 1]
    batches = tidy["batch"].fillna(tidy["global_batch_size"])
    names = ("world_size", "rank", "aggregate", *keys)
    rows = zip(*(tidy[name].tolist() for name in names), strict=True)
    labels = []
    for number, row, batch in zip(tidy[ROW], rows, batches, strict=True):
        size, rank, aggregate, *settings = row
        pairs = zip(settings, keys, strict=True)
        parts = [setting(value, key, given) for value, key in pairs if value]
        parts += [f"batch {batch:g}"] if batch == batch else []
        parts += [f"world size {size:g}"] if size == size else []
        if aggregate:
            parts.append("mean over ranks")
        elif rank == rank:
            parts.append(f"rank {rank:g}")
        labels.append(f"row {number}" + (f" ({', '.join(parts)})" if parts else ""))
    return labels
