"""Progress of a study: a live display in a terminal or a notebook, a line per run anywhere else."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lab.jobs.states import TaskState
    from lab.launch import Jobs

_STYLES = {"completed": "green", "running": "cyan", "pending": "yellow", "waiting": "dim"}


class Display:
    """Shows the states of jobs until they are done; `enabled=False` shows nothing."""

    def __init__(self, jobs: Jobs, *, enabled: bool = True) -> None:
        self._jobs, self._enabled = jobs, enabled
        self._console = Console()
        self._live: Live | None = None
        self._told: set[int] = set()

    def __enter__(self) -> Self:
        if self._enabled and (self._console.is_terminal or self._console.is_jupyter):
            self._live = Live(console=self._console, refresh_per_second=5, transient=True)
            self._live.start()
        elif self._enabled:
            self._told = {i for i, state in enumerate(self._jobs.states()) if state.state == "completed"}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.update()
        if self._live is not None:
            self._live.stop()

    def update(self) -> None:
        """Show the states of now."""
        if not self._enabled:
            return
        states = self._jobs.states()
        if self._live is not None:
            self._live.update(render(states))
            return
        for i, state in enumerate(states):
            if not state.ended:
                self._told.discard(i)  # what is measured anew is told anew
            elif i not in self._told:
                self._told.add(i)
                took = f" in {state.seconds:.0f} s" if state.seconds is not None else ""
                self._console.print(
                    f"[{len(self._told)}/{len(states)}] {state.task.label}: {state.state}{took}", highlight=False, soft_wrap=True
                )


def render(states: list[TaskState]) -> Group:
    """The whole study in two lines: how many runs are where, and what the running ones do."""
    from lab.jobs.states import time_left

    counts = Counter(state.state for state in states)
    ended = sum(state.ended for state in states)
    left = time_left(states)
    summary = Text(f"{ended} of {len(states)} runs", style="bold")
    for name, count in counts.items():
        summary.append(f"  {count} {name}", style=_STYLES.get(name, "red"))
    summary.append(f"  about {clock(left)} left" if left is not None and ended < len(states) else "", style="dim")
    rows = Table.grid(padding=(0, 2))
    rows.add_row(summary, ProgressBar(total=len(states), completed=ended, width=30))
    for state in states:
        if state.state == "running":
            steps = state.task.run.steps
            bar = ProgressBar(total=steps, completed=state.step, width=30)
            rows.add_row(Text(f"{state.task.label}: {state.phase} {state.step}/{steps}", style="cyan"), bar)
    return Group(rows)


def clock(seconds: float) -> str:
    """A duration for people: 45 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
