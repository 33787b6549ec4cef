"""Columns for several precisions, strategies, programs or GPUs become rows, one for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from lab.analysis.audit.columns import (
    LAYOUT,
    NUMERIC,
    RATIOS,
    SETTINGS,
    Guess,
    Setting,
    guess,
    is_ratio,
    normal,
    parse_name,
    quantities,
    setting_of,
)
from lab.analysis.audit.reshape import OF_RUNS, are_rated, are_timed, is_known, noted_alone
from lab.analysis.audit.values import numbers, ranks_of
from lab.analysis.audit.wide import AGAIN
from lab.records.table import grouped

# What a speedup may be of; with other words it is that of something else over a setting.
OF_ALL = re.compile(
    r"(?:(?:time|to|train(?:ing)?|end|e2e|throughput|rate|latency|performance|total|overall|avg"
    r"|average|mean|measured|relative|per|step|epoch|iteration|model|inference|gpu|multi)_)*"
    r"speed_?ups?(?:_.*)?"
)
LISTED = re.compile(r"\s*(?:,|;|/|&|\band\b)\s*")
MOST_CELLS = 50  # that are looked at
Words = tuple[str, ...]


def by_setting(
    frame: pd.DataFrame, mapped: Mapping[str, Guess]
) -> tuple[pd.DataFrame, list[str], dict[str, list[str]]]:
    """Turn a table with a column for each of several precisions, strategies, programs or GPUs into
    a long one with a column for that setting. Also return what that assumes and the source columns
    of each new column; leave other tables as they are. Strategies need a column of ranks, as their
    names often tell one rank from several.

    A quoted ratio between two settings goes to `ratio_of_times` or `ratio_of_rates` in the rows of
    one of them; `ratio_over` names the other.
    """
    columns = _SettingColumns(frame, mapped)
    if not columns.kinds:
        return frame, [], {}
    return columns.rows(), columns.assumptions(), columns.origins()


class _SettingColumns:
    """The columns of a table that are each for one setting, such as "FP16 img/s" and "FP32 img/s".

    `kinds` are the kinds of setting that every measured column names, and not all alike.
    """

    def __init__(self, frame: pd.DataFrame, mapped: Mapping[str, Guess]) -> None:
        self.frame = frame
        self.free = [column for column in frame.columns if column not in mapped]
        settings = {column: setting_of(column) for column in self.free}
        self.named = {column: setting for column, setting in settings.items() if setting.words}
        self.ratios = _ratios(self.named)
        self.of_all = [
            column for column in self.ratios if OF_ALL.fullmatch(normal(self.named[column].base))
        ]
        known = quantities(frame.columns)
        known |= {meaning.canonical for meaning in mapped.values()}
        noted = "" if known & OF_RUNS else noted_alone(frame.attrs.get("around", ""))
        self.quantities = {
            column: quantity
            for column, setting in self.named.items()
            if column not in self.ratios and (quantity := _quantity(frame[column], setting, noted))
        }
        of_strategies = (
            quantity == (noted, noted) and "strategy" in dict(self.named[column].words)
            for column, quantity in self.quantities.items()
        )
        if noted and any(of_strategies):  # beside DDP, DP and TP are no degrees
            degrees = [column for column in self.free if normal(column) in {"dp", *LAYOUT}]
            self.named |= {one: Setting("", (("strategy", normal(one)),)) for one in degrees}
            self.quantities |= dict.fromkeys(degrees, (noted, noted))
        self.misnamed = _misnamed(self.quantities, self.named)
        self.named |= self.misnamed
        self.measured = [
            dict(self.named[column].words)
            for column, (quantity, _) in self.quantities.items()
            if quantity in OF_RUNS and _told_apart(self.named[column])
        ]
        self.kinds = [
            kind
            for kind in SETTINGS
            if len({words[kind] for words in self.measured if kind in words}) > 1
            and all(kind in words for words in self.measured)
            and (kind != "strategy" or known & {"world_size", "nodes"} or _count_ranks(frame))
        ]

    @cached_property
    def parts(self) -> dict[Words, dict[str, str]]:
        """The columns by setting and quantity."""
        parts: dict[Words, dict[str, str]] = {
            tuple(words[kind] for kind in self.kinds): {} for words in self.measured
        }
        for column, (_, name) in self.quantities.items():
            words = dict(self.named[column].words)
            key = tuple(words.get(kind, "") for kind in self.kinds)
            if _told_apart(self.named[column]) and key in parts:
                parts[key].setdefault(name, column)
        _beside(self.frame, parts, [column for column in self.free if column not in self.named])
        return parts

    @cached_property
    def listing(self) -> dict[str, dict[Words, pd.Series]]:
        """Columns whose cells list a number for each setting, and those by setting."""
        several = [name for name in self.named if not _told_apart(self.named[name])]
        return {
            column: by_key
            for column in several
            if column not in self.ratios and (by_key := self._listed(column))
        }

    @cached_property
    def others(self) -> list[str]:
        """The columns that are for all settings."""
        used = {column for part in self.parts.values() for column in part.values()}
        used |= {*self.ratios, *self.listing}
        return [column for column in self.frame.columns if column not in used]

    def _listed(self, column: str) -> dict[Words, pd.Series]:
        """Cells that list a number for each setting, such as "126 and 256" below "Batch size / GPU
        (TF32 and FP16)", by setting; empty for others."""
        setting = self.named[column]
        words = [word for kind, word in setting.words if kind in self.kinds]
        keys = [next((part for part in self.parts if word in part), None) for word in words]
        if keys.count(None) == 1:  # "FP16" of mixed precision
            rest = [part for part in self.parts if part not in keys]
            keys[keys.index(None)] = rest[0] if len(rest) == 1 else None
        numbers = self.frame[column].astype(str).str.strip().str.split(LISTED, expand=True)
        complete = set(keys) == set(self.parts) and len(keys) == len(self.parts)
        if not (
            setting.base
            and complete
            and len(keys) == numbers.shape[1]
            and numbers.apply(pd.to_numeric, errors="coerce").notna().all(axis=None)
        ):
            return {}
        return {key: numbers[place] for place, key in enumerate(keys) if key is not None}

    def _names(self) -> dict[str, list[str]]:
        """The new columns, and their words in the rows of each setting.

        A strategy has no effect on one rank, so it is kept apart from other settings.
        """
        groups = [
            [kind for kind in self.kinds if kind != "strategy"],
            ["strategy"] * ("strategy" in self.kinds),
        ]
        return {
            _free_name(group[0] if len(group) == 1 else "setting", self.others): [
                " ".join(key[self.kinds.index(kind)] for kind in group) for key in self.parts
            ]
            for group in groups
            if group
        }

    def rows(self) -> pd.DataFrame:
        """The table with a row for each setting whose cells hold anything."""
        names, long = self._names(), []
        for number, (key, columns) in enumerate(self.parts.items()):
            cells: dict[str, Any] = {name: words[number] for name, words in names.items()}
            cells |= {self.named[name].base: by_key[key] for name, by_key in self.listing.items()}
            cells |= {name: self.frame[column] for name, column in columns.items()}
            for column in self.of_all:
                over = _other_of(self.named[column], key, list(self.parts), self.kinds)
                if over is not None:
                    cells[self._ratio(column)] = self.frame[column]
                    cells["ratio_over"] = " ".join(over)
            known = self.frame[list(columns.values())].map(is_known).any(axis=1)
            long.append(self.frame[self.others].assign(**cells)[known])
        return pd.concat(long, ignore_index=True)

    def _ratio(self, column: str) -> str:
        """What a speedup between settings is of, by its name or by what the table has."""
        named = re.search("time|throughput", normal(column))
        rates = any(
            quantity in {"rate", "rate_per_rank"} for quantity, _ in self.quantities.values()
        )
        of_rates = named[0] == "throughput" if named else rates
        return "ratio_of_rates" if of_rates else "ratio_of_times"

    def origins(self) -> dict[str, list[str]]:
        """The columns that each new one is made of."""
        pairs = [(name, column) for part in self.parts.values() for name, column in part.items()]
        pairs += [(self.named[column].base, column) for column in self.listing]
        pairs += [(self._ratio(column), column) for column in self.of_all]
        return grouped(pairs) | {name: [] for name in self._names()}

    def assumptions(self) -> list[str]:
        """Where the settings are from."""
        read = [
            f"the {name} ({', '.join(dict.fromkeys(words))}) is read from the column names"
            for name, words in self._names().items()
        ]
        return read + [
            f"{column!r} is read as that of {' '.join(word for _, word in setting.words)}, as "
            "nothing else is of the setting that it names"
            for column, setting in self.misnamed.items()
        ]


def _ratios(named: Mapping[str, Setting]) -> list[str]:
    """The columns for speedups from one setting to another, not those of each over fewer ranks."""
    ratios = [column for column in named if is_ratio(column)]
    of_one = {column: named[column].words for column in ratios if len(named[column].words) == 1}
    others = {named[column].words for column in named if column not in ratios}
    each = others <= set(of_one.values())
    return [column for column in ratios if not (each and column in of_one)]


def _misnamed(
    quantities: Mapping[str, tuple[str, str]], named: Mapping[str, Setting]
) -> dict[str, Setting]:
    """Speedups and efficiencies of a setting that nothing was measured with, such as FP32 where
    the times are of TF32 and of FP16, as those of the only setting that lacks them."""
    columns = {
        column: quantity in RATIOS
        for column, (quantity, _) in quantities.items()
        if quantity in OF_RUNS and _told_apart(named[column])
    }
    of_ratios, of_others = (
        {named[column].words for column, is_one in columns.items() if is_one == ratios}
        for ratios in (True, False)
    )
    only, lacking = of_ratios - of_others, of_others - of_ratios
    if len(only) != 1 or len(lacking) != 1 or not of_ratios & of_others:
        return {}
    (meant,) = lacking
    return {
        column: named[column]._replace(words=meant)
        for column in columns
        if named[column].words in only
        and [kind for kind, _ in named[column].words] == [kind for kind, _ in meant]
    }


def _beside(
    frame: pd.DataFrame, parts: Mapping[Words, dict[str, str]], columns: Iterable[str]
) -> None:
    """Give each setting its own one of the columns of one name, such as a "Speedup" after each."""
    alike = grouped(
        (again["name"] if (again := AGAIN.fullmatch(column)) else column, column)
        for column in columns
    )
    names = list(frame.columns)
    owners = {column: key for key, part in parts.items() for column in part.values()}
    for name, group in alike.items():
        before = [
            [owner for owner in names[: names.index(one)] if owner in owners] for one in group
        ]
        keys = [owners[some[-1]] for some in before if some]
        if len(group) > 1 and sorted(keys) == sorted(parts):
            for key, column in zip(keys, group, strict=True):
                parts[key].setdefault(name, column)


def _told_apart(setting: Setting) -> bool:
    """Whether a name has one word for each kind of setting: "Batch: FP32, AMP" has two."""
    kinds = [kind for kind, _ in setting.words]
    return len(kinds) == len(set(kinds))


def _quantity(cells: pd.Series, setting: Setting, noted: str) -> tuple[str, str] | None:
    """The content of a column for one setting, and its name without the setting; `noted` is what
    numbers without a name are."""
    if setting.base:
        if parse_name(setting.base)[:2] == ("", "time"):  # of "DDP (s)"
            return "time", f"time ({setting.base})"
        meaning = guess(setting.base)
        numeric = meaning is not None and meaning.canonical in NUMERIC
        return (meaning.canonical, setting.base) if meaning and numeric else None
    if are_rated(cells):
        return "rate", "throughput"
    if are_timed(cells):
        return "time", "time"
    counted = guess(str(cells.name))  # a degree of parallelism
    if not noted or (counted and counted.canonical in NUMERIC):
        return None
    return (noted, noted) if (numbers(cells) > 0).any() else None


def _count_ranks(frame: pd.DataFrame) -> bool:
    """Whether all cells of a column count ranks, such as "4 GPUs"."""
    cells = (frame[name].array[:MOST_CELLS] for name in frame)
    return any(all(ranks_of(cell)[0] > 0 for cell in some) for some in cells)


def _free_name(name: str, taken: Sequence[str]) -> str:
    return "setting" if name in quantities(taken) or name in taken else name


def _other_of(
    setting: Setting, words: Words, parts: Sequence[Words], kinds: Sequence[str]
) -> Words | None:
    """The reference of a ratio, if it is one of `words`: "FP32 to AMP" is AMP's, over FP32."""
    named = [word for kind, word in setting.words if kind in kinds]
    ends = [part for word in named for part in parts if word in part]
    if len(ends) == 1 and len(parts) == 2:
        ends = [next(part for part in parts if part != ends[0]), ends[0]]
    return ends[0] if len(ends) == 2 and ends[1] == words and ends[0] != words else None
