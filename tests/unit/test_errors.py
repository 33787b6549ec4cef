"""What an error says in one line, and in a notebook."""

from __future__ import annotations

import subprocess
import sys

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


def test_ipython_shows_an_error_for_people_without_the_labs_own_lines() -> None:
    code = "import lab; lab.Study.load('quikstart')"
    command = [sys.executable, "-m", "IPython", "--colors=nocolor", "--quick", "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 1 and "did you mean 'quickstart'?" in shown.stdout
    assert shown.stdout.startswith("InputError: quikstart") and shown.stdout.count("\n") == 1
