"""Prose, tables and figures of a page, as objects that Jupyter displays and the exporters keep."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.config.study import Study
from lab.records.store import Record

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from lab.analysis.scaling_curves import Curve

    Mark = Callable[[Axes, list[Curve]], None]


@dataclass(frozen=True)
class Markdown:
    """Markdown made of sentences; `Prose.of` escapes text that a user wrote."""

    markdown: str

    def _repr_markdown_(self) -> str:
        return self.markdown

    @classmethod
    def of(
        cls, *sentences: str, heading: int = 0, bullets: bool = False, strong: bool = False
    ) -> Markdown:
        """Sentences taken literally: as a paragraph, a heading of this level, or a list."""
        literal = [
            re.sub(r"([\\`*_{}\[\]()#+\-.!|<>$&~^])", r"\\\1", " ".join(sentence.split()))
            for sentence in sentences
        ]
        if bullets:
            return cls("\n".join(f"- {sentence}" for sentence in literal))
        text = " ".join(literal)
        return cls(
            f"{'#' * heading} {text}" if heading else f"**{text}**" if strong and text else text
        )


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
        return {"image/svg+xml": self.svg, "text/plain": self.alt}, {
            "image/svg+xml": {"alt": self.alt}
        }


def figure(name: str, source: Study | Sequence[Record], *, mark: Mark | None = None) -> Figure:
    """Draw one figure of `lab.figures` by its name; `mark` draws something more upon it.

    It is drawn without pyplot, so that the kernel's own figures and their backend stay as they are.
    """
    from lab import figures
    from lab.figures import alt_text, breakdown
    from lab.figures.data import plot_data
    from lab.figures.style import SIZE

    seen = plot_data(source)
    heights = {
        "step_breakdown": breakdown.phases_height(seen.lines),
        "step_timeline": breakdown.timeline_height(breakdown.events(seen.records)),
    }

    def draw(axes: Axes) -> None:
        getattr(figures, name)(source, ax=axes)
        if mark is not None:
            mark(axes, seen.lines)

    return drawn(draw, alt_text(name, source), height=heights.get(name, SIZE[1]))


def drawn(draw: Callable[[Axes], object], alt: str, *, height: float) -> Figure:
    """A figure of the usual width and this height in inches, drawn by a function into its axes."""
    from matplotlib import figure as canvas

    from lab.figures.style import SIZE, style

    with style(), io.StringIO() as stream:
        sheet = canvas.Figure(figsize=(SIZE[0], height), layout="constrained")
        draw(sheet.subplots())
        sheet.savefig(
            stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=True
        )
        svg = stream.getvalue()
    return Figure(svg[svg.index("<svg") :], alt)
