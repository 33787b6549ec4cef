"""Slides of the lessons: every question is on one, and no solution is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

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
