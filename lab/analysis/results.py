"""Results of a study for its report and figures: each part is computed once, on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from lab.analysis.answer import answer
from lab.analysis.audit import Audit, audit, is_table
from lab.analysis.comparison import Comparison
from lab.analysis.noise import Noise, judge
from lab.analysis.reported import ReportedTable
from lab.analysis.scaling import summary
from lab.analysis.scaling_curves import Curve, Scaling, curves
from lab.analysis.waterfall import Waterfall, waterfalls
from lab.config.cluster import NOTICE
from lab.config.study import Study, Task
from lab.errors import InputError, LabError, require_choice, require_type
from lab.formatting import count
from lab.perfmodel import frozen
from lab.perfmodel.frozen import Frozen, Score
from lab.records.store import Record, Store, load_records
from lab.records.table import grouped, table

Losses = np.ndarray[Any, np.dtype[np.float64]]
Given = Study | str | Path | Sequence[Record] | pd.DataFrame | ReportedTable | Comparison
MOST_CURVES = 24  # of a figure: more could not be told apart


class StudyResults:
    """Records with what is derived from them: table, summary, curves, losses, scored predictions.

    The source is a Study, its name or folder, a list of records, a results table (a DataFrame, a
    file or a ReportedTable), or a Comparison, whose machines have their own curves. Speedups are
    over the study's baseline in the study's scaling, unless `baseline` (fields of a run with their
    values) and `scaling` name another. For a list of records they are over one rank, with strong
    scaling; for a table they are over the fewest ranks, and each row has its scaling.
    """

    def __init__(
        self,
        source: Given,
        *,
        baseline: Mapping[str, Any] | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        wanted = "fields of a run with their values, such as {'world_size': 1}"
        require_type(baseline, Mapping | None, "baseline", wanted)
        require_choice(scaling or "none", get_args(Scaling), "scaling")
        if isinstance(source, pd.DataFrame) or is_table(source):
            source = _reported(source, baseline, scaling)
        self.source = source
        self._study = source if isinstance(source, Study) else None
        if isinstance(source, str | Path):
            self._study = Study.load(source)
        default = self._study.baseline if self._study else {"world_size": 1}
        self.baseline = default if baseline is None else baseline
        self.scaling = scaling or (self._study.scaling if self._study else "strong")

    @classmethod
    def of(
        cls,
        source: Source,
        *,
        baseline: Mapping[str, Any] | None = None,
        scaling: Scaling | None = None,
    ) -> StudyResults:
        """`source` itself if it already is results, unless another baseline or scaling is named."""
        if not isinstance(source, StudyResults):
            return cls(source, baseline=baseline, scaling=scaling)
        if baseline is None and scaling is None:
            return source
        other = cls(source.source, baseline=baseline, scaling=scaling)
        other.records = source.records  # records do not depend on either
        return other

    @property
    def has_study(self) -> bool:
        """Whether these are the results of one study."""
        return self._study is not None

    @property
    def study(self) -> Study:
        """The study. Raises LabError for records and comparisons, which have none."""
        if self._study is None:
            raise LabError(
                "these results belong to no study: make them from a Study, or from its name"
            )
        return self._study

    @cached_property
    def records(self) -> list[Record]:
        """The records, of all machines where several are compared; a study's as its grid runs."""
        if isinstance(self.source, Comparison | ReportedTable):
            return list(self.source.records)
        records = load_records(self.source)
        if isinstance(self.source, str | Path):  # a folder lists them by id
            places = {run.id: nth for nth, run in enumerate(self.study.runs)}
            records.sort(key=lambda record: places.get(record.run_id, len(places)))
        return records

    @cached_property
    def set_aside(self) -> dict[Task, Record]:
        """The noisier of two attempts at a task, which no result includes; none without a study."""
        store = Store(self._study.out) if self._study else None
        tasks = [record.task for record in self.records if record.disturbed is not None]
        return {task: louder for task in tasks if store and (louder := store.set_aside(task))}

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per repeat, as in `lab.table`."""
        return self.source.table if isinstance(self.source, Comparison) else table(self.records)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per configuration, as in `lab.analysis.scaling.summary`."""
        if isinstance(self.source, Comparison):
            return self.source.summary
        return summary(self.table, baseline=self.baseline, scaling=self.scaling)

    @cached_property
    def noise(self) -> Noise:
        """How far these results can be trusted, given other processes and the spread of repeats."""
        return judge(self.records, self.summary, study=self._study)

    @cached_property
    def audit(self) -> Audit:
        """What in these records cannot be trusted, by the rules of the audit."""
        if isinstance(self.source, ReportedTable):
            return self.source.audit
        return audit(self._study or self.records, records=self.records)

    @cached_property
    def curves(self) -> list[Curve]:
        """The lines of a figure; their labels leave out what was emulated in all of them."""
        return [
            Curve(label.removesuffix(f", {self.emulated}"), points)
            for label, points in curves(self.summary)
        ]

    @cached_property
    def drawn(self) -> list[Curve]:
        """The curves that figures show: all, or if too many those that scale best and worst."""
        return self.ends(MOST_CURVES)

    def ends(self, most: int) -> list[Curve]:
        """All curves, or if these are more than `most`, those that scale best and worst."""
        if len(self.curves) <= most:
            return self.curves
        ends = [curve.points.iloc[-1] for curve in self.curves]
        keys = [(np.nan_to_num(end["speedup"]), -np.nan_to_num(end["step_time"])) for end in ends]
        order = sorted(range(len(ends)), key=keys.__getitem__)
        half = most // 2
        return [self.curves[nth] for nth in sorted(order[:half] + order[-half:])]

    @property
    def left_out(self) -> str:
        """The note in figures about curves that they omit; empty if they show all."""
        return self.left_out_of(self.drawn)

    def left_out_of(self, drawn: Sequence[Curve]) -> str:
        """The note in a figure that shows only these `ends`; empty if they are all."""
        if len(drawn) == len(self.curves):
            return ""
        shown = f"{len(drawn)} of {len(self.curves)} configurations"
        return f"{shown} are drawn, those with the largest and the smallest speedups."

    @cached_property
    def waterfalls(self) -> list[Waterfall]:
        """Where the steps of one machine lose time, by configuration; none for a comparison."""
        machines = isinstance(self.source, Comparison)
        return [] if machines else waterfalls(self.summary, self.records)

    @cached_property
    def losses(self) -> dict[str, Losses]:
        """Training loss of each step by run id, the median over repeats."""
        repeats = grouped(
            (record.run_id, record.quality.loss)
            for record in self.records
            if record.completed and record.timing and record.quality and record.quality.loss
        )
        return {
            run_id: np.median([loss[: min(map(len, losses))] for loss in losses], axis=0)
            for run_id, losses in repeats.items()
        }

    @cached_property
    def scores(self) -> list[Score]:
        """Predictions of the study's runs beside later measurements; none without a study."""
        return frozen.scores(self._study, self.records) if self._study else []

    @cached_property
    def predicted(self) -> dict[str, Frozen]:
        """The prediction of each run that has since been measured, by run id."""
        return {score.frozen.run_id: score.frozen for score in self.scores}

    @property
    def headline(self) -> str:
        """The answer to the study's question, as plain text."""
        scored = self.scores if self.study.kind == "prediction" else ()
        return answer(self.study, self.summary, self.records, scores=scored)

    @property
    def prediction_summary(self) -> str:
        """The number of predictions and their outcome, as far as their runs are quiet enough."""
        if self.scores:
            quiet = self.noise.trustworthy
            judged = [score for score in self.scores if quiet([score.frozen.run_id])]
            unjudged = len(self.scores) - len(judged)
            texts = [frozen.outcome(judged)] if judged else []
            if unjudged:
                counted = count(unjudged, "predicted run")
                texts.append(f"{counted} cannot be judged: the measurement is too noisy.")
            return " ".join(texts)
        if waiting := frozen.predictions(self.study):
            counted = f"{count(len(waiting), 'prediction')} {'is' if len(waiting) == 1 else 'are'}"
            return f"{counted} frozen, but no predicted run has completed since."
        if self.citations:
            return "These times were published by others: nothing was predicted in advance."
        if all(run.script for run in self.study.runs):
            return "Steps of a script are measured, not predicted: the lab does not know its model."
        if not any(run.world_size > 1 and run.task == "train" for run in self.study.runs):
            return "No run of this study trains on more than one rank: there is nothing to predict."
        return (
            "No run of this study was predicted before it was measured. A prediction needs runs on "
            "one rank, and lab calibrate before lab run; lab predict shows what is missing."
        )

    @cached_property
    def emulated(self) -> str:
        """What was emulated in all of them, such as `emulated 1 Gbit/s`; empty for a comparison."""
        kinds = set() if isinstance(self.source, Comparison) else set(self.summary["emulated"])
        return f"emulated {kind}" if len(kinds) == 1 and (kind := kinds.pop()) else ""

    @cached_property
    def clusters(self) -> list[str]:
        """The cluster profiles of the records, by name or else by path."""
        return sorted({r.environment.profile for r in self.records if r.environment})

    @cached_property
    def citations(self) -> list[str]:
        """The source of published numbers."""
        places = (record.environment for record in self.records)
        return sorted({place.replay for place in places if place and place.replay})

    @property
    def notice(self) -> str:
        """The note that figures of published numbers must carry; else empty."""
        return NOTICE if self.citations else ""


def _reported(
    source: Any, baseline: Mapping[str, Any] | None, scaling: Scaling | None
) -> ReportedTable:
    """A results table, whose baseline is only a number of ranks; raises InputError."""
    if unknown := [key for key in baseline or {} if key != "world_size"]:
        advice = "give one such as {'world_size': 4}"
        what = "a table's baseline is only a number of ranks"
        raise InputError.of("baseline", f"baseline.{unknown[0]}", what, advice)
    kind = scaling if scaling in {"strong", "weak"} else "auto"
    size = (baseline or {}).get("world_size")
    return ReportedTable.read(source, scaling=kind, baseline=size)


Source = StudyResults | Given
