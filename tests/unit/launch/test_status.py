"""Progress in a log: a line for every run that ends."""

from __future__ import annotations

import pytest
from factories import run

from lab.config.study import Task
from lab.launch.status import StudyDisplay, TaskState

TASK = Task(run(), 0)


def lines(capsys: pytest.CaptureFixture[str], *states: str) -> list[str]:
    """The lines of a display that sees one run in these states, the first when it begins."""
    coming = [[TaskState(TASK, state, seconds=3.0)] for state in states]
    with StudyDisplay(lambda: coming[0]) as display:
        while len(coming) > 1:
            display.update()
            coming.pop(0)
    return capsys.readouterr().out.splitlines()


def test_a_run_is_told_once_when_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "waiting", "running", "completed", "completed") == [
        f"[1/1] {TASK.label}: completed in 3 s"
    ]


def test_what_was_measured_before_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "completed", "completed") == []


def test_what_is_measured_anew_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(lines(capsys, "completed", "waiting", "running", "completed")) == 1
