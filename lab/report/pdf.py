"""The PDF report: the page's HTML through pandoc to Typst, typeset by the `typst` wheel alone."""

from __future__ import annotations

import base64
import binascii
import re
import shutil
import tempfile
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from bs4 import BeautifulSoup, Tag
from nbformat import NotebookNode

from lab.errors import LONG_WORD, LabError
from lab.files import source_date
from lab.report import math, page
from lab.report.html import ASSETS, Document, LabHTMLExporter

MOST_LETTERS = 2000  # printed at most per word


class LabPDFExporter(LabHTMLExporter):
    """Exporter of nbconvert: `jupyter nbconvert --to lab_pdf NOTEBOOK`; needs no LaTeX or browser.

    The same notebook gives the same bytes if the environment variable SOURCE_DATE_EPOCH is set
    (seconds since 1970). Raises LabError as LabHTMLExporter does, and if Typst cannot typeset the
    page.
    """

    export_from_notebook = "Scaling Lab report (PDF)"
    output_mimetype = "application/pdf"
    file_extension = ".pdf"

    def from_notebook_node(  # type: ignore[override]  # bytes, as nbconvert's own PDF exporters
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[bytes, dict[str, Any]]:
        """The PDF of a notebook as bytes, and nbconvert's resources."""
        document, resources = self.document(nb, resources, **kw)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _write_images(document.body, folder)
            return typeset(_typst_source(document), folder), resources


def _write_images(body: Tag, folder: Path) -> None:
    """Write the embedded images to files; raises LabError, naming the image, for a damaged one."""
    for number, image in enumerate(body.find_all("img"), start=1):
        header, _, data = str(image["src"]).partition(",")
        types = ((suffix, kind) for suffix, (kind, _) in page.IMAGE_TYPES.items())
        suffix = next((suffix for suffix, kind in types if kind in header.lower()), ".png")
        alt = str(image["alt"])
        try:
            binary = ";base64" in header
            content = base64.b64decode(unquote(data)) if binary else unquote_to_bytes(data)
        except binascii.Error as error:
            raise LabError(f"the data of image “{alt}” is damaged: run its cell again") from error
        is_whole = suffix != ".svg" or page.is_well_formed(content)
        if not (is_whole and content.startswith(page.IMAGE_TYPES[suffix][1])):
            raise LabError(f"image “{alt}” is damaged or not {suffix.removeprefix('.').upper()}")
        name = image["src"] = f"figure-{number:03d}{suffix}"
        (folder / name).write_bytes(content)
        # Pandoc keeps unknown attributes, but not the alternative text.
        image["data-described"] = alt


def _typst_source(document: Document) -> str:
    """Typst source of a document whose images are files beside it."""
    body = document.body
    _keep_figures_before_references(body)
    _arrange_headings(body, contents=document.lists_contents)
    _label_targets(body)
    _simplify_code(body)
    _prepare_tables(body)
    _break_long_words(body)
    sections = math.to_scripts(body, typst=True)
    options = [f"--lua-filter={ASSETS / 'typst.lua'}"]
    typst = math.run_pandoc(body.decode(), sections, to="typst", options=options)
    authors = "".join(f"{_literal(author)}, " for author in document.authors)
    about = f"title: {_literal(document.title)}, lang: {_literal(document.language)}"
    return (
        f'#import "report.typ": *\n#let byline = {_literal(document.byline)}\n'
        f"#show: report.with({about}, authors: ({authors}))\n\n{typst}"
    )


def _keep_figures_before_references(body: BeautifulSoup) -> None:
    """Mark where figures that float to the next page must have been placed."""
    for entries in body.select("ol.references"):
        if heading := entries.find_previous(page.HEADING):
            heading.insert_before(body.new_tag("div", attrs={"class": "lab-flush"}))


def _arrange_headings(body: BeautifulSoup, *, contents: bool) -> None:
    """Put the title and the contents first, and raise the highest heading to the first level."""
    title, has_contents = page.title_heading(body), contents and len(page.contents(body)) > 1
    if title is not None:
        title.extract()
    levels = [int(heading.name[1]) for heading in page.headings(body)]
    for heading in page.headings(body):
        heading.name = f"h{int(heading.name[1]) - min(levels) + 1}"
    if has_contents:
        body.insert(0, body.new_tag("div", attrs={"class": "lab-contents"}))
    if title is not None:
        title.name, title["class"] = "div", "lab-title"
        body.insert(0, title)


def _label_targets(body: BeautifulSoup) -> None:
    """Short ids for the targets of links, and no others: Typst refuses repeated and unused ones."""
    linked = {page.link_target(anchor) for anchor in body.find_all("a")}
    labels: dict[str, str] = {}
    for tag in body.find_all(id=True):
        name = str(tag.attrs.pop("id"))
        # Links to other targets lead to the heading above them.
        carries = page.HEADING.match(tag.name) or tag.name in {"figure", "table"}
        heading = tag if carries else tag.find_previous(page.HEADING)
        if name in linked and heading is not None:
            heading["id"] = heading.get("id") or f"part-{len(labels) + 1}"
            labels[name] = str(heading["id"])
    for anchor in body.find_all("a"):
        address, target = str(anchor.get("href", "")), page.link_target(anchor)
        if target in labels:
            anchor["href"] = "#" + labels[target]
        elif not address or address.startswith("#"):
            anchor.unwrap()


def _simplify_code(body: BeautifulSoup) -> None:
    """Code as plain text with its language as class, for Typst to colour."""
    for summary in body.select("details.code > summary"):
        summary.decompose()
    for pre in body.find_all("pre"):
        kind = " ".join(filter(None, pre.get_attribute_list("class")))
        language = {"code": "python", "output": "output", "error": "error"}.get(kind)
        code = body.new_tag("code", string=pre.get_text().strip("\n"))
        pre.clear()
        pre.attrs = {"class": language} if language else {}
        pre.append(code)


def _prepare_tables(body: BeautifulSoup) -> None:
    """Numbers right-aligned, broken only before their interval; headers bold."""
    for cell in body.select("td.number, th.number"):
        cell["style"] = "text-align: right"
    for part in body.select("td.number span.nowrap"):
        part.string = part.get_text().replace(" ", "\u00a0")
    for cell in body.select("thead th"):
        strong = body.new_tag("strong")
        strong.extend(cell.contents[:])
        cell.append(strong)


def _break_long_words(body: BeautifulSoup) -> None:
    """Break words that are longer than a line, and cut those that would fill pages.

    Typst takes minutes over a word of 100,000 letters.
    """
    for text in body.find_all(string=LONG_WORD):
        if text.find_parent("lab-math") is None:
            text.replace_with(LONG_WORD.sub(_broken, text))


def _broken(word: re.Match[str]) -> str:
    cut = len(word[0]) - MOST_LETTERS
    shown = re.sub(r"\S{60}", "\\g<0>\u200b", word[0][:MOST_LETTERS])
    return f"{shown}… ({cut} more letters)" if cut > 0 else shown


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def typeset(source: str, folder: Path) -> bytes:
    """The PDF of Typst source with its images in a folder; LabError if Typst rejects it."""
    import typst

    # Only the wheel's fonts, so that every machine makes the same pages; system fonts only for
    # scripts that these lack.
    foreign = any(unicodedata.east_asian_width(letter) in "WF" for letter in source)
    (folder / "main.typ").write_text(source, "utf-8")
    shutil.copy(ASSETS / "report.typ", folder)
    try:
        return bytes(
            typst.compile(
                str(folder / "main.typ"),
                root=str(folder),
                font_paths=[str(math.font_folder())],
                ignore_system_fonts=not foreign,
                format="pdf",
                timestamp=source_date(),
            )
        )
    except typst.TypstError as error:
        message = str(error).replace(str(folder), "")
        raise LabError(f"the PDF could not be typeset: {message}") from error
