"""Text, figures and tables of a report as files of their own."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lab.report.artifacts import light, write_artifacts
from lab.report.references import cite

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="80pt" height="40pt" viewBox="0 0 8 4">'
    '<rect width="8" height="4"/></svg>'
)
TABLE = (
    "<table id='tbl-a'><caption>Cost in %.</caption><thead><tr><th>name</th><th>a_b</th></tr></thead>"
    "<tbody><tr><td>x &amp; y</td><td>1.5 [1, 2] ms</td></tr></tbody></table>"
)


WIDE = pd.DataFrame({f"column {n}": ["1.234 [1.200, 1.300] ms", "some words"] for n in range(9)})


def test_a_kept_figure_has_no_digits_that_nobody_sees() -> None:
    path = '<path d="M 159.768834 -490.554291 L 0 3.5" transform="scale(0.015625)"/>'
    assert '"M 159.76 -490.55 L 0 3.5" transform="scale(0.015625)"' in light(f"<svg>{path}</svg>")


def test_a_kept_figure_has_no_ids_that_depend_on_the_processor() -> None:
    svg = (
        '<svg><path id="DejaVuSans-31"/><use href="#DejaVuSans-31"/>'
        '<g clip-path="url(#pcb99fe8656)"/><clipPath id="pcb99fe8656"/><g id="axes_1"/></svg>'
    )
    kept = light(svg)
    assert '<path id="glyph-0"/><use href="#glyph-0"/>' in kept
    assert '<g clip-path="url(#part-0)"/><clipPath id="part-0"/><g id="axes_1"/>' in kept


def test_text_figures_and_tables_are_files_of_their_own(tmp_path: Path) -> None:
    about = {"image/svg+xml": {"alt": "Bars", "caption": "Drawn.", "label": "fig-a"}}
    cells = [
        new_markdown_cell(f"## Part\n\nSee{cite('fig-a', 'tbl-a')}: $x^2$."),
        new_code_cell(
            "",
            outputs=[
                new_output("display_data", data={"image/svg+xml": SVG}, metadata=about),
                new_output("display_data", data={"text/html": TABLE}),
                new_output("display_data", data={"text/html": WIDE.to_html(index=False)}),
            ],
        ),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "report.ipynb")
    folder = tmp_path / "artifacts"
    written = write_artifacts(
        tmp_path / "report.ipynb", folder, title="A & B", authors=["Ada, Z_1", "Bo"]
    )
    assert {str(path.relative_to(folder)) for path in written} == {
        "report.md",
        "report.tex",
        "figures/fig-a.svg",
        "figures/fig-a.pdf",
        "tables/tbl-a.csv",
        "tables/tbl-a.tex",
        "tables/table-2.csv",
        "tables/table-2.tex",
    }
    assert (folder / "figures" / "fig-a.svg").read_text() == SVG
    assert (folder / "figures" / "fig-a.pdf").read_bytes().startswith(b"%PDF")
    frame = pd.read_csv(folder / "tables" / "tbl-a.csv")
    assert frame.to_dict("list") == {"name": ["x & y"], "a_b": ["1.5 [1, 2] ms"]}
    latex = (folder / "tables" / "tbl-a.tex").read_text()
    assert r"\caption{Cost in \%.}" in latex and r"x \& y & 1.5 [1, 2] ms" in latex
    markdown = (folder / "report.md").read_text()
    assert "figures/fig-a.svg" in markdown and "Figure 1" in markdown and "$x^2$" in markdown
    tex = (folder / "report.tex").read_text()
    assert r"\section{Part}" in tex and "figures/fig-a.pdf" in tex and r"A \& B" in tex
    assert r"\author{Ada, Z\_1 \and Bo}" in tex
    # Only what is wider than a line has columns of fixed width, together as wide as it.
    assert r"\begin{longtable}[]{@{}ll@{}}" in tex
    widths = [float(width) for width in re.findall(r"\\real\{([\d.]+)\}", tex)]
    assert len(widths) == 9 and sum(widths) == pytest.approx(1, abs=0.01)
    wide = (folder / "tables" / "table-2.tex").read_text()
    assert r"\begin{tabular}{ll}" in latex and "footnotesize" in wide
    shares = [float(share) for share in re.findall(r"p\{\\dimexpr ([\d.]+)", wide)]
    assert len(shares) == 9 and sum(shares) == pytest.approx(1, abs=0.01)
    assert r"\AtBeginEnvironment{verbatim}{\footnotesize}" in tex  # commands are long lines
    # LaTeX numbers its captions by itself.
    assert r"\caption{Drawn.}" in tex and r"\caption{Cost in \%.}" in tex
