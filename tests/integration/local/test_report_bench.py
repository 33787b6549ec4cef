"""A report of very many runs: what it shows stays bounded, and says what it leaves out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from lab.analysis.results import MOST_CURVES
from lab.config.study import Study
from lab.figures import StudyResults
from lab.figures.curves import MOST_POINTS, thinned
from lab.report import blocks, sections
from lab.report.bench import LIMITS_S, WORLD_SIZES, Cost, Shape, made_up_study, shapes

RUNS = 2 * len(WORLD_SIZES) * MOST_CURVES


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return made_up_study(tmp_path_factory.mktemp("many"), Shape("configurations", RUNS, 1, 1000))


@pytest.fixture(scope="module")
def results(many: Study) -> StudyResults:
    return StudyResults(many)


def test_a_made_up_study_is_whole(many: Study, results: StudyResults) -> None:
    assert len(many.tasks) == len(results.records) == RUNS
    assert all(record.completed for record in results.records)
    known = results.summary["speedup"].dropna()
    assert len(known) == RUNS and known.min() >= 1 and known.max() < max(WORLD_SIZES)


def test_figures_show_the_best_and_the_worst_of_too_many_curves(results: StudyResults) -> None:
    assert len(results.curves) == 2 * MOST_CURVES and len(results.drawn) == MOST_CURVES
    gains = [curve.points["speedup"].iloc[-1] for curve in results.curves]
    shown = {curve.points["speedup"].iloc[-1] for curve in results.drawn}
    assert {max(gains), min(gains)} <= shown
    drawn = blocks.figure("overview", results)
    assert f"{MOST_CURVES} of {2 * MOST_CURVES} configurations are drawn" in drawn.caption
    assert len(drawn.svg) < 400_000 and len(drawn.alt) < 10_000


def test_a_figure_does_not_grow_with_steps(results: StudyResults) -> None:
    losses = blocks.figure("losses", results)
    assert f"means over {MOST_POINTS} equal stretches" in losses.caption
    assert len(losses.svg) < 400_000


def test_means_over_stretches_keep_the_ends_and_the_mean() -> None:
    values = np.random.default_rng(0).normal(3, 1, 12_345)
    steps, thin = thinned(values)
    assert len(steps) == len(thin) == MOST_POINTS
    assert (steps[0], steps[-1], thin[0], thin[-1]) == (1, 12_345, values[0], values[-1])
    assert np.all(np.diff(steps) > 0) and thin.mean() == pytest.approx(values.mean(), abs=0.02)
    assert np.array_equal(thinned(values[:9])[1], values[:9])


def test_a_long_table_says_how_long_it_is(results: StudyResults) -> None:
    page = sections.every_repeat(results)._repr_html_()
    rows = len(re.findall("<tr", page)) - 1
    assert rows == min(blocks.MOST_ROWS, RUNS)
    assert f"the first {blocks.MOST_ROWS} of {RUNS:,} rows" in page


def test_a_long_list_counts_what_it_leaves_out() -> None:
    sentences = [f"Sentence {nth}." for nth in range(blocks.MOST_SENTENCES + 5)]
    lines = blocks.Markdown.bullets(sentences).markdown.split("\n")
    assert len(lines) == blocks.MOST_SENTENCES + 1 and lines[-1] == "- And 5 more like these."
    assert "more" not in blocks.Markdown.bullets(sentences[:-5]).markdown


def test_limits_grow_with_runs_alone() -> None:
    def cost(runs: int, seconds: float = 1.0) -> Cost:
        times = {verb: seconds * limit for verb, limit in LIMITS_S.items()}
        shape = Shape("configurations", runs, 1, 60)
        return Cost(shape, times, peak_bytes=10**9, page_bytes=5 * 10**6, pdf_bytes=1)

    assert cost(1000).within_limits and cost(10).within_limits
    assert cost(2000, seconds=1.9).within_limits and not cost(500, seconds=1.1).within_limits


def test_studies_have_the_runs_of_their_shapes(tmp_path: Path) -> None:
    planned = list(shapes(100))
    assert [(shape.name, shape.runs) for shape in planned] == [
        (name, runs) for name in ("configurations", "repeats", "steps") for runs in (10, 100)
    ]
    study = made_up_study(tmp_path, planned[3])
    assert len(study.tasks) == 100 and len(study.runs) == 10
