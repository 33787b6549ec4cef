"""The sections of an inference report, each made from records."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lab.config.study import Study
from lab.records.store import load_records
from lab.report.blocks import Figure, Markdown, Table, drawn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.analysis.inference import Kind
    from lab.config.models import Task

NOTHING = "No inference run has completed yet."


def answer(study: Study) -> Markdown:
    """The answer to the study's question in one sentence: the fastest and the smallest of what was compared."""
    from lab.analysis.inference import best

    sentences = [*stage_sentences(study), *best(load_records(study))]
    return Markdown.of(*(sentences or [NOTHING]), strong=True)


def stage_sentences(study: Study) -> list[str]:
    """One sentence per task on the stages that were run."""
    from lab.analysis.stages import stages
    from lab.formatting import rounded

    words = {"train": "Training", "inference": "Inference"}
    return [
        f"{words[stage.task]} on {stage.on} is {rounded(*stage.speedup)} times as fast as serial."
        for stage in stages(study, load_records(study))
        if stage.speedup is not None and stage.name != "serial"
    ]


def stages(study: Study) -> list[Markdown | Table | Figure]:
    """The ladder of stages beside the published one; nothing where the study has not both tasks."""
    import pandas as pd

    from lab.analysis.stages import CITATION
    from lab.analysis.stages import stages as stages_of
    from lab.figures import inference
    from lab.formatting import format_seconds, rounded

    found = stages_of(study, load_records(study))
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
        f"Published: {CITATION}. Its absolute times are of other hardware and of a serial code without a tuned matrix product"
    )
    return [
        Markdown("## Stages"),
        drawn(partial(_draw_stages, found), inference.stage_ratios_alt(found), height=4.2),
        Table(caption, pd.DataFrame(rows), index=False),
    ]


def _draw_stages(found: Sequence[Any], axes: Any) -> None:
    from lab.figures import inference

    inference.stage_ratios(axes, found)


def _does(study: Study, task: Task) -> bool:
    return any(run.task == "inference" and run.architecture.task == task for run in study.runs)


def _generates(study: Study) -> bool:
    return _does(study, "language modelling")


def _classifies(study: Study) -> bool:
    return _does(study, "text classification") or _does(study, "image classification")


def tradeoff(study: Study, name: str) -> list[Figure]:
    """The figure `latency_throughput` or `size_perplexity` of `lab.figures`; nothing where no text is generated."""
    from lab import figures
    from lab.figures import inference

    if not _generates(study):
        return []
    alt = getattr(inference, f"{name}_alt")(load_records(study))
    return [drawn(lambda axes: getattr(figures, name)(study, ax=axes), alt, height=4.0)]


def training(study: Study) -> list[Markdown | Table | Figure]:
    """What the study's training runs learned; nothing where it has none."""
    from lab.report import sections

    return (
        [Markdown("## Training"), sections.learning(study)]
        if any(run.task == "train" for run in study.runs)
        else []
    )


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


def latencies(study: Study) -> list[Markdown | Table]:
    """Prefill and decode apart, with the achieved bandwidth; nothing where no text is generated."""
    if not _generates(study):
        return []
    caption = (
        "Time to the first token (prefill) and between tokens (decode) on the slowest rank. GB/s: weights and cache that a rank must "
        "read for a token, over the median time between tokens; the memory bandwidth is that of a large copy, measured in the job, "
        "and what fits into the processor's cache may exceed it"
    )
    return [Markdown("## Prefill and decode"), _table(study, "latency_rows", caption)]


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
    from lab.analysis.inference import CLASSIFICATION, GENERATION

    tables = [_table(study, rows, generated, GENERATION)] if _generates(study) else []
    return tables + (
        [_table(study, rows, classified, CLASSIFICATION)] if _classifies(study) else []
    )


def _table(study: Study, rows: str, caption: str, *kind: Kind) -> Table:
    import pandas as pd

    from lab.analysis import inference

    frame = pd.DataFrame(getattr(inference, rows)(load_records(study), *kind))
    return Table(caption, frame, index=False)


def findings(study: Study) -> Markdown:
    """What quantization gains or costs, and why where it costs."""
    from lab.analysis import inference

    found = inference.sentences(load_records(study))
    return (
        Markdown.of(*found, bullets=True)
        if found
        else Markdown.of("Nothing was compared with the base.")
    )


def unavailable(study: Study) -> Markdown:
    """What this machine cannot do, each with its reason."""
    from lab.analysis.inference import missing

    found = missing(load_records(study))
    return (
        Markdown.of(*found, bullets=True)
        if found
        else Markdown.of("Everything that was asked for could be measured.")
    )
