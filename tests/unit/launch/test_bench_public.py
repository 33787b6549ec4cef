"""The bench on published tables: its numbers, and what it refuses."""

from __future__ import annotations

import pytest

from lab.errors import InputError
from lab.files import SHARED
from lab.launch.bench_public import public

TABLES = SHARED / "docs" / "tables"


def test_a_published_table_is_predicted_from_ten_rows_and_from_none() -> None:
    result = public([TABLES / "mpt_a100_40gb.csv"], splits=3)
    none, ten = result.scores
    assert (none.fitted, ten.fitted, ten.rows) == (0, 10, 78)
    # The targets: 15 % without a row, 8 % with ten, ranks in order.
    assert none.error < 0.15 and ten.error < 0.08 and (ten.spearman or 0) > 0.9
    assert ten.groups == 0 and ten.regret is None  # no two layouts of the same work
    assert result.content()["scores"][1]["fitted"] == 10
    assert result.table()[0]["regret"] == ""


def test_picks_are_held_to_what_ran() -> None:
    result = public([TABLES / "playbook_1b_h100.csv"], fit=40, splits=2)
    every, near = result.scores[1], result.scores[3]
    assert near.table.endswith("tp <= 8") and near.rows < every.rows
    assert every.groups == 8 and every.ran == 1 and (every.regret or 0) < 0.02
    assert every.memory_error is not None and every.memory_error < 0.12
    assert near.median_error < 0.1
    assert every.fit is not None and every.fit > 0.95 and every.refused is not None


@pytest.mark.parametrize(("fit", "splits"), [(-1, 3), (3, 0), (78, 3)])
def test_what_cannot_be_split_is_refused(fit: int, splits: int) -> None:
    with pytest.raises(InputError, match=r"--(fit|splits)"):
        public([TABLES / "mpt_a100_40gb.csv"], fit=fit, splits=splits)
