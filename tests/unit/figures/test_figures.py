from __future__ import annotations

import io
import itertools
import random

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt
from factories import losses, record, repeats, run, study, traced
from hypothesis import given
from hypothesis import strategies as st

from lab import InputError, LabError, figures
from lab.config.emulation import Compute, Emulated, Link
from lab.config.study import Study, Task
from lab.figures import StudyResults, alt_text
from lab.figures.breakdown import spread
from lab.figures.figure import figure, no_runs
from lab.figures.style import plain_log, style, wrapped
from lab.records.schema import Event
from lab.records.store import Store, write_record

TIMES = {
    (1, 64): 0.20,
    (2, 64): 0.12,
    (4, 64): 0.08,
    (1, 128): 0.40,
    (2, 128): 0.22,
    (4, 128): 0.14,
}


# Figures of inference, and what they say of training records.
INFERENCE = {
    "latency_throughput": "no inference run has completed yet",
    "size_perplexity": "no inference run has completed yet",
    "stage_ratios": "no run has completed yet",
}
TRAINING = [name for name in figures.FIGURES if name not in INFERENCE]


@pytest.fixture(scope="module")
def records():
    noise = random.Random(0)
    return [
        item
        for (size, batch), time in TIMES.items()
        for item in repeats(
            run(size, batch),
            [time * factor for factor in (1.0, 0.97, 1.04)],
            loss=losses(30, start=8 + noise.random()),
        )
    ]


def test_a_figure_that_lacks_a_part_is_refused_at_once():
    with pytest.raises(TypeError, match="describe"):
        figure(missing=no_runs)
    with pytest.raises(TypeError, match="missing"):
        figure(describe=lambda results: "")


def test_every_figure_is_public():
    assert all(getattr(figures, name) is one for name, one in figures.FIGURES.items())
    assert all(one.name == name and one.__doc__ for name, one in figures.FIGURES.items())


def test_results_are_shared_and_another_baseline_makes_new_ones(few):
    results = StudyResults(few)
    assert StudyResults.of(results) is results and results.summary is results.summary
    other = StudyResults.of(results, baseline={"world_size": 2})
    assert other.records is results.records and other.baseline == {"world_size": 2}
    assert words(figures.speedup(results)) == words(figures.speedup(few))
    with pytest.raises(LabError, match="no study"):
        results.study  # noqa: B018


@pytest.fixture(scope="module")
def few(records):
    """One repeat of each configuration."""
    return [item for item in records if item.repeat == 0]


@pytest.fixture(scope="module")
def shared(few):
    """Their results, of which each part is computed once for all figures."""
    return StudyResults(few)


def lines(ax):
    """Drawn lines with a name, as name -> (x, y); error bars keep theirs on the container."""
    named = {
        container.get_label(): container.lines[0]
        for container in ax.containers
        if hasattr(container, "has_yerr")
    }
    named |= {
        line.get_label(): line for line in ax.get_lines() if not line.get_label().startswith("_")
    }
    return {
        name: (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for name, line in named.items()
    }


def words(ax):
    return [text.get_text() for text in ax.texts if text.get_visible()]


def test_speedup(records):
    ax = figures.speedup(records)
    drawn = lines(ax)
    assert set(drawn) == {"batch 64", "batch 128", "ideal"}
    assert list(drawn["batch 64"][0]) == [1, 2, 4]
    assert drawn["batch 64"][1] == pytest.approx([1, 0.20 / 0.12, 2.5])
    assert drawn["ideal"][1] == pytest.approx([1, 2, 4])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "4"]
    assert ax.get_xlabel() == "CPU processes"
    assert ax.get_ylabel() == "speedup over 1 CPU process"
    assert set(words(ax)) == {"ideal", "batch 64: 2.50×", "batch 128: 2.86×"}
    assert ax.get_legend() is None


def test_speedup_draws_intervals(records):
    (bars,) = [
        container
        for container in figures.speedup(records).containers
        if container.get_label() == "batch 64"
    ]
    segments = bars.lines[2][0].get_segments()
    assert segments[2][:, 1] == pytest.approx(
        [0.20 * 0.97 / (0.08 * 1.04), 0.20 * 1.04 / (0.08 * 0.97)]
    )


def test_efficiency_and_throughput(records):
    ax = figures.efficiency(records)
    assert lines(ax)["batch 128"][1] == pytest.approx(
        [100, 100 * 0.40 / 0.22 / 2, 100 * 0.40 / 0.14 / 4]
    )
    assert lines(ax)["ideal"][1] == pytest.approx([100, 100, 100])
    assert ax.get_ylim()[0] == 0
    ax = figures.throughput(records)
    assert lines(ax)["batch 128"][1] == pytest.approx([128 / 0.40, 128 / 0.22, 128 / 0.14])
    assert ax.get_ylabel() == "throughput (samples/s)"


def test_step_time_in_its_unit(records):
    ax = figures.step_time(records)
    assert lines(ax)["batch 64"][1] == pytest.approx([200, 120, 80])
    assert ax.get_ylabel() == "step time (ms)"
    assert ax.get_yscale() == "linear"
    assert any(word.startswith("batch 64: 80") and word.endswith(" ms") for word in words(ax))


def test_step_times_that_differ_much_are_drawn_on_a_logarithmic_axis():
    assert (
        figures.step_time(
            [record(run(1), step_time=2.0), record(run(16), step_time=0.1)]
        ).get_yscale()
        == "log"
    )


def test_step_breakdown_adds_up(few):
    ax = figures.step_breakdown(few)
    widths = {}
    for patch in ax.patches:
        widths[round(patch.get_y(), 3)] = widths.get(round(patch.get_y(), 3), 0) + patch.get_width()
    assert list(widths.values()) == pytest.approx([400, 220, 140, 200, 120, 80])
    labels = [label.get_text() for label in ax.get_yticklabels()]
    sizes = ["1 CPU process", "2 CPU processes", "4 CPU processes"]
    assert labels == [f"batch 128:  {sizes[0]}", *sizes[1:], f"batch 64:  {sizes[0]}", *sizes[1:]]
    assert [word for word in words(ax) if word.isalpha()] == [
        "data",
        "forward",
        "backward",
        "optimizer",
        "other",
    ]
    assert ax.get_xlabel() == "time of a step (ms)"


def test_exposed_communication_is_a_part_of_its_own_where_measured():
    records = [record(run(2), step_time=0.1, communication=(0.03, 0.02))]
    ax = figures.step_breakdown(records)
    drawn = dict(
        zip(
            [word for word in words(ax) if word.replace(" ", "").isalpha()],
            [p.get_width() for p in ax.patches],
            strict=True,
        )
    )
    assert drawn["exposed communication"] == pytest.approx(20)
    assert drawn["backward"] == pytest.approx(55 - 20)
    assert sum(drawn.values()) == pytest.approx(100)
    told = alt_text("step_breakdown", records)
    assert told.endswith("backward 35.0 ms, forward 30.0 ms, exposed communication 20.0 ms.")


def test_loss_by_step_and_time(few):
    ax = figures.loss_by_step(few)
    x, y = lines(ax)["batch 64, ×4"]
    assert list(x) == list(range(1, 31))
    wanted = next(
        item for item in few if item.run.world_size == 4 and item.run.global_batch_size == 64
    )
    assert list(y) == list(wanted.quality.loss)
    ax = figures.loss_by_time(few)
    x, _ = lines(ax)["batch 64, ×4"]
    assert x == pytest.approx(0.08 * np.arange(1, 31))
    assert ax.get_xlabel() == "training time (s)"


def test_millions_of_tokens_per_second_are_counted_in_millions():
    frame = pd.DataFrame({"gpus": [1, 8, 32], "tokens/s": [248_000, 1_810_000, 4_680_000]})
    ax = figures.throughput(frame)
    ax.figure.canvas.draw()
    ticks = [tick.get_text() for tick in ax.get_yticklabels()]
    assert ticks[0] == "0" and ticks[-1].endswith("M") and not ax.yaxis.get_offset_text().get_text()
    assert any(word.endswith("4.68M/s") for word in words(ax))
    assert "0.248M on 1 GPU and 4.68M on 32 GPUs" in alt_text("throughput", frame)


def test_a_baseline_alone_has_no_panel_of_speedups():
    made = [record(run(2, strategy=name)) for name in ("ddp", "fsdp")]
    panels = figures.overview([*made, record(run(1, strategy="single"))]).figure.axes
    assert not any("speedup" in ax.get_xlabel() for ax in panels)


def test_lines_of_one_colour_tell_their_ranks_where_time_parts_them():
    records = [record(run(size), step_time=0.1 / size) for size in (1, 2, 4)]
    by_step, by_time = figures.losses(records).figure.axes[-2:]
    assert not any(words(by_step)) and {"×1", "×2", "×4"} <= set(words(by_time))
    alone = figures.losses([record(run(1, 32)), record(run(1, 64))]).figure.axes[-1]
    assert not any("×" in word for word in words(alone))


@pytest.mark.parametrize(("step", "unit"), [(2e-4, "ms"), (0.1, "s"), (7300.0, "h")])
def test_training_time_has_the_unit_of_the_longest_run(step, unit):
    ax = figures.loss_by_time([record(run(1), step_time=step)])
    assert ax.get_xlabel() == f"training time ({unit})"
    assert max(ax.get_lines()[0].get_xdata()) == pytest.approx(
        30 * step * {"ms": 1e3, "s": 1, "h": 1 / 3600}[unit]
    )


def test_more_curves_than_colours_differ_in_their_dashes():
    ax = figures.loss_by_step([record(run(1, 8 * size)) for size in range(1, 15)])
    looks = {(line.get_color(), line.get_linestyle()) for line in ax.get_lines()}
    assert len(looks) == len(ax.get_lines()) == 14


def test_labels_of_losses_are_placed_in_the_layout_that_is_drawn():
    axes = figures.losses([record(run(n, batch)) for n in (1, 2) for batch in (32, 64)])
    by_time = axes.figure.axes[-1]
    placed = by_time.get_window_extent().bounds
    axes.figure.canvas.draw()
    assert by_time.get_window_extent().bounds == pytest.approx(placed)


def test_equal_losses_share_a_label_and_unlike_ones_do_not():
    assert words(figures.loss_by_step([record(run(size)) for size in (1, 2, 4)])) == [
        "batch 64\n×1, ×2, ×4"
    ]
    apart = [record(run(1)), record(run(2), loss=losses(30, floor=5))]
    assert sorted(words(figures.loss_by_step(apart))) == ["batch 64, ×1", "batch 64, ×2"]


@pytest.mark.parametrize("name", list(figures.FIGURES))
def test_nothing_completed_is_said_in_words(name):
    failed = [record(run(4), status="oom")]
    reason = INFERENCE.get(name, "no run has completed yet")
    for none in ([], failed):
        assert words(figures.FIGURES[name](none)) == [reason]
        assert alt_text(name, none) == f"An empty figure: {reason}."


@pytest.mark.parametrize("name", ["speedup", "efficiency"])
def test_no_baseline_is_said_in_words(name):
    assert words(figures.FIGURES[name]([record(run(4))])) == [
        "no run of the baseline has completed yet"
    ]
    assert "baseline" in alt_text(name, [record(run(4))])


@pytest.mark.parametrize("name", list(figures.FIGURES))
def test_every_figure_draws_into_given_axes_and_leaves_the_settings_alone(name, shared):
    before = dict(mpl.rcParams)
    _, given_axes = plt.subplots()
    assert figures.FIGURES[name](shared, ax=given_axes) is given_axes
    assert dict(mpl.rcParams) == before


def test_labels_stay_clear_of_axes_that_are_drawn_later(shared):
    drawing, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    figures.speedup(shared, ax=left)
    figures.step_breakdown(shared, ax=right)
    drawing.canvas.draw()
    last = max(text.get_window_extent().x1 for text in left.texts)
    assert last < min(name.get_window_extent().x0 for name in right.get_yticklabels())
    assert not left.spines["top"].get_visible() and not left.spines["right"].get_visible()


@pytest.fixture(scope="module", params=[(1,), (1, 4, 32)])
def crowded(request):
    """Results of three batches on these world sizes."""
    times = {batch: 0.001 * batch for batch in (64, 128, 256)}
    return StudyResults(
        [
            record(run(size, batch), step_time=time / size**0.8)
            for batch, time in times.items()
            for size in request.param
        ]
    )


@pytest.mark.parametrize("name", TRAINING)
def test_labels_neither_overlap_nor_leave_their_room(name, crowded):
    ax = figures.FIGURES[name](crowded)
    ax.figure.draw_without_rendering()
    written = [text for text in ax.texts if text.get_visible() and text.get_text()]
    boxes = [text.get_window_extent() for text in written]
    frame = ax.figure.bbox
    for nth, box in enumerate(boxes):
        assert frame.x0 <= box.x0
        assert box.x1 <= ax.bbox.x1 + 1
        assert frame.y0 <= box.y0
        assert box.y1 <= frame.y1 + 1
        assert not any(box.overlaps(other) for other in boxes[nth + 1 :])


def test_a_study_brings_its_baseline_and_scaling(tmp_path):
    batch = {"global_batch_size": None, "micro_batch_size": 16}
    runs = [run(2, **batch), run(4, **batch)]
    scaled = study(tmp_path, runs, scaling="weak", baseline={"world_size": 2}, repeats=1)
    for wide, time in zip(runs, (0.1, 0.125), strict=True):
        task = Task(wide, 0)
        write_record(record(wide, step_time=time), Store(scaled.out).folder(task))
    ax = figures.efficiency(scaled)
    assert lines(ax)["batch 16 per rank"][1] == pytest.approx([100, 80])
    assert (
        figures.speedup(scaled, baseline={"world_size": 4}).get_ylabel().endswith("4 CPU processes")
    )
    assert words(figures.efficiency(scaled, scaling="strong")) == ["100 %"]
    ax = figures.speedup(scaled)
    assert ax.get_ylabel() == "speedup over 2 CPU processes"
    assert lines(ax)["ideal"][1] == pytest.approx([1, 2])


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in TRAINING
        # `few` have no communication, no trace, and ran on a CPU, whose peak is unknown.
        if name
        not in {
            "overlap_band",
            "step_timeline",
            "trace_timeline",
            "memory_timeline",
            "mfu",
            "mfu_by_batch",
        }
    ],
)
def test_alt_text_is_one_sentence_with_numbers(name, shared):
    text = alt_text(name, shared)
    assert text.endswith(".")
    assert "\n" not in text
    assert "batch 128" in text
    assert any(character.isdigit() for character in text)


def test_alt_text_tells_the_numbers(records):
    assert alt_text("step_time", records[:9]) == (
        "Step time by world size: batch 64, 200.0 [194.0, 208.0] ms on 1 CPU process and "
        "80.0 [77.6, 83.2] ms on 4 CPU processes."
    )
    with pytest.raises(InputError, match="speedup"):
        alt_text("speed_up", records)


def test_the_same_svg_each_time(few):
    made = []
    for _ in range(2):
        with style():
            stream = io.BytesIO()
            figures.speedup(few).figure.savefig(stream, format="svg", metadata={"Date": None})
        made.append(stream.getvalue())
    assert made[0] == made[1]


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(5, 50)), min_size=1, max_size=8))
def test_spread_keeps_order_and_room(parts):
    centers, widths = sorted(center for center, _ in parts), [width for _, width in parts]
    moved = spread(centers, widths, low=0, high=500)
    starts = [center - width / 2 for center, width in zip(moved, widths, strict=True)]
    assert starts[0] >= -1e-6
    assert moved[-1] + widths[-1] / 2 <= 500 + 1e-6
    for nth in range(1, len(starts)):
        assert starts[nth] >= starts[nth - 1] + widths[nth - 1] - 1e-6


def test_spread_moves_neighbours_alike():
    assert spread([10, 12], [10, 10], low=0, high=100) == pytest.approx([6, 16])
    assert spread([10, 50], [10, 10], low=0, high=100) == [10, 50]
    assert spread([98, 99], [10, 10], low=0, high=100) == pytest.approx([85, 95])


@pytest.fixture(scope="module")
def grid():
    """Two models at four batches, compiled and not: more configurations than colours."""
    return StudyResults(
        [
            item
            for nth, model in enumerate(("gpt-mini", "gpt-nano"))
            for batch in (8, 16, 32, 64)
            for compiled in (False, True)
            for item in repeats(
                run(1, batch, model=model, compile=compiled, micro_batch_size=batch),
                [batch / (100 + nth + 40 * compiled) + wait for wait in (0.0, 1e-5, 2e-5)],
                loss=losses(30),
            )
        ],
        baseline={"compile": False},
        scaling="none",
    )


def test_losses_of_many_configurations_have_a_row_of_panels_per_model(grid):
    axes = figures.losses(grid).figure.axes
    assert len(axes) == 1 + 4
    assert [ax.texts[0].get_text() for ax in axes[1:] if ax.texts] == ["gpt-mini", "gpt-nano"]
    for ax in axes[1:]:
        looks = {(line.get_color(), line.get_linestyle()) for line in ax.get_lines()}
        assert len(looks) == len(ax.get_lines()) == 8
    [legend] = axes[0].figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["batch 8", "batch 16", "batch 32", "batch 64", "compiled"]


def test_losses_that_would_be_a_tangle_are_those_of_the_fastest_and_the_slowest():
    results = StudyResults(
        [
            record(run(1, 8 * nth, model=model), step_time=nth, loss=losses(30))
            for nth in range(1, 6)
            for model in ("gpt-nano", "gpt-mini", "gpt2-small", "gpt2-medium", "gpt2-large")
        ],
        scaling="none",
    )
    assert len(figures.losses(results).figure.axes[1].get_lines()) == 12
    caption, alt = figures.losses.caption(results), alt_text("losses", results)
    assert "12 of 25 configurations are drawn" in caption and "  " not in caption
    assert alt.count(" on 1 CPU process") == 12


def test_what_is_emulated_is_a_title_within_the_figure_and_not_in_its_headings():
    slow = Emulated(link=Link(bandwidth_gbit=1), compute=Compute(emulated="measured"))
    ax = figures.waterfall([record(run(size), emulated=slow) for size in (1, 2)])
    ax.figure.canvas.draw()
    assert "1 Gbit/s" in ax.get_title(loc="left")
    assert ax._left_title.get_window_extent().x1 <= ax.figure.bbox.x1
    assert ax.texts and not any("emulated" in text.get_text() for text in ax.texts)


def test_times_beside_the_points_have_the_unit_of_the_axis():
    ax = figures.step_time(pd.DataFrame({"gpus": [1, 5], "time (min)": [100, 24]}))
    assert "(h)" in ax.get_ylabel() and words(ax) == ["table: 0.400 h"]


def test_the_highest_speedup_is_named_only_if_its_runs_were_quiet():
    def caption(foreign_cpu):
        made = [record(run(1, batch), step_time=0.1) for batch in (8, 16)]
        made += [record(run(2, 8), step_time=0.08)]
        made += [record(run(2, 16), step_time=0.06, foreign_cpu=foreign_cpu)]
        return figures.overview.caption(StudyResults.of(made))

    assert "The highest speedup is 1.67, that of batch 16" in caption(0.0)
    assert "highest speedup" not in caption(0.5)  # neither that of batch 16 nor a lower one


def test_bars_of_the_overview_count_up_and_leave_out_what_all_share(grid):
    panels = figures.overview(grid).figure.axes[1:]
    names = [label.get_text() for label in panels[0].get_yticklabels()]
    assert names[:3] == ["gpt-mini, batch 8", "gpt-mini, batch 8, compiled", "gpt-mini, batch 16"]
    assert names[-1] == "gpt-nano, batch 64, compiled"
    assert "All are on 1 CPU process." in figures.overview.caption(grid)
    digits = [sum(map(str.isdigit, word)) for panel in panels for word in words(panel)]
    assert len(digits) == 3 * 16 and max(digits) == 3


def test_bars_are_as_long_as_the_texts_beside_them_allow(grid):
    ax = figures.overview(grid).figure.axes[1]
    ax.figure.canvas.draw()
    ends = [text.get_window_extent().x1 for text in ax.texts]
    assert 0.9 * ax.bbox.width < max(ends) - ax.bbox.x0 < ax.bbox.width


def test_the_caption_says_which_waterfalls_are_drawn(grid):
    ax = figures.waterfall(grid)
    headings = [text.get_text() for text in ax.texts if text.get_fontweight() == "bold"]
    assert headings == [f"gpt-mini, batch {batch}, compiled" for batch in (8, 16, 32, 64)]
    caption = figures.waterfall.caption(grid)
    assert "4 of 8 configurations are drawn, those that lose or gain most." in caption
    assert "All are on 1 CPU process." in caption


@pytest.mark.parametrize("gain", [1.1, 1.5, 2.5])
def test_shares_below_a_waterfall_do_not_touch_each_other(gain):
    made = [
        record(one, step_time=step, communication=(0.3 * step, 0.2 * step))
        for one, step in ((run(2), 0.1 * gain), (run(2, precision="bf16"), 0.1))
    ]
    baseline = {"world_size": 2, "precision": "fp32"}
    ax = figures.waterfall(StudyResults.of(made, baseline=baseline, scaling="none"))
    ax.figure.canvas.draw()
    ticks = [tick for tick in ax.xaxis.get_major_ticks() if tick.get_loc() <= ax.get_xlim()[1]]
    boxes = [tick.label1.get_window_extent() for tick in ticks]
    gaps = [right.x0 - left.x1 for left, right in itertools.pairwise(boxes)]
    assert len(boxes) > 2 and min(gaps) > boxes[0].height / 4


def test_a_folder_is_drawn_in_the_order_of_its_grid(tmp_path):
    models = ["gpt-nano", "gpt2-small", "gpt-mini", "gpt2-medium"]
    grid = f"{{title: T, question: Q, scaling: none, base: {{micro_batch_size: 8}}, grid: {{model: {models}}}}}"
    (tmp_path / "study.yaml").write_text(grid)
    made = Study.load(tmp_path)
    for one in made.runs:
        write_record(record(one), Store(made.out).folder(Task(one, 0)))
    labels = [label for label, _ in StudyResults(str(tmp_path)).curves]
    assert labels == [f"{model}, batch 8" for model in models]


def test_long_names_are_broken_after_commas():
    assert wrapped("batch 8, ddp") == "batch 8, ddp"
    assert (
        wrapped("batch 64, squeezenet1_0 32px, vanilla_data_parallel", 30)
        == "batch 64, squeezenet1_0 32px,\nvanilla_data_parallel"
    )


def test_names_longer_than_the_figure_leave_room_for_the_lines():
    models = [
        {"kind": "gpt", "layers": 2, "heads": 1, "width": 64, "block_size": size, "dropout": 0.1}
        for size in (64, 128)
    ]
    records = [
        record(run(size, model=model, compile=compiled, learning_rate=0.0003), step_time=1 / size)
        for model in models
        for compiled in (True, False)
        for size in (1, 2)
    ]
    for draw in (
        figures.speedup,
        figures.step_breakdown,
        figures.loss_by_time,
        figures.loss_by_step,
    ):
        ax = draw(records)
        ax.get_figure().draw_without_rendering()
        assert np.isfinite(ax.get_xlim()).all() and ax.bbox.width > 0.2 * ax.get_figure().bbox.width


def test_ticks_of_a_logarithmic_axis_end_with_what_is_drawn():
    axis = plt.subplots()[1].xaxis
    plain_log(axis, ends=(0.03, 20.0))
    assert list(axis.get_majorticklocs()) == pytest.approx([0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20])
    plain_log(axis, ends=(0.03, 2000.0))
    assert list(axis.get_majorticklocs()) == pytest.approx([0.1, 1, 10, 100, 1000])


def test_a_timeline_of_calls_is_not_explained_as_one_of_buckets():
    bucket = Event(rank=0, name="bucket 0", start=0.05, end=0.09, ready=0.05, bytes=8)
    call = Event(rank=0, name="receive", start=0.05, end=0.09, bytes=8)
    captions = []
    for event in (bucket, call):
        made = record(run(2), communication=(0.03, 0.02))
        sent = made.communication.model_copy(update={"timeline": [event]})
        results = StudyResults([made.model_copy(update={"communication": sent})])
        captions.append(figures.FIGURES["step_timeline"].caption(results))
    assert "black line" in captions[0] and "contain the waits" not in captions[0]
    assert "black line" not in captions[1] and "contain the waits" in captions[1]


def test_the_caption_of_a_timeline_says_whose_step_it_is():
    event = Event(rank=0, name="bucket 0", start=0.05, end=0.09, ready=0.05, bytes=8)

    def caption(*batches):
        made = [record(run(2, batch), communication=(0.03, 0.02)) for batch in batches]
        for one in made:
            one.communication.timeline.append(event)
        return figures.FIGURES["step_timeline"].caption(StudyResults.of([record(run(1)), *made]))

    assert "rank by rank. The record is that of batch 64. A bucket" in caption(32, 64)
    assert "rank by rank. A bucket" in caption(64)


def test_a_traced_step_rank_by_rank():
    made = [traced(record(run(1))), traced(record(run(2)))]
    ax = figures.trace_timeline(made)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        f"rank {rank} {lane}" for rank in (0, 1) for lane in ("compute", "link", "operators")
    ]
    widths = [patch.get_width() for patch in ax.patches]
    assert sum(widths) == pytest.approx(2 * (100 + 20) + 80 + 60)  # ms
    assert alt_text("trace_timeline", made) == (
        "A traced step of 100 ms. No operator runs on rank 0 for 20.0 % of it, on rank 1 "
        "for 40.0 % of it."
    )


def test_memory_over_a_step():
    made = [traced(record(run(1, activation_checkpointing=again))) for again in (False, True)]
    ax = figures.memory_timeline(made)
    plain, again = ax.figure.axes[1:]
    assert words(plain) == [
        "forward",
        "backward",
        "peak 60 MB",
        "20 MB between steps: weights 5.2, optimizer 10.4, other 4.4",
    ]
    assert again.get_title(loc="left") == "checkpointing"
    assert plain.get_xlim() == pytest.approx((0, 100)) and plain.get_ylabel() == "MB"
    assert "60 MB at the peak (backward)" in alt_text("memory_timeline", made[:1])
    assert "trace: true" in alt_text("memory_timeline", [record(run(1))])


def test_losses_are_expected_to_coincide_only_if_they_do_not_depend_on_the_split():
    records = [record(run(size)) for size in (1, 2)]
    assert "should nearly coincide" in figures.losses.caption(StudyResults.of(records))
    apart = [
        one.model_copy(update={"quality": one.quality.model_copy(update={"depends_on_split": "x"})})
        for one in records
    ]
    assert "coincide" not in figures.losses.caption(StudyResults.of(apart))


def test_points_of_a_curve_with_a_long_name_are_told_apart():
    made = [
        record(
            run(size, 60, strategy=strategy, precision=precision),
            step_time=0.1 / size**power,
            communication=(0.02 / size, 0.01 / size) if size > 1 else None,
        )
        for power, strategy in ((0.2, "naive_ddp"), (0.25, "ddp"))
        for precision in ("fp32", "bf16")
        for size in (1, 3, 5)
    ]
    names = [name for name in words(figures.overlap_band(made)) if name]
    assert len([name for name in names if name.endswith(", x5")]) == 4
    assert len(names) == len(set(names)) and not any("…" in name for name in names)


def test_the_band_of_overlap_shows_what_more_ranks_give_alone():
    fast = record(run(2, precision="bf16"), step_time=0.06, communication=(0.02, 0.01))
    made = [record(run(1), step_time=0.1), fast]
    named = {"world_size": 1, "precision": "fp32"}
    assert figures.overlap_band.missing(StudyResults.of(made, baseline=named))
    equal = fast.model_copy(update={"run": run(2), "run_id": run(2).id})
    assert not figures.overlap_band.missing(StudyResults.of([made[0], equal]))
