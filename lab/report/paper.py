"""What makes a report a paper: date, abstract, discussion, threats to validity, references."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from lab.analysis import findings as analysis
from lab.analysis.audit import Finding
from lab.analysis.results import StudyResults
from lab.analysis.waterfall import Waterfall, on_most_ranks, with_baseline
from lab.config.run import Run, distinct_labels
from lab.formatting import count, format_seconds, joined, listed, percent, range_of, sentence
from lab.report import references, sections
from lab.report.blocks import Markdown, Table, escaped
from lab.report.references import cite

NAMED = 6  # names in a sentence
ADDED = "Efficiency by the waterfall if the largest loss were gone and nothing else changed"


def date(results: StudyResults) -> Markdown:
    """When the records were measured; empty for published numbers."""
    if results.citations:
        return Markdown("")
    moments = (record.finished_at for record in results.records if record.completed)
    days = sorted({datetime.fromisoformat(moment).date() for moment in moments})
    names = [f"{day.day} {day:%B %Y}" for day in (days[:1] + days[1:][-1:])]
    return Markdown.of(f"Measured {' to '.join(names)}." if names else "")


def abstract(results: StudyResults) -> Markdown:
    """The question, its answer, and how accurate the predictions were, in one paragraph."""
    parts = [Markdown.of(sentence(results.study.question)), sections.answer(results)]
    if results.study.kind == "training" and results.scores:
        parts.append(Markdown.of(results.prediction_summary))
    return Markdown(" ".join(["**Abstract.**", *(part.markdown for part in parts)]))


def discussion(results: StudyResults) -> list[Markdown]:
    """What the numbers support, and the efficiency without the largest loss of each curve."""
    supported = analysis.supported(results.study, results.summary, results.records, results.noise)
    text = Markdown.bullets(supported, otherwise="The numbers support no further statement.")
    falls = on_most_ranks(with_baseline(results.waterfalls))
    bounds = [
        sentence
        for fall in falls
        if results.noise.trustworthy([fall.row["run_id"], fall.row["baseline_run_id"]])
        if (sentence := _without_largest(fall))
    ]
    blocks = [Markdown(references.shown(references.cited(text.markdown)))]
    if bounds:
        places = cite("fig-waterfall", "tbl-waterfall")
        blocks.append(Markdown(f"{escaped(ADDED)}{places}:"))
        blocks.append(Markdown.bullets(bounds))
    return blocks


def _without_largest(fall: Waterfall) -> str:
    """The efficiency without the largest loss; empty if the repeats do not show which that is.

    So it is if that were over 100 %, which ranks cannot give: gains elsewhere make up for the loss.
    """
    if not (fall.compared and fall.supported) or fall.alike:  # whose efficiency is its speedup
        return ""
    step, loss = fall.step.value, fall.losses[fall.largest].value
    if step - loss < fall.ideal.value:
        return ""
    return (
        f"{fall.opening}, without the {format_seconds(loss)} of {fall.name(fall.largest)}, "
        f"efficiency would be {percent(fall.row['efficiency'] * step / (step - loss))} "
        f"instead of {fall.row.text('efficiency')}."
    )


def threats(results: StudyResults) -> list[Markdown | Table]:
    """What may be wrong with these results: scope, noise, and the audit's findings."""
    caveats = analysis.caveats(results.study, results.summary, results.records, results.noise)
    blocks: list[Markdown | Table] = [Markdown.bullets([*_scope(results), *caveats])]
    return [*blocks, *audit(results)]


def _scope(results: StudyResults) -> list[str]:
    """The machines on which the numbers were measured."""
    places = [record.environment for record in results.records if record.completed]
    machines = {place.gpu or place.cpu for place in places if place and not place.replay}
    if not machines:
        return []
    hosts = {host for place in places if place for host in place.hosts}
    some = "one host" if len(hosts) == 1 else f"{len(hosts)} hosts"
    return [
        f"All measurements come from {some} ({', '.join(sorted(machines))}): other machines may "
        "scale differently."
    ]


def audit(results: StudyResults) -> list[Markdown | Table]:
    """What in these records cannot be trusted, with configurations instead of run ids."""
    verdict, names = results.audit, _Names([record.run for record in results.records])
    blocks: list[Markdown | Table] = [Markdown.of(verdict.summary)]
    if verdict.findings:
        rows = map(names.row, verdict.findings)
        caption = "Findings of the audit: errors first, then warnings, then notes"
        blocks.append(Table.of_rows(caption, rows, label="tbl-audit"))
    if verdict.not_checked:
        blocks.append(Markdown.of(verdict.gaps))
    return blocks


class _Names:
    """Configurations by run id."""

    def __init__(self, runs: Iterable[Run]) -> None:
        labels, _ = distinct_labels(list(dict.fromkeys(runs)))
        self.labels = {run.id: label for run, label in labels.items()}
        self.pattern = re.compile(rf"\b({'|'.join(self.labels) or '(?!)'})(?:/(\d+))?\b")

    def row(self, finding: Finding) -> dict[str, str]:
        """A finding, formatted for display."""
        repeats: dict[str, list[str]] = {}
        for record in finding.records:
            match = self.pattern.match(record)
            if match and match.end() < len(record) and match[0] in finding.records:
                continue  # one of the ranks of a repeat that is listed
            label = self.labels[match[1]] + record[match.end() :] if match else record
            repeats.setdefault(label, []).extend(filter(None, match.groups()[1:] if match else ()))
        names = [
            label + (f" (repeat{'s' * (len(of) > 1)} {', '.join(of)})" if of else "")
            for label, of in repeats.items()
        ]
        return {
            "severity": finding.severity,
            "rule": finding.rule,
            "evidence": self.readable(finding.evidence),
            "what to do": finding.advice,
            "configurations": listed(names, NAMED),
        }

    def readable(self, text: str) -> str:
        """A sentence with names instead of ids."""

        def name(match: re.Match[str]) -> str:
            repeat = f", repeat {match[2]}" if match[2] else ""
            return f"{self.labels[match[1]]}{repeat}"

        return self.pattern.sub(name, text)


def setup(results: StudyResults) -> Markdown:
    """What was run: models, data, strategies, world sizes, steps and repeats."""
    study = results.study
    runs = study.runs
    models = _named((run.names["model"], references.of_model(run)) for run in runs)
    # A replay of a source that does not state its data stands on synthetic ones.
    stated = [run for run in runs if not (results.citations and run.dataset.kind == "synthetic")]
    data = _named((_samples(run), references.of_data(run)) for run in stated)
    strategies = _named(
        (", ".join(run.own_strategy.names), "")
        if run.own_strategy
        else (run.facts.label, references.of_strategy(run))
        for run in runs
        if run.task == "train"
    )
    sizes = sorted({run.world_size for run in runs})
    several = "s" * (len(sizes) > 1)
    ranks = f"world size{several} {joined(map(str, sizes))}"
    steps = range_of([run.steps for run in runs], "optimizer step")
    if any(run.warmup_steps for run in runs):
        warmup = range_of([run.warmup_steps for run in runs], "warm-up step")
        steps += f", of which {warmup} are left out"
    work = f"trains {models}{f' on {data}' * bool(data)}"
    work += f" with {strategies}" if strategies else ""
    commands = dict.fromkeys(" ".join(run.script.command) for run in runs if run.script)
    if commands:  # a script does not state its data and strategy
        work = f"runs {joined(f'`` {command} ``' for command in commands)}"
    precisions = sorted({run.precision for run in runs if run.precision})
    return Markdown(
        f"The study {work}, at {ranks}{f', in {joined(precisions)}' * bool(precisions)}"
        f"{f', for {steps}' * (not results.citations)}. "
        f"It has {count(len(runs), 'configuration')}{' with' if len(runs) == 1 else ', each with'} "
        f"{count(study.repeats, 'repeat')}."
    )


def _samples(run: Run) -> str:
    """What the data are, as the object of a sentence."""
    name, comma, settings = run.names["data"].partition(", ")
    return f"{'synthetic data' if name == 'synthetic' else name}{comma}{settings}"


def _named(pairs: Iterable[tuple[str, str]]) -> str:
    """Names in Markdown, each with its settings in brackets and its publication."""
    names = []
    for label, publication in dict(pairs).items():
        name, _, settings = label.partition(", ")
        named = f"{name} ({settings})" if settings else name
        names.append(escaped(named) + (cite(publication) if publication else ""))
    return joined(names[:NAMED] + ([f"{len(names) - NAMED} more"] if len(names) > NAMED else []))


def bibliography() -> Markdown:
    """All references; a page keeps only those that it cites."""
    entries = (f'<li id="{label}">{text}</li>' for label, text in references.BIBLIOGRAPHY.items())
    emphasized = re.sub(r"[*](.+?)[*]", r"<em>\1</em>", "".join(entries))
    return Markdown(f'<ol class="references">{emphasized}</ol>')
