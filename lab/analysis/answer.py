"""The answer to a study's question, by what the study varies: the headline of its report.

A study that varies several things gets a sentence or two on each. Numbers are given even from one
repeat; a difference is claimed only from FEWEST_REPEATS on, if the intervals do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lab.analysis import configurations, inference
from lab.analysis.audit.rules.speedup import MARGIN
from lab.analysis.findings import UNEVEN, largest_loss, lone_ranks, mean_over_median
from lab.analysis.noise import judge
from lab.analysis.scaling import (
    best,
    beyond_baseline,
    by_emulation,
    farthest,
    few,
    gains,
    ratio,
    shown,
)
from lab.analysis.scaling_curves import (
    Estimate,
    Row,
    curves,
    interval_name,
    labelled_rows,
    ranks,
    rows_by_curve,
)
from lab.analysis.stages import stage_sentences, stages
from lab.analysis.waterfall import SHARE, waterfalls
from lab.config.run import Run, distinct_labels
from lab.config.strategies import SETTINGS
from lab.config.study import Study
from lab.formatting import count, extent, format_seconds, joined, listed, percent, rounded
from lab.perfmodel.frozen import Score, outcome
from lab.records.store import Record
from lab.records.table import grouped, median, steps_by_run

NO_ANSWER = "There is no answer yet."
FEW_MODELS = 2  # with more, strategies are compared across all models, not per model
LAST = 0.1  # of the steps: their mean loss counts as the final loss


class Evidence(NamedTuple):
    """What an answer rests on: a summary and records of one kind, measured or emulated."""

    study: Study
    summary: pd.DataFrame
    records: Sequence[Record]
    scores: Sequence[Score]

    def varies(self, field: str) -> bool:
        """Whether the study's training runs have several values of a field."""
        runs = [run for run in self.study.runs if run.task == "train"]
        return len({repr(getattr(run, field)) for run in runs}) > 1

    @property
    def measured(self) -> dict[Run, list[Record]]:
        """The completed repeats of each training run that has some."""
        return configurations.trained(self.study.runs, self.records)


def answer(
    study: Study, summary: pd.DataFrame, records: Sequence[Record], *, scores: Sequence[Score] = ()
) -> str:
    """The answer in a few sentences, or what is missing to give one.

    If some results are emulated and others measured, the answer covers the measured ones. Results
    that are too noisy are left out, as are those whose ranks end with different parameters or that
    learn otherwise once compiled.
    """
    if not any(record.completed for record in records):
        ended = f" ({len(records)} of {count(len(study.tasks), 'repeat')} ended without a result)"
        return f"There is no answer yet: no run has completed{ended * bool(records)}."
    if len(summary):
        summary = by_emulation(summary)[0]
        kind = summary["emulated"].iloc[0]
        records = [record for record in records if record.emulation == kind]
    apart = {one.run_id: one.run for one in records if one.checks.get("same_parameters") is False}
    left_out = _left_out(study, apart.values(), "every rank trained a model of its own")
    wrong = {run.id: run for run in configurations.miscompiled(study.runs, records)}
    left_out += _left_out(study, wrong.values(), "compiled, the model learned something else")
    apart |= wrong
    records = [record for record in records if record.run_id not in apart]
    left_out += _without_result(study, records)
    if not any(record.completed for record in records):
        return " ".join([NO_ANSWER, *left_out])
    summary = summary[~summary["run_id"].isin(apart)] if apart else summary
    noise = judge(records, summary, study=study)
    quiet = noise.quiet(summary)
    compared = len(beyond_baseline(summary)) > 0
    judged = [score for score in scores if noise.trustworthy([score.frozen.run_id])]
    unanswered = [quiet.empty, compared and beyond_baseline(quiet).empty, scores and not judged]
    if noise.loud and any(unanswered):
        untimed = _untimed(Evidence(study, summary, records, scores))
        return " ".join([NO_ANSWER, noise.sentence, *untimed, *lone_ranks(records), *left_out])
    records = [record for record in records if record.run_id not in noise.loud]
    evidence = Evidence(study, quiet, records, judged)
    sentences = [sentence for maker in _makers(evidence) for sentence in maker(evidence)]
    sentences += [noise.sentence] if noise.loud else []
    return " ".join([*sentences, *lone_ranks(records), *left_out])


def _left_out(study: Study, runs: Collection[Run], cause: str) -> list[str]:
    """The sentence on runs that are not compared, if there are any."""
    if not runs:
        return []
    labels, _ = distinct_labels(study.runs)
    names = "; ".join(labels[run] for run in runs)
    return [f"Not compared, because {cause}: {names}."]


def _without_result(study: Study, records: Sequence[Record]) -> list[str]:
    """The sentence on runs of which every repeat so far ended without a result, if any did."""
    labels, _ = distinct_labels(study.runs)
    ended = configurations.outcomes(records)
    names = [f"{label} ({ended[run.id]})" for run, label in labels.items() if run.id in ended]
    return [f"Without a result: {listed(names, configurations.MOST_NAMES)}."] if names else []


def _untimed(evidence: Evidence) -> list[str]:
    """What can be said if times are too noisy: sizes, bytes and learning."""
    if evidence.study.kind == "inference":
        return inference.untimed(evidence.records)
    texts = list(_larger_batch(evidence)) if evidence.study.scaling == "weak" else []
    if evidence.varies("strategy"):
        runs, baseline = evidence.study.runs, evidence.study.baseline
        texts += configurations.untimed_sentences(runs, evidence.records, baseline=baseline)
    return texts


def _inference(evidence: Evidence) -> Iterator[str]:
    """What each stage or quantization gains and costs."""
    study, records = evidence.study, evidence.records
    yield from stage_sentences(stages(study, records)) or inference.answer(study, records)


def _predictions(evidence: Evidence) -> Iterator[str]:
    """The error of the predictions that were frozen before their runs."""
    if not evidence.scores:
        yield (
            "There is no answer yet: no run was predicted before it was measured; "
            "`lab bench predict` does both, in this order."
        )
        return
    yield outcome(evidence.scores)


def _strategies(evidence: Evidence) -> Iterator[str]:
    """The shortest step and the least memory of each model, and whether all learn the same."""
    baseline = evidence.study.baseline
    if len({run.model for run in evidence.measured}) > FEW_MODELS:
        yield from _settings(evidence, field="strategy")
    else:
        study, records = evidence.study, evidence.records
        yield from configurations.strategy_sentences(
            study.runs, records, evidence.summary, baseline=baseline
        )
    bases = evidence.summary[evidence.summary["baseline_run_id"].notna()]
    if len(bases) and beyond_baseline(bases).empty and "strategy" not in baseline:
        named = {"strategy": bases["strategy"].iloc[0], **baseline}
        values = ", ".join(f"{key}: {value}" for key, value in named.items())
        yield (
            "No speedup can be stated, because the baseline does not name its strategy; "
            f"{{{values}}} would be compared with every strategy."
        )
    yield from configurations.epoch_sentences(evidence.measured)


class Pair(NamedTuple):
    """Two runs that differ in one setting, and their step times as a ratio with its interval."""

    run: Run
    reference: Run
    ratio: Estimate
    repeats: int


# Settings that are compared one by one: the names of a value and of its reference, and the settings
# that may differ along with it.
COMPARED: dict[str, tuple[str, str, frozenset[str]]] = {
    "precision": ("{}", "{}", frozenset()),
    "compression": ("{} on the link", "uncompressed gradients", frozenset({"bucket_cap_mb"})),
    "compile": ("torch.compile", "eager execution", frozenset()),
    "loader": ("the {} loader", "the {} loader", frozenset({"loader_workers"})),
    "strategy": ("{}", "{}", frozenset({*SETTINGS, "micro_batch_size", "grad_accum"})),
}


def _settings(evidence: Evidence, *, field: str) -> Iterator[str]:
    """The effect of each value of a setting on the step time and on learning."""
    name, reference_name, _ = COMPARED[field]
    comparisons = pairs(evidence, field)
    by_value = grouped((getattr(pair.run, field), pair) for pair in comparisons)
    for value, compared in by_value.items():
        reference = reference_name.format(getattr(compared[0].reference, field))
        times, shown = _ratios(evidence, compared)
        text = f"With {name.format(value)}, a step takes {times} times as long as with {reference}"
        also = _differing_too(field, compared)
        yield f"{text} ({shown}{also}){_beside(evidence, field, compared)}."
    if not comparisons:
        on = " on several ranks" * (field == "strategy")
        usual = reference_name.format(_usual(evidence, field))
        yield (
            f"No two runs{on} that differ only in {field}, one of them with {usual}, have "
            "completed yet."
        )


def _differing_too(field: str, compared: Sequence[Pair]) -> str:
    """The other settings in which pairs differ, with their values if these are always the same."""
    # What only one strategy reads is part of it, and so is how its ranks share the batch.
    implied = {*SETTINGS, "micro_batch_size"} if field == "strategy" else set()
    texts = []
    for name in sorted(COMPARED[field][2] - implied):
        values = {(getattr(pair.run, name), getattr(pair.reference, name)) for pair in compared}
        if unequal := {(own, usual) for own, usual in values if own != usual}:
            own, usual = min(unequal)
            one = f" ({own:g}, not {usual:g})" if len(values) == 1 else ""
            texts.append(f"; {name} differs too{one}")
    return "".join(texts)


def _usual(evidence: Evidence, field: str) -> Any:
    """The value that others are compared with: the baseline's, or the default."""
    default = Run.model_fields[field].default
    # A baseline's strategy is that of one rank.
    return default if field == "strategy" else evidence.study.baseline.get(field, default)


def pairs(evidence: Evidence, field: str) -> list[Pair]:
    """Completed runs beside those with the baseline's value of a field, or its default."""
    companions = {field, *COMPARED[field][2]}
    usual = _usual(evidence, field)
    measured = {
        run: records
        for run, records in evidence.measured.items()
        if field != "strategy" or run.world_size > 1  # on one rank, all strategies are one
    }
    settings = {run: run.model_dump(exclude=companions) for run in measured}
    comparisons, steps = [], steps_by_run(evidence.records)
    for run in measured:
        references = [
            other
            for other in measured
            if getattr(other, field) == usual and settings[other] == settings[run]
        ]
        if getattr(run, field) != usual and len(references) == 1:
            times = [np.array(steps[one.id]) for one in (run, references[0])]
            repeats = min(map(len, times))
            comparisons.append(Pair(run, references[0], ratio(*times), repeats))
    return comparisons


def _ratios(evidence: Evidence, compared: Sequence[Pair]) -> tuple[str, str]:
    """The ratio and verdict of one pair, or the range of several and how many are significant."""
    ratios = [pair.ratio for pair in compared]
    speeds = [Estimate(1 / one.value, 1 / one.high, 1 / one.low) for one in ratios]
    fewest = min(pair.repeats for pair in compared)
    where = f"in {len(compared)} comparisons"
    if len(compared) == 1:
        where = f"on {inference.place(evidence.measured[compared[0].run][0])}"
    return extent(ratios), f"{where}, {shown(speeds, fewest, gain='shorter', loss='longer')}"


def _beside(evidence: Evidence, field: str, compared: Sequence[Pair]) -> str:
    """What else the setting changes: the wait for data, or what was learned."""
    measured = evidence.measured
    if field == "loader":
        most, there = (
            percent(max(configurations.share_of_data(measured[run]) for run in runs))
            for runs in zip(*(pair[:2] for pair in compared), strict=True)
        )
        loader = compared[0].reference.loader
        return (
            f"; a step waits for data for up to {most} of its time, "
            f"with the {loader} loader for up to {there}"
        )
    losses = [
        tuple(median(measured[one], "quality.validation_loss") for one in pair[:2])
        for pair in compared
    ]
    apart = [own / usual - 1 for own, usual in losses if own and usual]
    if not apart:
        return ""
    if len(apart) == 1 and abs(apart[0]) > configurations.LEAST_DIFFERENCE:
        side = "higher" if apart[0] > 0 else "lower"
        return f"; the validation loss is {percent(abs(apart[0]))} {side}"
    apart = [abs(one) for one in apart]
    return f"; validation losses are at most {configurations.difference(max(apart))} apart"


def _scaling(evidence: Evidence) -> Iterator[str]:
    """The gain at the most ranks: of each curve if there are at most two, else the extremes."""
    summary = evidence.summary
    ends = sorted(farthest(summary), key=lambda row: -row["speedup"])
    if not ends:
        values = ", ".join(f"{key} {value}" for key, value in evidence.study.baseline.items())
        baseline = f"the baseline ({values})" if values else "the baseline"
        measured = bool(len(summary)) and summary["baseline_run_id"].notna().any()
        what = "nothing that compares with" if measured else "no run of"
        reason = f"{what} {baseline} has completed"
        if measured and len(evidence.study.runs) == 1:
            reason = "the study has a single configuration"
        yield f"No speedup can be stated, because {reason}."
        if len(summary):
            yield from _step(evidence)
        return
    for row, gain in gains(ends, most=2):
        yield gain
        yield from _by_mean_steps(evidence, row)
        beyond = row["efficiency"] > 1 + MARGIN and not row["efficiency_low"] <= 1
        if beyond and row.is_gain_of_ranks:
            yield "More than the ranks can give has to be explained: see super-linear in the audit."
    yield from _cause(evidence, ends[-1])
    curve = next(rows for rows in rows_by_curve(summary) if rows[0].label == ends[0].label)
    if len(curve) > 2 and ends[0]["scaling"] == "strong":
        yield _shortest(curve)


def _shortest(rows: Sequence[Row]) -> str:
    """The ranks with the shortest step of a curve, and those that may have as short a one."""
    first, level = best(rows, "step_time")
    text = (
        f"Up to {rows[-1].place}, the shortest step, {first.text('step_time')}, is on {first.ranks}"
    )
    if too_few := few(min(row["repeats"] for row in rows)):
        return f"{text}, but {too_few} to be sure of it."
    if level:
        on = sorted(row["world_size"] for row in level)
        sizes = level[0].ranks
        if on[1:]:
            sizes = f"{joined(map(str, on))} {ranks(first['device'])}"
        text += f"; the intervals do not distinguish it from that on {sizes}"
    return f"{text}."


def _by_mean_steps(evidence: Evidence, row: Row) -> Iterator[str]:
    """A script's speedup by mean steps, if long steps make it another than by median steps."""
    # As where ranks average their models once in a while, which no median step shows.
    ratios = {run.id: ratio for run, ratio in mean_over_median(evidence.records).items()}
    own, base = (ratios.get(row[name], np.nan) for name in ("run_id", "baseline_run_id"))
    if max(own / base, base / own) > UNEVEN:
        scaled = "scaled " * (row["scaling"] == "weak")
        too_few = few(row["repeats"])
        yield (
            "Some steps take much longer than the median: by mean steps, which a whole training "
            f"takes, the {scaled}speedup is {rounded(row['speedup'] * base / own)}"
            f"{f', but {too_few} to be sure of it' * bool(too_few)}."
        )


def _cause(evidence: Evidence, row: Row) -> Iterator[str]:
    """The largest loss in a configuration's step, or why it is not known."""
    falls = waterfalls(evidence.summary, evidence.records)
    fall = next((fall for fall in falls if fall.run.id == row["run_id"]), None)
    if fall is None:
        yield "Where the time of a step goes was not measured."
    elif loss := largest_loss(fall):
        yield loss
    elif few(fall.repeats):
        most = fall.losses.get(fall.largest)
        if most and most.value > SHARE * fall.step.value:
            yield (
                f"The largest loss measured there is {fall.name(fall.largest)}, "
                f"{format_seconds(*most)} of a step of {format_seconds(*fall.step)}, "
                f"but {few(fall.repeats)} to be sure of it."
            )
        else:
            yield f"To tell what costs the most, {few(fall.repeats)}."


def _larger_batch(evidence: Evidence) -> Iterator[str]:
    """How the batch that grows with the ranks affects learning, at the most ranks of a curve."""
    measured = {run.id: (run, records) for run, records in evidence.measured.items()}
    for label, points in curves(evidence.summary)[:1]:
        row = points.iloc[-1]
        run, own = measured[row["run_id"]]
        reference, base = measured.get(row["baseline_run_id"], (run, own))
        if not reference.global_batch_size or base[0].quality is None:
            continue  # a script reports no losses
        samples = reference.steps * reference.global_batch_size
        samples -= samples % (run.global_batch_size or 1)  # both end with a whole step
        losses = [_loss_after(records, samples) for records in (own, base)]
        if reference is run or None in losses:
            continue
        yield (
            f"At {label}, after the same {samples} samples the training loss is "
            f"{losses[0]:.3f} with batches of {run.global_batch_size} and {losses[1]:.3f} with "
            f"batches of {reference.global_batch_size} "
            "(means over the last tenth of the steps, one seed)."
        )


def _loss_after(records: Sequence[Record], samples: int) -> float | None:
    """The mean training loss of the last steps before this many samples; None if too few."""

    def reached(record: Record) -> float | None:
        batch = record.run.global_batch_size
        steps = samples // batch if batch else 0
        losses = record.quality.loss[:steps] if record.quality else []
        return float(np.mean(losses[-max(round(LAST * steps), 1) :])) if losses else None

    return median(records, reached)


def _step(evidence: Evidence) -> Iterator[str]:
    """The step time of each configuration if nothing is compared; of many, the shortest."""
    rows = labelled_rows(evidence.summary)
    shortest = min(rows, key=lambda row: row["step_time"])
    interval = interval_name([shortest["repeats"]])
    yield (
        f"{'A' if len(rows) == 1 else 'The shortest'} step takes {shortest.text('step_time')} on "
        f"{shortest.place}: the median of {count(shortest['repeats'], 'repeat')}"
        f"{f' with its {interval}' if interval else ', which gives no interval'}."
    )
    unknown = [row for row in rows if row["scaling"] == "none"]
    unknown = [row for row in unknown if pd.isna(row["global_batch_size"])]
    if len({row["world_size"] for row in unknown}) > 1:
        yield (
            "On more ranks a step may do other work: `lab measure --scaling strong` or `weak` says "
            "what the script keeps fixed, and then speedups can be stated."
        )


def _utilization(evidence: Evidence) -> Iterator[str]:
    """The largest share of a known peak."""
    rows = [row for row in labelled_rows(evidence.summary) if pd.notna(row["mfu"])]
    if rows:
        most = max(rows, key=lambda row: row["mfu"])
        yield (
            f"The largest share of the peak, an MFU of {most.text('mfu')}, is reached on "
            f"{most.place}."
        )


Maker = Callable[[Evidence], Iterator[str]]
# What a training study can vary, and the sentences that answer each question, in order.
VARIED: list[tuple[str, Maker]] = [
    ("strategy", _strategies),
    ("precision", partial(_settings, field="precision")),
    ("compression", partial(_settings, field="compression")),
    ("compile", _utilization),
    ("compile", partial(_settings, field="compile")),
    ("loader", partial(_settings, field="loader")),
]
SCALING: dict[str, list[Maker]] = {
    "strong": [_scaling],
    "weak": [_scaling, _larger_batch],
    "none": [],
}


def _makers(evidence: Evidence) -> list[Maker]:
    """The sentences for this kind of study: for training, by what it varies; else its one step."""
    if evidence.study.kind == "inference":
        return [_inference]
    if evidence.study.kind == "prediction":
        return [_predictions]
    makers = [maker for field, maker in VARIED if evidence.varies(field)]
    return [*makers, *SCALING[evidence.study.scaling]] or [_step]
