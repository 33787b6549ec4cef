"""Frozen predictions: written before the runs they speak of, never again, and scored when those are
measured.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study, Task
from lab.files import write_atomically
from lab.perfmodel.forecast import Basis, Forecast
from lab.records.store import Record, Store, load_records

if TYPE_CHECKING:
    import pandas as pd


class Frozen(BaseModel):
    """A prediction as it was written down; times in s, memory in bytes. `sha256` is that of all the
    rest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    run_id: str
    run: Run
    frozen_at: datetime
    cluster: str
    step_s: float = Field(gt=0)
    low_s: float
    high_s: float
    communication_s: float
    exposed_s: float
    parts: dict[str, float]
    limit: str
    memory_bytes: float | None
    basis: str
    extrapolated: tuple[str, ...] = ()
    sha256: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the prediction in canonical JSON."""
        content = self.model_dump(mode="json", exclude={"sha256"})
        return hashlib.sha256(
            json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()

    @property
    def genuine(self) -> bool:
        """Whether it is as it was frozen."""
        return self.sha256 == self.digest


class Score(BaseModel):
    """A frozen prediction beside the median of the repeats that were measured after it; `error` is
    relative and signed.
    """

    model_config = ConfigDict(frozen=True)

    frozen: Frozen
    measured_s: float
    repeats: int
    error: float
    exposed_measured_s: float | None = None
    memory_measured: float | None = None

    @property
    def memory_error(self) -> float | None:
        """Relative and signed; None where memory was not predicted or not measured."""
        if not self.frozen.memory_bytes or not self.memory_measured:
            return None
        return self.frozen.memory_bytes / self.memory_measured - 1


def basis_of(
    study: Study, cluster: str | Cluster = "local", *, profiles: Sequence[Study] = ()
) -> Basis:
    """What predictions of a study rest on now, with the error of those that were scored already."""
    return Basis.of(study, cluster, profiles=profiles, model_error=error_so_far(study))


def freeze(
    study: Study,
    cluster: str | Cluster = "local",
    *,
    runs: Iterable[Run] | None = None,
    basis: Basis | None = None,
) -> list[Frozen]:
    """Write down what is expected of the runs that are not measured, and can be predicted, before
    they are.

    Of all runs of the study, or of some. Files are `out/predictions/<run id>-<time>.json`; one that
    is there is never changed, and a run that is predicted is not predicted again until it is
    measured. Runs on one rank are what predictions are made from, and have none, but where the
    `basis` is given and can be another than the study's.
    """
    chosen = dict.fromkeys(study.runs if runs is None else runs)
    asked = [run for run in chosen if (run.world_size > 1 or basis) and run.task == "train"]
    due = [
        run
        for run in asked
        if not predictions(study, run)
        and not any(map(Store(study.out).completed, _tasks(study, run)))
    ]
    if not due:
        return []
    basis, name = (
        basis or basis_of(study, cluster),
        Path(cluster).stem if isinstance(cluster, str) else cluster.name,
    )
    made = [frozen for run in due if (frozen := _frozen(basis.forecast(run), name))]
    for frozen in made:
        stamp = frozen.frozen_at.strftime("%Y%m%dT%H%M%S.%f")
        write_atomically(
            study.out / "predictions" / f"{frozen.run_id}-{stamp}.json",
            frozen.model_dump_json(indent=1).encode(),
        )
    return made


def archive_replaced(study: Study, run_ids: Iterable[str], target: Path) -> None:
    """Move the predictions of these runs elsewhere, as they are to be measured anew."""
    for run_id in run_ids:
        for path in (study.out / "predictions").glob(f"{run_id}-*.json"):
            target.mkdir(parents=True, exist_ok=True)
            path.rename(target / path.name)


def predictions(study: Study, run: Run | None = None) -> list[Frozen]:
    """What was frozen of a run, or of all, the oldest first; files that are not whole or were
    changed are left out.
    """
    found = []
    for path in sorted((study.out / "predictions").glob(f"{run.id if run else '*'}-*.json")):
        try:
            frozen = Frozen.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            continue
        if frozen.genuine:
            found.append(frozen)
    return sorted(found, key=lambda frozen: frozen.frozen_at)


def scores(study: Study) -> list[Score]:
    """Each run's last prediction from before its first repeat began, beside what was measured
    since.
    """
    found, measured = (
        [],
        [record for record in load_records(study) if record.completed and record.timing],
    )
    for run in study.runs:
        records = [record for record in measured if record.run_id == run.id]
        earlier = [
            frozen
            for frozen in predictions(study, run)
            if records and frozen.frozen_at < _first(records)
        ]
        if earlier:
            found.append(_score(earlier[-1], records))
    return found


def error_so_far(*studies: Study) -> float:
    """Root mean square of the relative errors of the studies' scored predictions; 0 where none is
    scored.
    """
    errors = [score.error for study in studies for score in scores(study)]
    return statistics.fmean(error**2 for error in errors) ** 0.5 if errors else 0.0


def mean_absolute_error(found: list[Score]) -> float | None:
    """Mean of the relative errors without their sign; None without a score."""
    return statistics.fmean(abs(score.error) for score in found) if found else None


def scores_table(found: list[Score]) -> pd.DataFrame:
    """One row per scored run: predicted with its interval, measured, error, for people."""
    import pandas as pd

    from lab.formatting import format_seconds

    rows = [
        {
            "configuration": score.frozen.run.label,
            "predicted": format_seconds(
                score.frozen.step_s, score.frozen.low_s, score.frozen.high_s
            ),
            "measured": format_seconds(score.measured_s),
            "error": f"{100 * score.error:+.1f} %",
            "inside the interval": "yes"
            if score.frozen.low_s <= score.measured_s <= score.frozen.high_s
            else "no",
            "exposed, predicted": format_seconds(score.frozen.exposed_s),
            "exposed, measured": "-"
            if score.exposed_measured_s is None
            else format_seconds(score.exposed_measured_s),
            "memory error": "-"
            if score.memory_error is None
            else f"{100 * score.memory_error:+.1f} %",
            "frozen": f"{score.frozen.frozen_at:%Y-%m-%d %H:%M:%S} UTC, {score.frozen.sha256[:8]}",
        }
        for score in found
    ]
    return pd.DataFrame(rows)


def _score(frozen: Frozen, records: list[Record]) -> Score:
    measured = statistics.median(record.timing.step.median for record in records if record.timing)
    exposed = [
        record.communication.exposed.median
        for record in records
        if record.communication and record.communication.exposed
    ]
    peaks = [max(record.memory.peak) for record in records if record.memory]
    return Score(
        frozen=frozen,
        measured_s=measured,
        repeats=len(records),
        error=frozen.step_s / measured - 1,
        exposed_measured_s=statistics.median(exposed) if exposed else None,
        memory_measured=statistics.median(peaks) if peaks else None,
    )


def _frozen(forecast: Forecast, cluster: str) -> Frozen | None:
    prediction = forecast.prediction
    if prediction is None:
        return None
    content: dict[str, Any] = {
        "run_id": forecast.run.id,
        "run": forecast.run,
        "frozen_at": datetime.now(UTC),
        "cluster": cluster,
        "memory_bytes": forecast.memory_bytes,
        "basis": forecast.basis,
        "extrapolated": forecast.extrapolated,
    }
    names = ("step_s", "low_s", "high_s", "communication_s", "exposed_s", "parts", "limit")
    frozen = Frozen(**content, **{name: getattr(prediction, name) for name in names})
    return frozen.model_copy(update={"sha256": frozen.digest})


def _tasks(study: Study, run: Run) -> list[Task]:
    return [task for task in study.tasks if task.run == run]


def _first(records: list[Record]) -> datetime:
    return min(
        datetime.fromisoformat(record.started_at or record.finished_at) for record in records
    )
