"""Slides of a lesson: pictures are drawn, no solution is shown, and what was not measured is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import lab


def marked(cell: Any, kind: str, **metadata: Any) -> Any:
    cell.metadata = {"slideshow": {"slide_type": kind}, **metadata}
    return cell


def lesson(folder: Path) -> Path:
    measured = "lab.launch(lab.Study.load('study')).wait()"
    cells = [
        marked(new_markdown_cell("# A lesson\n\nWhat for, and $x < y$."), "slide"),
        new_markdown_cell("Not for slides."),
        new_code_cell("import lab\nfrom lab.course import pictures"),
        marked(new_markdown_cell("## Shares"), "slide"),
        marked(new_code_cell("pictures.shares(7e9, ranks=8)"), "fragment"),
        marked(
            new_markdown_cell("The answer is 42."),
            "slide",
            nbgrader={"solution": True, "grade_id": "answer"},
        ),
        marked(new_markdown_cell("**Predict** the time."), "subslide"),
        new_code_cell(f"records = {measured}"),
        marked(new_code_cell("'never without records'"), "fragment"),
    ]
    nbformat.write(new_notebook(cells=cells), folder / "12-new.ipynb")
    return folder


def test_pictures_are_drawn_and_what_no_record_tells_is_left_out(
    tmp_path: Path, make_study: Any
) -> None:
    make_study("study")
    (made,) = lab.lesson_slides(tmp_path / "slides", lessons=lesson(tmp_path))
    page = BeautifulSoup(made.file.read_text(), "html.parser")
    assert (made.slides, made.left_out) == (3, 1) and "records of study are missing" in made.reason
    text = page.body.get_text() if page.body else ""
    assert len(page.select("section > section")) == 3 and "Predict" in text
    for unwanted in ("42", "Not for slides", "never without", "pictures.shares"):
        assert unwanted not in text
    (image,) = page.select(".fragment img")
    assert str(image["alt"]).startswith("State of a model on each of 8 ranks: DDP 112 GB")
    # One file: nothing is asked of a network, and formulas need no script.
    assert not page.select("link[rel=stylesheet], script[src]") and page.find("math")
    assert not (tmp_path / "reports" / "study" / "out").exists()
