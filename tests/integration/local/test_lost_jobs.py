"""Jobs whose ranks or files vanish at a moment when nothing else would notice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import await_steps
from studies import LONG, StudyMaker

import lab
from lab.config.study import Study
from lab.launch.attempt import Attempt
from lab.machine import began, is_running
from lab.records.store import Store

# Python loads this at the start of a rank, which executes {fault} once it begins to load torch.
SITE = """
import os, sys, threading
class Fault:
    def find_spec(self, name, path=None, target=None):
        if name == "lab.worker.main":
            {fault}
if os.environ.get("SUBMITIT_LOCAL_GLOBALID") == "{rank}":
    sys.meta_path.insert(0, Fault())
"""


@pytest.fixture
def faulty_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Makes a rank of later jobs execute a statement."""

    def make(rank: int, fault: str) -> None:
        site = tmp_path / "site"
        site.mkdir(exist_ok=True)
        with (site / "sitecustomize.py").open("a") as code:
            code.write(SITE.format(rank=rank, fault=fault))
        monkeypatch.setenv("PYTHONPATH", f"{site}:{Path(__file__).parents[3]}")

    return make


@pytest.mark.parametrize(("rank", "signal", "name"), [(0, 9, "SIGKILL"), (1, 11, "SIGSEGV")])
def test_a_rank_killed_before_the_group_forms_is_named_with_signal_and_phase(
    make_study: StudyMaker,
    faulty_rank: Callable[[int, str], None],
    rank: int,
    signal: int,
    name: str,
) -> None:
    """The others would wait for it for ten minutes."""
    faulty_rank(rank, f"os.kill(os.getpid(), {signal})")
    study = Study.load(make_study())
    (task,) = (task for task in study.tasks if task.run.world_size == 2)
    (record,) = lab.launch(study, tasks=[task]).wait(progress=False)
    assert record.error is not None and record.error.type == "RankLost"
    assert record.error.rank == rank
    assert record.error.message.startswith(f"rank {rank} was killed by {name}")
    assert record.error.message.endswith("in the phase 'loading torch'")
    assert record.duration_s is None or record.duration_s < 60


def test_ranks_do_not_wait_for_one_that_cannot_write_how_it_ended(
    make_study: StudyMaker, faulty_rank: Callable[[int, str], None], tmp_path: Path
) -> None:
    """As on a full disk; they would wait for it for ten minutes."""
    faulty_rank(1, "pass")
    with (tmp_path / "site" / "sitecustomize.py").open("a") as site:  # for its parent too
        site.write(
            "if os.environ.get('SUBMITIT_LOCAL_GLOBALID') == '1':\n"
            "    import resource, signal\n"
            "    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        )
    study = Study.load(make_study())
    (task,) = (task for task in study.tasks if task.run.world_size == 2)
    (record,) = lab.launch(study, tasks=[task]).wait(progress=False)
    assert record.status == "failed"
    assert record.duration_s is None or record.duration_s < 60


def test_ranks_that_do_not_end_once_they_have_measured_are_ended(
    make_study: StudyMaker, faulty_rank: Callable[[int, str], None], tmp_path: Path
) -> None:
    """Here they wait for a thread that somebody has forgotten."""
    for rank in range(2):
        faulty_rank(rank, "threading.Thread(target=threading.Event().wait).start()")
    profile = tmp_path / "patient.yaml"
    profile.write_text("executor: local\ndevice: cpu\ndevices: 2\nhang_timeout_s: 10\n")
    study = Study.load(make_study())
    (task,) = (task for task in study.tasks if task.run.world_size == 2)
    (record,) = lab.launch(study, str(profile), tasks=[task]).wait(progress=False)
    assert record.completed and record.environment is not None
    attempt = Attempt(Store(study.out).folder(task), record.environment.job_id)
    for rank in range(2):
        assert "still ran 10 s after the measurement" in attempt.log_tail(rank)
    assert not attempt.running_ranks() and not attempt.errors()


def test_a_job_whose_files_are_removed_ends_itself(make_study: StudyMaker) -> None:
    study = Study.load(make_study(base=LONG, grid={"world_size": [2]}, baseline={"world_size": 2}))
    code = f"import lab; lab.launch(lab.Study.load({str(study.folder)!r})).wait(progress=False)"
    driver = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    await_steps(study, study.tasks[0])
    driver.kill()
    driver.wait()
    folder = Store(study.out).folder(study.tasks[0])
    job = json.loads((folder / "job.json").read_text())
    ranks = Attempt(folder, job["job_id"]).running_ranks()
    processes = {pid: began(pid) for pid in (job["pid"], *ranks)}
    assert len(processes) == 3
    # Beside other processes, each gets its share of its core, whatever the other rank does.
    assert all(os.getsid(rank) == rank for rank in ranks)
    shutil.rmtree(study.out)
    deadline = time.monotonic() + 300
    while running := [pid for pid, since in processes.items() if is_running(pid, since)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.5)
    assert not study.out.exists()
