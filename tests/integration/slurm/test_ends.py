"""Every way in which a job can end, on a real Slurm: each is told apart, and the study goes on."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml
from daemons import Slurm, SlurmError, wait_until
from faults import Faults, await_record, await_state, await_steps, state_of
from studies import CORPUS, LONG, SMALL_STUDY

import lab
from lab.config.study import Study, Task
from lab.launch.launcher import Jobs
from lab.records.store import Record

PROFILE = {
    "executor": "slurm",
    "device": "cpu",
    "hang_timeout_s": 15,
    "time_limit_min": 30,
    "cores_per_node": 4,
    "mem_gb": 7.5,
}
ALONE = [
    "scancel",
    "memory",
    "gpu memory",
    "exception",
    "node failure",
    "record lost",
    "time limit",
    "cancelled",
]
PAIRS = ["exception on rank 1", "hang", "killed", "logs deleted"]


@dataclass(frozen=True)
class Running:
    """Jobs that would take hours, all at their steps at once; each test puts an end to one of them."""

    study: Study
    jobs: Jobs
    faults: Faults
    slurm: Slurm
    tasks: dict[str, Task]

    def job(self, name: str) -> str:
        return state_of(self.study, self.tasks[name]).job_id

    def end(self, name: str, code: str, *, rank: int = 0) -> Record:
        """Let a rank run some code in a step; the record that is left in the end."""
        task = self.tasks[name]
        await_steps(self.study, task)
        self.faults.order(self.study, task, code, rank=rank)
        return await_record(self.study, task)


@pytest.fixture(scope="module")
def running(_slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("ends")
    content = SMALL_STUDY | {"base": LONG, "scaling": "none", "baseline": {"world_size": 1}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(_slurm.conf))
        patch.setenv("LAB_CACHE", str(folder / "cache"))
        # All ranks of all jobs go on for minutes: they leave the cores to others.
        faults = Faults.planted(folder / "faults", patch, pace=0.5)
        study_folder = folder / "ends"
        study_folder.mkdir()
        grid = {"world_size": [1, 2], "seed": list(range(len(ALONE)))}
        (study_folder / "study.yaml").write_text(yaml.safe_dump(content | {"grid": grid}))
        (study_folder / "corpus.txt").write_text(CORPUS)
        study = Study.load(study_folder)
        by_shape = {n: [task for task in study.tasks if task.run.world_size == n] for n in (1, 2)}
        tasks = dict(zip([*ALONE, *PAIRS], [*by_shape[1], *by_shape[2][: len(PAIRS)]], strict=True))
        (folder / "cluster.yaml").write_text(yaml.safe_dump(PROFILE))
        jobs = lab.launch(study, str(folder / "cluster.yaml"), tasks=list(tasks.values()))
        yield Running(study, jobs, faults, _slurm, tasks)
        jobs.cancel()


def ended(record: Record) -> tuple[str, str | None, int | None]:
    return record.status, record.error and record.error.type, record.error and record.error.rank


def test_all_jobs_of_a_shape_are_one_array_submitted_before_the_first_ends(
    running: Running,
) -> None:
    ids = {
        name: await_state(running.study, task, lambda s: bool(s.job_id)).job_id
        for name, task in running.tasks.items()
    }
    arrays = [{ids[name].split("_")[0] for name in names} for names in (ALONE, PAIRS)]
    assert [len(array) for array in arrays] == [1, 1] and arrays[0] != arrays[1]
    assert len(set(ids.values())) == len(running.tasks)
    # No limit is shorter than a minute: this one passes while the other tests go on.
    running.slurm.ask("scontrol", "update", f"JobId={ids['time limit']}", "TimeLimit=1")


def test_cancelled_from_outside(running: Running) -> None:
    await_steps(running.study, running.tasks["scancel"])
    running.slurm.ask("scancel", running.job("scancel"))
    record = await_record(running.study, running.tasks["scancel"])
    assert ended(record)[:2] == ("cancelled", "Cancelled")
    assert (
        record.allocation is not None
        and record.allocation.nodes
        and record.error is not None
        and record.error.log
    )


def test_killed_by_the_memory_limit(running: Running) -> None:
    record = running.end("memory", "import time; eaten = b'x' * 3_500_000_000; time.sleep(60)")
    assert ended(record)[:2] == ("oom", "MemoryLimit")


def test_out_of_memory_on_the_gpu(running: Running) -> None:
    record = running.end(
        "gpu memory",
        "import torch; raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')",
    )
    assert ended(record) == ("oom", "OutOfMemoryError", 0)


def test_python_exception(running: Running) -> None:
    record = running.end("exception", "print('last words'); raise ValueError('planted')")
    assert ended(record) == ("failed", "ValueError", 0)
    assert (
        record.error is not None
        and "last words" in record.error.log
        and "planted" in record.error.traceback
    )
    assert record.allocation is not None and record.allocation.job_id and record.allocation.cpus


def test_exception_of_the_rank_that_failed_first(running: Running) -> None:
    record = running.end("exception on rank 1", "raise ValueError('planted')", rank=1)
    assert ended(record) == ("failed", "ValueError", 1)


def test_hang_in_a_collective(running: Running) -> None:
    record = running.end("hang", "import time; time.sleep(600)", rank=1)
    assert ended(record) == ("timeout", "Hang", 1)


def test_rank_killed_without_a_known_cause(running: Running) -> None:
    record = running.end("killed", "import os; os.kill(os.getpid(), 9)", rank=1)
    assert ended(record) == ("failed", "RankLost", 1)


def test_record_that_the_job_could_not_write(running: Running) -> None:
    """A disk that is full, for the job: every file that it writes is refused."""
    full = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    )
    record = running.end("record lost", f"{full}; raise ValueError('planted')")
    assert (
        record.status == "failed"
        and record.error is not None
        and "could not say why (a full disk, or os._exit?)" in record.error.message
    )


def test_logs_deleted_while_the_job_runs(running: Running) -> None:
    task = running.tasks["logs deleted"]
    state = await_steps(running.study, task)
    subprocess.run(
        ["rm", "-r", str(running.study.out / "runs" / task.run.id / "0" / "log")], check=True
    )
    running.faults.order(running.study, task, "raise ValueError('planted')", rank=1)
    record = await_record(running.study, task)
    assert ended(record) == ("failed", "ValueError", 1) and record.allocation is not None
    assert record.allocation.job_id == state.job_id


def test_time_limit(running: Running) -> None:
    record = await_record(running.study, running.tasks["time limit"])
    assert (
        ended(record)[:2] == ("timeout", "TimeLimit")
        and record.error is not None
        and "time_limit_min" in record.error.message
    )


def in_service(slurm: Slurm, node: str) -> bool:
    """Ask for a node to be resumed; Slurm refuses where its daemon has brought it back already."""
    with contextlib.suppress(SlurmError):
        slurm.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    return "down" not in slurm.ask("sinfo", "-h", "-N", "-n", node, "-o", "%T").lower()


def test_node_failure(running: Running) -> None:
    await_steps(running.study, running.tasks["node failure"])
    job = running.job("node failure")
    running.slurm.ask("scontrol", "update", f"JobId={job}", "Requeue=0")
    node = running.slurm.ask("squeue", "-h", "--array", "-j", job, "-o", "%N").strip()
    others = running.slurm.ask(
        "squeue", "-h", "--array", "-t", "running", "-w", node, "-o", "%i"
    ).split()
    running.slurm.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    wait_until(lambda: in_service(running.slurm, node), what=f"{node} back in service")
    assert ended(await_record(running.study, running.tasks["node failure"]))[:2] == (
        "failed",
        "NodeFailure",
    )
    for name in set(running.tasks) - {
        "node failure"
    }:  # its neighbours were put back into the queue
        if state_of(running.study, running.tasks[name]).job_id in others:
            await_state(running.study, running.tasks[name], lambda state: not state.ended)


def test_cancel_from_another_process_ends_what_is_left_and_the_next_call_goes_on(
    running: Running,
) -> None:
    """Whatever the tests above have not ended is ended here; the driver of this process is told."""
    await_state(running.study, running.tasks["cancelled"], lambda state: state.state == "running")
    assert lab.cancel(running.study) >= 1
    assert ended(await_record(running.study, running.tasks["cancelled"]))[:2] == (
        "cancelled",
        "Cancelled",
    )
    with pytest.raises(lab.LabError, match="cancelled by `lab cancel`"):
        running.jobs.wait(progress=False)
    assert all(state_of(running.study, task).ended for task in running.tasks.values())
