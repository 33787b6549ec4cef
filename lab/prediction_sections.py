"""The section of the report on predictions: what was expected beforehand, and how wrong it was."""

from __future__ import annotations

from lab.ahead.scoring import mean_absolute_error, predictions, scores, scores_table
from lab.analysis.rounding import percent
from lab.page import Prose, Table
from lab.records import load_records
from lab.study import Study


def predictions_of(study: Study) -> str:
    """One sentence: how many predictions there are, and what became of them."""
    frozen, found = predictions(study), scores(study)
    if found:
        inside = sum(score.frozen.low_s <= score.measured_s <= score.frozen.high_s for score in found)
        error = percent(mean_absolute_error(found))
        worst = max(found, key=lambda score: abs(score.error))
        return (
            f"Mean absolute error of the step time over {len(found)} run{'s' * (len(found) > 1)}: {error}, "
            f"{worst.error:+.1%} at worst ({worst.frozen.run.label}); {inside} of {len(found)} were measured inside their interval."
        )
    if frozen:
        return f"{len(frozen)} predictions are frozen, and none of their runs has completed since."
    if any(record.environment and record.environment.replay for record in load_records(study)):
        return "These times were published by others: nothing was predicted before them."
    if not any(run.world_size > 1 and run.task == "train" for run in study.runs):
        return "No run of this study trains on more than one rank: there is nothing to predict."
    return (
        "No run of this study was predicted before it was measured. That takes its runs on one rank and lab calibrate "
        "before lab run; lab predict says what is missing."
    )


def predictions_table(study: Study) -> Table:
    """One row per run that was predicted and measured."""
    caption = (
        "Step time predicted before the run and as measured, median over repeats; an error above zero says that the run "
        "was faster than predicted. Frozen tells when the prediction was written, and how its SHA-256 begins"
    )
    return Table(caption, scores_table(scores(study)), index=False)


def section(study: Study) -> list[Prose | Table]:
    """The whole section."""
    told = Prose.of(predictions_of(study))
    return [told, predictions_table(study)] if scores(study) else [told]
