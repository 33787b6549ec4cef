"""The cost of a report of many runs: synthetic records, reported in a measured process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import yaml

from lab.config.study import Study, Task
from lab.errors import LabError
from lab.records.schema import PHASES, Communication, Environment, Memory, Quality, Timing
from lab.records.statistics import stat
from lab.records.store import Record, Store, write_record

LIMIT_RUNS, LIMIT_S, LIMIT_BYTES, LIMIT_PAGE = 1000, 60.0, 1e9, 5e6
LIMITS = (
    f"{LIMIT_RUNS:,} runs in {LIMIT_S:.0f} s and {LIMIT_BYTES / 1e9:.0f} GB, "
    f"a page of {LIMIT_PAGE / 1e6:.0f} MB"
)
SAMPLE_S = 0.05
WORLD_SIZES, BATCHES = (1, 2, 4, 8, 16), (64, 128, 256, 512)
_SHARES = {"data": 0.01, "h2d": 0.0, "forward": 0.3, "optimizer": 0.1, "other": 0.02}
_CHILD = """
import json, sys, time
import lab
began = time.perf_counter()
report = lab.report(lab.Study.load(sys.argv[1]))
seconds = time.perf_counter() - began
sizes = {"page_bytes": report.html.stat().st_size, "pdf_bytes": report.pdf.stat().st_size}
print(json.dumps({"seconds": seconds, **sizes}))
"""


@dataclass(frozen=True)
class ReportCost:
    """The cost and size of a report of a study with `runs` jobs of a given number of steps.

    `peak_bytes` is the largest sum over the process and its children at one moment.
    """

    runs: int
    steps: int
    seconds: float
    peak_bytes: int
    page_bytes: int
    pdf_bytes: int

    @property
    def within_limits(self) -> bool:
        """Whether time, memory and page are below their limits, in proportion to the runs."""
        share = max(self.runs / LIMIT_RUNS, 1.0)
        values = self.seconds, self.peak_bytes, self.page_bytes
        limits = LIMIT_S, LIMIT_BYTES, LIMIT_PAGE
        return all(value <= share * limit for value, limit in zip(values, limits, strict=True))

    def row(self) -> dict[str, int | float]:
        """The same, for display."""
        return {
            "runs": self.runs,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "ms per run": round(1e3 * self.seconds / self.runs, 1),
            "peak (MB)": round(self.peak_bytes / 1e6),
            "page (MB)": round(self.page_bytes / 1e6, 2),
            "PDF (MB)": round(self.pdf_bytes / 1e6, 2),
        }


def report_costs(*, runs: int = LIMIT_RUNS, steps: int = 60) -> list[ReportCost]:
    """Report synthetic studies of a quarter, a half and all of `runs`, and of ten times the steps.

    Raises LabError if a report fails.
    """
    sizes = [(runs // 4, steps), (runs // 2, steps), (runs, steps), (runs, 10 * steps)]
    return [_cost(*size) for size in sizes]


def _cost(runs: int, steps: int) -> ReportCost:
    with tempfile.TemporaryDirectory(prefix="lab-bench-") as folder:
        study = made_up_study(Path(folder), runs=runs, steps=steps)
        command = [sys.executable, "-c", _CHILD, str(study.folder)]
        with (Path(folder) / "errors").open("w+") as errors:
            report = psutil.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            peak_bytes = _peak_bytes(report)
            output, _ = report.communicate()
            if report.returncode:
                errors.seek(0)
                raise LabError(
                    f"the report of {runs} runs failed:\n{errors.read()[-2000:].strip()}"
                )
        return ReportCost(len(study.tasks), steps, peak_bytes=peak_bytes, **json.loads(output))


def _peak_bytes(process: psutil.Popen) -> int:
    """The largest resident memory of a process with its children until it ends, in bytes."""
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            family = [process, *process.children(recursive=True)]
            peak = max(peak, sum(one.memory_info().rss for one in family))
        time.sleep(SAMPLE_S)
    return peak


def made_up_study(folder: Path, *, runs: int, steps: int) -> Study:
    """A study of a number of runs (rounded up to whole curves) with synthetic records."""
    rates = -(-runs // (len(WORLD_SIZES) * len(BATCHES)))
    content = {
        "title": f"{runs} made-up runs",
        "question": "How long does the report take?",
        "scaling": "strong",
        "base": {"model": "gpt-nano", "steps": steps, "warmup_steps": steps // 6},
        "grid": {
            "learning_rate": [round(1e-3 * (1 + nth / 100), 7) for nth in range(rates)],
            "global_batch_size": list(BATCHES),
            "world_size": list(WORLD_SIZES),
        },
        "repeats": 1,
        "baseline": {"world_size": 1},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    study = Study.load(folder)
    store, rng = Store(study.out), np.random.default_rng(0)
    for task in study.tasks:
        target = store.folder(task)
        target.mkdir(parents=True)
        write_record(_record(task, rng), target)
    return study


def _record(task: Task, rng: np.random.Generator) -> Record:
    """A run by Amdahl's law with noise: everything that the report uses, and no more."""
    run, batch = task.run, task.run.stated.global_batch_size
    compute = 1e-3 * batch * (0.1 + 0.9 / run.world_size)
    wait = compute * 0.05 * (run.world_size > 1)
    values = {name: share * compute for name, share in _SHARES.items()}
    values["backward"] = compute + wait - sum(values.values())
    step = sum(values.values())
    noise = rng.normal(1, 0.01, (8, 1 + len(PHASES)))
    times = {"step": step, **{phase: values[phase] for phase in PHASES}}
    stats = {name: stat(time * noise[:, nth]) for nth, (name, time) in enumerate(times.items())}
    losses = 3 + 5 * np.exp(-3 * np.arange(run.steps) / run.steps) * rng.normal(1, 0.01, run.steps)
    communication = None
    if run.world_size > 1:
        communication = Communication(
            total=stat(2 * wait * noise[:, 0]),
            exposed=stat(wait * noise[:, 0]),
            bytes=5_200_000,
            bytes_moved=5_200_000,
        )
    return Record(
        run_id=run.id,
        repeat=task.repeat,
        run=run,
        status="completed",
        started_at="2025-01-01T00:00:00+00:00",
        finished_at="2025-01-01T00:01:00+00:00",
        environment=Environment(
            cluster="local",
            hosts=["made-up"] * run.world_size,
            device="cpu",
            backend="gloo" if run.world_size > 1 else None,
            cpu="made up",
            cpu_count=max(WORLD_SIZES),
            cpus_granted=[[rank] for rank in range(run.world_size)],
            threads_per_rank=1,
            versions={},
            data_description="made up",
            foreign_cpu=0.0,
        ),
        timing=Timing(
            step=stats.pop("step"),
            phases=stats,
            per_rank={name: [time] * run.world_size for name, time in times.items()},
            slowest_rank=0,
            measured_steps=run.steps - run.warmup_steps,
            warmup_steps=run.warmup_steps,
            setup_time=2.0,
            train_time=step * (run.steps - run.warmup_steps),
            samples_per_second=batch / step,
            flops_per_second=None,
            mfu=None,
            peak_flops_per_second=None,
            peak_source=None,
        ),
        communication=communication,
        memory=Memory(kind="resident", peak=[400_000_000] * run.world_size, parameters=5_200_000),
        quality=Quality(loss=losses.tolist(), validation_loss=float(losses[-1])),
    )
