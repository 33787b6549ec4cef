"""lab bench report: what status, plan, audit and report of many made-up runs cost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import yaml

from lab.config.study import STUDY_FILE, Study, Task
from lab.errors import LabError
from lab.records.schema import PHASES, Communication, Environment, Memory, Quality, Timing
from lab.records.statistics import stat
from lab.records.store import Record, Store, write_record

SIZES = (10, 100, 1000, 3000)  # runs
STEPS, LONG_STEPS = 60, 100_000
MOST_LONG = 100  # runs of LONG_STEPS: their losses alone take 200 MB on disk
# For studies of up to 1,000 runs; beyond, limits grow in proportion.
LIMIT_RUNS = 1000
LIMITS_S = {"status": 1.0, "plan": 3.0, "audit": 5.0, "report": 60.0}
LIMIT_BYTES, LIMIT_PAGE = 1e9, 5e6
LIMITS = ", ".join(f"{verb} {limit:.0f} s" for verb, limit in LIMITS_S.items()) + (
    f", {LIMIT_BYTES / 1e9:.0f} GB and a page of {LIMIT_PAGE / 1e6:.0f} MB for {LIMIT_RUNS:,} runs"
)
SAMPLE_S = 0.05
WORLD_SIZES, BATCHES = (1, 2, 4, 8, 16), (64, 128, 256, 512)
REPEATED = 2 * len(WORLD_SIZES)  # configurations of a study of many repeats
_SHARES = {"data": 0.01, "h2d": 0.0, "forward": 0.3, "optimizer": 0.1, "other": 0.02}


@dataclass(frozen=True)
class Shape:
    """A study's size: runs of `steps` steps, each configuration `repeats` times."""

    name: str
    configurations: int
    repeats: int
    steps: int

    @property
    def runs(self) -> int:
        """Jobs of the study."""
        return self.configurations * self.repeats


@dataclass(frozen=True)
class Cost:
    """The time of each verb in s for a study of a shape, and the memory and size of its report.

    `peak_bytes` is the largest sum over the report's process and its children at one moment.
    """

    shape: Shape
    seconds: dict[str, float]
    peak_bytes: int
    page_bytes: int
    pdf_bytes: int

    @property
    def within_limits(self) -> bool:
        """Whether times, memory and page are below their limits, in proportion to the runs."""
        share = max(self.shape.runs / LIMIT_RUNS, 1.0)
        values = [self.seconds[verb] for verb in LIMITS_S] + [self.peak_bytes, self.page_bytes]
        limits = [*LIMITS_S.values(), LIMIT_BYTES, LIMIT_PAGE]
        return all(value <= share * limit for value, limit in zip(values, limits, strict=True))

    def row(self) -> dict[str, str | int | float]:
        """The same, for display."""
        return {
            "many": self.shape.name,
            "runs": self.shape.runs,
            "repeats": self.shape.repeats,
            "steps": self.shape.steps,
            **{f"{verb} (s)": round(seconds, 1) for verb, seconds in self.seconds.items()},
            "peak (MB)": round(self.peak_bytes / 1e6),
            "page (MB)": round(self.page_bytes / 1e6, 2),
            "PDF (MB)": round(self.pdf_bytes / 1e6, 2),
        }


def shapes(runs: int) -> Iterator[Shape]:
    """Studies of up to a number of runs: many configurations, many repeats, many steps."""
    sizes = [*(size for size in SIZES if size < runs), runs]
    for size in sizes:
        yield Shape("configurations", size, 1, STEPS)
    for size in sizes:
        yield Shape("repeats", REPEATED, max(size // REPEATED, 1), STEPS)
    for size in sizes:
        if size <= MOST_LONG:
            yield Shape("steps", size, 1, LONG_STEPS)


def costs(runs: int = SIZES[-1]) -> Iterator[Cost]:
    """The costs of made-up studies of each of `shapes`, one after the other.

    Raises LabError if a verb fails.
    """
    for shape in shapes(runs):
        with tempfile.TemporaryDirectory(prefix="lab-bench-") as folder:
            yield _cost(made_up_study(Path(folder), shape), shape)


def _cost(study: Study, shape: Shape) -> Cost:
    seconds, peaks = {}, {}
    for verb in LIMITS_S:
        seconds[verb], peaks[verb] = _measured(verb, study.folder)
    page, pdf = (next(study.out.glob(f"report.{suffix}")) for suffix in ("html", "pdf"))
    return Cost(shape, seconds, peaks["report"], page.stat().st_size, pdf.stat().st_size)


def _measured(verb: str, folder: Path) -> tuple[float, int]:
    """The time of a verb in s and its peak memory in bytes; raises LabError if it fails."""
    findings = {1} if verb == "audit" else set()  # what was measured once is one
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-m", "lab", verb, str(folder)]
        process = psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        peak_bytes = _peak_bytes(process)
        seconds = time.perf_counter() - began
        if process.returncode not in {0} | findings:
            output.seek(0)
            raise LabError(f"lab {verb} failed:\n{output.read()[-2000:].strip()}")
    return seconds, peak_bytes


def _peak_bytes(process: psutil.Popen) -> int:
    """The largest resident memory of a process with its children until it ends, in bytes."""
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            family = [process, *process.children(recursive=True)]
            peak = max(peak, sum(one.memory_info().rss for one in family))
        time.sleep(SAMPLE_S)
    return peak


def made_up_study(folder: Path, shape: Shape) -> Study:
    """A study of a shape (rounded up to whole curves) with synthetic records."""
    curves = -(-shape.configurations // len(WORLD_SIZES))
    batches = BATCHES[:curves]
    content = {
        "title": f"{shape.runs} made-up runs",
        "question": "How long does the report take?",
        "scaling": "strong",
        "base": {"model": "gpt-nano", "steps": shape.steps, "warmup_steps": shape.steps // 6},
        "grid": {
            "learning_rate": [
                round(1e-3 * (1 + nth / 100), 7) for nth in range(-(-curves // len(batches)))
            ],
            "global_batch_size": list(batches),
            "world_size": list(WORLD_SIZES),
        },
        "repeats": shape.repeats,
        "baseline": {"world_size": 1},
    }
    (folder / STUDY_FILE).write_text(yaml.safe_dump(content))
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
