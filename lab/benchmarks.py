"""Benchmarks of the lab itself: what its measuring costs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from lab.errors import LabError
from lab.records import Stat
from lab.study import Run

LIMIT = 1.01  # of the step time with measuring to that without
WARMUP = 5
RATIOS = ("ratio", "control", "cpu_ratio", "cpu_control")


@dataclass(frozen=True)
class Overhead:
    """Step time of the lab's training loop over that of a plain one, paired round by round; `control` is plain over plain."""

    world_size: int
    rounds: int
    ratio: Stat
    control: Stat
    cpu_ratio: Stat  # the same of CPU time, all ranks together
    cpu_control: Stat
    step_s: dict[str, float]  # medians of "instrumented", "plain", "control"
    largest_loss_difference: float  # between the two loops, over all steps

    @property
    def within_limit(self) -> bool:
        """Whether the ratio is LIMIT at most."""
        return self.ratio.median <= LIMIT

    def __str__(self) -> str:
        ratio, control, cpu = (f"{found.median:.4f}{_interval(found)}" for found in (self.ratio, self.control, self.cpu_ratio))
        step = f"{self.step_s['instrumented'] * 1e3:.1f} ms against {self.step_s['plain'] * 1e3:.1f} ms"
        return (
            f"instrumented / plain: {ratio}, limit {LIMIT}; plain / plain: {control}; CPU time: {cpu}; "
            f"{self.rounds} rounds on {self.world_size} ranks, median step {step}"
        )


def overhead(*, world_size: int = 2, rounds: int = 200, quick: bool = False) -> Overhead:
    """Measure what measuring costs a small GPT on CPU ranks of this machine, in `rounds` rounds (`quick`: 40).

    Raises LabError where the ranks fail.
    """
    steps = WARMUP + 1 + (40 if quick else rounds)
    asked = {"micro_batch_size": 8, "world_size": world_size, "steps": steps, "warmup_steps": WARMUP}
    run = Run.model_validate(asked)
    done = subprocess.run(
        [sys.executable, "-m", "lab.worker.overhead", run.model_dump_json()], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LabError(f"the ranks of the benchmark failed:\n{done.stderr.strip()[-2000:]}")
    found = json.loads(done.stdout)
    return Overhead(**found | {name: Stat.model_validate(found[name]) for name in RATIOS})


def _interval(found: Stat) -> str:
    return "" if found.interval is None else f" [{found.interval[0]:.4f}, {found.interval[1]:.4f}]"
