"""What every verb prints: tables, and output that goes nowhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from studies import StudyMaker

from lab import terminal


def test_an_encoding_without_a_letter_ends_no_command() -> None:
    code = "from lab import terminal; terminal.answer(False, None, '± µs')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert ended.stdout == b"\\xb1 \\xb5s\n"


@pytest.mark.parametrize("columns", ["0", "1", "12"])
def test_a_narrow_terminal_loses_nothing(columns: str) -> None:
    rows = dict.fromkeys(("run", "state", "seconds", "reason"), "shown")
    table = f"from lab import terminal; terminal.answer(False, None, terminal.table_of([{rows}]))"
    command = [sys.executable, "-c", f"{table}; from lab.__main__ import main; main()"]
    ended = subprocess.run(
        [*command, "plan", "no-such-study"],
        env={**os.environ, "COLUMNS": columns},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split() == [*rows, *rows.values()]
    assert ended.returncode == 2 and "no such study" in ended.stderr


def test_what_a_record_says_cannot_command_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    title = "\x1b]0;owned\x07"
    rows = [{"reason": f"{title}lost\x1b[31m"}]
    terminal.answer(False, None, f"{title}text", terminal.table_of(rows))
    printed = capsys.readouterr().out
    assert "\x1b]" not in printed and "owned" not in printed and "[31m" not in printed
    assert "text" in printed and "lost" in printed


@pytest.mark.parametrize("reason", ["", "out of memory", "two\nlines", "値が足りない"])
def test_a_table_looks_the_same_however_it_is_laid_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    rows: list[dict[str | int, object]] = [
        {"run": "[red]a", "seconds": None, "share": "12.5 %", "none": None, "reason": reason, 4: 2},
        {"run": "b", "seconds": 1.25, "share": "3 %", "none": None, "reason": "killed", 4: 1},
    ]
    printed = []
    apart = " " * terminal.WIDE  # columns so far apart do not fit without folding
    for gap in (terminal.GAP, apart):
        monkeypatch.setattr(terminal, "GAP", gap)
        terminal.answer(False, None, terminal.table_of(rows))
        printed.append([line.rstrip() for line in capsys.readouterr().out.splitlines()])
    assert printed[0] == printed[1] and printed[0][1].startswith("[red]a") and len(printed[0]) >= 3


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [(">&-", 0, ""), ("> /dev/full", 1, "lab: output: No space left on device\n")],
)
def test_output_that_goes_nowhere(
    make_study: StudyMaker, redirection: str, status: int, message: str
) -> None:
    command = f"{sys.executable} -m lab status {make_study()} {redirection}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (status, message)
