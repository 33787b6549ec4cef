"""Any results table as observations: columns are guessed by name, and assumptions listed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from lab.analysis.audit import columns, reshape
from lab.analysis.audit.columns import (
    COLUMNS,
    LAYOUT,
    NUMERIC,
    PHASES,
    ROUNDED,
    TEXTS,
    TIMES,
    Guess,
    guess,
    normal,
    parse_name,
    setting_of,
)
from lab.analysis.audit.observations import PYTHON_STRINGS, ROW, Observations
from lab.analysis.audit.plausible import (
    are_shares,
    is_of_another,
    is_of_model,
    is_of_samples,
    is_place,
    is_plausible,
    numbers_devices,
)
from lab.analysis.audit.values import (
    BANDWIDTH_UNITS,
    BRACKETS,
    BYTE_UNITS,
    CELL_TIMES,
    COUNT_UNITS,
    FLOPS_UNITS,
    PLUS_MINUS,
    TIME_UNITS,
    duration,
    numbers,
    ranks_of,
    roundings,
    spread,
)
from lab.errors import InputError, Problem, nearest
from lab.formatting import count

# Rank labels of rows that are statistics over ranks; only means are of use.
AGGREGATES = {"mean", "avg", "average", "all", "mean over ranks", "overall"}
OTHER_STATISTICS = {"std", "stdev", "sd", "min", "median", "sum", "total"}
KEYS = (
    *("model", "sequence_length", "dataset", "framework", "precision", "compile", "seed"),
    *("link", "device", "emulated", "strategy", "scaling", "recompute", "sharding", "interleave"),
    *LAYOUT,
)
# Columns that never appear next to the time of a collective.
TRAINING = {
    *("step", "epoch", "parameters", "loss", "accuracy", "model"),
    *("global_batch_size", "micro_batch_size", "batch"),
    *PHASES,
} - {"other"}
POSITIVE = (
    *("world_size", "nodes", "time", "rate", "global_batch_size", "micro_batch_size"),
    *("batch", "speedup", "parameters", "bytes", "rate_per_rank", "flops", "flops_per_rank"),
    *("mfu", "hfu", "peak_flops", "dp", *LAYOUT, "grad_accum", "ratio_of_times", "ratio_of_rates"),
    "memory",
)
# Larger values are per cent even if unlabelled; for a share of peak, so is the whole column.
PERCENT_FROM = {"efficiency": 4, "accuracy": 1.5, "mfu": 3, "hfu": 3}
SHARES = {"mfu", "hfu"}
WHOLE_NUMBERS = {
    *("world_size", "nodes", "per_node", "global_batch_size", "micro_batch_size", "batch"),
    *("rank_batch_size", "grad_accum", "dp", *LAYOUT),
}
UNITS = {
    **dict.fromkeys(TIMES, TIME_UNITS),
    **dict.fromkeys(("bytes", "memory"), BYTE_UNITS),
    **dict.fromkeys(("flops", "flops_per_rank", "peak_flops"), FLOPS_UNITS),
    **dict.fromkeys(("algbw", "busbw"), BANDWIDTH_UNITS),
}
SEVERAL_WORDS = re.compile(r"[^\W\d]+(?:[ -][^\W\d]+)+")
BOUND = re.compile(r"\s*(?:[<>≤≥]|&[lg]t;)")  # that a value should keep to is no measurement
MOST_KEY_VALUES = 200
MOST_ROWS = 2_000_000
MOST_NODES = 4096
SIZES = re.compile(r"\d+(?:\s*[x×*]\s*\d+)+")  # of images, or nodes and ranks
SCALING = re.compile(r"(strong|weak)(?:[ _-]?scal.*|)", re.IGNORECASE)
NOTED_SCALING = re.compile("(strong|weak)[ _-]?scal", re.IGNORECASE)
# Rows of these are single measurements; others may stand for several.
LOGGED = {"rank", "epoch", "step"}
# What runs may be compared by, if all of them were measured at several world sizes.
COMPARED = ("gpu", "cpu", "version", "driver")
# A table may hold several of these, with different meanings.
MEASURED = {"time": "time", "rate": "rate", "rate_per_rank": "rate per rank"}
NAMED_UNIT = re.compile(rf"\d\s*({'|'.join(sorted(CELL_TIMES, key=len, reverse=True))})\s*$")
NOTED_UNITS = {
    "microseconds": (re.compile(r"microseconds|\bus\b|µs", re.IGNORECASE), 1e-6),
    "milliseconds": (re.compile(r"milliseconds|\bms\b", re.IGNORECASE), 1e-3),
}


@PYTHON_STRINGS
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
    frame, filled = _filled_down(frame, mapped)
    frame, assumptions = reshape.turned(frame, mapped)
    assumptions += filled
    frame[ROW] = np.arange(1, len(frame) + 1)
    frame, of_settings, origins = reshape.by_setting(frame, mapped)
    assumptions += of_settings
    frame, of_ranks = reshape.by_rank(frame, mapped)
    frame, of_batches = reshape.by_batch(frame, mapped)
    frame, of_cells = reshape.by_cells(frame, mapped)
    frame, of_groups = reshape.by_group(frame, mapped)
    assumptions += of_ranks + of_batches + of_cells + of_groups
    meanings = _meanings(frame, mapped)
    wide = bool(of_ranks)
    names = {meaning.canonical for meaning in meanings.values()}
    if "world_size" not in names and not {"per_node", "nodes"} <= names:
        quantity = reshape.noted_quantity(name, notes)
        frame, more = reshape.by_world_size(frame, hint, mapped, quantity)
        wide = wide or bool(more)
        assumptions += more
        meanings = _meanings(frame, mapped)
        if not of_ranks and not more and not {"nodes", "dp", "gpu", "device"} & names:
            meanings |= _ranks_by_cells(frame, meanings)
    tidy, given = _tidy(frame, meanings, mapped, notes, assumptions, source)
    tidy[ROW] = frame[ROW].loc[tidy.index]
    if "world_size" not in given:
        tidy["world_size"], assumption = _world_size(tidy, hint)
        assumptions += [assumption] if assumption else []
    tidy["rate"] = tidy["rate"].fillna(tidy["rate_per_rank"] * tidy["world_size"])
    tidy["rate_rounding"] = tidy["rate_rounding"].fillna(tidy["rate_per_rank_rounding"])
    assumptions += _global_batch(tidy, given)
    per = meanings[given["time"]].per if "time" in given else None
    collective = {"bytes", "time"} <= set(given) and not TRAINING & set(given)
    logged = bool(LOGGED & set(given))
    _add_keys(tidy, frame, given.values(), collective=collective, logged=logged)
    shards = numbers(tidy["sharding"])
    if re.search("fsdp|degree|size", normal(given.get("sharding", ""))):
        sharded = tidy["dp"] * tidy[list(LAYOUT)].prod(axis=1) * shards == tidy["world_size"]
        tidy["dp"] = tidy["dp"].where(~sharded, tidy["dp"] * shards)
    replicas = tidy["dp"].fillna(tidy["world_size"] / tidy[list(LAYOUT)].prod(axis=1))
    ranks = replicas * tidy["grad_accum"].fillna(1.0)
    accumulated = (tidy["rank_batch_size"] * replicas).fillna(tidy["micro_batch_size"] * ranks)
    for batch, derived in (
        ("global_batch_size", accumulated),
        ("micro_batch_size", tidy["global_batch_size"] / ranks),
    ):
        tidy[batch] = tidy[batch].fillna(derived)
    accumulated = tidy["global_batch_size"] / (tidy["micro_batch_size"] * replicas)
    tidy["grad_accum"] = tidy["grad_accum"].fillna(accumulated)
    tidy["label"] = _labels(tidy)
    return Observations(
        frame=tidy.copy(),  # in one piece for each type: rows are taken from it again and again
        kind="collectives" if collective else "table",
        per=per or "total",  # type: ignore[arg-type]
        scaling=_noted_scaling(name, notes),
        given=given,
        derived=frozenset({"global_batch_size", "micro_batch_size"} - set(given)),
        assumptions=assumptions,
        notes=notes,
        summarised=wide or not logged,
        reading=_reading(given, origins),
    )


def _filled_down(frame: pd.DataFrame, mapped: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """The first column with the name above in each blank cell, as where cells were merged."""
    first = frame.columns[0]
    meaning = guess(first)
    texts = frame[first].astype(str).where(frame[first].notna(), "").str.strip()
    blank = texts == ""
    words = texts[~blank].str.match(r"[^\W\d_]")
    names = meaning is None or meaning.canonical in KEYS
    some = blank.any() and not blank.iloc[0]
    if first in mapped or not names or not some or not words.all():
        return frame, []
    filled = frame[first].mask(blank).ffill()
    return frame.assign(**{first: filled}), [f"a blank cell of {first!r} means the one above it"]


def _ranks_by_cells(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """A column without a name for ranks whose cells all differ in them, such as 1n8g and 2n8g."""
    for column in frame.columns:
        texts = _texts(frame[column]).dropna().unique()[:MOST_KEY_VALUES]
        meaning = meanings.get(column)
        if (meaning is None or meaning.canonical == "strategy") and len(texts):
            pairs = {ranks_of(text) for text in texts if not SIZES.fullmatch(str(text))}
            named = all(ranks > 0 and (not name or _is_gpu(name)) for ranks, name in pairs)
            if len(pairs) == len(texts) > 1 and named:
                return {column: Guess("world_size", 1.0)}
    return {}


def _is_gpu(name: str) -> bool:
    return any(kind == "gpu" for kind, _ in setting_of(name).words)


def _global_batch(tidy: pd.DataFrame, given: dict[str, str]) -> list[str]:
    """Take a batch that grows with the ranks in every row as the global one, and say so."""
    each = (tidy["batch"] / tidy["world_size"]).dropna()
    held = len(each) == len(tidy) and each.nunique() == 1 and tidy["world_size"].nunique() > 1
    if not held or {"global_batch_size", "micro_batch_size"} & set(given):
        return []
    tidy["global_batch_size"], tidy["batch"] = tidy["batch"], np.nan
    given["global_batch_size"] = name = given.pop("batch")
    return [f"{name!r} grows with the ranks and is read as the global batch"]


def _reading(given: Mapping[str, str], origins: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """How each column of the table was interpreted."""
    reading: dict[str, str] = {}
    for canonical, name in given.items():
        for column in origins.get(name, [name]):
            reading[column] = " and ".join(filter(None, (reading.get(column), canonical)))
    return reading


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
    rounded = [f"{name}_rounding" for name in ROUNDED]
    numeric = pd.DataFrame(np.nan, frame.index, [*NUMERIC, *rounded])
    texts = pd.DataFrame(np.nan, frame.index, [*TEXTS], dtype=object)
    tidy = pd.concat([numeric, texts], axis="columns")
    given: dict[str, str] = {}
    left_out: dict[str, list[str]] = {}
    for column, meaning in _by_precision(frame, meanings).items():
        canonical = meaning.canonical
        if canonical == "std" and column not in mapped and is_of_another(column, frame, meanings):
            continue
        if canonical in {"time", "communication"} and _is_mean(column, meanings):
            canonical = f"{canonical}_mean"
        if canonical in given:
            left_out.setdefault(canonical, []).append(column)
            continue
        cells = _texts(frame[column])
        if canonical == "speedup" and "scaling" in columns.normal(column) and are_shares(cells):
            canonical = "efficiency"
        if canonical in {"world_size", "gpu", "device", "host"}:
            cells = _ranks(cells, tidy, given, column, canonical)
            if canonical == "host" and given.get("world_size") == column:
                canonical = "gpu"  # a machine such as 4x A10G
        if canonical == "host" and _counts(cells) and "rank" not in set(_canonicals(meanings)):
            canonical = "nodes"
        if canonical == "world_size" and column not in mapped:
            if is_of_samples(column, frame):
                continue
            if numbers_devices(numbers(cells)):
                canonical = "rank"
        if canonical == "repeat" and _names_settings(cells):
            canonical = "strategy"  # runs are called after what they try
            if canonical in _canonicals(meanings):
                continue
        if canonical in {"strategy", "speedup"} and cells.dropna().str.fullmatch(SCALING).all():
            canonical = "scaling"
        known = cells.dropna().astype(str)
        if column not in mapped and (
            not is_plausible(canonical, column, known)
            or (canonical == "rank" and is_place(column, frame, meanings))
        ):
            continue
        if canonical in ROUNDED and column not in mapped:
            cells = cells.where(~cells.astype(str).str.match(BOUND))
        if canonical == "bytes" and is_of_model(column, known, meanings):
            if {"model", "dataset"} & set(_canonicals(meanings)):
                continue
            canonical = "model"
        if canonical == "scaling":
            cells = cells.str.extract(SCALING, expand=False).str.lower()
        if canonical not in TEXTS:
            stated = len(assumptions)
            factor = _factor(canonical, meaning, notes, frame[column], assumptions)
            scale = 1.0 if meaning.inverse else factor
            values = numbers(cells, units=UNITS.get(canonical, COUNT_UNITS), factor=scale)
            if meaning.inverse:
                values = factor / values.where(values > 0)
            if canonical in WHOLE_NUMBERS:
                values = values.where(values % 1 == 0)
            if canonical == "time" and cells.astype(str).str.contains(PLUS_MINUS).any():
                spreads = cells.map(lambda cell, by=factor: spread(cell, factor=by))
                tidy["std"] = tidy["std"].fillna(spreads.astype(float))
            if canonical in TIMES and not values.notna().any():
                del assumptions[stated:]  # words have no unit
            if not values.notna().any() and column not in mapped:
                # A column `gpu` without numbers is its name.
                named = columns.text_guess(column)
                if named is None or named in given:
                    continue
                canonical = named
            else:
                if canonical in ROUNDED:
                    tidy[f"{canonical}_rounding"] = roundings(
                        frame[column], is_time=canonical == "time"
                    )
                cells = values
        if cells.notna().any():
            tidy[canonical], given[canonical] = cells, column
        elif column in mapped:
            problem = f"column {column!r} holds no value that can be read"
            raise InputError(source, [Problem(f"columns.{meaning.canonical}", problem)])
    if "std" in given and "time" not in given:
        tidy["std"] = np.nan  # of anything
    for canonical, others in left_out.items():
        if canonical in MEASURED:
            assumptions.append(
                f"{given[canonical]!r} is read as the {MEASURED[canonical]}, not "
                f"{', '.join(map(repr, others))}; --column {canonical}=COLUMN chooses another"
            )
    return _clean(tidy, assumptions), given


def _canonicals(meanings: Mapping[str, Guess]) -> list[str]:
    return [meaning.canonical for meaning in meanings.values()]


def _by_precision(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """The columns; of several rates, the one with the most digits comes first. So do a repeat, a
    strategy, and the batch of a rank, which a pipeline cuts into micro-batches; "Seconds", which
    may be a video's, come last.
    """
    first = "local|lbs|repeat|replicate|trial|strategy$"  # not a run's id, nor a configuration
    plain = [column for column in meanings if re.match(first, columns.normal(column))]
    bare = [column for column in meanings if re.fullmatch("seconds|duration", column.lower())]
    meanings = {column: meanings[column] for column in plain} | dict(meanings)
    meanings |= {column: meanings.pop(column) for column in bare}
    rates = [column for column, meaning in meanings.items() if meaning.canonical == "rate"]
    if len(rates) < 2:
        return dict(meanings)
    medians = {column: numbers(frame[column], units=COUNT_UNITS).median() for column in rates}
    first = max(rates, key=lambda column: medians[column] if medians[column] > 0 else 0.0)
    return {first: meanings[first], **meanings}


def _names_settings(cells: pd.Series) -> bool:
    """Whether the names of runs tell settings, such as "NVFP4 (bf16 tail)" or "no cache"."""
    names = [str(name) for name in cells.dropna().unique()[:MOST_KEY_VALUES]]
    return any(setting_of(name).words or SEVERAL_WORDS.fullmatch(name) for name in names)


def _counts(cells: pd.Series) -> bool:
    known = pd.to_numeric(cells.dropna(), errors="coerce")
    return len(known) > 0 and bool(known.between(1, MOST_NODES).all() and (known % 1 == 0).all())


def _ranks(
    cells: pd.Series, tidy: pd.DataFrame, given: dict[str, str], column: str, canonical: str
) -> pd.Series:
    """The ranks in cells such as "8x A100", which also name the GPU; other cells as they are."""
    texts = cells.dropna()
    if canonical != "world_size" and "world_size" in given:
        return cells
    pairs = texts.map(ranks_of)
    counts = pairs.map(lambda pair: pair[0]).astype(float)
    if not counts.notna().any() or (canonical != "world_size" and not counts.notna().all()):
        return cells
    names = pairs.map(lambda pair: pair[1] or None)
    if canonical != "world_size":
        tidy["world_size"], given["world_size"] = counts, column
        return names.reindex(cells.index)
    if names.notna().any() and "gpu" not in given:
        tidy["gpu"], given["gpu"] = names.reindex(cells.index), column
    return cells.where(~cells.index.isin(counts.dropna().index), counts.reindex(cells.index))


def _is_mean(column: str, meanings: Mapping[str, Guess]) -> bool:
    """Whether a column is a mean over ranks, because another holds the slowest rank's value."""
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
    if canonical == "memory":
        if pd.to_numeric(cells, errors="coerce").notna().any():
            assumptions.append(f"{cells.name!r} names no unit, such as GB, and is left out")
        return math.nan  # a cell may have its own unit
    if canonical not in TIMES:
        return 1e9 if canonical in {"algbw", "busbw"} else 1.0
    known = [text for cell in cells if (text := _text(cell)) is not None]
    if all(math.isfinite(duration(text)) for text in known):
        return 1.0  # 01:12:30 needs no unit
    plain = [BRACKETS.sub("", text).lower() for text in known]
    units = [match[1] for text in plain if (match := NAMED_UNIT.search(text))]
    if len(units) == len(known):
        return CELL_TIMES[units[0]]
    if len(set(units)) == 1:
        assumptions.append(f"{cells.name!r} is read as {units[0]}, the unit of some of its cells")
        return CELL_TIMES[units[0]]
    for unit, (pattern, factor) in NOTED_UNITS.items():
        if any(pattern.search(note) for note in notes):
            assumptions.append(
                f"{cells.name!r} names no unit and is read as {unit} according to its notes"
            )
            return factor
    assumptions.append(f"{cells.name!r} names no unit and is read as seconds")
    return 1.0


def _texts(column: pd.Series) -> pd.Series:
    if isinstance(column.dtype, pd.StringDtype):  # once for each of a file's values
        texts = {cell: _text(cell) for cell in column.unique()}
        return pd.Series([texts.get(cell) for cell in column], column.index, name=column.name)
    return column.map(_text)


def _text(cell: object) -> str | None:
    text = "" if cell is None else str(cell).strip()
    missing = text.lower() in {"", "na", "n/a", "nan", "none", "-", "null", "<na>"}
    if missing:
        return None
    return text[:-2] if text.endswith(".0") and text[:-2].isdecimal() else text  # but not of 2.4.0


def _clean(tidy: pd.DataFrame, assumptions: list[str]) -> pd.DataFrame:
    """Drop rows with other statistics over ranks, and values that no measurement can have."""
    ranks = tidy["rank"].str.lower()
    tidy["aggregate"] = ranks.isin(AGGREGATES)
    tidy["rank"] = ranks.str.extract(r"(\d{1,7})$", expand=False).astype(float)
    tidy = tidy[~ranks.isin(OTHER_STATISTICS)].copy()
    for column, least in PERCENT_FROM.items():
        percent = tidy[column] > least
        if column in SHARES:
            percent = pd.Series(bool(percent.any()), tidy.index)
        if percent.any():
            tidy.loc[percent, column] /= 100
    not_positive = tidy[list(POSITIVE)].to_numpy(dtype=float) <= 0
    for column, wrong in zip(POSITIVE, not_positive.T, strict=True):
        if wrong.any():
            verdict = "is not positive and is" if wrong.sum() == 1 else "are not positive and are"
            values = count(int(wrong.sum()), "value")
            assumptions.append(f"{values} of {column} {verdict} left out")
            tidy.loc[wrong, column] = np.nan
    return tidy


def _world_size(tidy: pd.DataFrame, hint: tuple[int, str] | None) -> tuple[pd.Series | float, str]:
    """World sizes by nodes, strategies or ranks, and what that assumes; NaN and "" if unknown."""
    if tidy["per_node"].notna().any():
        ranks = tidy["nodes"].fillna(1.0) * tidy["per_node"]
        return ranks, "the ranks are the nodes times the ranks per node"
    if tidy["dp"].notna().any():
        ranks = tidy[["dp", *LAYOUT]].prod(axis=1, min_count=1)
        return ranks, "the ranks are the product of the degrees of parallelism"
    if tidy["nodes"].nunique() > 1:
        return tidy["nodes"], "the table does not give the ranks per node, so a node counts as one"
    names = tidy["strategy"].fillna("").str.lower()
    parallel = names.map(columns.is_parallel).astype(bool)
    number = r"(\d{1,6})\s*x?\s*[-_ ]?(?:gpus?|ranks?|procs?|process|x)|x(\d{1,6})"
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
    if collective:
        keys["key:bytes"] = tidy["bytes"].map(_size)
    for column in frame.columns:
        # A column whose numbers cannot be parsed may still distinguish rows.
        meaning = guess(column)
        read = meaning is not None and meaning.canonical not in {*WHOLE_NUMBERS, *TEXTS}
        ideal = re.search(columns.IDEAL, normal(column))
        if column not in used and not read and column != ROW and not ideal:
            cells = frame[column].map(_text).loc[tidy.index]
            words = pd.to_numeric(cells.dropna(), errors="coerce").isna().all()
            # Of words for settings, half may have been measured at one number of ranks.
            # On one number of ranks words tell configurations apart, unless they vary in a log.
            named = words and bool(cells.dropna().str.match(r"[^\W\d_]").all())
            apart = named and not logged and tidy["world_size"].nunique() == 1
            apart = apart or (named and logged and _names_series(cells, tidy))
            if (apart and cells.nunique() > 1) or _is_key(
                cells, tidy["world_size"], least=0.5 if words else 0.51
            ):
                keys[f"key:{column}"] = cells
    for name, cells in keys.items():
        texts = cells.map("{:g}".format) if is_numeric_dtype(cells) else cells.astype(str)
        tidy[name] = texts.where(cells.notna(), "")


def _names_series(cells: pd.Series, tidy: pd.DataFrame) -> bool:
    """Whether each value of a column names one piece of a log in which the steps only increase."""
    values = cells.fillna("")
    index = tidy["step"].fillna(tidy["epoch"]).loc[values.index]
    starts = values != values.shift()
    onward = (index.diff() > 0) | starts
    pieces = starts.sum() == values.nunique() < len(values)
    return bool(pieces and index.notna().all() and onward.all())


def _size(size: float) -> str:
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10), ("B", 0)):
        if size >= scale:
            return f"{size / max(scale, 1):g} {unit}"
    return ""


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
    values = cells.dropna()
    if values.nunique() < 2:
        return False
    return bool((values.groupby(sizes.loc[values.index]).nunique() > 1).any()) or _is_key(
        cells, sizes
    )


def _labels(tidy: pd.DataFrame) -> list[str]:
    """A name for each row: its number in the table from 1, and what distinguishes it."""
    keys = [name for name in tidy.columns if name.startswith("key:") and tidy[name].nunique() > 1]
    batches = tidy["batch"].fillna(tidy["global_batch_size"])
    names = ("world_size", "rank", "aggregate", *keys)
    rows = zip(*(tidy[name].tolist() for name in names), strict=True)
    labels = []
    for number, row, batch in zip(tidy[ROW], rows, batches, strict=True):
        size, rank, aggregate, *settings = row
        parts = list(filter(None, settings))
        parts += [f"batch {batch:g}"] if batch == batch else []
        parts += [f"world size {size:g}"] if size == size else []
        if aggregate:
            parts.append("mean over ranks")
        elif rank == rank:
            parts.append(f"rank {rank:g}")
        labels.append(f"row {number}" + (f" ({', '.join(parts)})" if parts else ""))
    return labels
