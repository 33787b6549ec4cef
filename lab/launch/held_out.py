"""lab bench predict: prediction error on held-out runs, on a quiet machine and under load."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab.config.cluster import Cluster, find_profile
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.config.study import STUDY_FILE, Study
from lab.errors import LabError
from lab.files import read_yaml, write_atomically
from lab.launch.calibrate import calibrate
from lab.launch.launcher import launch
from lab.perfmodel.frozen import Score, mean_absolute_error, scores
from lab.records.store import load_records
from lab.records.table import by_run, grouped, median

STUDY, ALL = "held-out", "held-out-all"
ERROR_LIMIT = 0.05  # limit on the mean absolute error of the step time
# For strategies that add more to a step than messages at the end of its backward pass.
INTRICATE_LIMIT = 0.10
PLAIN = {"ddp", "naive_ddp"}
INSIDE_LIMIT, WIDTH_LIMIT = 0.90, 0.15
QUIET, LOADED = "quiet", "loaded"
# It ends with its parent, however the parent ends.
LOAD = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(sys.argv[1])})
while os.getppid() == int(sys.argv[2]):
    for _ in range(10**6):
        pass
"""


@dataclass(frozen=True)
class HeldOut:
    """Scored runs; `foreign` is the share of the ranks' cores that others used, by run id."""

    study: Study
    scores: tuple[Score, ...]
    foreign: Mapping[str, float | None]

    @property
    def error(self) -> float:
        """Mean absolute error of the step time, relative."""
        return mean_absolute_error(self.scores) or 0.0

    @property
    def memory_error(self) -> float | None:
        """Mean absolute error of a rank's peak memory, relative."""
        errors = [abs(s.memory_error) for s in self.scores if s.memory_error is not None]
        return statistics.fmean(errors) if errors else None

    @property
    def within_limit(self) -> bool:
        """Whether the error is at most ERROR_LIMIT."""
        return self.error <= ERROR_LIMIT

    def rows(self) -> Iterator[tuple[Run, dict[str, str]]]:
        """Each scored run with its row in the table of scores, and the foreign CPU beside it."""
        for score in self.scores:
            foreign = _percent(self.foreign.get(score.frozen.run_id))
            yield score.frozen.run, score.row() | {"foreign CPU": foreign}

    def table(self) -> list[dict[str, Any]]:
        """One row per run, for people."""
        columns = ["predicted", "measured", "error"]
        columns += ["exposed, predicted", "exposed, measured", "memory error", "foreign CPU"]
        return [
            {
                "model": run.label_parts[0],
                "batch": run.global_batch_size,
                "buckets": f"{run.bucket_cap_mb:g} MiB",
                **{name: row[name] for name in columns},
            }
            for run, row in self.rows()
        ]

    def __str__(self) -> str:
        memory = "" if self.memory_error is None else f"; of memory {100 * self.memory_error:.1f} %"
        return (
            f"mean absolute error of the step over {len(self.scores)} held-out runs: "
            f"{100 * self.error:.2f} %, limit {100 * ERROR_LIMIT:.0f} %{memory}; "
            f"predictions, records and logs are in {self.study.out}"
        )


def held_out(
    cluster: str = "local", *, quick: bool = False, fresh: bool = False, progress: bool = True
) -> HeldOut:
    """Calibrate, measure runs on one rank, freeze predictions for several ranks, measure, score.

    Existing measurements are kept unless `fresh`. Raises InputError for a cluster with fewer than
    two ranks, and LabError if runs fail or nothing could be predicted.
    """
    study = Study.load(STUDY, quick=quick)
    return _scored(study, cluster, quick=quick, fresh=fresh, progress=progress)


def _scored(study: Study, cluster: str, *, quick: bool, fresh: bool, progress: bool) -> HeldOut:
    calibrate(cluster, world_sizes=[1, 2], quick=quick, progress=progress)
    # Model by model, so that between a prediction's basis and its runs the machine drifts less.
    models = list(dict.fromkeys(run.names["model"] for run in study.runs))
    turns = grouped(
        ((models.index(task.run.names["model"]), task.run.world_size > 1), task)
        for task in study.tasks
    )
    for _, tasks in sorted(turns.items()):
        records = launch(study, cluster, tasks=tasks, fresh=fresh).wait(progress=progress)
        if failed := [record.task.label for record in records if not record.completed]:
            raise LabError(f"these runs failed, so nothing can be scored: {', '.join(failed)}")
    scored = scores(study)
    if not scored:
        raise LabError("no run was predicted before it was measured; measure again with --fresh")
    repeats = by_run(load_records(study))
    foreign = {run_id: median(some, "foreign_share") for run_id, some in repeats.items()}
    return HeldOut(study, tuple(scored), foreign)


@dataclass(frozen=True)
class HeldOutStrategies:
    """The scored runs of every strategy, on the quiet machine and with one core loaded."""

    conditions: dict[str, HeldOut]

    @property
    def scores(self) -> list[Score]:
        """All scores."""
        return [score for result in self.conditions.values() for score in result.scores]

    @property
    def inside(self) -> float:
        """The share of measurements inside of their 95 % intervals."""
        return inside(self.scores)

    @property
    def half_width(self) -> float:
        """Median half width of the intervals on the quiet machine, relative to the prediction."""
        return half_width(self.conditions[QUIET].scores)

    def errors(self) -> dict[str, float]:
        """Mean absolute error of the step by strategy, relative."""
        by_strategy = grouped((score.frozen.run.strategy, score) for score in self.scores)
        return {name: mean_absolute_error(some) or 0.0 for name, some in by_strategy.items()}

    def misses(self) -> list[str]:
        """The missed targets, as sentences."""
        misses = []
        if self.inside < INSIDE_LIMIT:
            what = f"{_percent(self.inside, 0)} of the measurements are inside their intervals"
            misses.append(f"{what}; the target is {_percent(INSIDE_LIMIT, 0)}")
        for name, error in self.errors().items():
            if error > limit_of(name):
                what = (
                    f"predictions of {STRATEGIES[name].label} are {_percent(error)} off on average"
                )
                misses.append(f"{what}; the target is {_percent(limit_of(name), 0)}")
        if self.half_width > WIDTH_LIMIT:
            what = f"the median interval on the quiet machine is ±{_percent(self.half_width, 0)}"
            misses.append(f"{what}; the target is ±{_percent(WIDTH_LIMIT, 0)}")
        return misses

    def summary(self) -> list[dict[str, Any]]:
        """One row per strategy and one for all: errors, intervals, quiet and loaded, for people."""
        rows = []
        for name in (*self.errors(), ""):
            row: dict[str, Any] = {"strategy": STRATEGIES[name].label if name else "all"}
            chosen = {
                condition: [s for s in result.scores if name in {"", s.frozen.run.strategy}]
                for condition, result in self.conditions.items()
            }
            row["predictions"] = sum(map(len, chosen.values()))
            for condition, some in chosen.items():
                row[f"error, {condition}"] = _percent(mean_absolute_error(some))
                row[f"inside, {condition}"] = _percent(inside(some) if some else None, 0)
                row[f"half width, {condition}"] = (
                    f"±{_percent(half_width(some), 0)}" if some else "-"
                )
            everything = [score for some in chosen.values() for score in some]
            row["error"] = _percent(mean_absolute_error(everything))
            row["target"] = _percent(limit_of(name), 0) if name else ""
            rows.append(row)
        return rows

    def table(self) -> list[dict[str, Any]]:
        """One row per run, for people."""
        return [
            {
                "machine": condition,
                "strategy": run.facts.label,
                "model": run.label_parts[0],
                "micro-batch": run.micro_batch_size,
                **{name: row[name] for name in ("predicted", "measured", "error")},
                "inside": row["inside the interval"],
                "foreign CPU": row["foreign CPU"],
            }
            for condition, result in self.conditions.items()
            for run, row in result.rows()
        ]

    def __str__(self) -> str:
        folders = " and ".join(str(result.study.out) for result in self.conditions.values())
        return (
            f"{len(self.scores)} held-out predictions: {_percent(self.inside, 0)} of the "
            f"measurements inside their 95 % intervals, target {_percent(INSIDE_LIMIT, 0)}; "
            f"median half width ±{_percent(self.half_width)} on the quiet machine, target "
            f"±{_percent(WIDTH_LIMIT, 0)}; predictions, records and logs are in {folders}"
        )


def _percent(ratio: float | None, decimals: int = 1) -> str:
    return "-" if ratio is None else f"{100 * ratio:.{decimals}f} %"


def limit_of(strategy: str) -> float:
    """The largest mean absolute error allowed for predictions of a strategy."""
    return ERROR_LIMIT if strategy in PLAIN else INTRICATE_LIMIT


def inside(scored: Sequence[Score]) -> float:
    """The share of measurements inside of their 95 % intervals."""
    return statistics.fmean(score.inside for score in scored)


def half_width(scored: Sequence[Score]) -> float:
    """The median of the intervals' half widths, relative to the predictions."""
    return statistics.median(
        (score.frozen.high_s - score.frozen.low_s) / 2 / score.frozen.step_s for score in scored
    )


def held_out_strategies(
    cluster: str = "local", *, quick: bool = False, fresh: bool = False, progress: bool = True
) -> HeldOutStrategies:
    """Predict and measure every strategy on two ranks, quiet and with a load on one of the cores.

    Under load everything is measured anew: the calibration, runs on one rank and runs on two.
    Existing measurements are kept unless `fresh`. Raises the same errors as `held_out`.
    """
    study = Study.load(ALL, quick=quick)
    scored = partial(_scored, quick=quick, fresh=fresh, progress=progress)
    quiet = scored(study, cluster)
    beside, profile = _beside(study), _keeping_disturbed(study, cluster)
    with load(Cluster.load(cluster)):
        loaded = scored(beside, profile)
    return HeldOutStrategies({QUIET: quiet, LOADED: loaded})


def _beside(study: Study) -> Study:
    """The same study in a separate folder below `out`, so that its records are kept apart."""
    folder = study.out / LOADED
    write_atomically(folder / STUDY_FILE, (study.folder / STUDY_FILE).read_bytes())
    return study.model_copy(update={"folder": folder})


def _keeping_disturbed(study: Study, cluster: str) -> str:
    """The cluster's profile without repeats of disturbed runs: under load, all are disturbed."""
    path = find_profile(cluster)
    content = read_yaml(path) | {"repeat_disturbed": False}
    copy: Path = study.out / LOADED / path.with_suffix(".yaml").name
    write_atomically(copy, json.dumps(content).encode())
    return str(copy)


@contextmanager
def load(cluster: Cluster) -> Iterator[None]:
    """Keep the second rank's core busy with a separate process."""
    core = cluster.cores_of(1)[0]
    process = subprocess.Popen([sys.executable, "-c", LOAD, str(core), str(os.getpid())])
    try:
        yield
    finally:
        process.kill()
        process.wait()
