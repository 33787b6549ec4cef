"""lab bench public: prediction error of the law of layouts on published tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.layout_row import LayoutRow
from lab.analysis.layout_table import LayoutTable, read_layouts
from lab.errors import InputError
from lab.files import SHARED
from lab.formatting import count
from lab.perfmodel import layout_law
from lab.perfmodel.layout import SHARDED, Candidate
from lab.perfmodel.layout_law import LayoutLaw
from lab.perfmodel.layout_terms import Case
from lab.records.provenance import git_state
from lab.records.table import grouped

TABLES = ("vtrain_a100_single_node", "mpt_a100_40gb", "playbook_1b_h100")
DISTURBED = 2.0  # times as long as a layout that should not be faster
NEIGHBOURS = 7
MOST_TENSOR = 8  # limit of a second row for tables that exceed it: the ranks of one node


@dataclass(frozen=True)
class PublicScore:
    """How the predictions for one table compare with its measurements, given `fitted` known rows.

    `error` is the mean absolute relative error, `median_error` the median one, `spearman` the rank
    correlation, `inside` the share of measurements within their intervals. Among the layouts of one
    model, batch and number of GPUs, the one predicted fastest that fits is picked: `regret` is how
    much slower it is than the fastest measured, and `ran` is the share of picks that ran. All are
    medians over `splits`, except `worst_regret`, the median of the worst. `disturbed` counts the
    rows that the function of this name finds, `calm_error` is the error of the others, and
    `spearman_limit` the rank correlation if these were predicted exactly. `neighbour_error` is the
    error that remains if each row is off as much as the median of its nearest measured rows: close
    to `error`, it says that a row's settings do not tell how far off it is.
    `memory_error` is the mean error of the peaks in the table, `fit` the share of rows that ran and
    are predicted to fit, `refused` the share of rows that failed, for whatever reason, and are
    predicted not to fit. None if there is nothing to compare.
    """

    table: str
    rows: int
    fitted: int
    splits: int
    error: float
    median_error: float
    spearman: float | None
    inside: float
    disturbed: int = 0
    calm_error: float | None = None
    spearman_limit: float | None = None
    neighbour_error: float | None = None
    groups: int = 0
    regret: float | None = None
    worst_regret: float | None = None
    ran: float | None = None
    memory_error: float | None = None
    fit: float | None = None
    refused: float | None = None

    def times(self) -> dict[str, str]:
        """How far predicted times are off, for people."""
        return self._name() | {
            "rows": f"{self.rows}",
            "error": _percent(self.error),
            "median error": _percent(self.median_error),
            "disturbed": f"{self.disturbed}",
            "error of the others": _percent(self.calm_error),
            "error left by neighbours": _percent(self.neighbour_error),
            "Spearman": _correlation(self.spearman),
            "Spearman at most": _correlation(self.spearman_limit),
            "in interval": _percent(self.inside),
        }

    def choices(self) -> dict[str, str]:
        """What comes of picking layouts by prediction, and how well memory is predicted."""
        return self._name() | {
            "groups": f"{self.groups}",
            "picks that ran": _percent(self.ran),
            "regret": _percent(self.regret),
            "worst regret": _percent(self.worst_regret),
            "memory error": _percent(self.memory_error),
            "ran and fits": _percent(self.fit),
            "failed and does not fit": _percent(self.refused),
        }

    def _name(self) -> dict[str, str]:
        return {"table": self.table, "fitted": f"{self.fitted}"}


@dataclass(frozen=True)
class PublicBench:
    """Scores without and with fitted rows, the assumptions about each table, and the git commit."""

    scores: tuple[PublicScore, ...]
    assumptions: dict[str, list[str]]
    commit: str | None

    def tables(self) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
        """Times and choices, each with one row for each table and number of fitted rows."""
        times = [score.times() for score in self.scores]
        return times, [score.choices() for score in self.scores]

    def content(self) -> dict[str, Any]:
        """For programs: errors, regrets and shares as fractions."""
        scores = [asdict(score) for score in self.scores]
        return {"commit": self.commit, "scores": scores, "assumptions": self.assumptions}

    def notes(self) -> list[str]:
        """The assumptions and the commit, as sentences."""
        notes = [f"{name}: {'; '.join(some)}." for name, some in self.assumptions.items() if some]
        return [*notes, f"commit {self.commit}"] if self.commit else notes


def public(
    tables: Sequence[str | Path] = (),
    *,
    fit: int = 10,
    splits: int = 30,
    assume: Mapping[str, Any] | None = None,
    number: int | None = None,
) -> PublicBench:
    """Fit `fit` random rows of each table and predict the others, `splits` times; also fit none.

    Without `tables`, those that come with the lab are used. Of several tables in a text, the
    longest is read, or the one of this `number`. Raises InputError for a table with no
    readable rows or with fewer rows than have to be fitted.
    """
    if fit < 0 or splits < 1:
        option, advice = "--fit" if fit < 0 else "--splits", "use numbers such as 10 and 30"
        raise InputError.of("bench public", option, "is too small", advice)
    paths = [Path(table) for table in tables] or [
        SHARED / "docs" / "tables" / f"{name}.csv" for name in TABLES
    ]
    scores: list[PublicScore] = []
    assumptions = {}
    for path in paths:
        table = read_layouts(path, assume=assume, number=number)
        assumptions[table.name] = table.notes
        for name, rows in _parts(table):
            measured = sum(row.step_s is not None for row in rows)
            if measured <= fit:
                what = f"cannot fit {count(fit, 'row')}: the table gives times of only {measured}"
                advice = "fit fewer, or give a larger table"
                raise InputError.of(name, "--fit", what, advice)
            scores += [_score(name, rows, n, splits if n else 1) for n in dict.fromkeys((0, fit))]
    return PublicBench(tuple(scores), assumptions, _commit())


def _parts(table: LayoutTable) -> Iterable[tuple[str, list[LayoutRow]]]:
    """All rows, and those whose tensor-parallel ranks share a node if some rows' do not."""
    rows = list(table.rows)
    near = [row for row in rows if row.case.candidate.layout.tensor <= MOST_TENSOR]
    yield table.name, rows
    if len(near) < len(rows):
        yield f"{table.name}, tp <= {MOST_TENSOR}", near


def _score(name: str, rows: Sequence[LayoutRow], fitted: int, splits: int) -> PublicScore:
    from scipy.stats import spearmanr

    measured = [row for row in rows if row.step_s is not None]
    cases = [row.case for row in measured]
    steps = np.array([row.step_s for row in measured])
    groups, calm = _groups(rows), ~np.array(disturbed(measured))
    rng = np.random.default_rng(0)
    results = []
    for _ in range(splits):
        order = rng.permutation(len(cases))
        train, rest = order[:fitted], order[fitted:]
        others = [cases[place] for place in rest]
        law = layout_law.expected(cases[0].machine.gpu.name, cases[0].framework)
        if fitted:
            law = layout_law.fit([cases[place] for place in train], steps[train].tolist())
        expected, truth = law.predict(others), steps[rest]
        low, high = law.intervals(others)
        errors, many = np.abs(expected / truth - 1), len(truth) > 2
        at_best = np.where(calm[rest], truth, expected)
        result = {
            "error": errors.mean(),
            "median_error": np.median(errors),
            "calm_error": _mean(errors[calm[rest]].tolist()),
            "spearman": spearmanr(expected, truth)[0] if many else None,
            "spearman_limit": spearmanr(at_best, truth)[0] if many else None,
            "neighbour_error": _neighbour_error(others, expected, truth),
            "inside": np.mean((low <= truth) & (truth <= high)),
        }
        results.append(result | _picks(law, groups))
    medians = pd.DataFrame(results, dtype=float).median().items()
    values: dict[Any, Any] = {what: None if math.isnan(value) else value for what, value in medians}
    return PublicScore(
        table=name,
        rows=len(measured),
        fitted=fitted,
        splits=splits,
        disturbed=int((~calm).sum()),
        groups=len(groups),
        **values,
        **_memory(rows),
    )


def _neighbour_error(cases: Sequence[Case], expected: Any, truth: Any) -> float | None:
    """The mean error if each row is as far off as the median of its nearest rows.

    Their distance counts by how many doublings their settings differ.
    """
    from scipy.spatial import cKDTree

    if len(cases) <= NEIGHBOURS:
        return None
    places = np.array([_settings(case) for case in cases])
    _, near = cKDTree(places).query(places, k=NEIGHBOURS + 1)  # the nearest is the row itself
    off = np.log(truth / expected)
    return float(
        np.mean(np.abs(expected * np.exp(np.median(off[near[:, 1:]], axis=1)) / truth - 1))
    )


def _settings(case: Case) -> list[float]:
    """A case as a point, at whose distance of 1 one setting is doubled or replicas share more."""
    candidate, layout = case.candidate, case.candidate.layout
    counts = (layout.data, layout.tensor, layout.pipeline, layout.context, layout.expert)
    batch = (candidate.micro_batch, candidate.grad_accum, case.sequence)
    sizes = np.log2([*counts, *batch, case.model.width, case.model.layers])
    return [*sizes, float(len(SHARDED[layout.sharing]))]


def disturbed(rows: Sequence[LayoutRow]) -> list[bool]:
    """Which measured rows took over twice as long as a layout that should not be faster.

    That is one of the same model, split alike by tensor and pipeline parallelism, with no more
    replicas, no larger micro-batches and no smaller batch: its GPUs have at least as much to do in
    as many messages. A pipeline's longer first passage with larger micro-batches is allowed for.
    Only measured times are compared, no predictions.
    """
    alike = grouped((_split(row.case), row) for row in rows)
    return [
        any(
            (row.step_s or 0) > DISTURBED * (other.step_s or 0) * max(1.0, _longer(row, other))
            for other in alike[_split(row.case)]
            if _does_more(other.case.candidate, row.case.candidate)
        )
        for row in rows
    ]


def _split(case: Case) -> Any:
    candidate, layout = case.candidate, case.candidate.layout
    whole = (case.model, case.sequence, case.machine.gpu.name, case.passes, candidate.precision)
    return *whole, layout.tensor, layout.pipeline, layout.context


def _does_more(one: Candidate, other: Candidate) -> bool:
    """Whether each GPU has at least as much to do, in at least as many messages."""
    fewer = one.layout.data <= other.layout.data and one.micro_batch <= other.micro_batch
    return fewer and one.global_batch >= other.global_batch


def _longer(row: LayoutRow, other: LayoutRow) -> float:
    """How much longer the micro-batches of one layout take to pass a pipeline than another's."""
    passed = [
        each.micro_batch * (each.grad_accum + each.layout.pipeline - 1)
        for each in (row.case.candidate, other.case.candidate)
    ]
    return passed[0] / passed[1]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _groups(rows: Sequence[LayoutRow]) -> list[list[LayoutRow]]:
    """Groups of layouts with the same model, batch and number of GPUs of which several ran."""

    def task(case: Case) -> Any:
        batch, ranks = case.candidate.global_batch, case.candidate.layout.world_size
        return case.model, case.sequence, batch, ranks, case.machine.gpu.name

    groups = grouped((task(row.case), row) for row in rows).values()
    return [group for group in groups if sum(row.step_s is not None for row in group) > 1]


def _picks(law: LayoutLaw, groups: Sequence[Sequence[LayoutRow]]) -> dict[str, Any]:
    """Median and largest regret of the picks from each group, and the share of picks that ran."""
    regrets, ran = [], []
    for group in groups:
        possible = [row for row in group if row.case.fits] or list(group)
        pick = possible[int(np.argmin(law.predict([row.case for row in possible])))].step_s
        ran.append(pick is not None)
        if pick is not None:
            regrets.append(pick / min(row.step_s for row in group if row.step_s is not None) - 1)
    return {
        "regret": median(regrets) if regrets else None,
        "worst_regret": max(regrets, default=None),
        "ran": _mean(ran),
    }


def _memory(rows: Sequence[LayoutRow]) -> dict[str, Any]:
    """Mean error of peaks, share of rows that ran and fit, of rows that failed and do not fit."""
    errors = [
        # The tables hold the peak of rank 0.
        abs(row.case.memory(first_stage=True).total / row.memory_bytes - 1)
        for row in rows
        if row.memory_bytes
    ]
    ran = [row.case.fits for row in rows if not row.failed]
    failed = [not row.case.fits for row in rows if row.failed]
    return {"memory_error": _mean(errors), "fit": _mean(ran), "refused": _mean(failed)}


def _correlation(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _commit() -> str | None:
    """The commit of the checkout, with a + if files differ from it; None without git."""
    commit, differs = git_state()
    return f"{commit[:12]}{'+' * bool(differs)}" if commit else None
