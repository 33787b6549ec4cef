"""What is said of a run while it goes on."""

from __future__ import annotations

import factories
import pytest

from lab.config.study import Task
from lab.dashboard import progress
from lab.dashboard.progress import Pace
from lab.launch.status import TaskState

TASK = Task(factories.run(2, 16), 0)


def test_pace_is_that_of_the_steps_seen() -> None:
    pace = Pace()
    assert pace.left(3, 10, now=100.0) is None
    assert pace.left(3, 10, now=101.0) is None
    assert pace.left(5, 10, now=104.0) == pytest.approx(5 * 2.0)
    assert pace.left(5, 10, now=105.0) == pytest.approx(9.0)
    assert pace.left(5, 10, now=999.0) == 0.0


def test_a_step_is_told_with_its_loss() -> None:
    pace = Pace()
    pace.left(3, 30, now=0.0)
    state = TaskState(TASK, "running", "measuring", 5, loss=3.4159)
    line = progress.progress_line(state, pace, now=4.0, ours=True)
    assert line.endswith("measuring, step 5 of 30, about 50 s of steps left, loss 3.416")
    assert progress.done(state) == 5


@pytest.mark.parametrize(
    ("state", "words"),
    [(TaskState(TASK, "pending"), "pending"), (TaskState(TASK, "running", "data"), "data")],
)
def test_without_steps_neither_step_nor_loss_is_told(state: TaskState, words: str) -> None:
    line = progress.progress_line(state, Pace(), now=0.0, ours=False)
    assert line == f"{TASK.run.label}: {words}, another program drives it and can cancel it"
    assert progress.done(state) == 0
