"""Tables in the shapes and words of papers, READMEs and spreadsheets, clean and with one error.

A table under `planted` is named after the only rule that it breaks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from audits import broken

from lab.analysis.audit import RULES, audit

TABLES = Path(__file__).parents[2] / "fixtures" / "audit_tables"
CLEAN, PLANTED = (sorted((TABLES / kind).iterdir()) for kind in ("clean", "planted"))


def named(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("path", CLEAN, ids=named)
def test_a_clean_table_brings_no_error_and_no_warning(path: Path) -> None:
    result = audit(path)
    assert broken(result) == set(), str(result)
    # Silence without a rule that could speak is no verdict.
    assert len(result.not_checked) <= len(RULES) - 3, str(result)


@pytest.mark.parametrize("path", PLANTED, ids=named)
def test_a_planted_error_is_found_and_nothing_else(path: Path) -> None:
    assert broken(audit(path)) == {path.stem}


def test_the_tables_are_many_and_the_planted_rules_differ() -> None:
    assert len(CLEAN) >= 12 and len({path.stem for path in PLANTED}) >= 12
