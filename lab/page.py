"""The parts of a page: what the notebooks show, as objects that Jupyter displays and the exporters keep."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.records import PHASES, Record, load_records, table
from lab.study import Run, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from lab.analysis.lines import Curve

    Mark = Callable[[Axes, list[Curve]], None]


@dataclass(frozen=True)
class Prose:
    """Markdown made of sentences; `Prose.of` escapes text that a user wrote."""

    markdown: str

    def _repr_markdown_(self) -> str:
        return self.markdown

    @classmethod
    def of(cls, *sentences: str, heading: int = 0, bullets: bool = False, strong: bool = False) -> Prose:
        """Sentences taken literally: as a paragraph, a heading of this level, or a list."""
        literal = [re.sub(r"([\\`*_{}\[\]()#+\-.!|<>$&~^])", r"\\\1", " ".join(sentence.split())) for sentence in sentences]
        if bullets:
            return cls("\n".join(f"- {sentence}" for sentence in literal))
        text = " ".join(literal)
        return cls(f"{'#' * heading} {text}" if heading else f"**{text}**" if strong and text else text)


@dataclass(frozen=True)
class Table:
    """A captioned table; numbers are shown as they come, text is escaped."""

    caption: str
    frame: pd.DataFrame
    index: bool = True

    def _repr_html_(self) -> str:
        if self.frame.empty:
            return f"<p>{html.escape(self.caption)}: nothing yet.</p>"
        body = self.frame.to_html(index=self.index, border=0, na_rep="not measured", escape=True)
        return body.replace(">", f"><caption>{html.escape(self.caption)}</caption>", 1)

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string()}"


@dataclass(frozen=True)
class Figure:
    """A drawn figure as SVG with its alternative text."""

    svg: str
    alt: str

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        return {"image/svg+xml": self.svg, "text/plain": self.alt}, {"image/svg+xml": {"alt": self.alt}}


def figure(name: str, source: Study | Sequence[Record], *, mark: Mark | None = None) -> Figure:
    """Draw one figure of `lab.figures` by its name; `mark` draws something more upon it.

    It is drawn without pyplot, so that the kernel's own figures and their backend stay as they are.
    """
    from matplotlib import figure as canvas

    from lab import figures
    from lab.drawing import phase_bars
    from lab.drawing.look import SIZE
    from lab.drawing.seen import see

    lines = see(source).lines
    height = phase_bars.height(lines) if name == "step_breakdown" else SIZE[1]
    with figures.style(), io.StringIO() as stream:
        sheet = canvas.Figure(figsize=(SIZE[0], height), layout="constrained")
        axes = getattr(figures, name)(source, ax=sheet.subplots())
        if mark is not None:
            mark(axes, lines)
        sheet.savefig(stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
        svg = stream.getvalue()
    return Figure(svg[svg.index("<svg") :], figures.alt_text(name, source))


def result_tables(study: Study) -> list[Table]:
    """The classical tables of a study: time, speedup, efficiency, compute and communication."""
    from lab.analysis.scaling import classical_tables

    return [Table(caption, frame) for caption, frame in classical_tables(_summary(study))]


def answer(study: Study) -> Prose:
    """The answer to the study's question in one sentence."""
    from lab.analysis import findings

    return Prose.of(findings.answer(study, _summary(study), load_records(study)), strong=True)


def findings(study: Study) -> Prose:
    """What else the numbers support, as a list."""
    from lab.analysis import findings

    found = findings.findings(study, _summary(study), load_records(study))
    return Prose.of(*found, bullets=True) if found else Prose.of("The numbers support no further statement.")


def holes(study: Study) -> Prose:
    """What was asked for and is not there, as a list; one sentence where nothing is missing."""
    from lab.analysis import findings

    missing = findings.holes(study, load_records(study))
    if missing:
        return Prose.of(*missing, bullets=True)
    return Prose.of(f"Nothing: all {len(study.tasks)} repeats of {len(study.runs)} configurations completed.")


def _summary(study: Study) -> pd.DataFrame:
    from lab.analysis.scaling import summary

    return summary(table(study), baseline=study.baseline, scaling=study.scaling)


def learning(study: Study) -> Table:
    """Loss after the last step, validation loss and peak memory of each configuration."""
    import pandas as pd

    rows = [
        {
            "configuration": run.label,
            "last loss": _median(done, lambda record: record.quality.loss[-1], "{:.4f}"),
            "validation loss": _median(done, lambda record: record.quality.validation_loss, "{:.4f}"),
            "peak memory of a rank (MB)": _median(done, lambda record: max(record.memory.peak) / 1e6, "{:.0f}"),
            "samples/s": _median(done, lambda record: record.timing.samples_per_second, "{:.1f}"),
            "MFU": _median(done, lambda record: record.timing.mfu, "{:.1%}"),
        }
        for run, done in _by_run(study)
    ]
    return Table("What was learned, and at what price: medians over repeats", pd.DataFrame(rows), index=False)


def _median(records: Sequence[Record], quantity: Any, form: str) -> str:
    import statistics

    values = [value for record in records if (value := quantity(record)) is not None]
    return form.format(statistics.median(values)) if values else "not measured"


def _by_run(study: Study) -> Iterable[tuple[Run, list[Record]]]:
    records = [record for record in load_records(study) if record.completed]
    return [(run, [record for record in records if record.run_id == run.id]) for run in study.runs]


def outcome(records: Sequence[Record]) -> Prose:
    """What came of a run: its throughput, or the first cause of its failure with the last lines of the log."""
    from lab.analysis.rounding import format_seconds

    for record in records:
        if record.error is not None:
            rank = "" if record.error.rank is None else f" on rank {record.error.rank}"
            told = Prose.of(f"This run did not complete ({record.status}{rank}): {record.error.type}: {record.error.message}")
            return Prose(
                f"{told.markdown}\n\n~~~text\n{record.error.log.replace('~~~', '~~')}\n~~~" if record.error.log else told.markdown
            )
        if record.timing is not None:
            timing = record.timing
            step = format_seconds(timing.step.median, *(timing.step.interval or (None, None)))
            return Prose.of(
                f"A step takes {step} (median of {timing.measured_steps} steps after {timing.warmup_steps} of warm-up): "
                f"{timing.samples_per_second:.1f} samples/s, {timing.flops_per_second / 1e9:.1f} GFLOP/s of the model's own arithmetic."
            )
    return Prose.of("There is no record of this run.")


def phases(records: Sequence[Record]) -> Table:
    """Median, 10th and 90th percentile of the step and its phases in ms, and the medians of each rank."""
    import pandas as pd

    rows = []
    for record in records:
        if record.timing is None:
            continue
        for name in ("step", *PHASES):
            stat = record.timing.step if name == "step" else record.timing.phases[name]
            ranks = {f"rank {rank}": f"{time * 1e3:.2f}" for rank, time in enumerate(record.timing.per_rank[name])}
            quantiles = {"median": stat.median, "p10": stat.p10, "p90": stat.p90}
            rows.append({"phase": name} | {key: f"{value * 1e3:.2f}" for key, value in quantiles.items()} | ranks)
    return Table("Times in ms: over the steps of the slowest rank, and the median of each rank", pd.DataFrame(rows), index=False)


def every_repeat(study: Study) -> Table:
    """One row per repeat, as measured."""
    import pandas as pd

    rows = [
        {"run": record.run_id, "configuration": record.run.label, "repeat": record.repeat, "status": record.status}
        | {f"{phase} (ms)": _milliseconds(record, phase) for phase in ("step", *PHASES)}
        | {"foreign CPU (cores)": _foreign(record)}
        for record in load_records(study)
    ]
    return Table("Every repeat: median step of the slowest rank and its phases", pd.DataFrame(rows), index=False)


def _milliseconds(record: Record, phase: str) -> str:
    if record.timing is None:
        return "-"
    stat = record.timing.step if phase == "step" else record.timing.phases[phase]
    return f"{stat.median * 1e3:.2f}"


def _foreign(record: Record) -> str:
    cpu = record.environment.foreign_cpu if record.environment else None
    return "-" if cpu is None else f"{cpu:.2f}"


def environment(source: Study | Sequence[Record]) -> Table:
    """Where and with what the records were measured; a value that differs between records is listed with all it was."""
    import pandas as pd

    seen: dict[str, dict[str, None]] = {}
    for record in load_records(source):
        if record.environment is not None:
            for name, value in _surroundings(record):
                seen.setdefault(name, {})[value] = None
    rows = [{"what": name, "value": "; ".join(values)} for name, values in seen.items()]
    return Table("Environment, read inside the jobs", pd.DataFrame(rows, columns=["what", "value"]), index=False)


def _surroundings(record: Record) -> Iterable[tuple[str, str]]:
    place = record.environment
    if place is None or record.timing is None:
        return
    yield "cluster profile", place.cluster
    yield "hosts", ", ".join(sorted(set(place.hosts)))
    yield "processor", f"{place.cpu}, {place.cpu_count} logical CPUs"
    yield (
        "cores per rank",
        f"{len(place.cpus_granted[0])} with {place.threads_per_rank} thread{'s' * (place.threads_per_rank > 1)}",
    )
    yield "GPU", f"{place.gpu_count} x {place.gpu}, driver {place.driver}" if place.gpu else "none used"
    yield "backend", place.backend or "none"
    yield "versions", ", ".join(f"{name} {version}" for name, version in sorted(place.versions.items()))
    commit = "unknown" if place.git_commit is None else place.git_commit[:12] + (" with local changes" if place.git_dirty else "")
    yield "code", f"commit {commit}"
    yield "data", f"{place.data_description}; SHA-256 {(place.data_sha256 or 'unknown')[:16]}"
    yield "parameters", f"{place.parameters:,}" if place.parameters else "unknown"
    peak = record.timing.peak_flops_per_second
    if peak is not None:
        yield "peak of a rank", f"{record.run.precision}: {record.timing.peak_source}"


def reproduce(study: Study) -> Prose:
    """The commands that repeat this study and this report."""
    place = os.path.relpath(study.folder)
    name = place if not place.startswith("..") else study.name
    flag = " --quick" if study.quick else ""
    return Prose(
        f"```\nlab run {name}{flag} --fresh    # measure again\nlab report {name}{flag}         # this report from the records\n```"
    )
