"""What the bench says of a run while it goes on: phase, step, time left."""

from __future__ import annotations

from lab.launch.status import TRAINING, TaskState, clock


class Pace:
    """The rate of steps."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, float]] = []

    def left(self, step: int, steps: int, *, now: float) -> float | None:
        """Seconds at `now` (s) until the last of `steps`; None before two different steps."""
        if not self._steps or step > self._steps[-1][0]:
            self._steps.append((step, now))
        (first, began), (last, latest) = self._steps[0], self._steps[-1]
        if first == last:
            return None
        return max((steps - last) * (latest - began) / (last - first) - (now - latest), 0.0)


def done(state: TaskState) -> int:
    """Steps to show as done."""
    if state.phase in TRAINING:
        return state.step
    return state.task.run.steps if state.phase == "evaluating" else 0


def progress_line(state: TaskState, pace: Pace, *, now: float, ours: bool) -> str:
    """Phase, step, time left at `now` (s), loss, and whether another program drives the run."""
    run = state.task.run
    words = [f"{run.label}: {state.phase or state.state}"]
    if state.phase in TRAINING:
        left = pace.left(state.step, run.steps, now=now)
        words += [f"step {state.step} of {run.steps}"]
        words += ["" if left is None else f"about {clock(left)} of steps left"]
        words += ["" if state.loss is None else f"loss {state.loss:.3f}"]
    words += ["" if ours else "another program drives it and can cancel it"]
    return ", ".join(filter(None, words))
