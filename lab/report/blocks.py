"""Markdown, tables and figures of a page: objects that Jupyter displays and exporters keep."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib import figure as canvas
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.layout_engine import ConstrainedLayoutEngine

from lab.analysis.configurations import UNKNOWN
from lab.analysis.results import Source, StudyResults
from lab.analysis.scaling_curves import Curve
from lab.figures.figure import figure_named
from lab.figures.style import SIZE, style
from lab.formatting import NOT_MEASURED, UNITS, capitalized

# With more, a page and its PDF would take minutes to make and to scroll.
MOST_ROWS, MOST_SENTENCES = 200, 30
# A number of a cell with its interval and a remark, if it has them, and its unit.
WITH_UNIT = re.compile(
    rf"(?P<number>[-+]?[\d.,]+(?: \[[^\]]*\])?) (?P<unit>{'|'.join(unit.name for unit in UNITS)}|%)"
    r"(?P<remark> \([^)]*\))?"
)
WHITE = '<rect width="100%" height="100%" fill="#fff"/>'


@dataclass(frozen=True)
class Markdown:
    """Markdown as it is; `of` and `bullets` escape sentences, which a user may have written."""

    markdown: str

    def _repr_markdown_(self) -> str:
        return self.markdown

    @classmethod
    def of(cls, *sentences: str, heading: int = 0, strong: bool = False) -> Markdown:
        """Texts taken literally: as a paragraph, or a heading of this level.

        With `strong`, the first sentence of each text stands out.
        """
        if strong:
            return cls(" ".join(_with_lead(text) for text in sentences if text))
        text = " ".join(map(escaped, sentences))
        return cls(f"{'#' * heading} {text}" if heading else text)

    @classmethod
    def bullets(
        cls, sentences: Iterable[str], *, otherwise: str = "", most: int = MOST_SENTENCES
    ) -> Markdown:
        """Sentences taken literally, as a list; the paragraph `otherwise` if there are none.

        Beyond the `most`, the rest are only counted.
        """
        lines = [f"- {escaped(sentence)}" for sentence in sentences]
        if more := len(lines[most:]):
            lines[most:] = [f"- And {more} more like these."]
        return cls("\n".join(lines)) if lines else cls.of(otherwise)


def _with_lead(text: str) -> str:
    """A text taken literally, with its first sentence bold."""
    lead, *rest = re.split(r"(?<=[.?!]) (?=[A-Za-z])", text, maxsplit=1)
    return " ".join([f"**{escaped(lead)}**", *map(escaped, rest)])


def escaped(sentence: str) -> str:
    """A sentence as Markdown in one line that shows it literally."""
    # In an address also the colon and the at sign: a detected link would swallow the escapes.
    special = r"([\\`*_{}\[\]()#+\-.!|<>$&~^@]|:(?=//))"
    return re.sub(special, r"\\\1", " ".join(sentence.split()))


@dataclass(frozen=True)
class Table:
    """A captioned table; numbers are shown as they come, text is escaped, `most` rows at most.

    A unit that all numbers of a column share is shown in its head. With a label, such as
    `tbl-steps`, the page numbers it and sentences can cite it.
    """

    caption: str
    frame: pd.DataFrame
    index: bool = True
    label: str = ""
    most: int = MOST_ROWS

    @classmethod
    def of_rows(
        cls,
        caption: str,
        rows: Iterable[Mapping[str, Any]],
        *,
        common: str = "",
        shared: str = "",
        label: str = "",
    ) -> Table:
        """A table of rows by column; the caption ends with what is `common` to all rows.

        So does the column `shared`, if all rows have the same there. Columns without any
        measurement are left out.
        """
        frame = pd.DataFrame(list(rows))
        if shared in frame and len(frame) > 1 and frame[shared].nunique() == 1:
            common = frame.pop(shared)[0]
        caption = f"{caption}. All: {common}" if common else caption
        measured = [name for name in frame if not set(frame[name]) <= {NOT_MEASURED, UNKNOWN}]
        return cls(caption, frame[measured], index=False, label=label)

    def _repr_html_(self) -> str:
        from lab.report.page import left_aligned  # loads a parser of HTML

        if self.frame.empty:
            return f"<p>{html.escape(self.caption.partition('. ')[0])}: nothing yet.</p>"
        caption = html.escape(self.caption)
        if len(self.frame) > self.most:
            caption += f"; the first {self.most} of {len(self.frame):,} rows"
        body = units_in_heads(self.frame[: self.most]).to_html(
            index=self.index,
            border=0,
            na_rep=NOT_MEASURED,
            escape=True,
            table_id=self.label or None,
        )
        return left_aligned(body.replace(">", f"><caption>{caption}.</caption>", 1))

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string()}"


def units_in_heads(frame: pd.DataFrame) -> pd.DataFrame:
    """A table of text with the unit that all numbers of a column share in the column's head."""
    units = {name: _shared_unit(cells) for name, cells in frame.items()}
    columns = {
        name: cells.str.replace(WITH_UNIT, r"\g<number>\g<remark>", regex=True)
        if units[name]
        else cells
        for name, cells in frame.items()
    }
    heads = {name: f"{name} ({unit})" for name, unit in units.items() if unit}
    return pd.DataFrame(columns).rename(columns=heads)


def _shared_unit(cells: pd.Series[Any]) -> str:
    """The unit of all numbers of a column; empty if they have several or none."""
    texts = [str(cell) for cell in cells if isinstance(cell, str) or pd.notna(cell)]
    numbers = [text for text in texts if re.search(r"\d", text)]
    matches = [WITH_UNIT.fullmatch(text) for text in numbers]
    units = {match["unit"] if match else "" for match in matches}
    return units.pop() if len(units) == 1 else ""


@dataclass(frozen=True)
class Figure:
    """A drawn figure as SVG with its alternative text; with caption and label it is numbered.

    Of one that shows nothing a page says why: `missing`.
    """

    svg: str
    alt: str
    caption: str = ""
    label: str = ""
    missing: str = ""

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        if self.missing:
            sentence = f"{capitalized(self.missing)}."
            return {"text/markdown": escaped(sentence)}, {}
        content = {"image/svg+xml": on_white(self.svg), "text/plain": self.alt}
        about = {"alt": self.alt, "caption": self.caption, "label": self.label}
        return content, {"image/svg+xml": {key: text for key, text in about.items() if text}}


def on_white(svg: str) -> str:
    """An SVG with a white ground, as dark ink on nothing cannot be read on a dark page."""
    if WHITE in svg:
        return svg
    return re.sub(r"<svg\b[^>]*>", lambda match: match[0] + WHITE, svg, count=1)


def figure(
    name: str, source: Source, *, mark: Callable[[Axes, list[Curve]], None] | None = None
) -> Figure:
    """Draw one figure of `lab.figures` by its name; `mark` adds to the drawing.

    Raises InputError, with the nearest name, if there is no such figure.
    """
    results, drawing = StudyResults.of(source), figure_named(name)

    def draw(axes: Axes) -> None:
        drawing(results, ax=axes)
        if mark is not None:
            mark(axes, results.curves)

    picture = drawn(
        draw,
        drawing.alt_text(results),
        height=drawing.height(results),
        caption=drawing.caption(results),
        label=f"fig-{name.replace('_', '-')}",
    )
    return replace(picture, missing=drawing.missing(results))


class _Sheet(canvas.Figure):
    """A figure that is drawn once when it is saved.

    Matplotlib draws it twice and discards the first drawing, of which only the layout is needed.
    """

    def draw(self, renderer: RendererBase) -> None:
        engine = self.get_layout_engine()
        if isinstance(engine, ConstrainedLayoutEngine):  # for the second drawing there is none
            engine.execute(self)
        else:
            super().draw(renderer)


def drawn(
    draw: Callable[[Axes], object], alt: str, *, height: float, caption: str = "", label: str = ""
) -> Figure:
    """A figure of standard width and this height in inches, drawn by a function into its axes.

    It is drawn without pyplot, so that the kernel's own figures and backend stay unchanged.
    """
    with style(), io.StringIO() as stream:
        sheet = _Sheet(figsize=(SIZE[0], height), layout="constrained")
        FigureCanvasAgg(sheet)  # remembers sizes of texts from one layout to the next
        draw(sheet.subplots())
        metadata: dict[str, Any] = {"Date": None, "Creator": None}
        sheet.savefig(stream, format="svg", metadata=metadata, transparent=True)
        svg = stream.getvalue()
    return Figure(svg[svg.index("<svg") :], alt, caption, label)
