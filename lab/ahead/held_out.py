"""How wrong predictions are here: one rank measured, two ranks predicted, then measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from lab.ahead.scoring import Score, mean_absolute_error, scores, scores_table
from lab.calibrating import calibrate
from lab.errors import LabError
from lab.launch import launch
from lab.records import Record, load_records
from lab.study import Study
from lab.words import parts

LIMIT = 0.05  # mean absolute error of the step time
STUDY = "held-out"


@dataclass(frozen=True)
class HeldOut:
    """The scored runs of a study, and the cores' worth of others on its ranks' cores meanwhile, by run id."""

    study: Study
    scores: tuple[Score, ...]
    foreign: dict[str, float]

    @property
    def error(self) -> float:
        """Mean absolute error of the step time, relative."""
        return mean_absolute_error(list(self.scores)) or 0.0

    @property
    def memory_error(self) -> float | None:
        """That of a rank's peak memory."""
        errors = [abs(score.memory_error) for score in self.scores if score.memory_error is not None]
        return statistics.fmean(errors) if errors else None

    @property
    def within_limit(self) -> bool:
        """Whether the error is LIMIT at most."""
        return self.error <= LIMIT

    def table(self) -> list[dict[str, Any]]:
        """One row per run, for people."""
        kept = ("predicted", "measured", "error", "exposed, predicted", "exposed, measured", "memory error")
        rows = scores_table(list(self.scores)).to_dict("records")
        return [
            {"model": parts(score.frozen.run)[0], "batch": score.frozen.run.global_batch_size}
            | {"buckets": f"{score.frozen.run.bucket_cap_mb:g} MiB"}
            | {name: row[name] for name in kept}
            | {"foreign CPU": f"{self.foreign.get(score.frozen.run_id, 0.0):.2f}"}
            for score, row in zip(self.scores, rows, strict=True)
        ]

    def __str__(self) -> str:
        memory = "" if self.memory_error is None else f"; of memory {100 * self.memory_error:.1f} %"
        return (
            f"mean absolute error of the step over {len(self.scores)} held-out runs: {100 * self.error:.2f} %, "
            f"limit {100 * LIMIT:.0f} %{memory}; predictions, records and logs are in {self.study.out}"
        )


def held_out(cluster: str = "local", *, quick: bool = False, fresh: bool = False, progress: bool = True) -> HeldOut:
    """Calibrate, measure every repeat on one rank, freeze predictions of the runs on several, measure those, score.

    What is measured already is kept unless `fresh`. Raises InputError for a cluster with fewer than two ranks, LabError
    where runs fail or nothing could be predicted.
    """
    study = Study.load(STUDY, quick=quick)
    calibrate(cluster, world_sizes=[1, 2], quick=quick, progress=progress)
    for several in (False, True):
        tasks = [task for task in study.tasks if (task.run.world_size > 1) == several]
        records = launch(study, cluster, tasks=tasks, fresh=fresh).wait(progress=progress)
        if failed := [record.task.label for record in records if not record.completed]:
            raise LabError(f"these runs failed, so that nothing can be scored: {', '.join(failed)}")
    found = scores(study)
    if not found:
        raise LabError("no run was predicted before it was measured: measure anew with --fresh")
    return HeldOut(study, tuple(found), _foreign(load_records(study)))


def _foreign(records: list[Record]) -> dict[str, float]:
    seen: dict[str, list[float]] = {}
    for record in records:
        if record.environment and record.environment.foreign_cpu is not None:
            seen.setdefault(record.run_id, []).append(record.environment.foreign_cpu)
    return {run_id: statistics.median(values) for run_id, values in seen.items()}
