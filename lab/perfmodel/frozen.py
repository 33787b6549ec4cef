"""Frozen predictions: written once before their runs, and scored after those are measured."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, ValidationError

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study
from lab.files import write_atomically
from lab.formatting import count, format_seconds, percent
from lab.perfmodel.calibration import Stored, load_calibration
from lab.perfmodel.forecast import Basis, Forecast
from lab.perfmodel.simulate import PREDICTED
from lab.records.store import PREDICTIONS, Record, Store, load_records
from lab.records.table import by_run, grouped, median


class Frozen(Stored):
    """A prediction as written; times in s, memory in bytes, `sha256` of the rest."""

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
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class Score(Stored):
    """A frozen prediction beside the median of its repeats; `error` is relative and signed.

    It is `disturbed` if other processes disturbed most repeats.
    """

    frozen: Frozen
    measured_s: float
    repeats: int
    error: float
    exposed_measured_s: float | None = None
    memory_measured: float | None = None
    disturbed: bool = False

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the predicted interval."""
        return self.frozen.low_s <= self.measured_s <= self.frozen.high_s

    @property
    def memory_error(self) -> float | None:
        """Relative signed error; None if memory was not predicted or not measured."""
        if not self.frozen.memory_bytes or not self.memory_measured:
            return None
        return self.frozen.memory_bytes / self.memory_measured - 1

    def row(self) -> dict[str, str]:
        """For display: prediction with interval, measurement, error."""
        frozen, exposed_s = self.frozen, self.exposed_measured_s
        return {
            "configuration": frozen.run.label,
            "predicted": format_seconds(frozen.step_s, frozen.low_s, frozen.high_s),
            "measured": format_seconds(self.measured_s),
            "error": signed(self.error),
            "inside the interval": "yes" if self.inside else "no",
            "exposed, predicted": format_seconds(frozen.exposed_s),
            "exposed, measured": "-" if exposed_s is None else format_seconds(exposed_s),
            "memory error": signed(self.memory_error),
            "frozen": f"{frozen.frozen_at:%Y-%m-%d %H:%M:%S} UTC, {frozen.sha256[:8]}",
        }


def basis_of(
    study: Study, cluster: str | Cluster = "local", *, profiles: Sequence[Study] = ()
) -> Basis:
    """The current basis of a study's predictions, with the error of those already scored.

    The studies `profiles` add records of one rank.
    """
    records = tuple(
        record
        for source in (study, *profiles)
        for record in Store(source.out).records()
        if record.completed and record.run.world_size == 1 and record.run.task == "train"
    )
    place = cluster.reference if isinstance(cluster, Cluster) else str(cluster)
    error = error_so_far(study)
    return Basis(records, load_calibration(cluster), error, study.repeats, place)


def freeze(
    study: Study,
    cluster: str | Cluster = "local",
    *,
    runs: Iterable[Run] | None = None,
    basis: Basis | None = None,
) -> list[Frozen]:
    """Write down predictions for all runs that can be predicted, before they are measured.

    This covers all runs of the study, or some. Files are `out/predictions/<run id>-<time>.json`. An
    existing file is never changed, and a predicted run is not predicted again until it is measured.
    Runs on one rank are the basis of predictions and get none, unless a `basis` is given, which
    need not be the study's own.
    """
    store = Store(study.out)
    runs = dict.fromkeys(study.runs if runs is None else runs)
    waiting = {one.run_id for one in predictions(study, runs)}
    due = [
        run
        for run in runs
        if (run.world_size > 1 or basis)
        and run.task == "train"
        and run.id not in waiting
        and not any(store.completed(task) for task in study.tasks if task.run == run)
    ]
    if not due:
        return []
    basis = basis or basis_of(study, cluster)
    name = Path(cluster).stem if isinstance(cluster, str) else cluster.name
    frozen = [one for run in due if (one := _frozen(basis.forecast(run), name))]
    for one in frozen:
        path = study.out / PREDICTIONS / f"{one.run_id}-{one.frozen_at:%Y%m%dT%H%M%S.%f}.json"
        write_atomically(path, one.model_dump_json(indent=1).encode())
    return frozen


def _frozen(forecast: Forecast, cluster: str) -> Frozen | None:
    prediction = forecast.prediction
    if prediction is None:
        return None
    frozen = Frozen(
        run_id=forecast.run.id,
        run=forecast.run,
        frozen_at=datetime.now(UTC),
        cluster=cluster,
        memory_bytes=forecast.memory_bytes,
        basis=forecast.basis,
        extrapolated=forecast.extrapolated,
        **{name: getattr(prediction, name) for name in PREDICTED},
    )
    return frozen.model_copy(update={"sha256": frozen.digest})


def archive_replaced(study: Study, run_ids: Iterable[str], target: Path) -> None:
    """Move the predictions of these runs elsewhere, because the runs will be measured again."""
    for run_id in run_ids:
        for path in (study.out / PREDICTIONS).glob(f"{run_id}-*.json"):
            target.mkdir(parents=True, exist_ok=True)
            path.rename(target / path.name)


def predictions(study: Study, runs: Iterable[Run] | None = None) -> list[Frozen]:
    """Frozen predictions of these runs or of all of the study, oldest first.

    Broken and changed files are left out, and those of runs that only the study's other form has.
    """
    ids = {run.id for run in (study.runs if runs is None else runs)}
    frozen = []
    for path in sorted((study.out / PREDICTIONS).glob("*.json")):
        if path.name.partition("-")[0] in ids:
            with suppress(OSError, ValidationError):
                frozen.append(Frozen.model_validate_json(path.read_bytes()))
    unchanged = (one for one in frozen if one.sha256 == one.digest)
    return sorted(unchanged, key=lambda one: one.frozen_at)


def scores(study: Study, records: Sequence[Record] | None = None) -> list[Score]:
    """The last prediction before each run's first repeat, beside the measurement.

    `records` are those of the study, if they are already loaded.
    """
    loaded = load_records(study) if records is None else records
    measured = by_run(record for record in loaded if record.completed and record.timing)
    frozen = grouped((one.run_id, one) for one in (predictions(study) if measured else ()))
    scored = []
    for run in study.runs:
        if not (repeats := measured.get(run.id)):
            continue
        first = min(datetime.fromisoformat(one.started_at or one.finished_at) for one in repeats)
        earlier = [one for one in frozen.get(run.id, ()) if one.frozen_at < first]
        if earlier:
            scored.append(_score(earlier[-1], repeats))
    return scored


def _score(frozen: Frozen, records: Sequence[Record]) -> Score:
    measured = median(records, "timing.step.median")
    assert measured is not None
    return Score(
        frozen=frozen,
        measured_s=measured,
        repeats=len(records),
        error=frozen.step_s / measured - 1,
        exposed_measured_s=median(records, "communication.exposed.median"),
        memory_measured=median(records, "peak_memory"),
        disturbed=2 * sum(record.noisy for record in records) > len(records),
    )


def error_so_far(*studies: Study) -> float:
    """RMS of the relative errors of the studies' scored predictions; 0 without one."""
    errors = [score.error for study in studies for score in scores(study)]
    return statistics.fmean(error**2 for error in errors) ** 0.5 if errors else 0.0


def mean_absolute_error(scored: Sequence[Score]) -> float | None:
    """Mean absolute relative error; None without a score."""
    return statistics.fmean(abs(score.error) for score in scored) if scored else None


def outcome(scored: Sequence[Score]) -> str:
    """A sentence on the errors of at least one score, and how many were inside their intervals."""
    worst = max(scored, key=lambda score: abs(score.error))
    error, label = signed(worst.error), worst.frozen.run.label
    if len(scored) == 1:
        inside = "inside" if worst.inside else "outside"
        return (
            f"The predicted step time of {label} is off by {error}; the measurement lies "
            f"{inside} the predicted interval."
        )
    return (
        f"The predicted step times of {count(len(scored), 'run')} are off by "
        f"{percent(mean_absolute_error(scored))} on average and by {error} at worst ({label}); "
        f"{sum(score.inside for score in scored)} of {len(scored)} measurements lie inside their "
        "predicted intervals."
    )


def signed(error: float | None) -> str:
    """A relative error in per cent with its sign, such as `+3.7 %`; `-` for None."""
    return "-" if error is None else f"{round(100 * error, 1) + 0.0:+.1f} %"  # never -0.0
