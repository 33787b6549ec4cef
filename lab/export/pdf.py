"""The PDF report: the page's HTML through pandoc to Typst, typeset by the `typst` wheel alone."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import unicodedata
from importlib import resources as files
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from nbformat import NotebookNode
from traitlets import default
from traitlets.config import Config

from lab.errors import LabError
from lab.export import columns, headings, images, math, mathfont, pandoc
from lab.export.document import Document
from lab.export.html import LabHTMLExporter

_LINE = 88  # characters of code in a line
_LONG_WORD = re.compile(rf"\S{{{columns.WORD + 1},}}")


class LabPDFExporter(LabHTMLExporter):
    """Exporter of nbconvert: `jupyter nbconvert --to lab_pdf NOTEBOOK`; needs no LaTeX, no browser, no network.

    The same notebook gives the same bytes where the environment variable SOURCE_DATE_EPOCH is set (seconds since 1970).
    Raises LabError as LabHTMLExporter does, and where Typst cannot set the page.
    """

    export_from_notebook = "Scaling Lab report (PDF)"

    def __init__(self, config: Config | None = None, **kw: Any) -> None:
        super().__init__(config=config, **kw)
        # Only now: nbconvert finds the template by the type of what the template writes, and that is HTML.
        self.output_mimetype = "application/pdf"
        self.raw_mimetypes = ["text/html", ""]

    @default("file_extension")
    def _file_extension_default(self) -> str:
        return ".pdf"

    @default("template_extension")
    def _template_extension_default(self) -> str:
        return ".html.j2"

    def from_notebook_node(  # type: ignore[override]  # bytes, as nbconvert's own PDF exporters
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[bytes, dict[str, Any]]:
        """The PDF of a notebook as bytes, and nbconvert's resources."""
        built, resources = self.document(nb, resources, **kw)
        resources["output_extension"] = ".pdf"
        return typeset(built), resources


def typeset(document: Document) -> bytes:
    """The PDF of a document, typeset in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures = images.extract(document.body, folder=folder)
        (folder / "main.typ").write_text(source(document), "utf-8")
        for file in ("report.typ", "typst.lua"):
            with files.as_file(files.files("lab.export") / file) as path:
                shutil.copy(path, folder)
        return _compile(folder, pictures=pictures, text=document.body.get_text())


def source(document: Document) -> str:
    """Typst source of a document; its images are files beside it."""
    body = document.body
    _put_opening(body)
    _raise_headings(body)
    _number_targets(body)
    _simplify_code(body)
    for word in body.find_all(string=_LONG_WORD):
        if not word.find_parent(["pre", "code", math.ELEMENT]):
            word.replace_with(_LONG_WORD.sub(lambda found: _breakable(found[0], columns.WORD), word))
    _align_tables(body)
    columns.apply(body)
    converted = _to_typst(body)
    authors = "".join(f"{_literal(author)}, " for author in document.authors)
    return (
        f'#import "report.typ": *\n#let authors = ({authors})\n'
        f"#show: report.with(title: {_literal(document.title)}, authors: authors, lang: {_literal(document.language)})\n\n{converted}"
    )


def _to_typst(body: BeautifulSoup) -> str:
    page = BeautifulSoup(body.decode(), "html.parser")
    for image in page.find_all("img"):
        image["data-described"] = image["alt"]
    for formula in math.formulas(page):
        tex = math.for_typst(formula.get_text())
        script = math.as_script(tex, display=str(formula.get("display")))
        formula.replace_with(BeautifulSoup(script, "html.parser"))
    with files.as_file(files.files("lab.export") / "typst.lua") as filters:
        converted = pandoc.convert(page.decode(), to="typst", options=[f"--lua-filter={filters}"])
    math.check_translated(converted, body)
    return converted.text


def _put_opening(body: BeautifulSoup) -> None:
    """The title first, then a place for the table of contents where there are headings to list."""
    heading = headings.title_heading(body)
    if len(headings.entries(body)) > 1:
        body.insert(0, body.new_tag("div", attrs={"class": "contents"}))
    if heading is not None:
        heading.name = "div"
        heading["class"] = "title"
        body.insert(0, heading.extract())


def _raise_headings(body: BeautifulSoup) -> None:
    """Let the highest heading be of the first level, as the title is none of them."""
    found = body.find_all(headings.HEADING)
    top = min((int(heading.name[1]) for heading in found), default=1)
    for heading in found:
        heading.name = f"h{int(heading.name[1]) - top + 1}"


def _number_targets(body: BeautifulSoup) -> None:
    """Short ids for the targets of links, and no other ids: Typst refuses a repeated one, and a link to none."""
    linked = {headings.target(anchor): anchor for anchor in body.find_all("a", href=re.compile("^#"))}
    names: dict[str, str] = {}
    for tag in body.find_all(id=True):
        identifier = str(tag["id"])
        del tag["id"]
        # Only a heading is a sure place for a label; another target is reached through the heading before it.
        place = tag if headings.HEADING.match(tag.name) else tag.find_previous(headings.HEADING)
        if identifier in linked and place is not None:
            place["id"] = place.get("id") or f"part-{len(names) + 1}"
            names[identifier] = str(place["id"])
    for anchor in body.find_all("a"):
        address = str(anchor.get("href", ""))
        if not address.startswith("#"):
            if not address:
                anchor.unwrap()
        elif headings.target(anchor) in names:
            anchor["href"] = "#" + names[headings.target(anchor)]
        else:
            anchor.unwrap()


def _simplify_code(body: BeautifulSoup) -> None:
    """Code as plain text with its language as class, for Typst to colour; long words may break at the margin."""
    for summary in body.select("details.code > summary"):
        summary.decompose()
    for pre in body.find_all("pre"):
        kind = " ".join(filter(None, pre.get_attribute_list("class")))
        language = {"code": "python", "output": "output", "error": "error"}.get(kind, "")
        text = "\n".join(
            re.sub(rf"\S{{{_LINE},}}", lambda found: _breakable(found[0], _LINE - 1), line) for line in pre.get_text().split("\n")
        )
        pre.clear()
        pre.attrs = {"class": language} if language else {}
        pre.append(body.new_tag("code", string=text.strip("\n")))


def _align_tables(body: BeautifulSoup) -> None:
    for cell in body.select("td.number, th.number"):
        cell["style"] = "text-align: right"
    for head in body.select("thead th"):
        strong = body.new_tag("strong")
        strong.extend(head.contents[:])
        head.append(strong)
    for style in body.find_all("style"):
        style.decompose()


def _breakable(word: str, every: int) -> str:
    """The word with places at which a line may end."""
    parts = re.findall(rf".{{1,{every}}}", word)
    return "\u200b".join(parts)


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _compile(folder: Path, *, pictures: dict[str, str], text: str) -> bytes:
    import typst

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch and not epoch.isdigit():
        raise LabError(f"SOURCE_DATE_EPOCH is {epoch!r}; it must be a whole number of seconds since 1970")
    # The wheel's fonts alone, so that every machine makes the same pages; its own for scripts that they lack.
    foreign = any(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    try:
        return bytes(
            typst.compile(
                str(folder / "main.typ"),
                root=str(folder),
                font_paths=[str(mathfont.folder())],
                ignore_system_fonts=not foreign,
                format="pdf",
                timestamp=int(epoch) if epoch else None,
            )
        )
    except typst.TypstError as error:
        said = str(error).replace(str(folder), "")
        raise LabError(f"the PDF could not be typeset: {_named(said, pictures)}") from error


def _named(message: str, pictures: dict[str, str]) -> str:
    """Typst's complaint, with the description of the image that it is about."""
    for name, alt in pictures.items():
        message = message.replace(name, f"{name} (“{alt}”)")
    return message
