"""What tells the rows of a table apart: the configurations whose rows make a curve each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import pandas as pd
from pandas.api.types import is_numeric_dtype

from lab.analysis.audit import columns
from lab.analysis.audit.columns import LAYOUT, RATIOS, TEXTS, guess, normal
from lab.analysis.audit.observations import ROW, columns_with_values, setting
from lab.analysis.audit.quantities import STATE, WHOLE_NUMBERS, as_text, as_texts
from lab.analysis.audit.values import COUNT_UNITS, NEARLY, numbers, volume
from lab.formatting import message_size, model_size
from lab.records.table import grouped

KEYS = (
    *("model", "sequence_length", "dataset", "framework", "precision", "compile", "seed"),
    *("link", "device", "emulated", "strategy", "scaling", "recompute", "sharding", "interleave"),
    *("sequence_parallel", *LAYOUT),
)
NUMBERED = {"strategy", "rank", "repeat", "seed", "epoch", "step"}
SETTINGS = {*WHOLE_NUMBERS, *TEXTS, "bytes"}  # a size that is not read is a problem's
# Of each rank, and of a loop or a problem that is the whole work.
READ_SETTINGS = {"cpus", "threads", "steps", "samples"}
MOST_VALUES = 200  # of a key
SIZED = re.compile(r"\d\+? ?(?:v?cpus?|cores?|[gt]i?b)\b", re.IGNORECASE)  # of "4 vCPU / 8 GB"
LETTER = re.compile(r"[^\W\d_]")
LABELLED = r"(?:\b[a-zA-Z]{{1,8}}=)?(?<![\d.]){ranks}(?![\d.])"  # the ranks in "MPI P=4"
NO_REPEATS = 1.5  # ratio of two times on as many ranks
ANOTHER = 1.1  # ratio of the parameters of two models
HARDWARE, SOFTWARE = ("gpu", "cpu"), ("version", "driver")  # that runs may be compared by


def add_keys(
    tidy: pd.DataFrame,
    frame: pd.DataFrame,
    used: Collection[str],
    *,
    collective: bool,
    logged: bool,
    own_baseline: bool,
) -> None:
    """Columns that distinguish configurations: KEYS, and others with several world sizes each. With
    an `own_baseline` the quoted speedup of a row says nothing of other rows."""
    frame = frame if len(frame) == len(tidy) else frame.loc[tidy.index]
    ranks = tidy["world_size"]
    with_values = columns_with_values(tidy)
    parts = [name for name in (*HARDWARE, *SOFTWARE) if name in with_values]
    compared = [name for name in parts if _is_compared(tidy[name], ranks)]
    machines = HARDWARE if logged else (*HARDWARE, "host")  # with a curve each
    compared += [
        name for name in machines if name in with_values and _is_key(tidy[name], ranks, least=1.0)
    ]
    if tidy["host"].map(SIZED.search, na_action="ignore").notna().all():
        compared += ["host"]  # machines of different sizes, not nodes of a cluster
    candidates = dict.fromkeys((*KEYS, *compared))
    keys = {f"key:{name}": tidy[name] for name in candidates if name in with_values}
    if _sizes_differ(tidy):
        sizes = tidy["parameters"].map(model_size, na_action="ignore")
        keys["key:parameters"] = sizes + " parameters"
    if collective:
        keys["key:bytes"] = tidy["bytes"].map(message_size, na_action="ignore")
    for column in frame.columns:
        name, meaning = normal(column), guess(column)
        computed = re.search(columns.IDEAL, name) or columns.VERDICT.fullmatch(name)
        if column in used or column == ROW or computed or STATE.fullmatch(name):
            continue
        # A column whose numbers cannot be parsed may still distinguish rows, as may settings.
        measured = meaning is not None and meaning.canonical not in SETTINGS
        measured = measured or bool(columns.OUTCOME.search(name))
        cells = _without_ranks(frame[column].map(as_text), ranks)
        if _distinguishes(cells, tidy, measured=measured, logged=logged):
            keys[f"key:{column}"] = cells
    quoted = bool({"speedup", "efficiency"} & with_values)
    if not (logged or quoted):
        keys |= _sizes_of_problems(tidy, frame, used)
    for name, cells in keys.items():
        tidy[name] = _as_key(cells)
    if "loader_workers" in with_values:
        alike = tidy["loader_workers"].groupby([*(tidy[name] for name in keys), ranks])
        if alike.nunique().max() > 1:
            tidy["key:loader_workers"] = _as_key(tidy["loader_workers"])
    repeated = any(tidy[name].nunique() > 1 for name in {"repeat", "seed"} & with_values)
    if not (logged or (quoted and not own_baseline) or repeated):
        for name, cells in _no_repeats(tidy, frame, used).items():
            tidy[name] = _as_key(cells)


def _without_ranks(cells: pd.Series, ranks: pd.Series) -> pd.Series:
    """Labels such as "MPI P=4", of which each row has another, without the number of its ranks and
    what this counts; other cells as they are."""
    if not cells.is_unique or ranks.nunique() < 2 or cells.isna().any():
        return cells
    pairs = zip(cells, ranks, strict=True)
    bare = [
        re.sub(LABELLED.format(ranks=f"{size:g}"), "", str(text)).strip() for text, size in pairs
    ]
    pairs = zip(bare, cells, strict=True)
    others = any(text == cell and re.search(r"\d", text) for text, cell in pairs)
    bare = [re.sub(r"s\b", "", text) for text in bare]  # of 1 thread and 2 threads
    return cells if others or len({*bare}) == len(bare) else pd.Series(bare, cells.index)


def _as_key(cells: pd.Series) -> pd.Series:
    text = "{:g}".format if is_numeric_dtype(cells) else str
    pairs = zip(cells.tolist(), cells.isna().tolist(), strict=True)
    return pd.Series(["" if empty else text(cell) for cell, empty in pairs], cells.index, dtype=str)


def _no_repeats(
    tidy: pd.DataFrame, frame: pd.DataFrame, used: Collection[str]
) -> dict[str, pd.Series]:
    """The columns of words or whole numbers, if any, that tell apart all rows on as many ranks
    whose times are too far apart for repeats: as few, with as few values, as will do."""
    keys = [name for name in tidy.columns if name.startswith("key:")]
    times = tidy["time"].fillna(1 / tidy["rate"]).tolist()
    settings = [tidy[name].tolist() for name in (*keys, "world_size")]

    def far_apart(*more: pd.Series) -> int:
        """How many rows belong to others on as many ranks with such times."""
        each = zip(*settings, *(cells.tolist() for cells in more), strict=True)
        alike = grouped(zip(each, times, strict=True)).values()
        measured = [(len(some), [time for time in some if time == time]) for some in alike]
        return sum(n for n, some in measured if some and max(some) > NO_REPEATS * min(some))

    apart = far_apart() if tidy["world_size"].nunique() > 1 else 0
    able = _able_to_tell_apart(tidy, frame, used) if apart else {}
    chosen: dict[str, pd.Series] = {}
    while apart:
        left = {name: far_apart(*chosen.values(), cells) for name, cells in able.items()}
        best = min(left, key=lambda name: (left[name], able[name].nunique()), default=None)
        if best is None or left[best] >= apart:
            return {}
        apart, chosen[f"key:{best}"] = left[best], able.pop(best)
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
        cells = frame[column].map(as_text)
        # One value for each row is the number of a job, not a setting.
        if 1 < cells.nunique() < len(cells) and not (numbers(cells) % 1 > 0).any():
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
    words = bool(pd.to_numeric(known, errors="coerce").count() == 0)
    named = words and all(map(LETTER.match, known.tolist()))
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
        cells = frame[column].map(as_text)
        if per_rank:
            whole = numbers(cells, units=COUNT_UNITS) * ranks
            if whole.isna().any() or whole.max() <= (1 + NEARLY) * whole.min():
                continue  # of one problem
            cells = whole.round().map("{:.0f}".format)
        cells = _per_rank_in_weak_scaling(cells, tidy)
        own = cells.groupby(ranks).nunique()
        several = (own > 1).any()
        if cells.isna().any() or not (several or len(own) == cells.nunique() > 1):
            continue
        each = numbers(cells.map(volume), units=COUNT_UNITS) / ranks
        if not several and each.notna().all() and each.max() <= (1 + NEARLY) * each.min():
            tidy["scaling"] = tidy["scaling"].fillna("weak")
            return {}
        sizes[f"key:{name if per_rank else column}"] = cells
    return sizes


def _per_rank_in_weak_scaling(cells: pd.Series, tidy: pd.DataFrame) -> pd.Series:
    """Sizes of problems, in weak scaling those of a rank; "" if all of these are equal."""
    weak = tidy["scaling"] == "weak"
    each = numbers(cells.map(volume), units=COUNT_UNITS) / tidy["world_size"]
    if not weak.any() or each[weak].isna().any():
        return cells
    same = each[weak].max() <= (1 + NEARLY) * each[weak].min()
    return cells.mask(weak, "" if same else each.map(model_size) + " per rank")


def _names_series(cells: pd.Series, tidy: pd.DataFrame) -> bool:
    """Whether each value of a column names one piece of a log in which the steps only increase."""
    values = cells.fillna("")
    index = tidy["step"].fillna(tidy["epoch"]).loc[values.index]
    starts = values != values.shift()
    onward = (index.diff() > 0) | starts
    pieces = starts.sum() == values.nunique() < len(values)
    return bool(pieces and index.notna().all() and onward.all())


def _is_key(cells: pd.Series, sizes: pd.Series, *, least: float) -> bool:
    """Whether at least this share of a column's values occur at several world sizes each."""
    if not 1 < cells.nunique() <= min(MOST_VALUES, max(cells.count() - 1, 1)):
        return False
    values = cells.dropna()
    as_numbers = numbers(values)  # also of 39.8%
    if as_numbers.count() == len(values) and (as_numbers % 1 != 0).any():
        return False  # fractions are measurements
    several = sizes.loc[values.index].groupby(values).nunique() > 1
    return bool(several.mean() >= least)


def _is_compared(cells: pd.Series, sizes: pd.Series) -> bool:
    """Whether values differ on purpose, so that several were measured at one number of ranks."""
    return cells.nunique() > 1 and bool((cells.groupby(sizes).nunique() > 1).any())


def labelled(tidy: pd.DataFrame, frame: pd.DataFrame, given: dict[str, str]) -> Iterator[str]:
    """Take the first column for the strategy if it has other words in each row and some rows have
    as many ranks: those are no repeats."""
    first = str(frame.columns[0])
    # A speedup may be over any of the rows.
    if guess(first) or (NUMBERED | RATIOS) & set(given) or not {"time", "rate"} & set(given):
        return
    sizes, labels = tidy["world_size"], as_texts(frame[first]).loc[tidy.index]
    if labels.isna().any() or sizes.nunique() < 2 or not sizes.duplicated().any():
        return
    words = labels.astype(str).str.match(r"[^\W\d_]|\d+ [^\W\d_]").all()
    kinds = labels.astype(str).str.replace(r"\d+", "", regex=True)
    if words and labels.is_unique and kinds.nunique() > 1:
        tidy["strategy"], given["strategy"] = labels, first
        yield f"each row of {first!r} is a configuration of its own"


def labels(tidy: pd.DataFrame, given: Mapping[str, str]) -> list[str]:
    """A name for each row: its number in the table from 1, and what distinguishes it."""
    keys = [name for name in tidy.columns if name.startswith("key:") and tidy[name].nunique() > 1]
    both = zip(tidy["batch"].tolist(), tidy["global_batch_size"].tolist(), strict=True)
    batches = [batch if batch == batch else whole for batch, whole in both]
    names = ("world_size", "rank", "aggregate", *keys)
    rows = zip(*(tidy[name].tolist() for name in names), strict=True)
    texts = []
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
        texts.append(f"row {number}" + (f" ({', '.join(parts)})" if parts else ""))
    return texts
