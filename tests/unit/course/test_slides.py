"""Slides of the lessons: every question is on one, no solution is, and what was not measured is left out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import lab
from lab.course.release import LESSONS
from lab.report.html import LabHTMLExporter
from lab.report.slides import CHOSEN, LabSlidesExporter

PATHS = sorted(LESSONS.glob("*.ipynb"))


def slide_of(cell: dict[str, Any]) -> str:
    return str(cell["metadata"].get("slideshow", {}).get("slide_type", ""))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_question_of_a_lesson_is_on_a_slide_and_no_answer_is(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    for cell in cells:
        assert slide_of(cell) in {"", *CHOSEN}
        if cell["metadata"].get("nbgrader"):
            assert not slide_of(cell)
        elif re.search(r"\*\*(Exercise|Predict)", "".join(cell["source"])):
            assert slide_of(cell)
    assert [slide_of(cell) for cell in cells[:2]] == ["slide", "subslide"]


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


def test_an_unknown_lesson_and_a_notebook_without_slides_are_refused(tmp_path: Path) -> None:
    with pytest.raises(lab.InputError, match=r"did you mean '04-strong-scaling'"):
        lab.lesson_slides(tmp_path, names=["04-strong-scalin"])
    with pytest.raises(lab.LabError, match="no cell is a slide"):
        LabSlidesExporter().from_notebook_node(new_notebook(cells=[new_markdown_cell("Text")]))


def test_slides_and_page_of_a_notebook_have_files_of_their_own() -> None:
    assert {one().file_extension for one in (LabHTMLExporter, LabSlidesExporter)} == {
        ".html",
        ".slides.html",
    }
