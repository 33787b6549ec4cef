"""The sections of an inference report, each made from results."""

from __future__ import annotations

from typing import NamedTuple

from lab.analysis import inference
from lab.analysis.inference import CLASSIFICATION, GENERATION, Kind
from lab.analysis.results import StudyResults
from lab.analysis.stages import CITATION
from lab.analysis.stages import stages as stages_of
from lab.formatting import format_seconds, rounded
from lab.report import blocks, references, sections
from lab.report.blocks import Figure, Markdown, Table

STAGES = (
    "Time of an optimizer step, and of generating for one batch with the base: median [interval]. "
    f"Published: {CITATION}. Its absolute times come from other hardware and serial code without a "
    "tuned matrix product"
)
LATENCIES = (
    "Time to the first token (prefill) and between tokens (decode) on the slowest rank, of each "
    "model and of the base in the same job. GB/s: "
    "weights and cache that a rank must read for a token, over the median time between tokens; the "
    "memory bandwidth is that of a large copy, measured in the job, and what fits into the "
    "processor's cache may exceed it"
)
SECOND_COPY = "; the row “none” is a second copy of the base, so what it shows is noise"


class _Texts(NamedTuple):
    """Captions and methods of one kind of model."""

    kind: Kind
    speed: str
    quality: str
    method: str


OF_GENERATION = _Texts(
    GENERATION,
    speed="Time of the quantized model over that of the base, which generate in turn in one job: "
    "median over rounds [95 % interval; over repeats the widest]. Below 1 is faster",
    quality="Size and quality. Perplexity on held-out text, its change against the base with the "
    "interval paired by sample; share of held-out positions with the same likeliest token, and "
    "of greedily generated tokens that are the same",
    method=r"""Text is generated greedily with a key-value cache. Prefill is the time from the
prompt to the first token, decode the time between the following ones. A step of decoding must read
all weights once and the cache of every sequence. With $B$ these bytes, $t$ the median time between
tokens and $W$ the memory bandwidth, the achieved share of the roofline is

$$
\frac{B / t}{W}
$$

Perplexity is $e^{L}$ of the mean loss $L$ on held-out text; its change is a ratio of two models on
the same samples, so the interval is that of the paired differences of their losses.""",
)
OF_CLASSIFICATION = _Texts(
    CLASSIFICATION,
    speed="Time of the quantized classifier for a batch on the slowest rank over that of the "
    "base, which take turns in one job: median over rounds [95 % interval; over repeats the "
    "widest]. Below 1 is faster",
    quality="Size and quality. Accuracy on held-out samples, its change against the base in "
    "percentage points with the interval paired by sample; share of samples that both put into "
    "the same class",
    method="A classifier is timed on one batch. Accuracy is the share of held-out samples that are "
    "put into the right class, with Wilson's interval; its change has the interval of the paired "
    "differences, sample by sample.",
)


def stages(results: StudyResults) -> list[Markdown | Table | Figure]:
    """The ladder of stages beside the published one; nothing unless the study has both tasks."""
    rows = [
        {
            "task": stage.task,
            "stage": stage.name,
            "ran on": stage.on or "-",
            "time": format_seconds(*stage.seconds) if stage.seconds else stage.reason,
            "speedup over serial": rounded(*stage.speedup) if stage.speedup else "-",
            "published": rounded(stage.published),
        }
        for stage in stages_of(results.study, results.records)
    ]
    if not rows:
        return []
    figure = blocks.figure("stage_ratios", results)
    return [Markdown("## Stages"), figure, Table.of_rows(STAGES, rows, label="tbl-stages")]


def _kinds(results: StudyResults) -> list[_Texts]:
    """The kinds of models whose inference is measured: language models, classifiers, or both."""
    tasks = {run.architecture.task for run in results.study.runs if run.task == "inference"}
    text = {"language modelling"}
    return [OF_GENERATION] * bool(tasks & text) + [OF_CLASSIFICATION] * bool(tasks - text)


def tradeoff(results: StudyResults, name: str) -> list[Figure]:
    """The figure `latency_throughput` or `size_perplexity`; nothing if no text is generated."""
    return [blocks.figure(name, results)] if OF_GENERATION in _kinds(results) else []


def training(results: StudyResults) -> list[Markdown | Table]:
    """What the study's training runs learned; nothing if it has none."""
    if all(run.task != "train" for run in results.study.runs):
        return []
    return [Markdown("## Training"), sections.learning(results)]


def speed(results: StudyResults) -> list[Table]:
    """Ratios of time, quantized over base, for language models and for classifiers."""
    tables = []
    for of in _kinds(results):
        rows = inference.speed_rows(results.records, of.kind)
        copies = any(row["quantization"] == "none" for row in rows)
        caption = of.speed + SECOND_COPY * copies
        tables.append(Table.of_rows(caption, rows, shared="on", label="tbl-speed"))
    return tables


def quality(results: StudyResults) -> list[Table]:
    """Sizes with perplexity or accuracy, and agreement."""
    rows = [(of, inference.quality_rows(results.records, of.kind)) for of in _kinds(results)]
    return [Table.of_rows(of.quality, cells, label="tbl-quality") for of, cells in rows]


def latencies(results: StudyResults) -> list[Markdown | Table]:
    """Prefill and decode separately, with the bandwidth; nothing if no text is generated."""
    if OF_GENERATION not in _kinds(results):
        return []
    rows = inference.latency_rows(results.records)
    return [
        Markdown("## Prefill and decode"),
        Table.of_rows(LATENCIES, rows, shared="on", label="tbl-latencies"),
    ]


def findings(results: StudyResults) -> Markdown:
    """What quantization gains or costs, and the reason for a cost."""
    quiet = [one for one in results.records if results.noise.trustworthy([one.run_id])]
    sentences = [*inference.sentences(quiet), *results.noise.caveats]
    return Markdown.bullets(sentences, otherwise="No quantization was compared with the base.")


def unavailable(results: StudyResults) -> Markdown:
    """What this machine cannot do, each with its reason; runs not yet run are listed elsewhere."""
    gone = [
        f"{'training' if stage.task == 'train' else stage.task} on {stage.name}: {stage.reason}."
        for stage in stages_of(results.study, results.records)
        if stage.seconds is None
    ]
    ran = {record.run_id for record in results.records if record.completed}
    pending = sum(run.id not in ran for run in results.study.runs)
    has = "has" if pending == 1 else "have"
    waiting = f"{pending} of {len(results.study.runs)} configurations {has} not run: see below."
    return Markdown.bullets(
        [*inference.missing(results.records), *gone],
        otherwise=waiting if pending else "Everything in this study could be measured.",
    )


def method(results: StudyResults) -> Markdown:
    """How the quality of the quantized models is measured."""
    return Markdown(references.cited("\n\n".join(of.method for of in _kinds(results))))
