"""Labels beside and below the ends of curves."""

from __future__ import annotations

from matplotlib.figure import Figure

from lab.figures.labels import GAP, NEAR, Label, place


def test_a_label_below_its_point_stays_near_it_even_in_a_crowd() -> None:
    ax = Figure(figsize=(2, 2), dpi=72).subplots()
    for slope in (1.0, 1.02, 1.04):
        ax.plot([0, slope], [1, 0], color="black")
        ax.plot([slope, slope + 0.1, slope + 0.2], [0, 1, 0], color="black")
    place(ax, [Label(1 + 0.02 * i, 0.0, f"×{i}", "black") for i in range(6)], side="below")
    for text in ax.texts:
        line = text.get_window_extent().height
        assert abs(text.xyann[1] + GAP) <= NEAR * line + 1e-6


def test_a_label_that_is_far_from_its_point_has_a_line_to_it() -> None:
    for count, far in ((2, False), (12, True)):
        ax = Figure(figsize=(4, 4), dpi=72).subplots()
        ax.set(xlim=(0, 1), ylim=(0, 1))
        place(ax, [Label(0.2, 0.5, f"point {nth}", "black") for nth in range(count)])
        lines = [text for text in ax.texts if not text.get_text()]
        assert bool(lines) == far
