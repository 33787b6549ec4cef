"""Tables in texts: a module for each format, and here which formats a text has."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Sequence

from lab.analysis.audit.formats import (
    collectives,
    delimited,
    hpcg,
    html,
    latex,
    lists,
    logs,
    markdown,
    notebook,
    printed,
    rst,
    sections,
    wiki,
)
from lab.analysis.audit.formats.grid import Table, most_relevant, relevance, with_headed_ranks
from lab.errors import InputError

Tables = tuple[list[Table], list[InputError]]

# Line prefixes of launchers: "0: " (srun -l), "[1,0]<stdout>:" (mpirun, after a time if
# requested), "[0] " (mpiexec -l), "[rank0]: " (torchrun); in nccl-tests output also "node1: ".
LAUNCHED = re.compile(
    r"^(?:\s*\d+:\s|[^\[]{0,40}\[\w+,\w+\](?:\[[\w.:-]*\])?<std(?:out|err)>: ?"
    r"|\s*\[(?:rank|default)?\d+\]:?\s)"
)
HOST = re.compile(r"^[A-Za-z][\w.-]*:\s")
SEPARATOR = re.compile(r"sep=.\s*", re.IGNORECASE)  # a first line for spreadsheets
QUOTED = re.compile(r"^\s{0,3}>\s?")
HIDDEN = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


def find_tables(source: str, text: str) -> Tables:
    """The tables of a text that say most of scaling, and why others of it cannot be read.

    Raises InputError, which names the `source`, for a text without any table.
    """
    text = notebook.as_text(text)
    lines = _unmarked(text.splitlines())
    notes = [line.lstrip("# ").rstrip() for line in lines if line.startswith("#")]
    launched = [HOST.sub("", LAUNCHED.sub("", line)) for line in lines]
    if benchmark := collectives.find_collectives(launched, source) or hpcg.find_results(launched):
        return [benchmark._replace(notes=notes)], []
    tables = [
        table._replace(header=_numbered(table.header))
        for table in marked_up(wiki.as_markdown(lines))
    ]
    if any(map(relevance, tables)):
        return tables, []
    if tables and (of_blocks := _of_code_blocks(source, text.splitlines())):
        return most_relevant(of_blocks), []
    lines = delimited.with_groups([line.translate(markdown.BARS) for line in lines])
    in_columns = printed.tables(lines)
    if any(map(relevance, in_columns)):
        return most_relevant(in_columns), []
    if of_json := logs.find_records(text):
        most = max(of_json, key=lambda table: (relevance(table), len(table.rows)))
        return [most._replace(notes=notes)], []
    if of_sections := sections.find_sections(lines):
        return [of_sections._replace(notes=notes)], []
    has_header = delimited.is_headed(lines)
    log = None if has_header else logs.find_log(text.splitlines())
    of_lists = lists.find_lists(lines)
    unlike_others = not (has_header or of_lists or (log and relevance(log)))
    if unlike_others and (of_lines := sections.find_headed(lines)):
        return [of_lines._replace(notes=notes)], []
    if log and (relevance(log) or not tables):  # which may begin with a drawn table of the GPUs
        return [log._replace(notes=notes)], []
    if tables or of_lists:
        return tables or of_lists, []
    return _delimited(source, lines, notes)


def marked_up(lines: Sequence[str]) -> list[Table]:
    """The tables in Markdown, HTML, LaTeX or reStructuredText that say most of scaling."""
    text = HIDDEN.sub("", "\n".join(lines))
    tables = [table for read in (markdown, html, latex, rst) for table in read.tables(text)]
    return most_relevant(with_headed_ranks([table for table in tables if any(table.header)]))


def _of_code_blocks(source: str, lines: Sequence[str]) -> list[Table]:
    """The tables of measurements in the code blocks of a page, each of which is a text by itself;
    notes are the lines from the heading above a block on."""
    fences = [place for place, line in enumerate(lines) if markdown.FENCE.match(line)]
    tables: list[Table] = []
    above = 0
    for start, end in zip(fences[::2], fences[1::2], strict=False):
        headings = [place for place in range(above, start) if markdown.HEADING.match(lines[place])]
        notes = [line.strip("# ") for line in lines[max([above, *headings[-1:]]) : start]]
        above = end + 1
        with contextlib.suppress(InputError):
            block, _ = find_tables(source, textwrap.dedent("\n".join(lines[start + 1 : end])))
            tables += [
                table._replace(notes=[*filter(None, notes), *table.notes])
                for table in block
                if relevance(table) > 1  # of several numbers of ranks or threads
            ]
    return tables


def _delimited(source: str, lines: Sequence[str], notes: list[str]) -> Tables:
    """Delimited tables below each other, or the one of all lines, without titles above its names;
    where that fails, what a single section reports."""
    tables: list[Table] = []
    errors: list[InputError] = []
    for titles, block in delimited.blocks(lines):
        try:
            tables.append(Table(*delimited.parse(source, block), titles))
        except InputError as error:
            errors.append(error)
    if any(map(relevance, tables)):
        return most_relevant(tables), errors
    try:
        table = Table(*delimited.parse(source, lines), notes)
    except InputError:
        if of_section := sections.find_sections(lines, fewest=1):
            return [of_section._replace(notes=notes)], []
        if not (below := delimited.below_title(source, lines)):
            raise
        return below, []
    with contextlib.suppress(InputError):  # a title, "Weak scaling, batch 512", is not the header
        for other in delimited.below_title(source, lines):
            if other[:2] == table[:2] or relevance(other) > relevance(table):
                return [other._replace(notes=list(dict.fromkeys([*other.notes, *notes])))], []
    repeated = len({*table.header}) < len(table.header)
    of_section = sections.find_sections(lines, fewest=1) if repeated else None
    return [of_section._replace(notes=notes) if of_section else table], []


def _unmarked(lines: Sequence[str]) -> list[str]:
    """Lines without quotation marks or launcher prefixes at their start, and without the fences of
    code blocks."""
    for mark in (QUOTED, LAUNCHED):
        if any(lines) and all(mark.match(line) for line in lines if line.strip()):
            lines = [mark.sub("", line) for line in lines]
    return [
        "" if markdown.FENCE.match(line) or (number == 0 and SEPARATOR.fullmatch(line)) else line
        for number, line in enumerate(lines)
    ]


def _numbered(header: Sequence[str]) -> list[str]:
    """Names of a published table: the second "Speedup" becomes "Speedup (2)"."""
    places = [header[: place + 1].count(text) for place, text in enumerate(header)]
    return [
        f"{text} ({place})" if text and place > 1 else text
        for text, place in zip(header, places, strict=True)
    ]
