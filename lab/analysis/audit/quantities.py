"""A table's columns as quantities in base units: what a name suggests, confirmed by the cells."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from lab.analysis.audit import columns
from lab.analysis.audit.columns import MAXIMA, MEANS, Guess, guess, normal, parse_name, text_guess
from lab.analysis.audit.plausible import SCALING, confirmed, is_of_another, own_baseline
from lab.analysis.audit.reshape import are_timed
from lab.analysis.audit.values import (
    BANDWIDTH_UNITS,
    BRACKETS,
    BYTE_UNITS,
    CELL_TIME,
    CELL_TIMES,
    COUNT_UNITS,
    COUNTED_UNITS,
    EMPTY,
    FLOPS_UNITS,
    PARAMETER_UNITS,
    PLUS_MINUS,
    PRODUCT,
    RANGE,
    TIME_UNITS,
    duration,
    numbers,
    ranks_of,
    roundings,
    spread,
    volume,
)
from lab.errors import InputError
from lab.formatting import count

# Rank labels of rows that are statistics over ranks; only means are of use.
AGGREGATES = {"mean", "avg", "average", "all", "mean over ranks", "overall"}
OTHER_STATISTICS = {"std", "stdev", "sd", "min", "median", "sum", "total"}
POSITIVE = (
    *("world_size", "nodes", "time", "rate", "global_batch_size", "micro_batch_size"),
    *("batch", "speedup", "parameters", "bytes", "rate_per_rank", "flops", "flops_per_rank"),
    *("mfu", "hfu", "peak_flops", "dp", *columns.LAYOUT, "grad_accum"),
    *("ratio_of_times", "ratio_of_rates", "memory"),
)
# Larger values are per cent even if unlabelled; for a share of peak, so is the whole column.
PERCENT_FROM = {"efficiency": 4, "accuracy": 1.5, "mfu": 3, "hfu": 3}
SHARES = {"mfu", "hfu"}
LEAST_EFFICIENT = 0.015  # of all numbers of ranks: what is below is no per cent but a share
OF_REPEATS = columns.SPREADS | {"min", "minimum", "fastest", "best", "median"}
SUMMARIES = OF_REPEATS | MEANS | MAXIMA
APART = 0.02  # relative: of a mean and a maximum that are not of one number
WHOLE_NUMBERS = {
    *("world_size", "nodes", "per_node", "global_batch_size", "micro_batch_size", "batch"),
    *("rank_batch_size", "grad_accum", "dp", "dp_replicate", "dp_shard", *columns.LAYOUT),
}
UNITS = {
    **dict.fromkeys(columns.TIMES, TIME_UNITS),
    **dict.fromkeys(("bytes", "memory"), BYTE_UNITS),
    **dict.fromkeys(("flops", "flops_per_rank", "peak_flops"), FLOPS_UNITS),
    **dict.fromkeys(("algbw", "busbw"), BANDWIDTH_UNITS),
    "parameters": PARAMETER_UNITS,
    "world_size": COUNTED_UNITS,
}
SERIAL = columns.SERIAL.split("|")
REFERENCE = re.compile(r"\W*(?:baseline|reference|ref|基准|基线)\W*", re.IGNORECASE)  # of speedups
BOUND = re.compile(r"\s*(?:[<>≤≥]|&[lg]t;)")  # an upper or lower limit, not a measured value
MACHINES = {"gpu", "device", "host"}
OF_HARDWARE = re.compile(r"flop|(?:^|_)[kmgt]i?b_(?:per_)?s")  # what is computed or moved
OF_GPUS = re.compile(r"(?:^|_)(?:gpu|gcd|accelerator|card|chip)s?(?:_|$)")
OF_COMMUNICATION = re.compile(
    "(?:comms?|communications?|nccl)_(?:(?:time|share|fraction|overhead)_)?(?:percent|pct)"
)
PROJECTED = re.compile(
    r".*\d.*\((?:projected|projection|extrapolated|estimated|predicted)\)\W*", re.IGNORECASE
)
JOB_ID = re.compile("(?:slurm_)?job_?id(?:_raw)?")
# As sacct lists them: 812345, 812345_3, 812345.batch, 812345.exte+, 812345.0.
JOB_STEP = re.compile(
    r"(?P<job>\d+(?:[_+]\d+)?)(?:\.(?:(?P<number>\d+)|(?P<script>(?:batch|ext|int)[a-z]*\+?)))?"
)
STATE = re.compile("(?:job_)?(?:state|status)|result|outcome")
FAILED = re.compile(  # as Slurm and people say it
    r"(?:time[ _-]?out|timed out|fail(?:s|ed|ures?)?|cancel(?:l?ed)?|crash(?:ed)?|killed|preempted"
    r"|out[ _-]of[ _-]me\w*|oom|(?:node|boot)[ _-]fail\w*|deadline|error)\b.*",
    re.IGNORECASE,
)
LEAST = re.compile(r"(?:^|_)(?:min(?:imum)?|best|fastest)(?=_|$)")
MOST_QUOTING = 1000  # rows whose ratios are compared
MOSTLY = 0.8
LONGER = 2.0  # than the time: a part that is in all rows is one of another time
MOST_GB, LEAST_MB = 300, 400  # of a GPU's memory
NAMED_UNIT = re.compile(rf"\d\s*({CELL_TIME})\s*$")
NOTED_UNITS = {
    "microseconds": (re.compile(r"microseconds|\bus\b|µs", re.IGNORECASE), 1e-6),
    "milliseconds": (re.compile(r"milliseconds|\bms\b", re.IGNORECASE), 1e-3),
}


class Quantities:
    """The canonical columns of a table, with numbers in base units, and how they were read.

    `tidy` has a row for each row of the table that is not another statistic over ranks; `given`
    says which column each quantity is from, `joined` which others were joined to one of those,
    `assumptions` what the table does not say, and `own_baseline` the column that the speedup of
    each row is over, if any. Columns in `mapped` are what the user says they are. Raises InputError
    if one of those cannot be read.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        meanings: Mapping[str, Guess],
        mapped: Collection[str],
        notes: Sequence[str],
        source: str,
    ) -> None:
        self.frame, self.meanings, self.mapped, self.notes = frame, meanings, mapped, notes
        self.given: dict[str, str] = {}
        self.joined: list[str] = []
        self.assumptions: list[str] = []
        numeric = [*columns.NUMERIC, *(f"{name}_rounding" for name in columns.ROUNDED)]
        texts = pd.DataFrame(np.nan, frame.index, [*columns.TEXTS], dtype=object)
        tidy = pd.DataFrame(np.nan, frame.index, numeric)
        self.tidy = pd.concat([tidy, texts], axis="columns")
        left_out: dict[str, list[str]] = {}
        for column, meaning in _in_order(frame, meanings).items():
            canonical = self._canonical(column, meaning)
            if canonical == "version" and canonical in self.given:
                self._add_version(column)
            elif canonical in self.given and self._names_another(canonical, column):
                self._add(text_guess(column) or "", column, meaning)
            elif canonical in self.given:
                left_out.setdefault(canonical, []).append(column)
            elif canonical and not self._add(canonical, column, meaning) and column in mapped:
                problem = f"column {column!r} holds no value that can be read"
                raise InputError.of(source, f"columns.{meaning.canonical}", problem)
        if "std" in self.given:
            self._assign_deviation(self.given["std"])
        for canonical, others in left_out.items():
            # A table may have several of one quantity, with different meanings.
            if canonical in columns.MEASURED:
                self.assumptions.append(
                    f"{self.given[canonical]!r} is read as the {canonical.replace('_', ' ')}, not "
                    f"{', '.join(map(repr, others))}; --column {canonical}=COLUMN chooses another"
                )
        if OF_GPUS.search(normal(self.given.get("world_size", ""))):
            self._count_without_gpus(left_out.get("world_size", []))
        self._add_share_of_communication()
        self._drop_parts_of_another_time()
        self._drop_statistics()
        states = [name for name in frame.columns if STATE.fullmatch(normal(name))]
        self._drop(meanings, PROJECTED, "projected row")
        self._drop_job_steps()
        self._drop(states, FAILED, "failed job")
        self._scale_shares()
        self._drop_impossible()
        of_speedup = self.given.get("speedup", "")
        guessed = of_speedup and of_speedup not in mapped
        self.own_baseline = own_baseline(of_speedup, frame, meanings) if guessed else ""

    def _canonical(self, column: str, meaning: Guess) -> str:
        """What a column is by its name, among the names of the others; "" if nothing of use."""
        canonical, meanings = meaning.canonical, self.meanings
        if canonical == "std" and column not in self.mapped:
            return "" if is_of_another(column, self.frame, meanings) else canonical
        if canonical == "h2d" and "transfer" in normal(column) and column not in self.mapped:
            names = {other.canonical for other in meanings.values()}
            return "" if "exposed" in names else canonical  # it is a part of what is exposed
        if canonical not in {"time", "communication"} or not _is_summarised(column, meanings):
            return canonical
        of_repeats = self._are_of_repeats
        if parse_name(column).statistic in MAXIMA:
            return "" if of_repeats else canonical
        return canonical if of_repeats else f"{canonical}_mean"

    @cached_property
    def _are_of_repeats(self) -> bool:
        """Whether means and maxima are of repeated measurements, not over ranks: a minimum, a
        median or a deviation is beside them, or a single rank has a mean below its maximum."""
        summaries: dict[str, set[str]] = {}
        for column in self.frame.columns:
            words = normal(str(column)).split("_")
            quantity = "_".join(word for word in words if word not in SUMMARIES)
            summaries.setdefault(quantity, set()).update(SUMMARIES.intersection(words))
        beside = (kinds for kinds in summaries.values() if kinds & MEANS and kinds & MAXIMA)
        return any(kinds & OF_REPEATS for kinds in beside) or self._differ_on_one_rank()

    def _differ_on_one_rank(self) -> bool:
        """Whether the mean is below the maximum on one rank."""
        of = {what.canonical: column for column, what in self.meanings.items()}
        times = [name for name, what in self.meanings.items() if what.canonical == "time"]
        mean, most = (
            next((name for name in times if parse_name(name).statistic in kinds), None)
            for kinds in (MEANS, MAXIMA)
        )
        if "world_size" not in of or mean is None or most is None:
            return False
        alone = self.frame[numbers(self.frame[of["world_size"]]) == 1]
        return bool((numbers(alone[mean]) < (1 - APART) * numbers(alone[most])).any())

    def _add(self, canonical: str, column: str, meaning: Guess) -> bool:
        """Read a column; False if its cells cannot be what its name suggests."""
        cells = self._without_ranks(as_texts(self.frame[column]), column, canonical)
        guessed = column not in self.mapped
        if canonical == "host" and self.given.get("world_size") == column:
            canonical = "gpu"  # a machine such as 4x A10G
        canonical = confirmed(canonical, column, cells, self.frame, self.meanings, guessed=guessed)
        if canonical == "scaling":
            cells = cells.str.extract(SCALING, expand=False).str.lower()
        elif canonical in columns.ROUNDED and guessed:
            cells = _replaced(cells, BOUND.match, None)
        if canonical == "speedup":
            cells = _replaced(cells, REFERENCE.fullmatch, "1")
        if canonical and canonical not in columns.TEXTS:
            values = self._numbers(cells, column, canonical, meaning)
            if values.count() > 0 or not guessed:
                cells = values
            else:  # a column `gpu` without numbers is its name
                canonical = text_guess(column) or ""
        if not canonical or canonical in self.given or cells.count() == 0:
            return False
        self.tidy[canonical], self.given[canonical] = cells, column
        return True

    def _count_without_gpus(self, others: Sequence[str]) -> None:
        """Count the ranks of rows without GPUs, which are on CPUs, by another column; say so."""
        ranks = self.tidy["world_size"]
        if others and (ranks == 0).any() and not (ranks == 0).all():
            self.tidy["device"] = self.tidy["device"].mask(ranks == 0, "cpu")
            self.tidy["world_size"] = ranks.mask(ranks == 0, numbers(self.frame[others[0]]))
            self.assumptions.append(f"{others[0]!r} counts the ranks of rows without GPUs")

    def _assign_deviation(self, column: str) -> None:
        """Give the deviation of a time, or of the rate before it, that quantity's unit if it has
        none of its own; without a value where only the cells of the quantity say their unit."""
        of = next((name for name in ("time", "rate") if name in self.given), None)
        beside = self.given[of] if of else ""
        with_sign = as_texts(self.frame[column]).str.contains("%").any()  # and read as a share of 1
        if of and (with_sign or parse_name(column).family == "percent"):
            self.tidy["std"] *= self.tidy[of] * (1.0 if with_sign else 0.01)
        elif of and self.meanings[column].factor is None:
            meaning = self.meanings[beside]
            bare = not meaning.inverse and numbers(self.frame[beside]).notna().any()
            self.tidy["std"] *= self._factor(of, meaning, beside)[0] if bare else np.nan
        if of != "time":
            if (beside, column) in itertools.pairwise(self.frame.columns):
                self.tidy["rate_std"] = self.tidy["rate_std"].fillna(self.tidy["std"])
            self.tidy["std"] = np.nan  # of anything else

    def _add_share_of_communication(self) -> None:
        """Read a column such as "comm %" as a share of the time, where none gives the time of
        communication."""
        shares = [name for name in map(str, self.frame) if OF_COMMUNICATION.fullmatch(normal(name))]
        if len(shares) == 1 and "time" in self.given and "communication" not in self.given:
            share = numbers(self.frame[shares[0]].astype(str).str.rstrip(" %"), factor=0.01)
            self.tidy["communication"] = share * self.tidy["time"]
            self.given["communication"] = shares[0]
            read = f"{shares[0]!r} is read as the share of {self.given['time']!r}"
            self.assumptions.append(read)

    def _drop_parts_of_another_time(self) -> None:
        """Leave out columns such as "I/O (s)" of a run beside the time of a step, and say so."""
        for part in [name for name in columns.PHASES if name in self.given]:
            column = self.given[part]
            whole = (self.tidy["time"] / self.tidy[part]).dropna()
            if column not in self.mapped and len(whole) and (whole < 1 / LONGER).all():
                self.tidy[part] = np.nan
                del self.given[part]
                longer = f"{column!r} is longer than {self.given['time']!r} and no part of it"
                self.assumptions.append(longer)

    def _names_another(self, canonical: str, column: str) -> bool:
        """Whether a column without numbers names what another of its meaning counts, such as `GPU`
        beside `GPUs`."""
        cells = as_texts(self.frame[column])
        words = numbers(cells, units=COUNT_UNITS).count() == 0
        return canonical not in columns.TEXTS and bool(words)

    def _add_version(self, column: str) -> None:
        """Versions of another program, such as CUDA, beside those that are known."""
        cells = as_texts(self.frame[column])
        about = "version", column, cells, self.frame, self.meanings
        if confirmed(*about, guessed=column not in self.mapped) == "version":
            of_column = f", {column} " + cells
            self.tidy["version"] = self.tidy["version"] + of_column.fillna("")
            self.joined.append(column)

    def _without_ranks(self, cells: pd.Series, column: str, canonical: str) -> pd.Series:
        """The ranks in cells such as "8x A100", which also name the GPU, apart from the rest.

        Of a column of ranks they stay and the names go to `gpu`; of one of GPUs they go to
        `world_size`, unless another column counts the ranks. Other cells stay as they are.
        """
        of_ranks = canonical == "world_size"
        if not of_ranks and canonical not in MACHINES:
            return cells
        if of_ranks and all(str(cell).startswith("(") for cell in cells.tolist()):
            return cells.map(volume)
        texts = cells.dropna()
        pairs = [ranks_of(text) for text in texts.tolist()]
        counts = pd.Series([number for number, _ in pairs], texts.index, dtype=float)
        if of_ranks and counts.min() > 1:  # beside "2 processes", a serial program has one
            counts[[normal(str(text)) in SERIAL for text in texts]] = 1.0
        if counts.count() == 0 or not (of_ranks or counts.count() == len(counts)):
            return cells
        names = pd.Series([name or None for _, name in pairs], texts.index)
        known = {meaning.canonical for meaning in self.meanings.values()} | set(self.given)
        if not of_ranks and "world_size" in known:
            return names.reindex(cells.index) if names.notna().all() else cells
        if not of_ranks:
            self.tidy["world_size"], self.given["world_size"] = counts, column
            return names.reindex(cells.index)
        if names.count() > 0 and "gpu" not in self.given:
            self.tidy["gpu"], self.given["gpu"] = names.reindex(cells.index), column
        return cells.where(~cells.index.isin(counts.dropna().index), counts.reindex(cells.index))

    def _numbers(self, cells: pd.Series, column: str, canonical: str, meaning: Guess) -> pd.Series:
        """The cells in base units; their roundings and spreads go to columns of their own."""
        factor, assumption = self._factor(canonical, meaning, column)
        scale = 1.0 if meaning.inverse else factor
        if canonical in {"batch", "global_batch_size"}:
            cells = cells.map(lambda cell: volume(cell, PRODUCT))
        values = numbers(cells, units=UNITS.get(canonical, COUNT_UNITS), factor=scale)
        if meaning.inverse:
            values = factor / values.where(values > 0)
        if canonical in WHOLE_NUMBERS:
            whole = (values.to_numpy() % 1 == 0) & ~_matches(RANGE.match, cells)
            values = values if whole.all() else values.where(whole)
        of_what = {"time": "std", "rate": "rate_std"}.get(canonical)
        if of_what and _matches(re.compile(PLUS_MINUS).search, cells).any():
            spreads = cells.map(lambda cell: spread(cell, factor=factor))
            self.tidy[of_what] = self.tidy[of_what].fillna(spreads.astype(float))
        if assumption and (canonical == "memory" or values.count() > 0):  # words have no unit
            self.assumptions.append(assumption)
        if canonical in columns.ROUNDED and values.count() > 0:
            self.tidy[f"{canonical}_rounding"] = roundings(self.frame[column])
        return values

    def _factor(self, canonical: str, meaning: Guess, column: str) -> tuple[float, str]:
        """From the unit of a column to base units, and what that assumes."""
        if meaning.factor is not None:
            return meaning.factor, ""
        cells = self.frame[column]
        if canonical == "memory":  # a cell may have its own unit
            sizes = pd.to_numeric(cells, errors="coerce").dropna()
            factor, unit = memory_unit(sizes)
            read = f"read as {unit}, by its size" if unit else "left out"
            return factor, f"{column!r} names no unit, such as GB, and is {read}" * bool(len(sizes))
        if canonical not in columns.TIMES:
            if canonical not in {"algbw", "busbw"}:
                return 1.0, ""
            bare = numbers(cells[cells.notna()]).count() > 0
            printed = normal(column) in {"algbw", "busbw"}  # as nccl-tests call them
            unknown = f"{column!r} names no unit and is read as GB/s"
            return 1e9, unknown * bool(bare and not printed)
        known = [text for cell in cells if (text := as_text(cell)) is not None]
        if all(math.isfinite(duration(text)) for text in known):
            return 1.0, ""  # 01:12:30 needs no unit
        plain = [BRACKETS.sub("", text).lower() for text in known]
        units = [match[1] for text in plain if (match := NAMED_UNIT.search(text))]
        if len(units) == len(known):
            return CELL_TIMES[units[0]], ""
        if len(set(units)) == 1:
            assumption = f"{column!r} is read as {units[0]}, the unit of some of its cells"
            return CELL_TIMES[units[0]], assumption
        for unit, (pattern, factor) in NOTED_UNITS.items():
            # Also of "Workload, milliseconds" above labels.
            named = (self.frame[name] for name in map(str, self.frame) if pattern.search(name))
            labels = (label for label in named if numbers(label).isna().all())
            if any(map(pattern.search, self.notes)) or next(labels, None) is not None:
                noted = f"{column!r} names no unit and is read as {unit} according to its notes"
                return factor, noted
        return 1.0, f"{column!r} names no unit and is read as seconds"

    def _drop_statistics(self) -> None:
        """Keep of the statistics over ranks only means, and number the ranks."""
        if "rank" not in self.given:
            self.tidy["aggregate"], self.tidy["rank"] = False, np.nan
            return
        ranks = self.tidy["rank"].str.lower()
        self.tidy["aggregate"] = ranks.isin(AGGREGATES)
        self.tidy["rank"] = ranks.str.extract(r"(\d{1,7})$", expand=False).astype(float)
        self.tidy = self.tidy[~ranks.isin(OTHER_STATISTICS)].copy()

    def _drop(self, names: Iterable[str], pattern: re.Pattern[str], what: str) -> None:
        """Leave out rows whose times are not those of the work by a cell of these columns, such as
        "16 (projected)" or a job's state, and say so."""
        chosen = np.zeros(len(self.frame), dtype=bool)
        for cells in (self.frame[name] for name in names):
            if not is_numeric_dtype(cells):
                chosen |= _matches(pattern.fullmatch, cells)
        self._leave_out(chosen, what)

    def _drop_job_steps(self) -> None:
        """Leave out what Slurm's accounting lists beside the steps that srun started: the scripts
        of jobs, and jobs whose ranks only the rows of their steps have. Say so."""
        names = (name for name in self.frame if JOB_ID.fullmatch(normal(name)))
        if (column := next(names, None)) is None:
            return
        matches = [JOB_STEP.fullmatch(str(cell).strip()) for cell in self.frame[column]]
        started = {match["job"] for match in matches if match and match["number"]}
        extra = [
            match is not None
            and (bool(match["script"]) or (not match["number"] and match["job"] in started))
            for match in matches
        ]
        self._leave_out(np.array(extra), "Slurm batch, extern or job row")

    def _leave_out(self, chosen: np.ndarray[Any, Any], what: str) -> None:
        chosen = chosen[self.frame.index.get_indexer(self.tidy.index)]
        if chosen.any() and not chosen.all():
            rows = count(int(chosen.sum()), what)
            self.assumptions.append(f"{rows} {'is' if chosen.sum() == 1 else 'are'} left out")
            self.tidy = self.tidy[~chosen].copy()

    def _scale_shares(self) -> None:
        for column in PERCENT_FROM.keys() & self.given.keys():
            signed = self.frame[self.given[column]].astype(str).str.contains("%")
            percent = self.tidy[column] > PERCENT_FROM[column]
            percent &= ~signed.reindex(percent.index, fill_value=False)
            if column in SHARES:
                percent = pd.Series(bool(percent.any()), self.tidy.index)
            if percent.any():
                self.tidy.loc[percent, column] /= 100
            named = parse_name(self.given[column]).family == "percent" and not signed.any()
            if column == "efficiency" and named and self.tidy[column].max() <= LEAST_EFFICIENT:
                self.tidy[column] *= 100  # 0.77 below "Efficiency (%)"

    def _drop_impossible(self) -> None:
        """Leave out values that no measurement can have, and say so."""
        for column in (name for name in POSITIVE if name in self.given):
            wrong = self.tidy[column].to_numpy() <= 0
            if wrong.any():
                one = wrong.sum() == 1
                verdict = "is not positive and is" if one else "are not positive and are"
                values = count(int(wrong.sum()), "value")
                self.assumptions.append(f"{values} of {column} {verdict} left out")
                self.tidy.loc[wrong, column] = np.nan


def memory_unit(values: pd.Series) -> tuple[float, str]:
    """The unit of a GPU's memory by its size, such as 38 GB or 14225 MB; NaN and "" if unknown."""
    if values.between(1, MOST_GB).all():
        return BYTE_UNITS["gb"], "GB"
    if values.between(LEAST_MB, 1e3 * MOST_GB).all():
        return BYTE_UNITS["mb"], "MB"
    return math.nan, ""


def with_quoted_times(
    frame: pd.DataFrame, meanings: Mapping[str, Guess], mapped: Collection[str]
) -> dict[str, Guess]:
    """The least times of repeats, such as "runtime_min", instead of their means, if only of those
    the quoted speedups are the ratios."""
    of = {what.canonical: column for column, what in meanings.items()}
    others = [column for column in map(str, frame) if column not in meanings]
    names = {column: LEAST.sub("", normal(column)).strip("_") for column in others}
    least = {
        column: what
        for column, name in names.items()
        if name != normal(column) and (what := guess(name)) and what.canonical == "time"
    }
    if mapped or not least or not {"time", "speedup"} <= set(of) or len(frame) > MOST_QUOTING:
        return dict(meanings)
    speedups = numbers(frame[of["speedup"]]).to_numpy()

    def share(column: str) -> float:
        """The share of quoted speedups that are a time which quotes 1 over their own."""
        times = numbers(frame[column], units=TIME_UNITS).to_numpy()
        quoting, ones = np.abs(speedups - 1) > APART, np.abs(speedups - 1) < APART / 4
        ratios = times[ones][:, None] / (times * speedups)[quoting][None, :]
        return float((np.abs(ratios - 1) < APART / 4).any(axis=0).mean()) if ratios.size else 0.0

    best = max(least, key=share)
    times = [column for column, what in meanings.items() if what.canonical == "time"]
    if share(best) < MOSTLY or max(map(share, times)) > MOSTLY / 2:
        return dict(meanings)
    kept = {column: what for column, what in meanings.items() if column not in times}
    return {**kept, best: least[best]}


def _in_order(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """The columns in the order in which they are read: the first of a quantity is kept.

    Of several rates the one with the most digits comes first. So do a repeat, a strategy, and the
    batch of a rank, which a pipeline cuts into micro-batches; "Seconds", which may be a video's,
    come last, as do times without a unit beside some with units in their cells.
    """
    first = "local|lbs|repeat|replicate|trial|strategy$"  # not a run's id, nor a configuration
    plain = [column for column in meanings if re.match(first, normal(column))]
    bare = [column for column in meanings if re.fullmatch("seconds|duration", column.lower())]
    meanings = {column: meanings[column] for column in plain} | dict(meanings)
    times = [column for column, meaning in meanings.items() if meaning.canonical == "time"]
    if any(timed := [are_timed(frame[column]) for column in times]):
        pairs = zip(times, timed, strict=True)
        bare += [name for name, one in pairs if not (one or parse_name(name).family)]
    meanings |= {column: meanings.pop(column) for column in dict.fromkeys(bare)}
    sizes = [column for column, meaning in meanings.items() if meaning.canonical == "world_size"]
    gpus = [column for column in sizes if OF_GPUS.search(normal(column))]
    if len(sizes) > len(gpus) and gpus and frame[gpus[0]].nunique() > 1:
        meanings = {gpus[0]: meanings[gpus[0]], **meanings}  # on which several ranks may run
    rates = [column for column, meaning in meanings.items() if meaning.canonical == "rate"]
    if len(rates) < 2:
        return dict(meanings)
    medians = {column: numbers(frame[column], units=COUNT_UNITS).median() for column in rates}
    counted = [column for column in rates if not OF_HARDWARE.search(normal(column))] or rates
    first = max(counted, key=lambda column: medians[column] if medians[column] > 0 else 0.0)
    # Of several efficiencies, that of "A2A tokens/s" is called after it.
    own = _words(first).difference(*(_words(column) for column in rates if column != first))
    alike = [column for column in meanings if own & _words(column)]
    return {column: meanings[column] for column in (first, *alike)} | meanings


def _words(column: str) -> set[str]:
    return {*normal(column).split("_")}


def _is_summarised(column: str, meanings: Mapping[str, Guess]) -> bool:
    """Whether a column is a mean or a maximum beside the other of the same quantity."""
    canonical, statistic = meanings[column].canonical, parse_name(column).statistic
    others = MAXIMA if statistic in MEANS else MEANS if statistic in MAXIMA else set()
    return any(
        parse_name(other).statistic in others
        for other, meaning in meanings.items()
        if meaning.canonical == canonical
    )


def _matches(match: Callable[[str], object], cells: pd.Series) -> np.ndarray[Any, Any]:
    """Which cells match, as texts."""
    return np.array([match(str(cell)) is not None for cell in cells.tolist()], dtype=bool)


def _replaced(cells: pd.Series, match: Callable[[str], object], value: str | None) -> pd.Series:
    """The cells with a value for each that matches as a text; None leaves it out."""
    chosen = _matches(match, cells)
    return cells.mask(chosen, value) if chosen.any() else cells


def as_texts(column: pd.Series) -> pd.Series:
    """The cells of a column as texts, None where one is missing."""
    if isinstance(column.dtype, pd.StringDtype):  # once for each of a file's values
        cells = column.tolist()
        texts = {cell: as_text(cell) for cell in set(cells)}
        return pd.Series([texts[cell] for cell in cells], column.index, name=column.name)
    return column.map(as_text)


def as_text(cell: object) -> str | None:
    """A cell as text, of a whole number without the decimals; None if it is missing."""
    text = "" if cell is None else str(cell).strip()
    if text.lower() in EMPTY:
        return None
    return text[:-2] if text.endswith(".0") and text[:-2].isdecimal() else text  # but not of 2.4.0
