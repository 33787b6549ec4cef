"""What is said of a run while it goes on."""

from __future__ import annotations

from lab.jobs.states import TaskState
from lab.progress import clock

TRAINING = ("warm-up", "measuring")


class Pace:
    """How fast steps follow each other, from the steps seen so far."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, float]] = []

    def left(self, step: int, steps: int, *, now: float) -> float | None:
        """Seconds until the last of `steps`, at `now` in s; None until two different steps have been seen."""
        if not self._seen or step > self._seen[-1][0]:
            self._seen.append((step, now))
        (first, began), (last, latest) = self._seen[0], self._seen[-1]
        if first == last:
            return None
        return max((steps - last) * (latest - began) / (last - first) - (now - latest), 0.0)


def done(state: TaskState) -> int:
    """Steps to show as done."""
    return state.step if state.phase in TRAINING else state.task.run.steps * (state.phase == "evaluating")


def told(state: TaskState, pace: Pace, *, now: float, ours: bool) -> str:
    """One line: phase, step, time left at `now` in s, loss, and whether another program than this one drives the run."""
    run = state.task.run
    words = [f"{run.label}: {state.phase or state.state}"]
    if state.phase in TRAINING:
        left = pace.left(state.step, run.steps, now=now)
        words += [f"step {state.step} of {run.steps}", "" if left is None else f"about {clock(left)} of steps left"]
        words += ["" if state.loss is None else f"loss {state.loss:.3f}"]
    words += ["" if ours else "another program drives it and can cancel it"]
    return ", ".join(filter(None, words))
