from __future__ import annotations

import io
import logging
import sys
from itertools import product

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from lab.figures.style import (
    COLORS,
    FONTS,
    IDEAL,
    MOST_ENTRIES,
    MOST_PANELS,
    ROUND,
    STYLE,
    Arrangement,
    arranged,
    in_turn,
    installed_fonts,
    plain_log,
    round_ticks,
    style,
)

MODELS = ("gpt2-small", "gpt2-medium", "gpt2-large")
STRATEGIES = ("naive_ddp", "ddp", "fsdp", "zero1", "tensor_parallel", "pipeline_parallel")
STUDIES = {
    "models, batches and compilation": [
        f"{model}, batch {batch}{compiled}"
        for model, batch, compiled in product(MODELS, (8, 16, 32, 64), ("", ", compiled"))
    ],
    "strategies at two batches": [
        f"batch {batch}, {name}" for batch, name in product((8, 16), STRATEGIES)
    ],
    "strategies with settings of two models": [
        f"{model}, batch 8, {name}{setting}"
        for model, name, setting in product(MODELS[:2], STRATEGIES, ("", ", flat"))
    ],
    "models at three batches": [
        f"{model}, batch {batch}" for model, batch in product("ABCDE", (8, 16, 32))
    ],
    "learning rates": [f"batch 8, learning rate {nth}" for nth in range(1, 9)],
    "settings of one strategy": ["batch 8", *(f"batch 8, buckets of {n} MiB" for n in range(1, 9))],
    "one": ["batch 8"],
    "none": [],
}


def looks(labels: list[str]) -> Arrangement:
    arrangement = arranged(labels)
    assert arrangement is not None
    return arrangement


@pytest.mark.parametrize("labels", STUDIES.values(), ids=STUDIES)
def test_no_two_curves_look_alike(labels: list[str]) -> None:
    arrangement = looks(labels)
    assert list(arrangement.looks) == labels
    assert len(set(arrangement.looks.values())) == len(labels)
    assert len({name for name, *_ in arrangement.legend}) == len(arrangement.legend) <= MOST_ENTRIES
    assert len(arrangement.panels) <= MOST_PANELS
    colors = {look.color for look in arrangement.looks.values()}
    assert colors == {color for _, color, _ in arrangement.legend} - {IDEAL}


def test_each_setting_of_a_large_grid_is_shown_in_its_own_way() -> None:
    arrangement = looks(STUDIES["models, batches and compilation"])
    assert list(arrangement.panels) == list(MODELS)
    batches = [f"batch {batch}" for batch in (8, 16, 32, 64)]
    assert [name for name, *_ in arrangement.legend] == [*batches, "compiled"]
    eager, compiled = (
        arrangement.looks[f"gpt2-large, batch 16{end}"] for end in ("", ", compiled")
    )
    assert eager.color == compiled.color == COLORS[1]
    assert (eager.dashes, compiled.dashes) == ("-", "--")


def test_strategies_have_colours_and_batches_panels() -> None:
    arrangement = looks(STUDIES["strategies at two batches"])
    assert list(arrangement.panels) == ["batch 8", "batch 16"]
    assert [name for name, *_ in arrangement.legend] == list(STRATEGIES)


def test_a_setting_at_its_default_is_named_after_what_all_share() -> None:
    assert looks(STUDIES["settings of one strategy"]).legend[0] == ("batch 8", COLORS[0], "-")


def test_a_few_curves_have_a_colour_each() -> None:
    labels = [f"batch 8, {name}" for name in STRATEGIES]
    arrangement = looks(labels)
    assert list(arrangement.panels) == [""]
    assert arrangement.legend == [
        (label, color, "-") for label, color in zip(labels, COLORS, strict=True)
    ]


def test_what_no_settings_tell_apart_is_a_tangle() -> None:
    labels = [f"m{nth % 5}, batch {nth % 7}, s{nth % 11}" for nth in range(24)]
    assert arranged(labels) is None
    assert len(set(in_turn(labels).looks.values())) == 24


def test_a_notebook_that_turns_interactive_on_within_a_figure_keeps_it() -> None:
    with mpl.rc_context():
        mpl.interactive(False)
        with style():
            mpl.interactive(True)  # as its backend does when it is loaded
            assert mpl.rcParams["axes.spines.top"] is STYLE["axes.spines.top"]
        assert mpl.is_interactive()


def test_letters_that_no_font_has_are_drawn_without_a_warning(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[style.__module__], "installed_fonts", lambda: ["DejaVu Sans"])
    with style():
        figure = Figure(figsize=(2, 1))
        figure.suptitle("模型")
        figure.savefig(io.BytesIO(), format="svg")
    assert not recwarn.list


def test_a_font_without_bold_letters_is_not_remarked() -> None:
    logger = logging.getLogger("matplotlib.font_manager")
    bold = logging.makeLogRecord({"msg": "findfont: Failed to find font weight bold"})
    missing = logging.makeLogRecord({"msg": "findfont: Font family Nothing not found."})
    assert not logger.filter(bold) and logger.filter(missing)


def test_the_first_font_is_the_one_of_all_machines() -> None:
    assert installed_fonts()[0] == "DejaVu Sans" and set(installed_fonts()) <= set(FONTS)


def test_ticks_are_round_and_at_least_three_on_a_vertical_axis() -> None:
    ax = Figure(figsize=(3, 1)).subplots()
    round_ticks(ax)
    for low, high in ((32.6, 50.4), (0, 116), (188.66, 188.73), (0, 1.99)):
        ax.set_ylim(low, high)
        ticks = [tick for tick in ax.get_yticks() if low <= tick <= high]
        step = np.diff(ticks).min()
        assert len(ticks) >= 3
        assert round(step / 10 ** np.floor(np.log10(step) + 1e-9)) in ROUND
        assert np.allclose(np.array(ticks) / step, np.round(np.array(ticks) / step))


def test_a_logarithmic_axis_within_a_factor_of_two_has_at_least_three_ticks() -> None:
    for low, high in ((940, 1550), (12.5, 16.6), (3.1, 4.4)):
        ax = Figure(figsize=(4, 3)).subplots()
        ax.set(yscale="log", ylim=(low, high))
        plain_log(ax.yaxis)
        ticks = [tick for tick in ax.get_yticks() if low <= tick <= high]
        assert 3 <= len(ticks) <= 9
