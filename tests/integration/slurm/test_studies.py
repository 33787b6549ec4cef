"""Whole studies on a real Slurm: the same records whoever is killed, restarted, drained, preempted or watches twice."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from daemons import Slurm, can_isolate_hosts, wait_until
from faults import Faults, await_record, await_state, await_steps, state_of
from filelock import FileLock, Timeout
from studies import LONG, StudyMaker

import lab
from lab.config.cluster import Cluster
from lab.config.study import Study
from lab.launch.slurm.controller import accounted, queued
from lab.launch.slurm.executor import refusals
from lab.launch.status import StudyDisplay
from lab.records.store import Store, read_record

pytestmark = pytest.mark.long

PROFILE = {
    "executor": "slurm",
    "device": "cpu",
    "nodes": 2,
    "gpus_per_node": 1,
    "mem_gb": 2,
    "hang_timeout_s": 30,
    "network_interface": "lo",
}


@pytest.fixture
def profile(tmp_path: Path, slurm_cluster: Slurm) -> Path:
    """One rank on a node, with a GPU of its own: two ranks are two nodes."""
    return written(tmp_path / "cluster.yaml")


def written(path: Path, **changes: object) -> Path:
    path.write_text(yaml.safe_dump(PROFILE | changes))
    return path


def driver(study: Path, profile: Path) -> subprocess.Popen[str]:
    """Only measures, and makes no report."""
    code = (
        f"import lab; lab.launch(lab.Study.load({str(study)!r}), "
        f"{str(profile)!r}).wait(progress=False)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lab", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def await_driver(study: Study) -> None:
    """Wait until a driver has taken the study's lock, which it may wait for itself meanwhile."""
    deadline = time.monotonic() + 300
    with contextlib.suppress(Timeout):
        while time.monotonic() < deadline:
            with FileLock(study.out / "driver.lock", timeout=0):
                pass
            time.sleep(0.2)
        pytest.fail("no driver came")


def submitted(study: Study) -> int:
    """How many jobs Slurm was ever given for a study."""
    names = [path.name for path in (study.out / "arrays").iterdir()]
    return len(queued(names))


def written_at(study: Study) -> dict[str, int]:
    """When each complete record was written."""
    paths = {task.label: Store(study.out).folder(task) / "record.json" for task in study.tasks}
    return {
        label: path.stat().st_mtime_ns
        for label, path in paths.items()
        if (record := read_record(path)) and record.completed
    }


def test_driver_killed_at_twenty_random_moments_submits_nothing_twice_and_loses_nothing(
    make_study: StudyMaker, profile: Path, slurm_cluster: Slurm
) -> None:
    """A record that is deleted between kills gives the next driver something to submit again."""
    folder = make_study(repeats=2)
    study = Study.load(folder)
    moments = random.Random(4)
    earlier_timestamps: dict[str, int] = {}
    for _ in range(20):
        process = driver(folder, profile)
        time.sleep(moments.uniform(0.2, 2.5))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        now = written_at(study)
        assert earlier_timestamps.items() <= now.items(), "a record was lost or written again"
        earlier_timestamps = now
    last = driver(folder, profile)
    output, _ = last.communicate(timeout=300)
    assert last.returncode == 0, output
    complete = written_at(study)
    assert earlier_timestamps.items() <= complete.items() and len(complete) == len(study.tasks)
    assert submitted(study) == len(study.tasks)
    record = Store(study.out).read(next(task for task in study.tasks if task.run.world_size == 2))
    assert record is not None and record.allocation is not None
    assert (
        len(record.allocation.nodes) == 2
        and len(record.allocation.gpus) == 1
        and record.allocation.queue_time is not None
    )
    assert record.environment and record.timing and record.communication
    assert len(set(record.environment.hosts)) == (2 if can_isolate_hosts() else 1)
    # By clocks that are not compared, a rank would wait for hours.
    assert record.communication.straggler.median < record.timing.step.median


def test_a_limit_on_jobs_holds_for_all_shapes_of_a_study(
    make_study: StudyMaker, tmp_path: Path, slurm_cluster: Slurm
) -> None:
    study = Study.load(make_study(repeats=3))
    limited = written(tmp_path / "limited.yaml", array_limit=1)
    lab.launch(study, str(limited)).wait(progress=False)
    jobs = sorted(lab.load_records(study), key=lambda record: record.started_at)
    assert len(jobs) == len(study.tasks) and all(job.completed for job in jobs)
    assert all(a.finished_at <= b.started_at for a, b in itertools.pairwise(jobs))
    # Those that predict the others come first; then repeats are interleaved.
    assert [job.run.world_size for job in jobs] == [1, 1, 2, 2, 1, 2]


def test_a_job_that_is_held_says_so_until_it_is_released(
    make_study: StudyMaker,
    tmp_path: Path,
    slurm_cluster: Slurm,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = Study.load(make_study(repeats=1))
    held = written(tmp_path / "held.yaml", extra={"hold": True})
    jobs = lab.launch(study, str(held))
    while not all(state.hint for state in jobs.states()):
        assert not jobs.done
        time.sleep(0.1)
    hint = "JobHeldUser: it is held; `scontrol release JOB` lets it start"
    assert all(state.hint.startswith(hint) for state in jobs.states())
    with StudyDisplay(jobs.states) as display:
        display.update()
    assert capsys.readouterr().out.count(hint) == 1
    slurm_cluster.ask("scontrol", "release", *(state.job_id for state in jobs.states()))
    assert all(record.completed for record in jobs.wait(progress=False))


def test_preempted_run_goes_on_from_its_checkpoint_with_the_same_losses(
    make_study: StudyMaker, tmp_path: Path, slurm_cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two equal runs on two ranks, one is thrown out by a job of higher priority. The controller is restarted, too."""
    faults = Faults.planted(tmp_path / "faults", monkeypatch, pace=0.1)
    study = Study.load(
        make_study(
            base=LONG | {"steps": 200},
            grid={"world_size": [2]},
            baseline={"world_size": 2},
            repeats=2,
            scaling="none",
        )
    )
    assert faults.folder.is_dir()
    path = written(
        tmp_path / "cluster.yaml",
        partition="scavenge",
        gpus_per_node=2,
        nodes=1,
        mem_gb=4,
        checkpoint_every_min=0.03,
    )
    jobs = lab.launch(study, str(path))
    victim = await_steps(study, study.tasks[0])
    checkpoints = Store(study.out).folder(study.tasks[0]) / "checkpoint"
    await_state(
        study, study.tasks[0], lambda state: state.step > 30 and any(checkpoints.glob("0*"))
    )
    node = slurm_cluster.ask("squeue", "-h", "--array", "-j", victim.job_id, "-o", "%N").strip()
    slurm_cluster.ask("srun", "-p", "debug", "--exclusive", "-w", node, "true", timeout_s=300)
    slurm_cluster.stop_controller()
    unknown = state_of(study, study.tasks[0])
    slurm_cluster.start_controller()
    assert not unknown.ended
    thrown_out, other = jobs.wait(progress=False)
    assert thrown_out.completed and other.completed and thrown_out.allocation is not None
    assert thrown_out.allocation.requeues == 1
    assert (
        thrown_out.quality is not None
        and other.quality is not None
        and thrown_out.timing is not None
    )
    assert thrown_out.quality.loss == pytest.approx(other.quality.loss, rel=1e-6)
    assert thrown_out.timing.measured_steps < 200 - 30, "it began anew"


def test_two_drivers_share_a_study_of_which_a_record_is_half_written(
    make_study: StudyMaker, profile: Path
) -> None:
    folder = make_study()
    study = Study.load(folder)
    record = Store(study.out).folder(study.tasks[0]) / "record.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"schema_version": 1, "run_id"')
    drivers = [driver(folder, profile) for _ in range(2)]
    for process in drivers:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    assert len(written_at(study)) == submitted(study) == len(study.tasks)


def test_jobs_that_never_start_tell_why_and_another_terminal_attaches_and_cancels(
    make_study: StudyMaker, profile: Path, slurm_cluster: Slurm
) -> None:
    """All nodes are drained: a detached driver is killed, status tells the reason, cancel ends what waits."""
    study = Study.load(make_study())
    slurm_cluster.ask(
        "scontrol",
        "update",
        f"NodeName={','.join(slurm_cluster.nodes())}",
        "State=DRAIN",
        "Reason=test",
    )
    try:
        pid = json.loads(
            command("run", study.folder, "--cluster", profile, "--detach", "--json").stdout
        )["pid"]
        await_state(
            study,
            study.tasks[1],
            lambda state: (
                (state.state == "pending" and "avail" in state.reason.lower())
                or "Node" in state.reason
            ),
        )
        os.kill(pid, signal.SIGKILL)
        rows = json.loads(command("status", study.folder, "--json").stdout)
        assert [row["state"] for row in rows] == ["pending"] * 2 and all(
            row["job"] and row["reason"] for row in rows
        )
        attached = driver(study.folder, profile)
        await_driver(study)
        answer = command("cancel", study.folder)
        output, _ = attached.communicate(timeout=300)
        assert answer.returncode == 0 and "2 jobs ended" in answer.stdout, answer
        assert attached.returncode == 1 and "cancelled by `lab cancel`" in output
        assert submitted(study) == 2
    finally:
        slurm_cluster.ask(
            "scontrol", "update", f"NodeName={','.join(slurm_cluster.nodes())}", "State=RESUME"
        )
    assert [record.status for record in lab.load_records(study)] == ["cancelled"] * 2


REFUSED = {
    "partition": ({"partition": "nowhere", "nodes": 2}, "partition"),
    "more GPUs than any node has": ({"gpus_per_node": 8, "nodes": 1}, "gpus_per_node"),
    "more memory than any node has": ({"mem_gb": 900, "nodes": 2}, "mem_gb"),
    "an option that sbatch does not know": (
        {"extra": {"no-such-option": True}, "nodes": 2},
        "extra",
    ),
    "more nodes than there are": ({"gpus_per_node": 1, "nodes": 8}, "nodes"),
}


@pytest.mark.parametrize(("keys", "blamed"), REFUSED.values(), ids=REFUSED.keys())
def test_what_slurm_refuses_is_an_error_of_the_profile_before_anything_is_submitted(
    make_study: StudyMaker,
    tmp_path: Path,
    slurm_cluster: Slurm,
    keys: dict[str, object],
    blamed: str,
) -> None:
    study = Study.load(
        make_study(grid={"global_batch_size": [8], "world_size": [8]}, baseline={"world_size": 8})
    )
    with pytest.raises(lab.InputError) as refused:
        lab.launch(study, str(written(tmp_path / "cluster.yaml", **({"gpus_per_node": 4} | keys))))
    assert [problem.where for problem in refused.value.problems] == [blamed]
    assert not list(study.out.glob("arrays/*"))


def test_variables_of_sbatch_do_not_override_the_profile(
    tmp_path: Path, slurm_cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = written(tmp_path / "cluster.yaml", partition="debug", time_limit_min=5)
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "nonsense")
    assert refusals(Cluster.load(str(profile)), [(1, 1), (2, 1)]) == []


@pytest.fixture
def one_run(make_study: StudyMaker) -> Iterator[Study]:
    yield Study.load(make_study(grid={"global_batch_size": [4], "world_size": [1]}))


def test_node_without_torch_is_a_bad_node(
    one_run: Study, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults.planted(tmp_path / "faults", monkeypatch)
    (faults.folder / "no-torch").touch()
    (record,) = lab.launch(one_run, str(profile)).wait(progress=False)
    assert record.status == "failed" and record.error is not None and record.error.type == "BadNode"
    assert "127.0.0." in record.error.message and "libtorch.so" in record.error.message


def test_node_without_python_is_a_bad_node_and_the_next_call_measures(
    one_run: Study, tmp_path: Path, slurm_cluster: Slurm
) -> None:
    (record,) = lab.launch(
        one_run, str(written(tmp_path / "bad.yaml", python="/nowhere/python"))
    ).wait(progress=False)
    assert record.status == "failed" and record.error is not None and record.error.type == "BadNode"
    assert "127.0.0." in record.error.message and "/nowhere/python" in record.error.log
    (again,) = lab.launch(one_run, str(written(tmp_path / "bad.yaml")), snapshot=True).wait(
        progress=False
    )
    assert again.completed and len(list(one_run.out.glob("code/*/lab"))) == 1
    assert list(one_run.out.glob("runs/*/0/log/*.record.json")), "the earlier failure is kept"


def test_ranks_do_not_wait_for_one_that_cannot_start(
    make_study: StudyMaker, tmp_path: Path, slurm_cluster: Slurm
) -> None:
    """On one of two nodes Python is missing; rank 0 would wait for minutes."""
    grid = {"global_batch_size": [4], "world_size": [2]}
    study = Study.load(make_study(grid=grid, baseline={"world_size": 2}))
    python = tmp_path / "python"
    here = f"[ $SLURM_PROCID = 0 ] || exec /nowhere/python; exec {sys.executable} "
    python.write_text(f'#!/bin/sh\n{here} "$@"\n')
    python.chmod(0o700)
    path = written(tmp_path / "cluster.yaml", python=str(python))
    (record,) = lab.launch(study, str(path)).wait(progress=False)
    assert record.error is not None and record.error.type in {"BadNode", "JobLost"}
    assert "task 1: Exited with exit code 127" in record.error.log


def test_time_limit_before_any_rank_started(
    one_run: Study, tmp_path: Path, slurm_cluster: Slurm
) -> None:
    """Its warning is a signal, which ends a rank that cannot handle it yet."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexec sleep 600\n")
    python.chmod(0o700)
    jobs = lab.launch(one_run, str(written(tmp_path / "cluster.yaml", python=str(python))))
    started = tmp_path / "started"
    wait_until(started.exists, what="a rank that cannot handle signals", timeout_s=300)
    job = state_of(one_run, one_run.tasks[0]).job_id
    slurm_cluster.ask("scancel", "--signal=USR2", job)
    (record,) = jobs.wait(progress=False)
    assert record.status == "timeout" and record.error is not None
    assert record.error.type == "TimeLimit" and "raise time_limit_min" in record.error.message


def test_two_jobs_on_one_node_use_different_gpus(
    make_study: StudyMaker, tmp_path: Path, slurm_cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults.planted(tmp_path / "faults", monkeypatch)
    study = Study.load(make_study(base=LONG, grid={"world_size": [1]}, repeats=2, scaling="none"))
    path = written(tmp_path / "cluster.yaml", extra={"nodelist": "127.0.0.4"})
    jobs = lab.launch(study, str(path))
    for task in study.tasks:
        await_steps(study, task)
    for task in study.tasks:
        faults.order(study, task, "import os; raise ValueError(os.environ['CUDA_VISIBLE_DEVICES'])")
    records = [await_record(study, task) for task in study.tasks]
    jobs.wait(progress=False)
    gpus = [record.allocation.gpus for record in records if record.allocation]
    assert sorted(gpus) == [["0"], ["1"]]
    assert [record.allocation.nodes for record in records if record.allocation] == [
        ["127.0.0.4"]
    ] * 2
    assert [[record.error.message] for record in records if record.error] == gpus


def test_accounting_remembers_what_squeue_has_forgotten(slurm_accounting: Slurm) -> None:
    name = "lab-accounted"
    script = 'test "$SLURM_ARRAY_TASK_ID" != 1'
    job = slurm_accounting.ask(
        "sbatch",
        "--parsable",
        "-o",
        "/dev/null",
        "--array=0-1",
        f"--job-name={name}",
        "--wrap",
        script,
    ).strip()
    deadline = time.monotonic() + 300
    while len([state for state in accounted([name]).values() if state.ended]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert {key: state.state for key, state in accounted([name]).items()} == {
        f"{job}_0": "COMPLETED",
        f"{job}_1": "FAILED",
    }
    assert accounted([name])[f"{job}_1"].exit_code == "1:0"
