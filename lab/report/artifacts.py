"""The parts of a report for other documents: text as Markdown and LaTeX, figures, tables."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

import nbformat
import pandas as pd
from bs4 import BeautifulSoup, Tag

from lab.files import write_atomically
from lab.report import math, page, pdf
from lab.report.html import LabHTMLExporter

NUMBERS = ".numbered figcaption > strong:first-child, .numbered > caption > strong:first-child"
TEXTS = {".md": "markdown-raw_html-fenced_divs-bracketed_spans", ".tex": "latex"}


def write_artifacts(notebook: Path, folder: Path, *, title: str) -> list[Path]:
    """Write the contents of an executed notebook into a folder, for a proposal or a thesis.

    `report.md` and `report.tex` hold the text; `figures/` each figure as SVG and PDF, `tables/`
    each table as CSV and LaTeX, by their labels or numbers. Raises LabError as the exporters do.
    """
    content = nbformat.read(notebook, as_version=4)
    content.metadata["title"] = title
    about = {"metadata": {"name": notebook.stem, "path": str(notebook.parent)}}
    body = LabHTMLExporter().document(content, about)[0].body
    written = [*_write_figures(body, folder / "figures"), *_write_tables(body, folder / "tables")]
    sections = math.to_scripts(body)
    heading = page.title_heading(body)
    if heading is not None:
        heading.extract()
    for suffix, form in TEXTS.items():
        text = _with_figures(body, ".svg" if suffix == ".md" else ".pdf")
        options = ["--standalone", f"--metadata=title:{title}", "--shift-heading-level-by=-1"]
        path = folder / f"report{suffix}"
        source = math.run_pandoc(text.decode(), sections, to=form, options=options)
        write_atomically(path, source.encode())
        written.append(path)
    return written


def _write_figures(body: BeautifulSoup, folder: Path) -> list[Path]:
    """Write each SVG figure, also as PDF; its image then refers to the file."""
    written = []
    for nth, image in enumerate(body.select("figure img"), start=1):
        header, _, data = str(image["src"]).partition(",")
        if "svg" not in header:
            continue
        figure = image.find_parent("figure")
        name = str(figure.get("id") or f"figure-{nth}") if figure else f"figure-{nth}"
        svg = base64.b64decode(data)
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "figure.svg").write_bytes(svg)
            source = '#set page(width: auto, height: auto, margin: 0pt)\n#image("figure.svg")'
            drawn = pdf.typeset(source, Path(place))
        for path, content in ((folder / f"{name}.svg", svg), (folder / f"{name}.pdf", drawn)):
            write_atomically(path, content)
            written.append(path)
        image["src"] = f"{folder.name}/{name}"
    return written


def _with_figures(body: BeautifulSoup, suffix: str) -> BeautifulSoup:
    """The page with figures as files of this kind; LaTeX numbers captions by itself."""
    text = BeautifulSoup(body.decode(), "html.parser")
    for image in text.select("figure img"):
        if not str(image["src"]).startswith("data:"):
            image["src"] = f"{image['src']}{suffix}"
            image["width"] = "100%"
    for wrapper in text.select("div.table-box, span, small"):
        wrapper.unwrap()
    if suffix == ".pdf":
        for number in text.select(NUMBERS):
            number.decompose()
    return text


def _write_tables(body: BeautifulSoup, folder: Path) -> list[Path]:
    written = []
    for nth, table in enumerate(body.select("div.table-box > table"), start=1):
        name = str(table.get("id") or f"table-{nth}")
        frame = _frame(table)
        caption = "".join(map(str, table.caption.find_all(string=True))) if table.caption else ""
        number = table.select_one(NUMBERS)
        caption = caption.removeprefix(number.get_text() if number else "").strip()
        latex = frame.to_latex(index=False, escape=True, caption=_escaped(caption), label=name)
        for suffix, text in ((".csv", frame.to_csv(index=False)), (".tex", latex)):
            path = folder / f"{name}{suffix}"
            write_atomically(path, text.encode())
            written.append(path)
    return written


def _escaped(text: str) -> str:
    """Text escaped for LaTeX."""
    special: dict[str, str | int | None] = {letter: f"\\{letter}" for letter in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return text.translate(str.maketrans(special))


def _frame(table: Tag) -> pd.DataFrame:
    """The cells of a table as text; the last row of its head names the columns."""
    rows = [[cell.get_text().strip() for cell in row.find_all(["td", "th"])] for row in table("tr")]
    heads = len(table.select("thead > tr"))
    width = max(map(len, rows))
    names = rows[heads - 1] if heads else [str(place) for place in range(width)]
    body = [row + [""] * (width - len(row)) for row in rows[heads:]]
    return pd.DataFrame(body, columns=names + [""] * (width - len(names)))
