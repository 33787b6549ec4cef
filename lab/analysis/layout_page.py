"""A table of layouts on its page: what headings, notes and sections around it say of its rows.

Values for all rows that no column gives come from there, or are the usual ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lab.analysis.audit.formats.markdown import DASHES
from lab.analysis.audit.text_table import read_table
from lab.analysis.layout_columns import ALL_GPUS, RATES, split_lists, turned
from lab.analysis.layout_words import ADAPTERS, DENIED, SHARED, SIZED, noted_model, settings
from lab.formatting import model_size
from lab.perfmodel import transformer
from lab.perfmodel.frameworks import Framework
from lab.perfmodel.hardware import GPUS, named_gpu

PAGES = {".md", ".mdx", ".rst"}  # files with text around their tables
SECTION = re.compile(r"(#{2,6})\s")
# What a section may say of all tables in it: not what these compare, such as GPUs or models.
OF_SECTIONS = {
    *("sequence", "global_batch", "micro_batch", "replica_batch", "per_node", "tensor", "pipeline"),
    *("context", "expert", "precision", "recomputed"),
}
# Notes say nothing of one of these if a column gives another.
TOGETHER = (
    {"gpus", "nodes", "data"},
    {"global_batch", "replica_batch", "batch", "batch_tokens"},
)
# Where no GPU is named: the first, unless it is too slow for the rows.
USUAL_GPUS = ("a100", "h100", "b200")
UNNAMED = "because the table names no GPU"
UNSAID_PRECISION = "the table does not say which precision: bf16 is assumed"
UNSAID_STAGES = "the table does not say whether pipelines are interleaved"
# Where no GPU is named, the first that computes in this precision.
FIRST_WITH = {"fp8": "h100", "fp4": "b200", "mxfp8": "b200"}
MICROSCALED = re.compile(r"\bmx-?fp-?8", re.IGNORECASE)
TRAINS_ALL = re.compile(r"\bsft\b|\bfull\b|pre-?train|supervised", re.IGNORECASE)
# Notes also explain abbreviations, such as SP.
NOTED_SEQUENCE_PARALLEL = re.compile(
    r"\b(?:with|using|uses?|without)\s+sequence.parallel(?:ism)?", re.IGNORECASE
)


@dataclass(frozen=True)
class Page:
    """A table with a row per layout, and the words around it.

    `title` is its name in words, `above` its own notes, `notes` all that is said of it, `opening`
    what the page says of all its tables, `gpu` the one that it names elsewhere, else "", and
    `outer` what the sections around the table's own say before their subsections.
    """

    frame: pd.DataFrame
    name: str
    title: str = ""
    above: Sequence[str] = ()
    notes: str = ""
    opening: str = ""
    gpu: str = ""
    outer: str = ""
    sideways: bool = False  # its columns were the layouts


def page_of(source: str | Path | pd.DataFrame, number: int | None) -> Page:
    """The table of a file, or the one of this `number`, or a DataFrame, with what surrounds it."""
    if isinstance(source, str | Path):
        frame, path = read_table(source, number=number), Path(source)
        text = path.read_text(errors="replace") if path.suffix in PAGES else ""
    else:
        frame, text = source, ""
    frame = split_lists(frame)
    name = str(frame.attrs.get("name", "rows"))
    above, corner = [*map(str, frame.attrs.get("notes", ()))], ""
    if (sideways := turned(frame)) is not None:
        frame, corner = sideways, str(sideways.columns[0])
    # A number before the name, as in 07-h100.csv, counts nothing.
    title = re.sub(r"^[\d\s]+", "", name.replace("_", " "))
    return Page(
        frame=frame,
        name=name,
        title=title,
        above=above,
        notes="; ".join(filter(None, [" ".join(_around(text) or above), title, corner])),
        opening=_opening(text),
        gpu="" if named_gpu("; ".join([*above, title, corner])) else _first_gpu(text),
        outer=_outer(text, above),
        sideways=sideways is not None,
    )


def _around(text: str) -> list[str]:
    """All lines around the table of a page that has only one."""
    lines = text.splitlines()
    alone = sum(bool(DASHES.fullmatch(line)) for line in lines) == 1
    return [line.replace("**", "").strip("# \t") for line in lines if alone and "|" not in line]


def _opening(text: str) -> str:
    """What a page says before its first section or table: of all its tables."""
    title, line_end, rest = text.partition("\n")
    before = re.split(r"^(?:#|\W*\|)", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return title + line_end + before


def _first_gpu(text: str) -> str:
    """The GPU that a page names first, unless its headings name others."""
    lines = text.splitlines()
    first = next((gpu.name for line in lines if (gpu := named_gpu(line))), "")
    headings = (named_gpu(line) for line in lines if first and line.startswith("#"))
    return "" if any(gpu and gpu.name != first for gpu in headings) else first


@dataclass
class _Section:
    """A section of a page: its text before its first subsection, and the sections around it."""

    level: int
    heading: str
    around: Sequence[_Section]  # innermost first; the last is the page
    lines: list[str] = field(default_factory=list)


def _sections(text: str) -> list[_Section]:
    """The page, then its sections. Lines that begin with one # may be comments in code."""
    sections = [_Section(1, "", ())]
    for line in text.splitlines():
        if heading := SECTION.match(line):
            level, last = len(heading[1]), sections[-1]
            around = [one for one in (last, *last.around) if one.level < level]
            sections.append(_Section(level, line.replace("**", "").strip("# \t"), around))
        elif "|" not in line:
            sections[-1].lines.append(line)
    return sections


def _outer(text: str, above: Sequence[str]) -> str:
    """What the sections around a table's own say; "" if several places have the table's headings,
    with which its notes, `above`, end, innermost first."""
    own = []
    for section in _sections(text):
        outer = [one.heading for one in section.around[:-1]]
        if section.heading in above and above[len(above) - len(outer) :] == outer:
            own.append(section)
    most = max((len(section.around) for section in own), default=0)
    deepest = [section for section in own if len(section.around) == most]
    if len(deepest) != 1:
        return ""
    return "\n".join(line for one in reversed(deepest[0].around) for line in one.lines)


def table_defaults(
    page: Page, meanings: Collection[str], precisions: Collection[str], framework: Framework
) -> tuple[dict[str, Any], list[str]]:
    """Values for all rows, from the notes or else as usual, with sentences on what was assumed.

    `meanings` are those of columns and assumptions, `precisions` those of the rows. Notes that
    give several values of something say nothing of it.
    """
    columns = set(meanings)
    values = _settings(page, columns)
    counts = {name: value for name, value in values.items() if isinstance(value, float)}
    sentences = [f"{name.replace('_', ' ')} {n:g}, from the notes" for name, n in counts.items()]
    stated = [values[name] for name in ("precision", "sharding") if name in values]
    sentences += [f"{value}, from the notes" for value in stated]
    sentences += _enter_model(page, columns, values)
    if not precisions and "precision" not in {*columns, *values}:
        sentences.append(UNSAID_PRECISION)
    if "gpu" not in columns:
        values["gpu"], why = _gpu(page, {*precisions, values.get("precision")})
        sentences.append(f"{values['gpu'].upper()} GPUs, {why}")
    sentences += _enter_sequence_parallel(page, columns, values)
    if "pipeline" in columns and "interleave" not in {*columns, *values}:
        sentences += _enter_stages(values, framework)
    if "recomputed" not in {*columns, *values}:
        sentences += _enter_recomputation(columns, values, framework)
    return values, sentences


def _settings(page: Page, columns: set[str]) -> dict[str, Any]:
    """What the notes say that no column does, then what sections around them leave no doubt of."""
    notes = page.notes
    stated = _with_relatives(columns)
    if SHARED & columns or re.search(r"\bddp\b", notes, re.IGNORECASE):
        stated.add("sharding")
    values = {name: value for name, value in settings(notes).items() if name not in stated}
    if values.get("sharding") == "hsdp" and re.search(r"\bfsdp|full_?shard", notes, re.IGNORECASE):
        values["sharding"] = "fsdp"  # it is not said which rows are hybrid
    left = OF_SECTIONS - stated - _with_relatives(set(values))
    return values | {name: one for name, one in settings(page.outer).items() if name in left}


def _with_relatives(names: set[str]) -> set[str]:
    """These names and all that say the same in another way."""
    return names.union(*(together for together in TOGETHER if together & names))


def _enter_model(page: Page, columns: set[str], values: dict[str, Any]) -> Iterator[str]:
    """Enter the model that the notes name, else its kind, and whether only adapters are trained."""
    # Layers alone are those of a named model that was cut.
    sized = {*(SIZED - {"layers"}), "width"} & columns
    if not sized and (model := noted_model(page.notes)):
        values["noted_model"] = model
        yield f"a model of {model_size(model.parameters)} parameters, from the notes"
    if transformer.named("", page.notes) is None:
        heading = page.opening.partition("\n")[0]
        values["noted_kind"] = transformer.other_kind("; ".join([page.title, heading, *page.above]))
    text = DENIED.sub("", page.notes)
    if ADAPTERS.search(text) and not TRAINS_ALL.search(text):
        values["adapters"] = True


def _gpu(page: Page, precisions: set[str | None]) -> tuple[str, str]:
    """The GPU of a table without a column for it, and why it is this one."""
    gpu = next(filter(None, map(named_gpu, page.above)), None)  # before footnotes on others
    if gpu is None and (noted := named_gpu(page.notes)):
        gpu = GPUS.get(page.gpu, noted)  # the first that prose names
    if gpu:
        return gpu.name, "from the notes"
    if MICROSCALED.search(page.notes):
        precisions = {*precisions, "mxfp8"}
    needed = next((kind for kind in reversed(FIRST_WITH) if kind in precisions), "")
    kind = needed.replace("mxfp8", "fp4")  # the same GPUs were first to have both
    if page.gpu and (not kind or kind in GPUS[page.gpu].flops):
        return page.gpu, f"which the page names first, {UNNAMED}"
    if needed:
        return FIRST_WITH[needed], f"{UNNAMED}, and earlier ones have no {needed}"
    return USUAL_GPUS[0], UNNAMED


def _enter_sequence_parallel(
    page: Page, columns: set[str], values: dict[str, Any]
) -> Iterator[str]:
    words = {match.lower() for match in NOTED_SEQUENCE_PARALLEL.findall(page.notes)}
    denied = {word.startswith("without") for word in words}
    if "sequence_parallel" not in columns and len(denied) == 1:
        values["sequence_parallel"] = "off" if denied.pop() else "on"
        yield f"sequence parallelism {values['sequence_parallel']}, from the notes"


def _enter_stages(values: dict[str, Any], framework: Framework) -> Iterator[str]:
    if framework.interleave > 1:
        values["interleave"] = framework.interleave
        yield f"{UNSAID_STAGES}: {framework.interleave} stages on each rank are assumed"


def _enter_recomputation(
    columns: set[str], values: dict[str, Any], framework: Framework
) -> Iterator[str]:
    timed = {"time", *RATES} & columns
    unlabelled = {"flops", ALL_GPUS + "flops"} & columns
    if framework.counts_recomputed and unlabelled and not timed:
        values["recomputed"] = "full"
        yield "full recomputation, which this framework's formula of FLOPs counts"
        return
    assumed = "half are assumed" if framework.recomputed else "none, as this framework's default"
    yield f"the table does not say whether activations are recomputed: {assumed}"
