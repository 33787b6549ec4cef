"""A table of layouts on its page: what headings, notes and sections around it say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from lab.analysis.audit.formats.markdown import DASHES
from lab.analysis.audit.text_table import read_table
from lab.analysis.layout_columns import split_lists, turned
from lab.perfmodel.hardware import named_gpu

PAGES = {".md", ".mdx", ".rst"}  # files with text around their tables
SECTION = re.compile(r"(#{2,6})\s")


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
