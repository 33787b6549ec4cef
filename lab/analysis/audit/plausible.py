"""Whether the cells of a column can be what its name suggests."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pandas as pd

from lab.analysis.audit.columns import TIMES, Guess, names_gpu, normal, parse_name
from lab.analysis.audit.points import ROUNDING
from lab.analysis.audit.values import BRACKETS, COUNT_UNITS, NUMBER, TIME_UNITS, numbers, roundings

FAR_BEYOND, LEAST_PERCENT = 1.5, 4  # no efficiency is between these
TIMESTAMP = 1e9  # seconds since 1970, and more than a training takes
LENGTHS = 64  # sequence lengths are multiples of this
BARE_LENGTHS = {"seq", "sequence", "context", "ctx", "sl"}
LARGEST_VERSION = 40  # but containers are named after years and months
OF_TRAINING = {"model", "dp", "tp", "pp", "global_batch_size", "micro_batch_size"}
OF_TRAINING |= {"grad_accum", "mfu", "hfu", "rate_per_rank", "flops_per_rank"}
OF_PROGRAMS = {"speedup", "efficiency", "threads", "cpus", "ratio_of_times"}
RANKS = {"world_size", "nodes"}
NAMES_OF_RUNS = {"strategy", "model", "repeat", "framework"}
CUT_OFF = 0.002  # relative: of a ratio whose last digit was cut off instead of rounded
COLLECTIVE = re.compile(
    r"all[-_ ]?(?:reduce|gather|to)|reduce[-_ ]?scatter|collective|[nr]ccl", re.IGNORECASE
)
OF_SERIAL = re.compile(r"(?:^|_)(?:serial|sequential|seq|single)(?:_|$)")
MOST_CELLS = 50  # of a column that are looked at
ALIKE = 1.05  # ratio of two measurements of one time
MOST_COLUMNS = 30  # of which all pairs are compared
FEWEST_STEPS = 4  # that tell whether a time grows
MOSTLY = 0.5  # of the gaps between the steps of a log are equal


def is_plausible(canonical: str, column: str, texts: pd.Series) -> bool:
    """Whether cells, as texts, can be the quantity that their column's name suggests."""
    stem = parse_name(column).stem
    if canonical == "version" and not re.search("version|date", stem):
        # Below "PyTorch" there may also be rates.
        return bool((numbers(texts).fillna(0.0) < LARGEST_VERSION).all())
    bare = texts.str.replace(BRACKETS, "", regex=True)
    if canonical in {*TIMES, "algbw", "busbw"} and bare.str.contains("%").any():
        return False
    if canonical == "time" and texts.str.fullmatch(NUMBER).all():
        return bool(numbers(texts).median() < TIMESTAMP)
    if canonical in {"precision", "compile"}:
        times = numbers(texts, units=TIME_UNITS).where(~texts.str.fullmatch("[01]"))
        return not (len(texts) > 0 and times.notna().all())
    named = parse_name(column).family == "percent"
    if canonical == "speedup" and (named or texts.str.contains("%").all()):
        shares = numbers(texts, factor=0.01 if named else 1.0).dropna()
        return bool((shares >= 1).all())  # one of 12 % is an increase
    if canonical == "efficiency" and not texts.str.contains("%").any():
        return not numbers(texts).between(FAR_BEYOND, LEAST_PERCENT).all()
    if canonical == "sequence_length" and stem in BARE_LENGTHS:  # not a sequential time
        return bool((numbers(texts, units=COUNT_UNITS) % LENGTHS == 0).all())
    if canonical == "gpu" and re.fullmatch("systems?", stem):
        return bool(texts.map(names_gpu).any())
    if canonical in {"global_batch_size", "batch"}:  # in tokens, such as 4M
        return not texts.str.fullmatch(r"[\d.]+\s*[mM]\w*").any()
    if canonical == "rank" and re.search("gpu|device", stem):  # a column gpu_id may hold names
        return not texts.map(names_gpu).any()
    if canonical in {"epoch", "step"}:
        return _numbers_each(texts[texts.str.contains(r"\d")], canonical) and (
            stem != "epochs" or _goes_on(numbers(texts).dropna())
        )
    return True


def _numbers_each(texts: pd.Series, canonical: str) -> bool:
    """Whether cells number the epochs or steps of a log, and are not how many there were."""
    values = np.unique(numbers(texts))
    whole = np.isfinite(values) & (values % 1 == 0)
    if len(values) < 2 or not whole.all() or not texts.str.fullmatch(NUMBER).all():
        return False
    gaps = np.diff(values)
    usual = float(np.median(gaps))
    if canonical == "epoch" and values[0] > 1 and usual > 1:
        return False
    # Two values are too few for a pattern, unless they are the first ones.
    return bool(values[1] <= 2) if len(values) == 2 else float(np.mean(gaps == usual)) > MOSTLY


def _goes_on(epochs: pd.Series) -> bool:
    """Whether the number mostly goes on by one where it changes, as in a log."""
    steps = epochs.diff()
    onward, restarts = steps == 1, (steps < 0) & (epochs == epochs.min())
    changes = int((steps.notna() & (steps != 0)).sum())
    return bool((onward | restarts).sum() == changes and onward.sum() > restarts.sum())


def is_not_process_rank(column: str, frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> bool:
    """Whether a column called rank holds no ranks of a program: places on a list (1, 2, 3, each
    with a name of its own, in the order of what was measured), or ranks of matrices (8, 16)."""
    values = pd.to_numeric(frame[column], errors="coerce")
    if not (values == np.arange(1, len(frame) + 1)).all():
        alone = not RANKS & {meaning.canonical for meaning in meanings.values()}
        known = np.unique(values.dropna())
        return alone and len(known) > 1 and bool((np.diff(known) > 1).all())  # of matrices
    others = [
        name
        for name in frame.columns
        if name not in meanings or meanings[name].canonical in NAMES_OF_RUNS
    ]
    named = any(frame[name].is_unique and numbers(frame[name]).isna().all() for name in others)
    measured = [numbers(frame[name], units=TIME_UNITS) for name in frame.columns if name != column]
    return named and any(
        (one.is_monotonic_increasing or one.is_monotonic_decreasing)
        and one.diff().nunique() > 1  # does not only count the ranks
        for one in (column.dropna() for column in measured)
    )


def is_of_samples(column: str, frame: pd.DataFrame) -> bool:
    """Whether a column called n counts the samples of a mean, or the columns of a matrix."""
    others = {normal(name) for name in frame.columns}
    statistics = r"(?:.*_)?(?:mean|std|sd|sem|p)(?:_.*)?"
    return normal(column) == "n" and (
        others >= {"m", "k"} or any(re.fullmatch(statistics, other) for other in others)
    )


def is_of_collective(column: str, frame: pd.DataFrame, names: Collection[str]) -> bool:
    """Whether a column called bandwidth is that of a collective, not of a memory or a device."""
    if "bus" in normal(column) or {"algbw", "world_size", "nodes"} & set(names):
        return True
    cells = (str(cell) for name in frame for cell in frame[name].unique()[:MOST_CELLS])
    notes = map(str, frame.attrs.get("notes", ()))
    return any(COLLECTIVE.search(text) for text in (*frame.columns, *notes, *cells))


def are_collectives(labels: Iterable[str]) -> bool:
    """Whether at least two labels are names of collectives, and not of their times."""
    named = [label for label in labels if COLLECTIVE.match(label)]
    return len(named) > 1 and not any("time" in label.lower() for label in named)


def own_baseline(column: str, frame: pd.DataFrame, others: Collection[str]) -> str:
    """The column of which each row's number is divided by another of the row to give a quoted
    speedup; "" if there is none. `others` are columns that cannot be either."""
    frame = frame.head(MOST_CELLS)
    quoted = numbers(frame[column])
    known = quoted.notna()
    last = 2 * roundings(frame[column].map(str)) + CUT_OFF
    measured = {
        str(name): values
        for name in frame
        if name not in {column, *others}
        if (values := numbers(frame[name], units=TIME_UNITS))[known].notna().all()
    }
    if known.sum() < 2 or len(measured) > MOST_COLUMNS:
        return ""
    return next(
        (
            one
            for one, other in itertools.permutations(measured, 2)
            if (abs(measured[one] / measured[other] / quoted - 1) <= last)[known].all()
        ),
        "",
    )


def recurs(cells: pd.Series) -> bool:
    """Whether a column has about the same number in several rows, as has a serial time that each
    number of ranks is compared with."""
    values = np.sort(numbers(cells, units=TIME_UNITS).dropna())
    return bool(2 * (1 + np.sum(values[1:] > ALIKE * values[:-1])) <= len(values))


def numbers_devices(column: str, values: pd.Series) -> bool:
    """Whether a column called GPU numbers them from 0, each in a row of its own."""
    counts = re.search("(^|_)(num|number|count)(_|$)", normal(column))
    return not counts and len(values) > 1 and values.tolist() == list(range(len(values)))


def varies_by_step(values: pd.Series, column: str, names: Collection[str]) -> bool:
    """Whether a column called GPU is not of ranks, because it varies between the steps of a log."""
    return (
        "step" in names and bool(re.fullmatch("[ghint]pu", normal(column))) and values.nunique() > 1
    )


def is_elapsed(values: pd.Series, column: str, names: Collection[str]) -> bool:
    """Whether a time in a log is the one since its start, which only grows."""
    known, name = values.dropna(), normal(column)
    of_all = re.search("elapsed|total|wall|since|run", name) and not re.search("epoch|step", name)
    if not of_all or not {"step", "epoch"} & set(names) or len(known) < FEWEST_STEPS:
        return False
    return known.is_monotonic_increasing and bool(known.iloc[-1] > 2 * known.iloc[0])


def counts_processes(column: str, values: pd.Series) -> bool:
    """Whether a column called "proc" counts them: 1, 2, 4 and 8 rather than 0 to 7."""
    known = values.dropna()
    named = re.fullmatch("proc(ess(or)?)?", normal(column))
    return bool(named) and len(known) > 0 and known.min() > 0 and known.max() > known.nunique()


def is_of_model(column: str, texts: pd.Series, meanings: Mapping[str, Guess]) -> bool:
    """Whether a size such as 7 B is that of a model or data set, and not of a message in bytes."""
    of_model = any(meaning.canonical in OF_TRAINING for meaning in meanings.values())
    named = any(meaning.canonical in {"model", "dataset"} for meaning in meanings.values())
    counted = bool(texts.str.fullmatch(r"(?:\d+x)?[\d.]+\s*[bBmM]").all())
    return parse_name(column).stem == "size" and (named or (of_model and counted))


def is_of_problem(column: str, names: Collection[str]) -> bool:
    """Whether a size is that of a problem which a parallel program solves, and not of a message."""
    return parse_name(column).stem == "size" and bool(OF_PROGRAMS & set(names))


def is_of_program(column: str, frame: pd.DataFrame, names: Collection[str]) -> bool:
    """Whether a column called MPI or NCCL is the time of a program that uses it, as beside that of
    a sequential one or a speedup of the same name, and no part of a step."""
    stem = parse_name(column).stem
    if stem not in {"mpi", "nccl", "rccl"} or {*TIMES} - {"communication"} & set(names):
        return False
    others = [normal(name) for name in frame.columns if name != column]
    ratio = re.compile(rf"{stem}_(?:speed_?up|efficiency)|(?:speed_?up|efficiency)_{stem}")
    return any(OF_SERIAL.search(other) or ratio.fullmatch(other) for other in others)


def is_of_another(column: str, frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> bool:
    """Whether a column named only "std" follows the mean of something else than a time."""
    names = list(frame.columns)
    before = names[names.index(column) - 1] if names.index(column) else ""
    of_time = before in meanings and meanings[before].canonical in TIMES
    return not parse_name(column).stem and not of_time and parse_name(before).statistic is not None


def are_shares(cells: pd.Series) -> bool:
    """Whether a column called scaling holds shares of the ideal, not speedups, such as 393 %."""
    texts = cells.dropna().astype(str)
    known = numbers(texts).dropna()
    if texts.str.contains("%").any():
        return bool((known < FAR_BEYOND).all())
    return bool((known <= 1 + ROUNDING).all() and (known < 1).any())
