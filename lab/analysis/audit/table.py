"""Anybody's table as observations: columns are guessed by name, and assumptions listed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from lab.analysis.audit import columns, reshape
from lab.analysis.audit.columns import (
    COLUMNS,
    NUMERIC,
    PHASES,
    TEXTS,
    TIMES,
    Guess,
    guess,
    parse_name,
)
from lab.analysis.audit.observations import Observations
from lab.analysis.audit.values import (
    BYTE_UNITS,
    COUNT_UNITS,
    TIME_UNITS,
    duration,
    numbers,
    spread,
)
from lab.errors import InputError, Problem, nearest

# What a rank may be called in rows that are statistics over ranks; only means are of use.
AGGREGATES = {"mean", "avg", "average", "all", "mean over ranks", "overall"}
OTHER_STATISTICS = {"std", "stdev", "sd", "min", "median", "sum", "total"}
KEYS = (
    *("model", "sequence_length", "dataset", "precision", "compile", "seed"),
    *("link", "device", "emulated", "strategy", "scaling"),
)
# What nobody writes beside the time of a collective.
TRAINING = {
    *("step", "epoch", "parameters", "loss", "accuracy"),
    *("global_batch_size", "micro_batch_size", "batch"),
    *PHASES,
} - {"other"}
POSITIVE = (
    *("world_size", "nodes", "time", "rate", "global_batch_size", "micro_batch_size"),
    *("batch", "speedup", "parameters", "bytes"),
)
PERCENT_FROM = {"efficiency": 4, "accuracy": 1.5}  # larger values are per cent without saying so
MOST_KEY_VALUES = 200
MOST_ROWS = 2_000_000
SCALING = re.compile(r"(strong|weak)(?:[ _-]?scal.*|)", re.IGNORECASE)
NOTED_SCALING = re.compile("(strong|weak)[ _-]?scal", re.IGNORECASE)
# Rows of these are single measurements; others may stand for several.
LOGGED = {"rank", "epoch", "step"}
# What runs may be compared by, where they were all measured at several world sizes.
COMPARED = ("gpu", "cpu", "version", "driver")
NOTED_UNITS = {
    "microseconds": (re.compile(r"microseconds|\bus\b|µs", re.IGNORECASE), 1e-6),
    "milliseconds": (re.compile(r"milliseconds|\bms\b", re.IGNORECASE), 1e-3),
}


def from_table(
    frame: pd.DataFrame, *, columns: Mapping[str, str] | None = None, source: str = "table"
) -> Observations:
    """A table as observations; `columns` is {canonical name: column}, the rest is guessed.

    Raises InputError for a table without rows or with a column twice, and for a mapping that names
    what is not there or a column without numbers where numbers are needed.
    """
    notes = [str(note) for note in frame.attrs.get("notes", ())]
    name = str(frame.attrs.get("name", source))
    _check(frame, columns or {}, source)
    frame = frame.reset_index(drop=True)
    frame.columns = pd.Index([str(column) for column in frame.columns])
    mapped = {column: _mapped(canonical, column) for canonical, column in (columns or {}).items()}
    hint = reshape.hinted_ranks(name, notes)
    frame, assumptions = reshape.turned(frame, mapped)
    frame, of_ranks = reshape.by_rank(frame, mapped)
    frame, of_batches = reshape.by_batch(frame, mapped)
    assumptions += of_ranks + of_batches
    meanings = _meanings(frame, mapped)
    wide = bool(of_ranks)
    if not any(meaning.canonical == "world_size" for meaning in meanings.values()):
        quantity = reshape.noted_quantity(name, notes)
        frame, more = reshape.by_world_size(frame, hint, mapped, quantity)
        wide = wide or bool(more)
        assumptions += more
        meanings = _meanings(frame, mapped)
    tidy, given = _tidy(frame, meanings, mapped, notes, assumptions, source)
    if "world_size" not in given:
        tidy["world_size"], assumption = _world_size(tidy, hint)
        assumptions += [assumption] if assumption else []
    per = meanings[given["time"]].per if "time" in given else None
    collective = {"bytes", "time"} <= set(given) and not TRAINING & set(given)
    _add_keys(tidy, frame, given.values(), collective=collective)
    ranks = tidy["world_size"] * tidy["grad_accum"].fillna(1.0)
    for batch, derived in (
        ("global_batch_size", tidy["micro_batch_size"] * ranks),
        ("micro_batch_size", tidy["global_batch_size"] / ranks),
    ):
        tidy[batch] = tidy[batch].fillna(derived)
    tidy["label"] = _labels(tidy)
    return Observations(
        frame=tidy,
        kind="collectives" if collective else "table",
        per=per or "total",  # type: ignore[arg-type]
        scaling=_noted_scaling(name, notes),
        given=given,
        derived=frozenset({"global_batch_size", "micro_batch_size"} - set(given)),
        assumptions=assumptions,
        notes=notes,
        summarised=wide or not LOGGED & set(given),
    )


def _noted_scaling(name: str, notes: Sequence[str]) -> Literal["weak"] | None:
    """Weak, where the name or the notes say so and of nothing else that it is strong."""
    kinds = {kind.lower() for text in (name, *notes) for kind in NOTED_SCALING.findall(text)}
    return "weak" if kinds == {"weak"} else None


def _check(frame: pd.DataFrame, columns: Mapping[str, str], source: str) -> None:
    names = [str(column) for column in frame.columns]
    problems = [
        Problem(f"column {name!r}", "is there more than once", "rename one")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if not len(frame) or not names:
        problems.append(Problem("table", "it has no rows", "a table needs measurements"))
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
    step = "step" if re.search("step|iter", stem) else "total"
    per = "epoch" if "epoch" in stem else step
    return Guess(canonical, factor if family else None, per if canonical == "time" else None)


def _meanings(frame: pd.DataFrame, mapped: Mapping[str, Guess]) -> dict[str, Guess]:
    taken = {meaning.canonical for meaning in mapped.values()}
    meanings = dict(mapped)
    for column in frame.columns:
        meaning = None if column in mapped else guess(column)
        if meaning is not None and meaning.canonical not in taken:
            meanings[column] = meaning
    return meanings


def _tidy(
    frame: pd.DataFrame,
    meanings: Mapping[str, Guess],
    mapped: Collection[str],
    notes: Sequence[str],
    assumptions: list[str],
    source: str,
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Canonical columns with numbers in base units, and which column of the table each is from."""
    tidy = pd.DataFrame({name: np.full(len(frame), np.nan) for name in NUMERIC})
    for name in TEXTS:
        tidy[name] = pd.Series(index=tidy.index, dtype="object")
    given: dict[str, str] = {}
    for column, meaning in meanings.items():
        canonical = meaning.canonical
        if canonical in {"time", "communication"} and _is_mean(column, meanings):
            canonical = f"{canonical}_mean"
        if canonical in given:
            continue
        cells = frame[column].map(_text)
        if canonical == "strategy" and cells.dropna().str.fullmatch(SCALING).all():
            canonical = "scaling"
        if canonical == "scaling":
            cells = cells.str.extract(SCALING, expand=False).str.lower()
        if canonical not in TEXTS:
            units = BYTE_UNITS if canonical == "bytes" else COUNT_UNITS
            units = TIME_UNITS if canonical in TIMES else units
            factor = _factor(canonical, meaning, notes, frame[column], assumptions)
            values = numbers(frame[column], units=units, factor=factor)
            if canonical == "time":
                spreads = frame[column].map(lambda cell, by=factor: spread(cell, factor=by))
                tidy["std"] = tidy["std"].fillna(spreads.astype(float))
            named = canonical == "world_size" and not values.notna().any()
            if named and "gpu" not in given and column not in mapped:
                canonical = "gpu"  # a column `gpu` without numbers is its name
            else:
                cells = values
        if cells.notna().any():
            tidy[canonical], given[canonical] = cells, column
        elif column in mapped:
            problem = f"column {column!r} holds no value that can be read"
            raise InputError(source, [Problem(f"columns.{meaning.canonical}", problem)])
    return _clean(tidy, assumptions), given


def _is_mean(column: str, meanings: Mapping[str, Guess]) -> bool:
    """Whether a column is a mean over ranks: another one holds the slowest of the same quantity."""
    canonical = meanings[column].canonical
    return parse_name(column).statistic in columns.MEANS and any(
        parse_name(other).statistic in columns.MAXIMA
        for other, meaning in meanings.items()
        if meaning.canonical == canonical
    )


def _factor(
    canonical: str, meaning: Guess, notes: Sequence[str], cells: pd.Series, assumptions: list[str]
) -> float:
    if meaning.factor is not None:
        return meaning.factor
    if canonical not in TIMES:
        return 1e9 if canonical in {"algbw", "busbw"} else 1.0
    known = [text for cell in cells if (text := _text(cell)) is not None]
    if all(math.isfinite(duration(text)) for text in known):
        return 1.0  # 01:12:30 needs no unit
    for unit, (pattern, factor) in NOTED_UNITS.items():
        if any(pattern.search(note) for note in notes):
            assumptions.append(f"{cells.name!r} names no unit and is read as {unit} by its notes")
            return factor
    assumptions.append(f"{cells.name!r} names no unit and is read as seconds")
    return 1.0


def _text(cell: object) -> str | None:
    text = "" if cell is None else str(cell).strip()
    missing = text.lower() in {"", "na", "n/a", "nan", "none", "-", "null", "<na>"}
    return None if missing else re.sub(r"(?<=^\d)(\d*)\.0$", r"\1", text)  # but not of 2.4.0


def _clean(tidy: pd.DataFrame, assumptions: list[str]) -> pd.DataFrame:
    """Without rows that are other statistics of ranks, and values that no measurement can have."""
    ranks = tidy["rank"].str.lower()
    tidy["aggregate"] = ranks.isin(AGGREGATES)
    tidy["rank"] = ranks.str.extract(r"(\d{1,7})$", expand=False).astype(float)
    tidy = tidy[~ranks.isin(OTHER_STATISTICS)].copy()
    for column, least in PERCENT_FROM.items():
        tidy.loc[tidy[column] > least, column] /= 100
    for column in POSITIVE:
        wrong = tidy[column] <= 0
        if wrong.any():
            assumption = f"{int(wrong.sum())} values of {column} are not positive and left out"
            assumptions.append(assumption)
            tidy.loc[wrong, column] = np.nan
    return tidy


def _world_size(tidy: pd.DataFrame, hint: tuple[int, str] | None) -> tuple[pd.Series | float, str]:
    """World sizes by nodes, strategies or ranks, and what that assumes; NaN and "" if unknown."""
    if tidy["per_node"].notna().any():
        ranks = tidy["nodes"].fillna(1.0) * tidy["per_node"]
        return ranks, "the ranks are the nodes times those on each"
    if tidy["nodes"].nunique() > 1:
        return tidy["nodes"], "the table does not give the ranks per node, and a node counts as one"
    names = tidy["strategy"].fillna("").str.lower()
    parallel = names.map(columns.is_parallel).astype(bool)
    if parallel.any() and not parallel.all():
        number = r"(\d{1,6})\s*x?\s*[-_ ]?(?:gpus?|ranks?|procs?|process|x)|x(\d{1,6})"
        counts = names.str.extract(number).bfill(axis=1)[0].astype(float)
        counts = counts.where(counts > 0, hint[0] if hint else np.nan)
        many = ", ".join(repr(name) for name in names[parallel].unique())
        number = f"{hint[0]} ranks by {hint[1]}" if hint else "an unknown number of ranks"
        return counts.where(parallel, 1.0), f"{many} ran on {number}, the others on 1"
    count = tidy["rank"].nunique()
    if count > 1:
        return float(count), f"the {count} ranks that have rows are all of them"
    return np.nan, ""


def _add_keys(
    tidy: pd.DataFrame, frame: pd.DataFrame, used: Collection[str], *, collective: bool
) -> None:
    """Columns that tell configurations apart: KEYS, and others met at several world sizes."""
    compared = (name for name in COMPARED if _is_key(tidy[name], tidy["world_size"]))
    keys = {f"key:{name}": tidy[name] for name in (*KEYS, *compared) if tidy[name].notna().any()}
    if collective:
        keys["key:bytes"] = tidy["bytes"].map(_size)
    for column in frame.columns:
        if column not in used and guess(column) is None:
            cells = frame[column].map(_text).loc[tidy.index]
            if _is_key(cells, tidy["world_size"]):
                keys[f"key:{column}"] = cells
    for name, cells in keys.items():
        tidy[name] = cells.map(lambda cell: "" if cell is None or cell != cell else str(cell))


def _size(size: float) -> str:
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10), ("B", 0)):
        if size >= scale:
            return f"{size / max(scale, 1):g} {unit}"
    return ""


def _is_key(cells: pd.Series, sizes: pd.Series) -> bool:
    values = cells.dropna()
    if not 1 < values.nunique() <= min(MOST_KEY_VALUES, max(len(values) - 1, 1)):
        return False
    as_numbers = pd.to_numeric(values, errors="coerce")
    if as_numbers.notna().all() and (as_numbers % 1 != 0).any():
        return False  # fractions are measurements
    sizes_of_value = sizes.loc[values.index].groupby(values).nunique()
    return bool((sizes_of_value > 1).mean() > 0.5)


def _labels(tidy: pd.DataFrame) -> list[str]:
    """A name for each row: its number in the table from 1, and what tells it apart."""
    keys = [name for name in tidy.columns if name.startswith("key:") and tidy[name].nunique() > 1]
    batches = tidy["batch"].fillna(tidy["global_batch_size"])
    rows = tidy[[*keys, "world_size", "rank", "aggregate"]].to_dict("records")
    labels = []
    for number, (row, batch) in enumerate(zip(rows, batches, strict=True), start=1):
        size, rank = row["world_size"], row["rank"]
        parts = [row[name] for name in keys if row[name]]
        parts += [f"batch {batch:g}"] if batch == batch else []
        parts += [f"world size {size:g}"] if size == size else []
        if row["aggregate"]:
            parts.append("mean over ranks")
        elif rank == rank:
            parts.append(f"rank {rank:g}")
        labels.append(f"row {number}" + (f" ({', '.join(parts)})" if parts else ""))
    return labels
