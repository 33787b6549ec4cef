"""lab.instrument: lets a script describe its own steps, without loading torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.worker.script.hooks import StepRecorder

# Set by the lab when it runs a script.
recorder: StepRecorder | None = None


class Meter:
    """Phases and ends of steps that a script marks itself."""

    def data(self) -> AbstractContextManager[None]:
        """The part of a step that waits for its batch."""
        return self._phase("data")

    def forward(self) -> AbstractContextManager[None]:
        """The forward pass with the loss."""
        return self._phase("forward")

    def backward(self) -> AbstractContextManager[None]:
        """The backward pass."""
        return self._phase("backward")

    def optimizer(self) -> AbstractContextManager[None]:
        """The update of the parameters."""
        return self._phase("optimizer")

    def end_step(self) -> None:
        """End a step of a script that trains without an optimizer of torch.optim."""
        if recorder is not None:
            recorder.end_step()

    def _phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if recorder is None else recorder.phase(name)


@contextmanager
def instrument(
    model: Any = None, optimizer: Any = None, *, samples_per_step: int | None = None
) -> Iterator[Meter]:
    """Describe a training loop to the lab: its model, its optimizer, the samples of a step.

    `samples_per_step` counts those of all ranks between two steps of `optimizer`, or of those that
    the script marks, including accumulation. If the script is not run by the lab, this does
    nothing.
    """
    if samples_per_step is not None and samples_per_step < 1:
        raise ValueError(f"samples_per_step is {samples_per_step}, but must be at least 1")
    if recorder is not None:
        if optimizer is not None:
            recorder.count_steps_of(optimizer)
        if model is not None:
            recorder.watch(model)
        recorder.samples_per_step = samples_per_step
    yield Meter()
