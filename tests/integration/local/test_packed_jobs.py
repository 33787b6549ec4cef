"""Two drivers share eight emulated devices: real jobs of 1, 2, 4 and 8 of them, beside each other."""

from __future__ import annotations

from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from studies import StudyMaker

import lab
from lab.config.study import Study, Task
from lab.launch.attempt import Attempt
from lab.launch.bench_driver import intervals
from lab.launch.executor import read_job
from lab.records.store import Record, Store

pytestmark = pytest.mark.long
BASE = {
    "model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 16, "block_size": 16},
    "data": "synthetic",
    "steps": 6,
    "warmup_steps": 1,
    "eval_batches": 1,
}


class Held(NamedTuple):
    began: float
    ended: float
    devices: tuple[int, ...]


def held(study: Study, record: Record) -> Held:
    folder = Store(study.out).folder(Task(record.run, record.repeat))
    job = read_job(folder)
    assert job is not None and job.executor == "local"
    start = Attempt(folder, job.job_id).start()
    assert start is not None and record.started_at is not None
    moments = (record.started_at, record.finished_at)
    began, ended = (datetime.fromisoformat(moment).timestamp() for moment in moments)
    return Held(began, ended, start.devices)


def test_jobs_of_two_drivers_share_a_host_and_no_device(
    make_study: StudyMaker, tmp_path: Path
) -> None:
    profile = tmp_path / "eight.yaml"
    content = {"executor": "local", "devices": 8, "compute": {"emulated": "A100"}}
    profile.write_text(yaml.safe_dump(content | {"pack_jobs": True}))
    grids = {"mixed": [1, 2, 4, 8], "small": [1, 2]}
    studies = [
        Study.load(
            make_study(name, base=BASE, grid={"global_batch_size": [8], "world_size": n}, repeats=2)
        )
        for name, n in grids.items()
    ]
    running = [lab.launch(study, str(profile)) for study in studies]
    measured = [
        (record, held(study, record))
        for study, jobs in zip(studies, running, strict=True)
        for record in jobs.wait(progress=False)
    ]
    assert [record.error for record, _ in measured] == [None] * 12
    for record, one in measured:
        assert len(one.devices) == record.run.world_size
        assert set(one.devices) <= set(range(8))
    for (_, one), (_, other) in combinations(measured, 2):
        if set(one.devices) & set(other.devices):
            assert one.ended <= other.began or other.ended <= one.began
    mixed = intervals(studies[0])
    # The two jobs of one device run together, before any is predicted; then the largest go first.
    assert [one.devices for one in mixed] == [1, 1, 8, 8, 4, 4, 2, 2]
    together = [
        (a, b) for a, b in combinations(mixed, 2) if a.began < b.ended and b.began < a.ended
    ]
    assert {(a.devices, b.devices) for a, b in together} >= {(1, 1), (4, 4)}
