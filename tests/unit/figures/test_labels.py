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


def test_labels_of_points_above_one_another_keep_their_order() -> None:
    for heights in ((0.5, 0.51, 0.53, 0.56), (0.9, 0.95, 0.97, 1.0)):
        ax = Figure(figsize=(4, 3), dpi=72).subplots()
        ax.set(xlim=(0, 1), ylim=(0, 1))
        for height in heights:
            ax.plot([0, 0.5], [0.5, height], "o-", color="black")
        place(ax, [Label(0.5, height, f"{height}", "black") for height in heights])
        texts = [text for text in ax.texts if text.get_text()]
        lows = [text.get_window_extent().y0 for text in texts]
        assert lows == sorted(lows)


def test_a_label_hides_neither_another_mark_nor_an_interval() -> None:
    for error in (0, 0.3):
        ax = Figure(figsize=(4, 3), dpi=72).subplots()
        ax.set(xlim=(0, 1), ylim=(0, 1))
        ax.errorbar([0.4], [0.5 - error], yerr=[error + 0.01], marker="o", color="black")
        place(ax, [Label(0.3, 0.5, "a name", "black")])
        box = ax.texts[0].get_window_extent()
        x, y = ax.transData.transform((0.4, 0.5))
        assert box.x0 < x < box.x1
        assert not box.y0 < y < box.y1


def test_a_label_below_its_point_leaves_the_axis_free() -> None:
    ax = Figure(figsize=(3, 3), dpi=72).subplots()
    ax.plot([0, 1, 2], [1, 0, 1], color="black")
    place(ax, [Label(1, 0, f"×{i}", "black") for i in range(2)], side="below")
    assert all(text.get_window_extent().y0 >= ax.bbox.y0 + 2 for text in ax.texts)
