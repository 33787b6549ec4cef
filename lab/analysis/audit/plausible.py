"""What columns are by their cells, and whether that can be what their names suggest."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pandas as pd

from lab.analysis.audit import columns
from lab.analysis.audit.columns import TIMES, Guess, names_gpu, normal, parse_name, setting_of
from lab.analysis.audit.observations import ROW
from lab.analysis.audit.points import ROUNDING
from lab.analysis.audit.reshape import COLLECTIVE, GROWN, are_ratios, are_timed, growth
from lab.analysis.audit.values import (
    BRACKETS,
    COUNT_UNITS,
    GEFORCE,
    NUMBER,
    TIME_UNITS,
    numbers,
    roundings,
)

FAR_BEYOND, LEAST_PERCENT = 1.5, 4  # no efficiency is between these
MOST_EFFICIENT = 2  # what is mostly over 200 % is a speedup
TIMESTAMP = 1e9  # seconds since 1970, and more than a training takes
LENGTHS = 64  # sequence lengths are multiples of this
BARE_LENGTHS = {"seq", "sequence", "context", "ctx", "sl"}
LARGEST_VERSION = 40  # but containers are named after years and months
OF_TRAINING = {"model", "dp", "tp", "pp", "global_batch_size", "micro_batch_size"}
OF_TRAINING |= {"grad_accum", "mfu", "hfu", "rate_per_rank", "flops_per_rank"}
OF_LANGUAGE = OF_TRAINING | {"parameters", "loss", "batch", "epoch", "step"}
LOOPED = {"step", "epoch", "batch", "rate", "samples", "forward", "backward", "loss"}
OF_FILES = re.compile(r"(?:^|_)(?:i_?o|i_per_o)(?:_|$)")
OF_PROGRAMS = {"speedup", "efficiency", "threads", "cpus", "ratio_of_times"}
RANKS = {"world_size", "nodes"}
NAMES_OF_RUNS = {"strategy", "model", "repeat", "framework", "gpu", "world_size"}
CUT_OFF = 0.002  # relative: of a ratio whose last digit was cut off instead of rounded
MOST_CELLS = 50  # of a column that are looked at
ALIKE = 1.05  # ratio of two measurements of one time
MOST_COLUMNS = 30  # of which all pairs are compared
FEWEST_STEPS = 4  # that tell whether a time grows
NOT_MEASURED = re.compile(rf"{columns.NOT_TRAINING}|{columns.IDEAL}|{columns.OUTCOME.pattern}")
HALF = 0.5
SOLVED = re.compile(r"(?:^|_)(?:[kmgt]flops?|[kmgt]i?b_per_s(?:ec)?)(?=_|$)")
SLIGHTLY = 0.1  # of the ranks' own growth: a model's FLOPs do not grow at all
ROUGHLY = 1.1  # ratio of two times of one program
ACTUAL = re.compile("actual|measured|observed|achieved")
MOST_ODD = 100  # degrees of parallelism above this are even
LEAST_SIDE = 100  # of matrices, whose third side may be called p
LEAST_SIZE = 1000  # of a matrix called n, which is hardly the least number of ranks
OF_MESSAGES = re.compile(
    rf"{COLLECTIVE.pattern}|latency|bandwidth|bytes|messages?\b|usec|µs|\(us\)|_us\b|\bosu"
    r"|ping[ -]?pong|pt2pt|bcast|scatter|gather",
    re.IGNORECASE,
)
MOST_NAMES = 200  # of runs that are looked at
MOST_NODES = 4096
SEVERAL_WORDS = re.compile(r"[^\W\d]+(?:(?:[ -]|, )[^\W\d]+)+")
INDICES = re.compile(r"\d{1,2}(?:\s*,\s*\d{1,2})+")  # of devices, which are not numbers of ranks
SCALED = re.compile(".*scaling|scalability")
EDGES = re.compile(r"(?:(?:n|num|number_of)_)?edges")
OF_A_JOB = re.compile("(?:slurm_)?job_")
JOB = r"\d{5,}"  # the number of a batch system, such as 7565972
OF_SERIAL = re.compile(rf"(?:^|_)(?:{columns.SERIAL}|seq|1)(?:_|$)")
SCALING = re.compile(r"(strong|weak)(?:[ _-]?scal.*|)", re.IGNORECASE)
COMPARED = r"\b(?:worse|slower|less|lower|smaller|larger|higher|longer)\b"  # no speedup
TIMED = re.compile(rf"[\d.,]+\s*(?:{'|'.join(TIME_UNITS)})\s*$")  # such as 22.3 s


class _Column:
    """A column beside the others of its table; `names` are what all are by their names."""

    def __init__(
        self, column: str, cells: pd.Series, frame: pd.DataFrame, meanings: Mapping[str, Guess]
    ) -> None:
        self.column, self.cells, self.frame, self.meanings = column, cells, frame, meanings
        self.name = normal(column)
        self.stem, self.family, *_ = parse_name(column)
        self.names = {meaning.canonical for meaning in meanings.values()}

    @cached_property
    def texts(self) -> pd.Series:
        """The cells that hold anything, numbered anew."""
        # By a list, as pandas takes several times as long for the few cells of most columns.
        cells = zip(self.cells.tolist(), self.cells.isna().tolist(), strict=True)
        return pd.Series([str(cell) for cell, empty in cells if not empty], dtype=str)

    @cached_property
    def values(self) -> pd.Series:
        """The cells as numbers."""
        return numbers(self.cells)

    @cached_property
    def others(self) -> set[str]:
        """The names of all columns but this one."""
        return {normal(str(name)) for name in self.frame.columns if name != self.column}


def confirmed(
    canonical: str,
    column: str,
    cells: pd.Series,
    frame: pd.DataFrame,
    meanings: Mapping[str, Guess],
    *,
    guessed: bool,
) -> str:
    """What a column of this name is by its cells; "" if nothing that is known, for a guess."""
    one = _Column(column, cells, frame, meanings)
    names = one.names
    if canonical == "host" and _counts(cells) and "rank" not in names:
        canonical = "nodes"
    elif canonical == "version" and not one.texts.str.contains(r"\d").any():
        canonical = "" if "strategy" in names else "strategy"  # serial and parallel
    elif canonical == "repeat" and _names_settings(cells):
        canonical = "" if "strategy" in names else "strategy"  # runs are called after what they try
    elif canonical == "speedup" and SCALED.match(one.name) and _are_shares(one):
        canonical = "efficiency"
    elif canonical == "cpu" and "gpu" not in names and one.texts.map(names_gpu).any():
        canonical = "gpu"  # a processor such as a V100
    elif guessed and canonical == "data" and _is_of_solver(one):
        canonical = "other"
    elif guessed and _is_another(canonical, one):
        canonical = ""
    elif canonical == "bytes" and _is_of_model(one):
        canonical = "" if {"model", "dataset"} & names else "model"
    elif guessed and canonical == "world_size" and any(map(GEFORCE.fullmatch, one.texts)):
        canonical = "gpu"
    elif guessed and canonical == "world_size" and _numbers_devices(one):
        canonical = "rank"
    elif guessed and canonical == "compute" and names & {*TIMES} == {"compute"}:
        canonical = "time"  # of the whole
    elif guessed and canonical in {"step", "rate"} and _are_timed(one):
        canonical = "time"
    elif guessed and canonical in {"rate", "rate_per_rank"} and are_ratios(one.texts):
        canonical = "" if "speedup" in names else "speedup"  # a throughput of 1.9x
    elif guessed and canonical == "rank" and _counts_processes(one):
        canonical = "world_size"
    if canonical in {"strategy", "speedup"} and one.texts.str.fullmatch(SCALING).all():
        canonical = "scaling"
    return "" if guessed and not _is_plausible(canonical, one) else canonical


def _are_timed(one: _Column) -> bool:
    """Whether all cells are times with their units."""
    return len(one.texts) > 0 and all(map(TIMED.match, one.texts))


def _is_another(canonical: str, one: _Column) -> bool:
    """Whether a column is none of what its name suggests, beside the others."""
    names = one.names
    if canonical == "world_size":
        values, least = one.values, one.values.min()
        of_problem = least == 0 or least >= LEAST_SIZE or _times_grow(one)
        # The bandwidths and FLOP/s of a kernel are listed by the size of its problem.
        of_problem |= least > 1 and any(map(SOLVED.search, one.others))
        numbers_rows = one.name == "n" and of_problem
        by_step = "step" in names and re.fullmatch("[ghint]pu", one.name)
        of_steps = by_step and values.nunique() > 1  # varies between the steps of a log
        indices = one.texts.str.fullmatch(INDICES).any()
        return bool(indices or numbers_rows or of_steps or _is_of_samples(one))
    if canonical == "nodes" and any(map(EDGES.fullmatch, one.others)):
        return True  # of a graph
    if canonical == "time" and OF_A_JOB.match(one.name):
        return bool({"rate", "rate_per_rank"} & names)  # what the batch system gave it
    if canonical == "time" and re.fullmatch("time_?steps?", one.name):
        return bool((one.values.diff().dropna() == 1).all())  # counts them
    if canonical == "time" and one.name == "t":
        return _are_degrees(one)
    if "time" not in names and one.stem == "sync":
        return True  # beside "Async" or "Overlap" it is a program
    if canonical == "version":  # below PyTorch and DeepSpeed there are rates or times
        measured = one.values.dropna()
        unlike = measured.is_unique and len(measured) > 1  # versions recur
        return bool({"speedup", "ratio_of_rates"} & names) and unlike
    if canonical == "speedup":  # of one program over another on as many ranks
        over = own_baseline(one.column, one.frame, one.meanings)
        return bool(over) and not _is_serial(over, one)
    if canonical == "bytes" and one.stem == "size":
        return bool(OF_PROGRAMS & names) or not (_is_of_message(one) or _is_of_model(one))
    return (
        (canonical == "communication" and _is_of_program(one))
        or (canonical == "repeat" and _names_runs(one))
        or (canonical == "busbw" and not _is_of_collective(one))
    )


def _is_of_solver(one: _Column) -> bool:
    """Whether a time of input and output is that of a solver, which writes its results."""
    of_steps = any(meaning.per in {"step", "epoch"} for meaning in one.meanings.values())
    of_files = bool(OF_FILES.search(one.name))
    return of_files and not (of_steps or one.names & (OF_TRAINING | LOOPED))


def _are_degrees(one: _Column) -> bool:
    """Whether columns called t and p are degrees of tensor and pipeline parallelism, as where
    another one counts the ranks."""
    sizes = {normal(name) for name, what in one.meanings.items() if what.canonical == "world_size"}
    return "p" in one.others and bool(sizes - {"p"})


def _is_of_message(one: _Column) -> bool:
    """Whether a column called size is that of messages: by a unit of bytes in its name or cells,
    or by latencies, bandwidths, collectives or times in microseconds beside it."""
    if one.family is not None or one.texts.str.contains(r"\d\s*[kKMG]?i?B\b").any():
        return True
    texts = (*one.frame.columns, one.frame.attrs.get("around", ""))
    return any(map(OF_MESSAGES.search, map(str, texts)))


def _names_settings(cells: pd.Series) -> bool:
    """Whether the names of runs tell settings, such as "NVFP4 (bf16 tail)" or "no cache"."""
    names = [str(name) for name in cells.dropna().unique()[:MOST_NAMES]]
    return any(setting_of(name).words or SEVERAL_WORDS.fullmatch(name) for name in names)


def _names_runs(one: _Column) -> bool:
    """Whether the rows are runs with names of their own, such as R75 and R70, or jobs of a batch
    system, which number no repeats."""
    texts = one.texts
    # By Python, which reads digits of every script, as `\d` does.
    last = texts.str.extract(r"(\d+)$", expand=False).map(float, na_action="ignore")
    numbered = sorted(last.dropna()) in [[*range(start, len(texts) + start)] for start in (0, 1)]
    jobs = one.name.startswith("job") or all(texts.str.fullmatch(JOB))
    unnumbered = jobs or not (numbered or any(texts.str.isdecimal()))
    return texts.is_unique and len(texts) > 1 and unnumbered


def _counts(cells: pd.Series) -> bool:
    """Whether the cells of a column called node or host count them."""
    known = pd.to_numeric(cells.dropna(), errors="coerce")
    return len(known) > 0 and bool(known.between(1, MOST_NODES).all() and (known % 1 == 0).all())


def _is_plausible(canonical: str, one: _Column) -> bool:
    """Whether the cells can be the quantity that their column's name suggests."""
    stem, texts = one.stem, one.texts
    if canonical == "rank" and _is_not_process_rank(one):
        return False
    if canonical == "time" and _is_elapsed(one):
        return False
    if canonical == "version" and not re.search("version|date", stem):
        # Below "PyTorch" there may also be rates.
        return bool((numbers(texts).fillna(0.0) < LARGEST_VERSION).all())
    timed = canonical in {*TIMES, "algbw", "busbw"}
    if timed and any("%" in BRACKETS.sub("", text) for text in texts):
        return False
    if canonical == "time" and all(map(NUMBER.fullmatch, texts)):
        return bool(numbers(texts).median() < TIMESTAMP)
    if canonical in {"precision", "compile"}:
        times = numbers(texts, units=TIME_UNITS).where(~texts.str.fullmatch("[01]"))
        return not (len(texts) > 0 and times.notna().all())
    if canonical == "repeat" and stem in {"sample", "measurement"}:  # not the name of one
        return sorted(map(str, texts.unique())) == sorted(map(str, range(1, texts.nunique() + 1)))
    if canonical == "speedup" and texts.str.contains(COMPARED, case=False).any():
        return False
    named = one.family == "percent"
    if canonical == "speedup" and (named or texts.str.contains("%").all()):
        shares = numbers(texts, factor=0.01 if named else 1.0).dropna()
        return bool((shares >= 1).all())  # one of 12 % is an increase
    if canonical == "efficiency":
        shares = numbers(texts, factor=0.01 if named else 1.0)
        if not named and not texts.str.contains("%").any():
            return not shares.between(FAR_BEYOND, LEAST_PERCENT).all()
        return not shares.median() > MOST_EFFICIENT
    if canonical == "sequence_length" and stem in BARE_LENGTHS:  # not a sequential time
        return bool((numbers(texts, units=COUNT_UNITS) % LENGTHS == 0).all())
    if canonical == "sequence_length" and re.fullmatch("block_?size", stem):  # or a kernel's
        return bool(OF_LANGUAGE & one.names or any("tok" in name for name in one.others))
    if canonical in {"dp", *columns.LAYOUT}:  # and no rate or time with it
        return not ((one.values > MOST_ODD) & (one.values % 2 > 0)).any()
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
    return bool(values[1] <= 2) if len(values) == 2 else float(np.mean(gaps == usual)) > HALF


def _goes_on(epochs: pd.Series) -> bool:
    """Whether the number mostly goes on by one where it changes, as in a log."""
    steps = epochs.diff()
    onward, restarts = steps == 1, (steps < 0) & (epochs == epochs.min())
    changes = int((steps.notna() & (steps != 0)).sum())
    return bool((onward | restarts).sum() == changes and onward.sum() > restarts.sum())


def _is_not_process_rank(one: _Column) -> bool:
    """Whether a column called rank holds no ranks of a program: places on a list (1, 2, 3, each
    with a name of its own, in the order of what was measured), or ranks of matrices (8, 16)."""
    frame, meanings = one.frame, one.meanings
    values = pd.to_numeric(frame[one.column], errors="coerce")
    sizes = [name for name, meaning in meanings.items() if meaning.canonical == "world_size"]
    if sizes and (values > numbers(frame[sizes[0]])).any():
        return True
    if not (values == np.arange(1, len(frame) + 1)).all():
        gaps = np.diff(np.unique(values.dropna()))  # of the ranks of matrices, never 1
        return not RANKS & one.names and len(gaps) > 0 and bool((gaps > 1).all())
    others = [
        name
        for name in frame.columns
        if name not in meanings or meanings[name].canonical in NAMES_OF_RUNS | {*TIMES}
    ]  # "Optimizer" may be a time, or name the optimizers, and "GPU" a number, or its models
    named = any(frame[name].is_unique and numbers(frame[name]).isna().all() for name in others)
    measured = (
        numbers(frame[name], units=TIME_UNITS).dropna() for name in frame if name != one.column
    )
    return named and any(
        (values.is_monotonic_increasing or values.is_monotonic_decreasing)
        and values.diff().nunique() > 1  # does not only count the ranks
        for values in measured
    )


def _is_of_samples(one: _Column) -> bool:
    """Whether a column called n counts the samples of a mean, or the rows or columns of a matrix,
    as m and k beside it do, or p beside both."""
    of_matrix = bool({"m", "k"} & one.others)
    if one.name == "p":
        return of_matrix and "n" in one.others and bool((one.values >= LEAST_SIDE).all())
    statistics = re.compile(r"(?:.*_)?(?:mean|std|sd|sem|p)(?:_.*)?")
    return one.name == "n" and (of_matrix or any(map(statistics.fullmatch, one.others)))


def _is_of_collective(one: _Column) -> bool:
    """Whether a column called bandwidth is that of a collective, not of a memory or a device."""
    frame = one.frame
    if "bus" in one.name or {"algbw", "world_size", "nodes"} & one.names:
        return True
    cells = (str(cell) for name in frame for cell in frame[name].unique()[:MOST_CELLS])
    texts = (*frame.columns, frame.attrs.get("around", ""), *cells)
    return any(map(COLLECTIVE.search, texts))


def own_baseline(column: str, frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> str:
    """The column of which each row's number is divided by another of the row to give a quoted
    speedup; "" if there is none, or if the table gives no ranks."""
    others = {name for name, meaning in meanings.items() if meaning.canonical in RANKS}
    frame = frame.head(MOST_CELLS)
    quoted = numbers(frame[column])
    known = quoted.notna().to_numpy()
    if not others or known.sum() < 2:
        return ""
    last = (2 * roundings(frame[column].map(str)) + CUT_OFF).to_numpy()[known]
    speedups = quoted.to_numpy()[known]
    measured = {}
    for name in (name for name in frame if name not in {column, *others}):
        family, factor = parse_name(str(name))[1:3]  # others may be in s now
        scale = factor if family == "time" else 1.0
        values = numbers(frame[name], units=TIME_UNITS, factor=scale).to_numpy()[known]
        if not np.isnan(values).any():
            measured[str(name)] = values
    if len(measured) > MOST_COLUMNS:
        return ""
    for one, other in itertools.permutations(measured, 2):
        if (abs(measured[one] / measured[other] / speedups - 1) <= last).all():
            return one
    return ""


def _is_serial(column: str, one: _Column) -> bool:
    """Whether another column is of a serial program, by its name or because its time, which is that
    of one rank, is about the same in several rows."""
    ranks = [name for name, meaning in one.meanings.items() if meaning.canonical in RANKS]
    values = np.sort(numbers(one.frame[column], units=TIME_UNITS).dropna())
    recurs = 2 * (1 + np.sum(values[1:] > ALIKE * values[:-1])) <= len(values)
    varied = any(one.frame[name].nunique() > 1 for name in ranks)
    return bool(OF_SERIAL.search(normal(column)) or (varied and recurs))


def _numbers_devices(one: _Column) -> bool:
    """Whether a column called GPU numbers them from 0, each in a row of its own."""
    counts = re.search("(^|_)(num|number|count)(_|$)", one.name)
    values = one.values.tolist()
    return not counts and len(values) > 1 and values == list(range(len(values)))


def _is_elapsed(one: _Column) -> bool:
    """Whether a time in a log is the one since its start, which only grows."""
    known = one.values.dropna()
    of_all = re.search("elapsed|total|wall|since|run", one.name)
    if not of_all or re.search("epoch|step", one.name) or not {"step", "epoch"} & one.names:
        return False
    if len(known) < FEWEST_STEPS:
        return False
    return known.is_monotonic_increasing and bool(known.iloc[-1] > 2 * known.iloc[0])


def _counts_processes(one: _Column) -> bool:
    """Whether a column called "proc" counts them: 1, 2, 4 and 8 rather than 0 to 7."""
    known = one.values.dropna()
    named = re.fullmatch("proc(ess(or)?)?", one.name)
    return bool(named) and len(known) > 0 and known.min() > 0 and known.max() > known.nunique()


def _is_of_model(one: _Column) -> bool:
    """Whether a size such as 7 B is that of a model or data set, and not of a message in bytes."""
    named = bool({"model", "dataset"} & one.names)
    counted = bool(one.texts.str.fullmatch(r"(?:\d+x)?[\d.]+\s*[bBmM]").all())
    return one.stem == "size" and (named or (counted and bool(OF_TRAINING & one.names)))


def _is_of_program(one: _Column) -> bool:
    """Whether a column called MPI or NCCL is the time of a program that uses it, as beside that of
    a sequential one or a speedup of the same name, and no part of a step."""
    stem = one.stem
    if stem not in {"mpi", "nccl", "rccl"} or {*TIMES} - {"communication"} & one.names:
        return False
    ratio = re.compile(rf"{stem}_(?:speed_?up|efficiency)|(?:speed_?up|efficiency)_{stem}")
    return any(OF_SERIAL.search(other) or ratio.fullmatch(other) for other in one.others)


def is_of_another(column: str, frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> bool:
    """Whether a column named only "std" follows the mean of something else than a time."""
    names = list(frame.columns)
    before = names[names.index(column) - 1] if names.index(column) else ""
    of_time = before in meanings and meanings[before].canonical in TIMES
    return not parse_name(column).stem and not of_time and parse_name(before).statistic is not None


def _are_shares(one: _Column) -> bool:
    """Whether a column called scaling holds shares of the ideal, not speedups, such as 393 %."""
    known = one.values.dropna()
    if one.family == "percent":
        return bool((known < 100 * FAR_BEYOND).all() and (known < 100).any())
    if one.texts.str.contains("%").any():
        return bool((known < FAR_BEYOND).all())
    return bool((known <= 1 + ROUNDING).all() and (known < 1).any())


def by_numbers(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """The only column whose name says nothing, beside ranks and no other measurement: a time if its
    unit says so, also of several, a rate if an efficiency is quoted and it grows with the ranks;
    empty if there is none, or several. What is called actual beside an ideal behaves like this, and
    the first of several FLOP/s or bandwidths, such as "Triad (GB/s)", is a rate."""
    kinds = {meaning.canonical: column for column, meaning in meanings.items()}
    counts = next((kinds[name] for name in columns.COUNTED_RANKS if name in kinds), None)
    unknown = [str(name) for name in frame if name not in meanings and name != ROW]
    others = [name for name in unknown if _may_be_measured(frame[name])]
    if counts and (solved := _solved(others, counts, frame, kinds)):
        return {solved: Guess("rate", 1.0)}
    timed = [name for name in others if are_timed(frame[name])]
    others = timed if len(timed) == 1 else others
    measured = columns.MEASURED if len(timed) == 1 else columns.OF_SPEED  # beside TFLOP/s, say
    if counts is None or kinds.keys() & ({*measured, *TIMES} - columns.RATIOS):
        return {}
    actual = [name for name in others if ACTUAL.fullmatch(normal(name))]
    ideal = [name for name in unknown if normal(name) in {"ideal", "linear"}]
    if len(actual) == len(ideal) == 1:
        rises = growth(numbers(frame[ideal[0]]), numbers(frame[counts])) >= 0
        return {actual[0]: Guess("rate", 1.0) if rises else Guess("time", None, "total")}
    if len(others) != 1:
        return {}
    cells, name = frame[others[0]], parse_name(others[0])
    rates, ranks = numbers(cells, units=COUNT_UNITS), numbers(frame[counts])
    in_french = name.stem == "temps" and growth(rates, ranks) < 0  # unlike temperatures
    quoted = kinds.get("speedup", "")
    if quoted and not _are_over_one(cells, name.factor, frame[quoted]):
        return {}
    if timed == others or name.family == "time" or in_french:
        return {others[0]: Guess("time", name.factor if name.family else None, "total")}
    grown = (
        "efficiency" in kinds
        and not quoted
        and name.family is None
        and growth(rates, ranks) > GROWN
    )
    return {others[0]: Guess("rate", 1.0)} if grown else {}


def _solved(
    names: Sequence[str], counts: str, frame: pd.DataFrame, kinds: Mapping[str, str]
) -> str:
    """The first of these columns of FLOP/s or bandwidths, if it grows with the ranks, or like the
    quoted speedups; else "".

    Cores alone may be those of different machines, and bytes those of messages.
    """
    solved = [name for name in names if SOLVED.search(normal(name))]
    others = kinds.keys() & ({"bytes", *columns.OF_SPEED} - columns.RATIOS)
    if not solved or others or kinds.get("cpus") == counts or normal(counts) == "n":
        return ""
    rates, ranks = numbers(frame[solved[0]], units=COUNT_UNITS), numbers(frame[counts])
    over = rates / numbers(frame[kinds["speedup"]]) if "speedup" in kinds else rates
    grown = growth(rates, ranks) > SLIGHTLY or over.max() < ALIKE * over.min() < rates.max()
    return solved[0] if grown else ""


def _are_over_one(times: pd.Series, factor: float, quoted: pd.Series) -> bool:
    """Whether most quoted speedups are about those of one time over each of these, as then another
    time, or that of another run, hardly is the one that they are over."""
    products = numbers(times, units=TIME_UNITS, factor=factor) * numbers(quoted)
    firsts = np.sort(products[products > 0])
    near = firsts[1:] < ROUGHLY * firsts[:-1]
    return bool(len(near) and np.mean(np.append(near, False) | np.append(False, near)) > HALF)


def _may_be_measured(cells: pd.Series) -> bool:
    """Whether a column's name and cells may be those of a time or a rate."""
    name, known = normal(str(cells.name)), cells.dropna()
    if NOT_MEASURED.search(name) or columns.PROBLEM.fullmatch(name):
        return False
    return len(known) > 1 and bool(numbers(known, units=TIME_UNITS).notna().mean() > HALF)


def _times_grow(one: _Column) -> bool:
    """Whether times grow with numbers, which are then the sizes of a problem, and no ranks."""
    timed = [name for name, meaning in one.meanings.items() if meaning.canonical == "time"]
    times = (numbers(one.frame[name], units=TIME_UNITS) for name in timed)
    return any(growth(values, one.values) > GROWN for values in times)
