"""The bench on published tables: its numbers, and what it refuses."""

from __future__ import annotations

import pytest

from lab.analysis.layout_row import LayoutRow
from lab.analysis.layout_table import read_layouts
from lab.errors import InputError
from lab.files import SHARED
from lab.launch.bench_public import disturbed, public
from lab.perfmodel.hardware import machine
from lab.perfmodel.layout import Candidate, Layout
from lab.perfmodel.layout_terms import Case
from lab.perfmodel.transformer import Transformer

TABLES = SHARED / "docs" / "tables"


def test_a_published_table_is_predicted_from_ten_rows_and_from_none() -> None:
    result = public([TABLES / "mpt_a100_40gb.csv"], splits=3)
    none, ten = result.scores
    assert (none.fitted, ten.fitted, ten.rows) == (0, 10, 78)
    # The targets: 15 % without a row, 8 % with ten, ranks in order.
    assert none.error < 0.15 and ten.error < 0.08 and (ten.spearman or 0) > 0.9
    assert ten.groups == 0 and ten.regret is None  # no two layouts of the same work
    assert result.content()["scores"][1]["fitted"] == 10
    times, choices = result.tables()
    assert times[0]["error"].endswith(" %") and choices[0]["regret"] == ""


def test_picks_are_held_to_what_ran() -> None:
    result = public([TABLES / "playbook_1b_h100.csv"], fit=40, splits=2)
    every, near = result.scores[1], result.scores[3]
    assert near.table.endswith("tp <= 8") and near.rows < every.rows
    # In one group the pick crashed when it was run, twice, though it fits.
    assert every.groups == 8 and (every.ran or 0) > 0.8 and (every.regret or 0) < 0.02
    assert every.memory_error is not None and every.memory_error < 0.12
    assert near.median_error < 0.1
    # The rows around a disturbed one do not tell that it is, and without it no order is right.
    assert (near.spearman or 0) < (near.spearman_limit or 0) < 0.9
    assert (near.neighbour_error or 0) > near.error
    assert every.fit is not None and every.fit > 0.95 and every.refused is not None


def test_rows_that_are_off_as_much_as_their_neighbours_have_a_cause() -> None:
    none, _ = public([TABLES / "vtrain_a100_single_node.csv"], fit=1, splits=1).scores
    assert none.error > 0.05 and (none.neighbour_error or 1) < 0.015
    assert none.spearman_limit == pytest.approx(1) and "1.0 %" in none.times().values()


def test_rows_slower_than_a_layout_with_more_to_do_are_disturbed() -> None:
    def row(data: int, micro: int, accum: int, step_s: float, pipeline: int = 1) -> LayoutRow:
        layout = Layout("ddp", data=data, pipeline=pipeline)
        model = Transformer(layers=8, width=512, heads=8, hidden=2048)
        case = Case(model, 512, Candidate(layout, micro, accum), machine("a100x8"))
        return LayoutRow(0, case, step_s)

    # 64 samples each: half the micro-batches of twice the size must not take twice as long, nor
    # must twice the replicas; other splits, and layouts that have less to do, prove nothing.
    rows = [row(2, 1, 32, 4.0), row(2, 2, 16, 8.1), row(4, 1, 16, 8.1), row(2, 2, 16, 7.9)]
    assert disturbed(rows) == [False, True, True, False]
    assert disturbed([row(4, 1, 16, 2.0), row(2, 1, 32, 9.0), row(4, 1, 16, 9.0, 2)]) == [False] * 3
    # Eight stages are filled by one micro-batch of 32 in 256 sample times, by 32 of one in 39.
    pipelines = [row(2, 1, 32, 4.0, 8), row(2, 32, 1, 50.0, 8), row(2, 32, 1, 60.0, 8)]
    assert disturbed(pipelines) == [False, False, True]


def test_disturbed_rows_are_found_without_a_prediction() -> None:
    """Rows of the playbook by their times alone; in vTrain every row is as fast as it should be."""
    playbook = read_layouts(TABLES / "playbook_1b_h100.csv").measured
    near = [row for row in playbook if row.case.candidate.layout.tensor <= 8]
    assert sum(disturbed(near)) == 42
    assert not any(disturbed(read_layouts(TABLES / "vtrain_a100_single_node.csv").measured))


@pytest.mark.parametrize(("fit", "splits"), [(-1, 3), (3, 0), (78, 3)])
def test_what_cannot_be_split_is_refused(fit: int, splits: int) -> None:
    with pytest.raises(InputError, match=r"--(fit|splits)"):
        public([TABLES / "mpt_a100_40gb.csv"], fit=fit, splits=splits)
