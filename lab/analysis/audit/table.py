"""Anybody's table as observations: what its columns hold is guessed from their names, and what was assumed is told."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lab.analysis.audit import columns, reshape
from lab.analysis.audit.columns import CANONICAL
from lab.analysis.audit.observations import Observations
from lab.analysis.audit.reshape import PARALLEL, SERIAL, WORDS
from lab.analysis.audit.values import BYTE_UNITS, COUNT_UNITS, TIME_UNITS, numbers, spread
from lab.errors import InputError, Problem, nearest

AGGREGATES = {"mean", "avg", "average", "all", "mean over ranks", "overall"}
OTHER_STATISTICS = {"std", "stdev", "sd", "min", "median", "sum", "total"}
ALWAYS_KEYS = (
    "model",
    "dataset",
    "precision",
    "compile",
    "seed",
    "link",
    "device",
    "emulated",
    "strategy",
)
# What nobody writes beside the time of a collective.
TRAINING = {
    *(
        "step",
        "epoch",
        "parameters",
        "global_batch_size",
        "micro_batch_size",
        "batch",
        "loss",
        "accuracy",
    ),
    *columns.PHASES,
} - {"other"}
MOST_KEY_VALUES = 200
MOST_ROWS = 2_000_000
WEAK = r"weak[ _-]?scal"
SPOKEN_UNITS = ((r"microseconds|\bus\b|µs", 1e-6), (r"milliseconds|\bms\b", 1e-3))


def from_table(
    frame: pd.DataFrame, *, columns: Mapping[str, str] | None = None, source: str = "table"
) -> Observations:
    """A table in whatever columns it has as observations; `columns` is {canonical name: column}, the rest is guessed.

    Raises InputError for a table without rows or with a column twice, and for a mapping that names what is not there or
    a column without numbers where numbers are needed.
    """
    notes = tuple(str(note) for note in frame.attrs.get("notes", ()))
    name = str(frame.attrs.get("name", source))
    _check(frame, columns or {}, source)
    frame = frame.reset_index(drop=True)
    frame.columns = pd.Index([str(column) for column in frame.columns])
    guessed = (
        {}
        if columns is None
        else {column: _mapped(canonical, column) for canonical, column in columns.items()}
    )
    assumptions: list[str] = []
    hint = reshape.hinted_ranks(name, notes)
    summarised = False
    split = reshape.by_batch(frame, mapped=guessed)
    if split is not None:
        frame, said = split
        assumptions.append(said)
    if not any(found.canonical == "world_size" for found in _guesses(frame, guessed).values()):
        long = reshape.lengthened(frame, hint, mapped=guessed)
        if long is not None:
            frame, said = long
            assumptions.append(said)
            summarised = True
    guesses = _guesses(frame, guessed)
    tidy, given = _tidy(frame, guesses, guessed, notes, assumptions, source)
    per = next(
        (
            found.per
            for column, found in guesses.items()
            if found.canonical == "time" and column in given.values()
        ),
        None,
    )
    if "world_size" not in given:
        assumptions += of_nodes(tidy) or place(tidy, hint) or of_ranks(tidy)
    collective = {"bytes", "time"} <= set(given) and not TRAINING & set(given)
    _add_keys(tidy, frame, set(given.values()), collective=collective)
    _derive(tidy)
    _label(tidy)
    return Observations(
        frame=tidy,
        kind="collectives" if collective else "table",
        per=per or "total",  # type: ignore[arg-type]
        scaling="weak"
        if any(re.search(WEAK, text, re.IGNORECASE) for text in (name, *notes))
        else None,
        given=given,
        derived=frozenset({"global_batch_size", "micro_batch_size"} - set(given)),
        assumptions=tuple(assumptions),
        notes=notes,
        summarised=summarised,
    )


def _check(frame: pd.DataFrame, columns: Mapping[str, str], source: str) -> None:
    names = [str(column) for column in frame.columns]
    problems = [
        Problem(f"column {name!r}", "is there more than once", "rename one")
        for name in sorted({n for n in names if names.count(n) > 1})
    ]
    if not len(frame) or not names:
        problems.append(Problem("table", "it has no rows", "a table needs measurements"))
    if len(frame) > MOST_ROWS:
        problems.append(
            Problem(
                "table", f"more than {MOST_ROWS} rows", "give one row per epoch or configuration"
            )
        )
    for canonical, column in columns.items():
        if canonical not in CANONICAL:
            problems.append(
                Problem(
                    f"columns.{canonical}", "unknown quantity", nearest(str(canonical), CANONICAL)
                )
            )
        if column not in names:
            problems.append(
                Problem(
                    f"columns.{canonical}", f"no column {column!r}", nearest(str(column), names)
                )
            )
    if problems:
        raise InputError(source, problems)


def _mapped(canonical: str, column: str) -> columns.Guess:
    told = columns.take_apart(column)
    per = (
        "epoch"
        if "epoch" in told.stem
        else "step"
        if re.search("step|iter", told.stem)
        else "total"
    )
    return columns.Guess(
        canonical, told.factor if told.family else None, per if canonical == "time" else None
    )


def _guesses(frame: pd.DataFrame, mapped: Mapping[str, columns.Guess]) -> dict[str, columns.Guess]:
    taken = {found.canonical for found in mapped.values()}
    guesses = dict(mapped)
    for column in frame.columns:
        found = None if column in mapped else columns.guess(column)
        if found is not None and found.canonical not in taken:
            guesses[column] = found
    return guesses


def _tidy(
    frame: pd.DataFrame,
    guesses: Mapping[str, columns.Guess],
    mapped: Mapping[str, columns.Guess],
    notes: Sequence[str],
    assumptions: list[str],
    source: str,
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Canonical columns with numbers in base units, and which column of the table each comes from."""
    tidy = pd.DataFrame({canonical: np.full(len(frame), np.nan) for canonical in columns.NUMERIC})
    for canonical in columns.TEXT:
        tidy[canonical] = pd.Series([None] * len(frame), dtype="object")
    given: dict[str, str] = {}
    for column, found in guesses.items():
        canonical = found.canonical
        told = columns.take_apart(column)
        if (
            told.statistic in columns.MEANS
            and canonical in {"time", "communication"}
            and _has_most(frame, guesses, canonical, column)
        ):
            canonical = f"{canonical}_mean"
        if canonical in given:
            continue
        if canonical in columns.TEXT:
            cells = frame[column].map(_text)
        else:
            factor = _factor(canonical, found, notes, column, assumptions)
            units = (
                TIME_UNITS
                if canonical in columns.TIMES
                else BYTE_UNITS
                if canonical == "bytes"
                else COUNT_UNITS
            )
            cells = numbers(frame[column], units=units, factor=factor)
            if canonical == "time":
                tidy["std"] = tidy["std"].fillna(
                    frame[column].map(lambda cell, by=factor: spread(cell, factor=by)).astype(float)
                )
        if not cells.notna().any():
            if column in mapped:
                raise InputError(
                    source,
                    [
                        Problem(
                            f"columns.{canonical}",
                            f"column {column!r} holds no value that can be read",
                        )
                    ],
                )
            if (
                canonical == "world_size"
                and "gpu" not in given
                and frame[column].map(_text).notna().any()
            ):
                tidy["gpu"], given["gpu"] = (
                    frame[column].map(_text),
                    column,
                )  # `gpu` may be its name
            continue
        tidy[canonical] = cells
        given[canonical] = column
    return _clean(tidy, assumptions), given


def _has_most(
    frame: pd.DataFrame, guesses: Mapping[str, columns.Guess], canonical: str, column: str
) -> bool:
    """Whether another column holds the slowest of the same quantity, so that this one is the mean over ranks."""
    others = (
        other
        for other, found in guesses.items()
        if found.canonical == canonical and other != column
    )
    return any(columns.take_apart(other).statistic in columns.MOSTS for other in others)


def _factor(
    canonical: str, found: columns.Guess, notes: Sequence[str], column: str, assumptions: list[str]
) -> float:
    if found.factor is not None:
        return found.factor
    if canonical in columns.TIMES:
        spoken = next(
            (
                scale
                for pattern, scale in SPOKEN_UNITS
                for note in notes
                if re.search(pattern, note, re.IGNORECASE)
            ),
            None,
        )
        unit = {
            1e-6: "microseconds by its notes",
            1e-3: "milliseconds by its notes",
            None: "seconds",
        }[spoken]
        assumptions.append(f"{column!r} names no unit and is read as {unit}")
        return spoken or 1.0
    return 1e9 if canonical in {"algbw", "busbw"} else 1.0


def _text(cell: object) -> str | None:
    text = str(cell).strip() if cell is not None else ""
    return (
        text.removesuffix(".0")
        if text.lower() not in {"", "na", "n/a", "nan", "none", "-", "null", "<na>"}
        else None
    )


def _clean(tidy: pd.DataFrame, assumptions: list[str]) -> pd.DataFrame:
    """Rank labels, rows that are statistics of others, and values that no measurement can have."""
    ranks = tidy["rank"].map(lambda text: str(text).lower() if text is not None else None)
    tidy["aggregate"] = ranks.isin(AGGREGATES)
    drop = ranks.isin(OTHER_STATISTICS)
    digits = ranks.map(lambda text: re.search(r"(\d{1,7})$", text) if text else None)
    tidy["rank"] = digits.map(lambda match: float(match[1]) if match else math.nan).astype(float)
    tidy = tidy[~drop].copy()
    tidy.loc[tidy["efficiency"] > 4, "efficiency"] /= 100  # per cent without saying so
    tidy.loc[tidy["accuracy"] > 1.5, "accuracy"] /= 100
    for column in (
        "world_size",
        "nodes",
        "time",
        "rate",
        "global_batch_size",
        "micro_batch_size",
        "batch",
        "speedup",
        "parameters",
        "bytes",
    ):
        wrong = tidy[column] <= 0
        if wrong.any():
            assumptions.append(
                f"{int(wrong.sum())} values of {column} are not positive and left out"
            )
            tidy.loc[wrong, column] = np.nan
    return tidy


def _add_keys(tidy: pd.DataFrame, frame: pd.DataFrame, used: set[str], *, collective: bool) -> None:
    """Columns that tell configurations apart: the known ones, and others whose values meet more than one world size."""
    keys = {f"key:{name}": tidy[name] for name in ALWAYS_KEYS if tidy[name].notna().any()}
    if collective:
        keys["key:bytes"] = tidy["bytes"].map(_size)
    for column in frame.columns:
        if column not in used and columns.guess(column) is None:
            cells = frame[column].map(_text).loc[tidy.index]
            if _tells_apart(cells, tidy["world_size"]):
                keys[f"key:{column}"] = cells
    for name, cells in keys.items():
        tidy[name] = cells.map(lambda cell: "" if cell is None or cell != cell else str(cell))


def _size(size: float) -> str:
    unit, scale = next(
        ((unit, scale) for unit, scale in (("MiB", 2**20), ("KiB", 2**10)) if size >= scale),
        ("B", 1),
    )
    return f"{size / scale:g} {unit}" if size == size else ""


def _tells_apart(cells: pd.Series, sizes: pd.Series) -> bool:
    values = cells.dropna()
    if not 1 < values.nunique() <= min(MOST_KEY_VALUES, max(len(values) - 1, 1)):
        return False
    as_numbers = pd.to_numeric(values, errors="coerce")
    if as_numbers.notna().all() and (as_numbers % 1 != 0).any():
        return False  # fractions are measurements
    meets = sizes.loc[values.index].groupby(values).nunique()
    return bool((meets > 1).mean() > 0.5)


def _derive(tidy: pd.DataFrame) -> None:
    accum = tidy["grad_accum"].fillna(1.0)
    tidy["global_batch_size"] = tidy["global_batch_size"].fillna(
        tidy["micro_batch_size"] * accum * tidy["world_size"]
    )
    tidy["micro_batch_size"] = tidy["micro_batch_size"].fillna(
        tidy["global_batch_size"] / (accum * tidy["world_size"])
    )


def _label(tidy: pd.DataFrame) -> None:
    """A name for each row: what it says of itself, and its number in the table from 1."""
    labels = []
    columns = [
        name for name in tidy.columns if str(name).startswith("key:") and tidy[name].nunique() > 1
    ]
    parts = tidy[
        [*columns, "world_size", "rank", "aggregate", "batch", "global_batch_size"]
    ].to_dict("records")
    for number, row in enumerate(parts, start=1):
        told = [str(row[name]) for name in columns if row[name]]
        batch = row["batch"] if row["batch"] == row["batch"] else row["global_batch_size"]
        told += [f"batch {batch:g}"] if batch == batch else []
        told += (
            [f"world size {row['world_size']:g}"] if row["world_size"] == row["world_size"] else []
        )
        told += (
            ["mean over ranks"]
            if row["aggregate"]
            else [f"rank {row['rank']:g}"]
            if row["rank"] == row["rank"]
            else []
        )
        labels.append(f"row {number}" + (f" ({', '.join(told)})" if told else ""))
    tidy["label"] = labels


TOKEN = re.compile(r"[^a-z0-9]+")


def of_nodes(tidy: pd.DataFrame) -> list[str]:
    """Fill `world_size` from the nodes and the ranks on each, in place; what was assumed, empty where nodes tell nothing."""
    if tidy["per_node"].notna().any():
        tidy["world_size"] = tidy["nodes"].fillna(1.0) * tidy["per_node"]
        return ["the ranks are the nodes times those on each"]
    if tidy["nodes"].nunique() < 2:
        return []
    tidy["world_size"] = tidy["nodes"]
    return ["how many ranks a node has is not said, and a node counts as one"]


def of_ranks(tidy: pd.DataFrame) -> list[str]:
    """Fill `world_size` with the number of ranks that have rows, in place; what was assumed, empty where there is one at most."""
    ranks = tidy["rank"].dropna().nunique()
    if ranks < 2:
        return []
    tidy["world_size"] = float(ranks)
    return [f"the {ranks} ranks that have rows are all of them"]


def place(tidy: pd.DataFrame, hint: tuple[int, str] | None) -> list[str]:
    """Fill `world_size` from the words of `strategy`, in place; what was assumed, empty where the words do not tell."""
    names = [str(name).lower() if name is not None else "" for name in tidy["strategy"]]
    parallel = [any(re.fullmatch(PARALLEL, token) for token in TOKEN.split(name)) for name in names]
    if not any(parallel) or all(parallel):
        return []
    sizes = [
        float(_number(name) or (hint[0] if hint else 0)) if many else 1.0
        for name, many in zip(names, parallel, strict=True)
    ]
    tidy["world_size"] = [size if size else float("nan") for size in sizes]
    told = f"{hint[0]} ranks by {hint[1]}" if hint else "an unknown number of ranks"
    many = ", ".join(
        dict.fromkeys(repr(name) for name, flag in zip(names, parallel, strict=True) if flag)
    )
    return [f"{many} ran on {told}, the others on 1"]


def residue(strategy: str) -> frozenset[str]:
    """The words of a strategy that say what it runs on: without those for parallel, serial and counts of ranks."""
    words = {
        token
        for token in TOKEN.split(strategy.lower())
        if token and not re.fullmatch(rf"\d+|x\d+|{PARALLEL}|{SERIAL}", token)
    }
    return frozenset(
        words - {"gpu", "gpus", "gpu_s", "baseline", "no", "s", "with", "without", *WORDS}
    )


def _number(name: str) -> int | None:
    found = re.search(r"(\d{1,6})\s*x?\s*[-_ ]?(?:gpus?|ranks?|procs?|process|x)|x(\d{1,6})", name)
    return int(found[1] or found[2]) if found else None
