"""Replay: records made from the rows of a published table; such a cluster never executes a run."""

from __future__ import annotations

from collections.abc import Sequence

from lab.config.cluster import Cluster, Published, Row
from lab.config.run import Run
from lab.config.study import Study, Task
from lab.errors import InputError, Problem
from lab.launch.outcome import now
from lab.perfmodel.calibration import published_environment
from lab.perfmodel.flops import flops_per_sample
from lab.records.schema import Stat, Timing
from lab.records.store import Record, Store, write_record


def replay(study: Study, cluster: Cluster, tasks: Sequence[Task]) -> list[Record]:
    """Write the published times of these tasks as records.

    Raises InputError, before any is written, for runs that are not in the table.
    """
    assert cluster.published is not None
    records, problems = [], []
    for task in tasks:
        row = next((row for row in cluster.published.rows if _is_of(row, task.run)), None)
        if row is None:
            labels = dict.fromkeys(map(_label, cluster.published.rows[:6]))
            advice = f"it holds {'; '.join(labels) or 'times of all-reduces alone'}"
            what = "not in the table, and a replay runs nothing"
            problems.append(Problem(task.label, what, advice))
        elif task.repeat:
            what = "a published row counts as one repeat"
            problems.append(Problem("repeats", what, "set repeats: 1"))
        else:
            records.append(_record(task, row, cluster, cluster.published))
    if problems:
        raise InputError(study.name, problems)
    for record in records:
        write_record(record, Store(study.out).folder(record.task))
    return records


def _is_of(row: Row, run: Run) -> bool:
    values = {key: getattr(run.architecture, key, None) for key in row.where}
    values |= {key: getattr(run, key) for key in row.where if key in Run.model_fields}
    return values == row.where


def _label(row: Row) -> str:
    return ", ".join(f"{key} {value}" for key, value in row.where.items())


def _record(task: Task, row: Row, cluster: Cluster, published: Published) -> Record:
    run, slowest = task.run, max(row.times)
    rate = run.stated.global_batch_size / slowest
    tokens = getattr(run.architecture, "block_size", None)
    return Record(
        run_id=run.id,
        repeat=task.repeat,
        run=run,
        status="completed",
        finished_at=now(),
        environment=published_environment(cluster, published, run.world_size),
        timing=Timing(
            step=Stat(median=slowest, p10=slowest, p90=slowest, interval=None),
            phases={},
            per_rank={"step": row.times},
            slowest_rank=row.times.index(slowest),
            measured_steps=row.steps,
            warmup_steps=0,
            setup_time=None,
            train_time=slowest * row.steps,
            samples_per_second=rate,
            tokens_per_second=tokens * rate if tokens else None,
            flops_per_second=flops_per_sample(run) * rate,
            mfu=None,
            peak_flops_per_second=None,
            peak_source=None,
        ),
    )
