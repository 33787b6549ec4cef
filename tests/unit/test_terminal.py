"""Tables that verbs print, whatever records say and however wide a terminal is."""

from __future__ import annotations

import pytest

from lab import terminal


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
