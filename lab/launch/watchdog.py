"""A rank's progress, and its end where there is none for too long."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from lab.files import write_atomically
from lab.launch.attempt import Attempt, RankError
from lab.worker.context import RankContext

# Frames in which a rank waits for the others; they mark it as a victim of a hang and not its cause.
_WAITING = (
    "_engine_run_backward",
    "all_reduce",
    "barrier",
    "all_gather",
    "gather_object",
    "broadcast",
)

# A file may take its time on a busy disk; a rank that wrote it between its steps would keep the others waiting.
PUBLISH_S = 0.5
_STEPPING = ("warm-up", "measuring", "evaluating", "comparing")


class Watchdog:
    """Publishes a rank's progress and ends the rank when there has been none for too long.

    `steps` is how many there are in all; `given_up` is called before the rank is ended.
    """

    def __init__(
        self, place: RankContext, attempt: Attempt, *, steps: int, given_up: Callable[[], None]
    ) -> None:
        self._place, self._attempt, self._steps, self._given_up = place, attempt, steps, given_up
        self._last = time.monotonic()
        self._told: tuple[str, int, int, float | None] = ("starting", 0, steps, None)
        self._stopped = threading.Event()
        self._main = threading.get_ident()

    def start(self) -> None:
        """Begin to watch."""
        self.progress("loading torch", 0, self._steps)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        if self._place.rank == 0:
            threading.Thread(target=self._publish, name="progress", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer: what follows has its own time limit."""
        self._stopped.set()

    @property
    def phase(self) -> str:
        """What the rank does."""
        return self._told[0]

    def progress(self, phase: str, step: int, steps: int, loss: float | None = None) -> None:
        """Note that the rank goes on, which costs the step nothing: it is published twice a second, beside the training."""
        self._last = time.monotonic()
        self._told = (phase, step, steps, loss)

    def _watch(self) -> None:
        while not self._stopped.wait(1.0):
            limit = (
                self._place.timeout_s if self.phase in _STEPPING else self._place.start_timeout_s
            )
            if time.monotonic() - self._last > limit:
                self._give_up(limit)

    def _publish(self) -> None:
        published = None
        while not self._stopped.wait(PUBLISH_S if published else 0.0):
            if published is not self._told:
                published = self._told
                content = dict(zip(("phase", "step", "steps", "loss"), published, strict=True)) | {
                    "time": time.time()
                }
                with contextlib.suppress(
                    OSError
                ):  # a full disk ends the run where something is lost by it
                    write_atomically(
                        self._attempt.folder / "progress.json",
                        json.dumps(content).encode(),
                        durable=False,
                    )

    def _give_up(self, limit: float) -> None:
        frame = sys._current_frames().get(self._main)
        stack = traceback.extract_stack(frame) if frame else []
        where = (
            f" in {stack[-1].name} ({Path(stack[-1].filename).name}:{stack[-1].lineno})"
            if stack
            else ""
        )
        message = f"no progress for {limit:.0f} s while {self.phase}; stood{where}"
        waiting = any(entry.name in _WAITING for entry in stack)
        text = "".join(traceback.format_list(stack))
        self._attempt.write_error(
            RankError(self._place.rank, "Hang", message, time.time(), text, waiting)
        )
        time.sleep(
            1.0
        )  # the ranks gave up together; let the cause be written before it is looked for
        self._given_up()
        os._exit(1)
