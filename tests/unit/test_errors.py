"""What an error says in one line."""

from __future__ import annotations

import pytest

from lab.errors import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("\n no kernel\nraised at line 7\n"), "no kernel"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)
def test_an_error_is_told_by_its_first_line_or_its_type(error: Exception, line: str) -> None:
    assert first_line(error) == line
