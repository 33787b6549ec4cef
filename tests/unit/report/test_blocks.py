"""Figures and tables as a notebook shows them, whatever its theme."""

from __future__ import annotations

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from matplotlib import figure as canvas
from matplotlib.axes import Axes
from matplotlib.text import Text

from lab.report import blocks
from lab.report.blocks import WHITE, Markdown, Table, drawn, on_white, units_in_heads
from lab.report.page import arrange_tables


@pytest.mark.parametrize(
    ("text", "lead", "rest"),
    [
        ("A step takes 1.5 ms.", "A step takes 1.5 ms.", ""),
        ("It is faster (1.2 times). This is beyond noise.", "It is faster (1.2 times).", " This"),
        ("bf16: slower. int8: 2.5 times the time.", "bf16: slower.", " int8"),
    ],
)
def test_the_first_sentence_of_an_answer_stands_out(text: str, lead: str, rest: str) -> None:
    shown = Markdown.of(text, "And this.", strong=True).markdown.replace("\\", "")
    assert shown.startswith(f"**{lead}**{rest}") and shown.endswith(" **And this.**")


def test_a_figure_has_a_white_ground_in_a_notebook_whose_theme_may_be_dark() -> None:
    figure = drawn(lambda axes: axes.plot([1, 2]), "a line", height=2)
    content, _ = figure._repr_mimebundle_()
    svg = content["image/svg+xml"]
    assert svg.count(WHITE) == 1 and svg.index(WHITE) == svg.index(">") + 1
    assert on_white(svg) == svg


def test_a_figure_is_drawn_once_and_as_matplotlib_draws_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = []

    class Counted(Text):
        def draw(self, renderer: object) -> None:
            counted.append(renderer)
            super().draw(renderer)

    def draw(axes: Axes) -> None:
        axes.plot([1, 2, 4, 8], [1, 1.9, 3.5, 6])
        axes.set(xscale="log", xlabel="ranks", ylabel="speedup")
        axes.add_artist(Counted(2, 3, "a label", transform=axes.transData))

    once = drawn(draw, "a curve", height=3).svg
    assert len(counted) == 1
    monkeypatch.setattr(blocks, "_Sheet", canvas.Figure)
    assert once == drawn(draw, "a curve", height=3).svg


def test_text_of_a_table_is_to_the_left_in_a_notebook_whose_cells_are_to_the_right() -> None:
    frame = pd.DataFrame({"way": ["<flat>", "ddp"], "step": ["1.5 [1.4, 1.6] ms", "not measured"]})
    soup = BeautifulSoup(Table("Steps", frame)._repr_html_(), "html.parser")
    left = soup.find_all(style="text-align: left")
    assert [cell.get_text() for cell in left] == ["way", "<flat>", "ddp"]
    arrange_tables(soup)
    assert not soup.find_all(style="text-align: left")
    assert [cell.get_text() for cell in soup.select("th.number")] == ["", "step (ms)", "0", "1"]


@pytest.mark.parametrize(
    ("cells", "head", "first"),
    [
        (["9.0 [5.9, 16.1] ms", "12 ms", "none"], "step (ms)", "9.0 [5.9, 16.1]"),
        (["-1.4 %", "+3.7 %", "not measured"], "step (%)", "-1.4"),
        (["9.0 ms", "12 µs", "none"], "step", "9.0 ms"),
        (["100 % (baseline)", "87.2 %", "68 %"], "step (%)", "100 (baseline)"),
        (["1.5 ms (2 jobs)", "2 s", "none"], "step", "1.5 ms (2 jobs)"),
        (["9.0 ms", "2 GPUs", "none"], "step", "9.0 ms"),
        (["9.0 ms", "2", "none"], "step", "9.0 ms"),
        ([1.5, 2.0, None], "step", 1.5),
        (["none", "none", "-"], "step", "none"),
    ],
)
def test_a_unit_that_a_whole_column_shares_is_in_its_head(
    cells: list[object], head: str, first: object
) -> None:
    index = pd.Index(["a", "b", "c"], name="configuration")
    shown = units_in_heads(pd.DataFrame({"step": cells, "batch": [8, 16, 32]}, index=index))
    assert list(shown) == [head, "batch"] and shown.index.equals(index)
    assert shown[head].iloc[0] == first and shown.index.name == "configuration"
