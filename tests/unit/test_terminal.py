"""Tables that verbs print, whatever records say and however wide a terminal is."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

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
    capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    rows: list[dict[Any, object]] = [
        {"run": "[red]a", "seconds": None, "share": "12.5 %", "none": None, "reason": reason, 4: 2},
        {"run": "b", "seconds": 1.25, "share": "3 %", "none": None, "reason": "killed", 4: 1},
    ]
    folded = dict.fromkeys(rows[0], "") | {"run": "a\nb"}  # only Rich lays out such a cell
    printed = []
    for more in ([], [folded]):
        terminal.answer(False, None, terminal.table_of([*rows, *more]))
        printed.append([line.rstrip() for line in capsys.readouterr().out.splitlines()])
    assert printed[1][:-2] == printed[0] and len(printed[0]) >= 3
    assert printed[0][1].startswith("[red]a")


def test_words_stay_whole_where_a_table_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "console", Console(width=40))
    rows = [{"run": "d521bc7260", "configuration": "gpt ddp x1, batch 8", "step_time_ms": "9.5 ms"}]
    terminal.answer(False, None, terminal.table_of(rows))
    words = capsys.readouterr().out.split()
    assert {"configuration", "d521bc7260", "step", "(ms)"} <= set(words)
    widest = [{"name": "a" * 50, "step": "100.0 %"}]
    terminal.answer(False, None, terminal.table_of(widest))
    printed = capsys.readouterr().out
    assert "100.0 %" in printed and printed.count("a") == 50 + "name".count("a")


def test_a_table_that_would_break_words_in_several_columns_is_a_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "console", Console(width=40))
    names = ["run", "configuration", "predicted", "state", "completed", "reason"]
    rows = [dict.fromkeys(names, "somewhere") | {"reason": ""}, dict.fromkeys(names, "elsewhere")]
    terminal.answer(False, None, terminal.table_of(rows))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run: somewhere" and lines[1] == "  configuration: somewhere"
    assert len(lines) == 5 + 6 and lines[-1] == "  reason: elsewhere"


def test_heads_are_broken_before_cells(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "console", Console(width=40))
    rows = [
        {"": "ok", "run": "d521bc7260", "configuration": "ddp", "measured": "3/3", "completed": 3}
    ]
    terminal.answer(False, None, terminal.table_of(rows))
    head, *rest = capsys.readouterr().out.splitlines()
    assert "configuration" not in head and rest[-1].split() == [
        "ok",
        "d521bc7260",
        "ddp",
        "3/3",
        "3",
    ]
