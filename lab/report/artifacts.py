"""The parts of a report for other documents: text as Markdown and LaTeX, figures, tables.

Also a page for GitHub, which shows no HTML.
"""

from __future__ import annotations

import base64
import re
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import nbformat
import pandas as pd
from bs4 import BeautifulSoup, Tag
from nbconvert.filters.latex import escape_latex

from lab.files import write_atomically
from lab.report import math, page, pdf
from lab.report.blocks import on_white
from lab.report.html import LabHTMLExporter

NUMBERS = ".numbered figcaption > strong:first-child, .numbered > caption > strong:first-child"
TEXTS = {".md": "markdown-raw_html-fenced_divs-bracketed_spans", ".tex": "latex"}
LINE = 90  # characters of a table's row on A4, in LaTeX's footnotesize
# Of a table's columns, as LaTeX's own margins and gaps are wide.
SMALL = r"\footnotesize\setlength{\tabcolsep}{3pt}"
PREAMBLE = (
    rf"\AtBeginEnvironment{{longtable}}{{{SMALL}}}\AtBeginEnvironment{{verbatim}}{{\footnotesize}}"
)


def write_artifacts(
    notebook: Path, folder: Path, *, title: str, authors: Sequence[str] = ()
) -> list[Path]:
    """Write the contents of an executed notebook into a folder, for a proposal or a thesis.

    `report.md` and `report.tex` hold the text; `figures/` each figure as SVG and PDF, `tables/`
    each table as CSV and LaTeX, by their labels or numbers. Raises LabError as the exporters do.
    """
    body = _body(notebook, title)
    files = dict([*_figures(body, folder / "figures"), *_tables(body, folder / "tables")])
    sections = math.to_scripts(body)
    heading = page.title_heading(body)
    if heading is not None:
        heading.extract()
    for suffix, form in TEXTS.items():
        text = _with_figures(body, ".svg" if suffix == ".md" else ".pdf")
        options = ["--standalone", f"--metadata=title:{title}", "--shift-heading-level-by=-1"]
        options += [f"--metadata=author:{author}" for author in authors]
        if suffix == ".tex":
            options += ["--variable=geometry:a4paper,margin=25mm"]
            options += [f"--variable=header-includes:{PREAMBLE}"]
        source = math.run_pandoc(text.decode(), sections, to=form, options=options)
        files[folder / f"report{suffix}"] = source.encode()
    for path, content in files.items():
        write_atomically(path, content)
    return list(files)


def github_page(notebook: Path, *, title: str) -> dict[str, str]:
    """An executed notebook as GitHub shows it: `report.md` and its figures, by their names."""
    body, files = _body(notebook, title), {}
    for image, name, svg in _svg_figures(body):
        image["src"] = place = f"figures/{name}.svg"
        files[place] = light(svg.decode())
    for wrapper in body.select("div.table-box, span:not([id]), small"):
        wrapper.unwrap()
    # A table of this Markdown has no id; its caption stands below it.
    for table in body.select("table[id]"):
        if table.caption:
            table.caption.insert(0, body.new_tag("span", id=str(table["id"])))
        table.attrs = {}
    sections = math.to_scripts(body)
    return {"report.md": math.run_pandoc(body.decode(), sections, to="gfm", options=[])} | files


def light(svg: str) -> str:
    """An SVG as a small file: no comments or indentation, and on white, as its page may be dark.

    Lengths are cut to hundredths of a point; numbers below 1 stay, as they may be scales. Glyphs
    and parts are renumbered, because Matplotlib's numbers depend on what was drawn before and, for
    parts, on digits in which processors differ.
    """
    svg = re.sub(r"<!--.*?-->", "", on_white(svg), flags=re.DOTALL)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    svg = re.sub(r"(?<![\w.])([1-9]\d*\.\d\d)\d+", r"\1", svg)
    svg = _renumbered(svg, "glyph", r"\w+-[0-9a-f]+")
    return _renumbered(svg, "part", "[a-z][0-9a-f]{10}")


def _renumbered(svg: str, kind: str, pattern: str) -> str:
    """An SVG whose ids of this pattern are of this kind, numbered in their order."""
    names = dict.fromkeys(re.findall(f'id="({pattern})"', svg))
    numbers = {name: f"{kind}-{number}" for number, name in enumerate(names)}
    return re.sub(f'(?<=["#]){pattern}(?=[")])', lambda match: numbers.get(match[0], match[0]), svg)


def _body(notebook: Path, title: str) -> BeautifulSoup:
    content = nbformat.read(notebook, as_version=4)
    content.metadata["title"] = title
    about = {"metadata": {"name": notebook.stem, "path": str(notebook.parent)}}
    return LabHTMLExporter().document(content, about)[0].body


def _svg_figures(body: BeautifulSoup) -> Iterator[tuple[Tag, str, bytes]]:
    """The images of the SVG figures, with the figures' labels or numbers."""
    for nth, image in enumerate(body.select("figure img"), start=1):
        header, _, data = str(image["src"]).partition(",")
        if "svg" in header:
            figure = image.find_parent("figure") or image
            yield image, str(figure.get("id") or f"figure-{nth}"), base64.b64decode(data)


def _figures(body: BeautifulSoup, folder: Path) -> Iterator[tuple[Path, bytes]]:
    """The files of each SVG figure, also as PDF; its image then refers to them."""
    for image, name, svg in _svg_figures(body):
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "figure.svg").write_bytes(svg)
            source = '#set page(width: auto, height: auto, margin: 0pt)\n#image("figure.svg")'
            drawn = pdf.typeset(source, Path(place))
        yield folder / f"{name}.svg", svg
        yield folder / f"{name}.pdf", drawn
        image["src"] = f"{folder.name}/{name}"


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
        for table in text.select("table"):
            _fit(text, table)
    return text


def _fit(text: BeautifulSoup, table: Tag) -> None:
    """Give the columns of a table that is wider than a line their shares of it."""
    group = text.new_tag("colgroup")
    for share in _shares(_cells(table)):
        group.append(text.new_tag("col", style=f"width: {100 * share:.1f}%"))
    if group.contents:
        table.insert(1 if table.caption else 0, group)


def _shares(rows: Sequence[Sequence[str]]) -> list[float]:
    """The columns' shares of a line, words whole; none if all rows fit into one as they are."""
    lengths = _lengths(rows)
    if sum(lengths) <= LINE:
        return []
    columns = zip_longest(*rows, fillvalue="")
    words = [max(len(word) for cell in cells for word in cell.split() or [""]) for cells in columns]
    more = [length - word for length, word in zip(lengths, words, strict=True)]
    spare = max(LINE - sum(words), 0) / max(sum(more), 1)
    widths = [word + spare * extra for word, extra in zip(words, more, strict=True)]
    return [width / sum(widths) for width in widths]


def _lengths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The characters of each column's longest cell."""
    return [max(map(len, cells)) for cells in zip_longest(*rows, fillvalue="")]


def _tables(body: BeautifulSoup, folder: Path) -> Iterator[tuple[Path, bytes]]:
    for nth, table in enumerate(body.select("div.table-box > table"), start=1):
        name = str(table.get("id") or f"table-{nth}")
        frame = _frame(table)
        caption = "".join(map(str, table.caption.find_all(string=True))) if table.caption else ""
        number = table.select_one(NUMBERS)
        caption = caption.removeprefix(number.get_text() if number else "").strip()
        yield folder / f"{name}.csv", frame.to_csv(index=False).encode()
        yield folder / f"{name}.tex", _latex(frame, escape_latex(caption), name).encode()


def _latex(frame: pd.DataFrame, caption: str, label: str) -> str:
    """A table for booktabs alone; one that is wider than a line is set smaller, then broken."""
    rows = [list(frame.columns), *frame.to_numpy().tolist()]
    shares = _shares(rows)
    columns = "".join(rf"p{{\dimexpr {share:.3f}\linewidth-2\tabcolsep}}" for share in shares)
    columns = columns or "l" * frame.shape[1]
    latex = frame.to_latex(
        index=False, escape=True, caption=caption, label=label, column_format=columns
    )
    if sum(_lengths(rows)) > LINE * 2 / 3:  # as many fit in the size of the text
        return latex.replace(r"\begin{tabular}", rf"{SMALL}\begin{{tabular}}", 1)
    return latex


def _cells(table: Tag) -> list[list[str]]:
    return [[cell.get_text().strip() for cell in row.find_all(["td", "th"])] for row in table("tr")]


def _frame(table: Tag) -> pd.DataFrame:
    """The cells of a table as text; the last row of its head names the columns."""
    rows = _cells(table)
    heads = len(table.select("thead > tr"))
    width = max(map(len, rows))
    names = rows[heads - 1] if heads else [str(place) for place in range(width)]
    body = [row + [""] * (width - len(row)) for row in rows[heads:]]
    return pd.DataFrame(body, columns=names + [""] * (width - len(names)))
