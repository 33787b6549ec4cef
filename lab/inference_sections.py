"""The sections of an inference report, each made from records."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lab.page import Figure, Prose, Table, drawn
from lab.records import load_records
from lab.study import Study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.analysis.inferences import Compared
    from lab.workloads import Task

NOTHING = "No inference run has completed yet."


def answer(study: Study) -> Prose:
    """The answer to the study's question in one sentence: the fastest and the smallest of what was compared."""
    from lab.analysis.classifications import best as best_classifiers
    from lab.analysis.inferences import compared
    from lab.analysis.rounding import percent, rounded

    records = load_records(study)
    found = [row for row in compared(records) if row.record.run.quantization != "none"]
    told = [*stage_sentences(study), *best_classifiers(records)]
    faster = [row for row in found if (row.ratio("inter_token").high or 1.0) < 1.0]
    if faster:
        best = min(faster, key=lambda row: row.ratio("inter_token").value)
        told.append(
            f"{best.name}, prompt {best.prompt_tokens}, batch {best.batch_size}, gains the most time: "
            f"{rounded(*best.ratio('inter_token'))} of the fp32 base's time between tokens."
        )
    elif found:
        told.append("No quantization is shown to decode faster than the fp32 base here.")
    sized = [row for row in found if _memory_share(row) < 1.0]
    if sized:
        smallest = min(sized, key=_memory_share)
        told.append(
            f"The smallest is {smallest.record.run.quantization}, with {percent(_memory_share(smallest))} of the base's bytes and "
            f"{rounded(_perplexity_ratio(smallest))} of its perplexity."
        )
    return Prose.of(*(told or [NOTHING]), strong=True)


def _memory_share(row: Compared) -> float:
    found = row.record.inference
    return found.size.memory / found.base_size.memory if found and found.size else 1.0


def _perplexity_ratio(row: Compared) -> float | None:
    found = row.record.inference
    return found.perplexity_ratio.value if found and found.perplexity_ratio else None


def stage_sentences(study: Study) -> list[str]:
    """One sentence per task on the stages that were run."""
    from lab.analysis.ladder import stages
    from lab.analysis.rounding import rounded

    words = {"train": "Training", "inference": "Inference"}
    return [
        f"{words[stage.task]} on {stage.on} is {rounded(*stage.speedup)} times as fast as serial."
        for stage in stages(study, load_records(study))
        if stage.speedup is not None and stage.name != "serial"
    ]


def stages(study: Study) -> list[Prose | Table | Figure]:
    """The ladder of stages beside the published one; nothing where the study has not both tasks."""
    import pandas as pd

    from lab.analysis import ladder
    from lab.analysis.rounding import format_seconds, rounded
    from lab.drawing import tradeoffs

    found = ladder.stages(study, load_records(study))
    if not found:
        return []
    rows = [
        {
            "task": stage.task,
            "stage": stage.name,
            "ran on": stage.on or "-",
            "time": format_seconds(*stage.seconds) if stage.seconds else stage.reason,
            "speedup over serial": rounded(*stage.speedup) if stage.speedup else "-",
            "published": rounded(stage.published),
        }
        for stage in found
    ]
    caption = (
        "Time of an optimizer step, and of generating for one batch with the fp32 base: median [95 % interval]. "
        f"Published: {ladder.CITATION}. Its absolute times are of other hardware and of a serial code without a tuned matrix product"
    )
    return [
        Prose("## Stages"),
        drawn(partial(_draw_stages, found), tradeoffs.stage_ratios_alt(found), height=4.2),
        Table(caption, pd.DataFrame(rows), index=False),
    ]


def _draw_stages(found: Sequence[Any], axes: Any) -> None:
    from lab.drawing import tradeoffs

    tradeoffs.stage_ratios(axes, found)


def _does(study: Study, task: Task) -> bool:
    return any(run.task == "inference" and run.architecture.task == task for run in study.runs)


def _generates(study: Study) -> bool:
    return _does(study, "language modelling")


def _classifies(study: Study) -> bool:
    return _does(study, "text classification") or _does(study, "image classification")


def tradeoff(study: Study, name: str) -> list[Figure]:
    """The figure `latency_throughput` or `size_perplexity` of `lab.figures`; nothing where no text is generated."""
    from lab import figures
    from lab.drawing import tradeoffs

    if not _generates(study):
        return []
    alt = getattr(tradeoffs, f"{name}_alt")(load_records(study))
    return [drawn(lambda axes: getattr(figures, name)(study, ax=axes), alt, height=4.0)]


def training(study: Study) -> list[Prose | Table | Figure]:
    """What the study's training runs learned; nothing where it has none."""
    from lab import sections

    return [Prose("## Training"), sections.learning(study)] if any(run.task == "train" for run in study.runs) else []


def speed(study: Study) -> list[Table]:
    """Ratios of time, quantized over base, for language models and for classifiers."""
    generated = (
        "Time of the quantized model over that of the fp32 base, generated in turn in one job: median over rounds [95 % interval; "
        "over repeats the widest]. Below 1 is faster; the row `none` is a second copy of the base, so what it shows is noise"
    )
    classified = (
        "Time of the quantized classifier for a batch on the slowest rank over that of the fp32 base, in turn in one job: median over "
        "rounds [95 % interval; over repeats the widest]. Below 1 is faster; `none` is a second copy of the base, so it shows noise"
    )
    return _tables(study, "speed_rows", generated, classified)


def latencies(study: Study) -> list[Prose | Table]:
    """Prefill and decode apart, with the achieved bandwidth; nothing where no text is generated."""
    if not _generates(study):
        return []
    caption = (
        "Time to the first token (prefill) and between tokens (decode) on the slowest rank. GB/s: weights and cache that a rank must "
        "read for a token, over the median time between tokens; the memory bandwidth is that of a large copy, measured in the job, "
        "and what fits into the processor's cache may exceed it"
    )
    return [Prose("## Prefill and decode"), _table(study, "inferences", "latency_rows", caption)]


def quality(study: Study) -> list[Table]:
    """Sizes with perplexity or accuracy, and agreement."""
    generated = (
        "Size and quality. Perplexity on held-out text, its change against the base with the interval paired by sample; share of "
        "held-out positions with the same likeliest token, and of greedily generated tokens that are the same"
    )
    classified = (
        "Size and quality. Accuracy on held-out samples, its change against the base in percentage points with the interval paired by "
        "sample; share of samples that both put into the same class"
    )
    return _tables(study, "quality_rows", generated, classified)


def _tables(study: Study, rows: str, generated: str, classified: str) -> list[Table]:
    of_generation = [_table(study, "inferences", rows, generated)] if _generates(study) else []
    return of_generation + ([_table(study, "classifications", rows, classified)] if _classifies(study) else [])


def _table(study: Study, module: str, rows: str, caption: str) -> Table:
    import pandas as pd

    analysis = import_module(f"lab.analysis.{module}")
    return Table(caption, pd.DataFrame(getattr(analysis, rows)(load_records(study))), index=False)


def findings(study: Study) -> Prose:
    """What quantization gains or costs, and why where it costs."""
    from lab.analysis import classifications, inferences

    records = load_records(study)
    found = [*inferences.sentences(records), *classifications.sentences(records)]
    return Prose.of(*found, bullets=True) if found else Prose.of("Nothing was compared with the base.")


def unavailable(study: Study) -> Prose:
    """What this machine cannot do, each with its reason."""
    from lab.analysis.inferences import missing

    found = missing(load_records(study))
    return Prose.of(*found, bullets=True) if found else Prose.of("Everything that was asked for could be measured.")
