"""Figures as a notebook shows them, whatever its theme."""

from __future__ import annotations

from lab.report.blocks import WHITE, drawn, on_white


def test_a_figure_has_a_white_ground_in_a_notebook_whose_theme_may_be_dark() -> None:
    figure = drawn(lambda axes: axes.plot([1, 2]), "a line", height=2)
    content, _ = figure._repr_mimebundle_()
    svg = content["image/svg+xml"]
    assert svg.count(WHITE) == 1 and svg.index(WHITE) == svg.index(">") + 1
    assert on_white(svg) == svg
