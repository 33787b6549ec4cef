"""Slurm's answers: states, ends, lists of nodes; and how a profile becomes a request."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Task
from lab.errors import InputError
from lab.launch import job
from lab.launch.attempt import Attempt, RankError
from lab.launch.executor import JobSpec
from lab.launch.outcome import conclude
from lab.launch.slurm import controller, executor
from lab.launch.slurm.array import Array
from lab.launch.slurm.controller import (
    REST,
    Controller,
    JobState,
    SlurmCommandError,
    _total,
    exit_reason,
    expand,
)
from lab.launch.slurm.executor import SlurmExecutor, SlurmHandle, _gpus, complaint
from lab.launch.slurm.options import interpreter, sbatch_options, submitit_parameters

TASK = Task(Run(global_batch_size=8, world_size=2), 0)

NODES = {
    "a": ["a"],
    "a1,b2": ["a1", "b2"],
    "a[01-03],b": ["a01", "a02", "a03", "b"],
    "n[1,3-4]": ["n1", "n3", "n4"],
    "r[1-2]-ib": ["r1-ib", "r2-ib"],
    "127.0.0.[2-3]": ["127.0.0.2", "127.0.0.3"],
    "r[1-2]n[3-4]": ["r1n3", "r1n4", "r2n3", "r2n4"],
    "": [],
}


@pytest.mark.parametrize(("short", "names"), NODES.items())
def test_node_lists_are_expanded(short: str, names: list[str]) -> None:
    assert expand(short) == names


@pytest.mark.parametrize(
    ("short", "total"), [("4", 4), ("4(x2),3", 11), ("16(x3)", 48), ("", None)]
)
def test_cpus_per_node_are_added(short: str, total: int | None) -> None:
    assert _total(short) == total


@pytest.mark.parametrize(
    ("text", "count"),
    [("gpu:4", 4), ("gpu:h100:4(S:0-1)", 4), ("gpu:a:2,gpu:b:1", 3), ("(null)", 0)],
)
def test_gpus_of_a_node_are_counted(text: str, count: int) -> None:
    assert _gpus(text) == count


POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("answer", "key", "advice"),
    [
        ("sbatch: error: invalid partition specified: gpus", "partition", "sinfo -s"),
        ("Batch job submission failed: No partition specified or system default", "partition", ""),
        ("User's group not permitted to use this partition", "partition", ""),
        ("Invalid account or account/partition combination specified", "account", "your accounts"),
        # What some sites answer if no account is given; it speaks of time limits, too.
        (POLICY, "account", "set account, and qos"),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}", "submit_limit", "MaxSubmit"),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}", "submit_limit", "MaxSubmit"),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}", "time_limit_min", "MaxWall"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time_limit_min", ""),
        ("Invalid job array specification", "submit_limit", "MaxArraySize"),
        ("sbatch: error: Invalid generic resource (gres) specification", "gpu_flag", "none"),
        ("allocation failure: Invalid license specification", "extra.licenses", "licenses"),
        ("sbatch: error: --cpus-per-gpu is mutually exclusive with --cpus-per-task", "extra", ""),
        ("sbatch: unrecognized option '--image=foo'", "extra", "sbatch --help"),
    ],
)
def test_a_refusal_names_the_key_to_change(answer: str, key: str, advice: str) -> None:
    problem = complaint(Cluster(name="site", executor="slurm", gpus_per_node=4), 4, answer)
    assert problem is not None and problem.where == key and advice in problem.advice
    assert "Slurm refuses a job of 4 ranks: " in problem.what


@pytest.mark.parametrize(
    ("given", "listed", "advice"),
    [
        ("dc-gpus", "dc-gpu\ndc-cpu\n", "did you mean 'dc-gpu'?"),
        ("x", "b\na\n", "choose one of: a, b"),
        # It is the user or the account that may not use it.
        ("dc-gpu", "dc-gpu\ndc-cpu\n", "`sinfo -s` lists the partitions"),
        ("dc-cpu,nope", "dc-gpu\ndc-cpu\n", "`sinfo -s` lists the partitions"),
        ("x", "\n".join(f"p{number}" for number in range(50)), "`sinfo -s` lists the partitions"),
        ("x", "", "`sinfo -s` lists the partitions"),
    ],
)
def test_a_refused_value_is_answered_with_the_nearest_that_slurm_knows(
    monkeypatch: pytest.MonkeyPatch, given: str, listed: str, advice: str
) -> None:
    monkeypatch.setattr(executor, "ask", lambda *command: listed)
    site = Cluster(name="site", executor="slurm", gpus_per_node=4, partition=given)
    problem = complaint(site, 4, "Invalid partition name specified")
    assert problem is not None and problem.advice == advice


def test_a_greeting_is_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = "Welcome to the site\nn1|64|256000|gpu:a100:2\n"
    monkeypatch.setattr(executor, "ask", lambda *command: nodes)
    site = Cluster(name="site", executor="slurm", gpus_per_node=4)
    problem = complaint(site, 4, "Requested node configuration is not available")
    assert problem is not None and problem.where == "gpus_per_node"
    assert "the partition's largest node has 2" in problem.what


def test_a_type_of_gpu_that_no_node_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = "n1|64|256000|gpu:a100:4(S:0-1),nvme:1\nn2|64|256000|gpu:v100-32:2\nn3|8|8000|gpu:4\n"
    monkeypatch.setattr(executor, "ask", lambda *command: nodes)
    site = Cluster(name="site", executor="slurm", gpus_per_node=4, gpu_type="a10")
    answer = "allocation failure: Requested node configuration is not available"
    problem = complaint(site, 4, answer)
    assert problem is not None and problem.where == "gpu_type"
    assert "'a10', and no node here has any" in problem.what and "'a100'" in problem.advice
    assert complaint(site.model_copy(update={"gpu_type": "v100-32"}), 2, answer) is None


def test_gpus_that_a_job_does_not_ask_for_are_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "ask", lambda *command: "n1|64|256000|(null)\n")
    answer = "allocation failure: Requested node configuration is not available"
    site = Cluster(name="site", executor="slurm", gpus_per_node=4)
    problem = complaint(site, 4, answer)
    assert problem is not None and problem.where == "gpus_per_node"
    assert complaint(site.model_copy(update={"gpu_flag": "none"}), 4, answer) is None


def test_no_more_jobs_are_submitted_than_a_queue_takes(tmp_path: Path) -> None:
    specs = [JobSpec(tmp_path / str(number), 1, print, ()) for number in range(5)]
    running = [SlurmHandle(tmp_path / "a", Array(tmp_path / "lab-x"), "7_0")]
    site = Cluster(name="site", executor="slurm", gpus_per_node=4)
    assert SlurmExecutor(site, tmp_path).choose(specs, running) == specs
    few = SlurmExecutor(site.model_copy(update={"submit_limit": 3}), tmp_path)
    assert few.choose(specs, []) == specs[:3] and few.choose(specs, running) == specs[:2]
    assert few.choose(specs, running * 4) == []


def answering(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> list[str]:
    """Slurm's commands answer so; which were asked."""
    commands: list[str] = []

    def ask(*command: str) -> str:
        commands.append(command[0])
        if command[0] not in answers:
            raise SlurmCommandError("no answer")
        return answers[command[0]]

    monkeypatch.setattr(controller, "ask", ask)
    monkeypatch.setattr("shutil.which", lambda program: program)
    return commands


def test_jobs_of_an_array_are_told_apart_and_the_rest_share_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = "7|0|lab-a|RUNNING|None|n1|2|0|\n7|N/A|lab-a|CANCELLED|Priority||0|0|\n"
    answering(monkeypatch, {"squeue": lines})
    slurm = Controller()
    slurm.poll({"7_0": "lab-a", "7_1": "lab-a"})
    first, second = slurm.job("7_0"), slurm.job("7_1")
    assert first is not None and (first.state, first.nodes, first.restarts, first.ended) == (
        "RUNNING",
        "n1",
        2,
        False,
    )
    assert second is not None and second.state == "CANCELLED" and second.ended


def test_what_squeue_forgot_is_asked_of_accounting_and_then_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = answering(
        monkeypatch,
        {
            "squeue": "",
            "sacct": "7_0|lab-a|CANCELLED by 1000|None|n1|0:15\n"
            "7_[1-3%2]|lab-a|PENDING|Priority||0:0\n",
        },
    )
    slurm = Controller()
    slurm.poll({"7_0": "lab-a", "7_3": "lab-a", "8_0": "lab-b"})
    job, waiting = slurm.job("7_0"), slurm.job("7_3")
    assert job is not None and (job.state, job.reason) == ("CANCELLED", "by 1000")
    assert waiting is not None and waiting.pending
    assert slurm.forgotten("8_0") and not slurm.forgotten("7_3")
    before = len(commands)
    slurm.poll({"7_0": "lab-a", "8_0": "lab-b"})
    assert len(commands) == before


def test_silence_changes_nothing_that_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"squeue": "7|0|lab-a|RUNNING|None|n1|0|0|\n"})
    slurm = Controller()
    slurm.poll({"7_0": "lab-a"})
    answering(monkeypatch, {})
    slurm.poll({"7_0": "lab-a", "8_0": "lab-b"})
    job = slurm.job("7_0")
    assert (
        slurm.silence == "no answer"
        and job is not None
        and job.state == "RUNNING"
        and not slurm.forgotten("8_0")
    )


def test_an_answer_that_is_cut_off_is_none_and_a_greeting_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "7|0|lab-a|RUNNING|None|n1|0|0|\n"
    answering(monkeypatch, {"squeue": f"Maintenance on Monday\n{line}"})
    slurm = Controller()
    slurm.poll({"7_0": "lab-a"})
    assert slurm.job("7_0") is not None and not slurm.silence
    answering(monkeypatch, {"squeue": line + line[:9], "sacct": "8_0|lab"})
    slurm.poll({"7_0": "lab-a", "8_0": "lab-b"})
    assert slurm.silence == "its answer cannot be read: '7|0|lab-a'"
    assert slurm.job("7_0") is not None and not slurm.forgotten("8_0")
    assert controller.accounted(["lab-a"]) == {}


def test_polling_grows_rarer_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"squeue": "7|0|lab-a|RUNNING|None|n1|0|0|\n"})
    slurm, now = Controller(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pauses = []
    for _ in range(40):
        pauses.append(slurm.poll({"7_0": "lab-a"}))
        now[0] += pauses[-1]
    assert pauses == sorted(pauses) and pauses[0] < 1 and pauses[-1] == controller.LAST_S


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    (tmp_path / "log").mkdir()
    return Attempt(tmp_path, "7_0", 0, tmp_path)


ENDS = {
    "OUT_OF_MEMORY": ("oom", "MemoryLimit"),
    "TIMEOUT": ("timeout", "TimeLimit"),
    "PREEMPTED": ("preempted", "Preempted"),
    "CANCELLED": ("cancelled", "Cancelled"),
    "NODE_FAIL": ("failed", "NodeFailure"),
    "FAILED": ("failed", "BadNode"),
}


@pytest.mark.parametrize(("state", "expected"), ENDS.items())
def test_ends_are_told_apart(attempt: Attempt, state: str, expected: tuple[str, str]) -> None:
    reason = exit_reason(JobState("7_0", "lab-a", state, nodes="n1"), attempt)
    record = conclude(TASK, attempt, None, reason)
    assert (
        record is not None
        and record.error is not None
        and (record.status, record.error.type) == expected
    )


@pytest.mark.parametrize("exit_code", ["140:0", "0:12"])
def test_warning_of_the_time_limit_that_no_rank_could_handle(
    attempt: Attempt, exit_code: str
) -> None:
    job = JobState("7_0", "lab-a", "FAILED", nodes="n1", exit_code=exit_code)
    reason = exit_reason(job, attempt)
    assert reason.type == "TimeLimit" and "raise time_limit_min" in reason.message


def test_a_job_that_ended_in_the_queue_is_named_by_its_own_id(attempt: Attempt) -> None:
    reason = exit_reason(JobState(f"7_{REST}", "lab-a", "CANCELLED"), attempt)
    assert reason.message.startswith("Slurm job 7_0 ended as CANCELLED")


@pytest.mark.parametrize(
    "ended",
    [
        "error: n1: task 0: Exited with exit code 2",
        "error: n1: tasks 0-1: Aborted",
        "launch/slurm: _step_signal: Terminating StepId=47.0",
        "Terminating StepId=47.0",
        "Job step aborted: Waiting up to 32 seconds for job step to finish.",
    ],
)
def test_the_cause_is_the_last_line_that_says_more_than_that_a_rank_ended(
    attempt: Attempt, ended: str
) -> None:
    log, cause = (
        attempt.folder / "7_0_0_log.out",
        "slurmstepd-n1: error: execve(): apptainer: missing",
    )
    log.write_text(f"{cause}\nsrun: {ended}\n")
    failed = JobState("7_0", "lab-a", "FAILED", nodes="n1")
    assert exit_reason(failed, attempt).message.endswith(f"before any rank started: {cause}")
    log.write_text(f"srun: {ended}\n")
    assert exit_reason(failed, attempt).message.endswith(ended)
    log.write_text("")
    assert "with an empty log" in exit_reason(failed, attempt).message
    log.unlink()
    assert exit_reason(failed, attempt).message.endswith("on a file system that the nodes share?")


def test_what_a_scheduler_did_explains_what_the_ranks_then_met(attempt: Attempt) -> None:
    attempt.register_rank(0)
    attempt.write_error(
        RankError(0, "RuntimeError", "Connection closed by peer", 1.0, waiting=True)
    )
    guessed = conclude(TASK, attempt, None, RankError(0, "JobLost", "no record", 0.0))
    assert guessed is not None and guessed.error is not None and guessed.error.type == "RankLost"
    reason = exit_reason(JobState("7_0", "lab-a", "OUT_OF_MEMORY", nodes="n1"), attempt)
    better = conclude(TASK, attempt, guessed, reason)
    assert better is not None and better.status == "oom"
    assert conclude(TASK, attempt, better, reason) is None, "a better cause is not written again"


def test_exception_before_the_end_stays_the_cause(attempt: Attempt) -> None:
    attempt.write_error(RankError(1, "ValueError", "planted", 1.0))
    record = conclude(
        TASK, attempt, None, exit_reason(JobState("7_0", "lab-a", "TIMEOUT"), attempt)
    )
    assert (
        record is not None
        and record.error is not None
        and (record.error.type, record.error.rank) == ("ValueError", 1)
    )


def test_starts_of_one_job_have_files_of_their_own(tmp_path: Path) -> None:
    first = Attempt(tmp_path, "7_0", 0, tmp_path)
    first.write_error(RankError(0, "ValueError", "the first time", 1.0))
    Attempt(tmp_path, "7_0", 1, tmp_path).register_rank(1)
    latest = Attempt.latest(tmp_path, "7_0", tmp_path)
    assert latest.restarts == 1 and latest.errors() == [] and first.errors()


def cluster(**keys: object) -> Cluster:
    return Cluster.model_validate({"name": "site", "executor": "slurm", "device": "cpu"} | keys)


def test_a_profile_becomes_a_request() -> None:
    site = cluster(
        partition="p",
        reservation="r",
        nodes=2,
        array_limit=5,
        gpus_per_node=4,
        gpu_flag="gres",
        gpu_type="h100",
        cpus_per_gpu=3,
        mem_gb=8,
        modules=("cuda",),
        setup=("true",),
        extra={"exclusive": True, "mail_type": "FAIL", "comment": False},
    )
    options = sbatch_options(site, 8, jobs=7)
    names = ("nodes", "ntasks-per-node", "gres", "mem", "partition", "cpus-per-task", "array")
    assert [options[name] for name in names] == [2, 4, "gpu:h100:4", "8192M", "p", 3, "0-6%5"]
    assert options["requeue"] is True and options["reservation"] == "r"
    assert options["exclusive"] is True and options["mail-type"] == "FAIL"
    assert not {"gpus-per-node", "comment"} & options.keys()
    assert sbatch_options(site, 2)["mem"] == "4096M"
    parameters = submitit_parameters(site, 8, jobs=7)
    load = "module load cuda || { echo 'module load cuda failed'; exit 1; }"
    assert parameters["setup"] == [load, "true"]
    assert parameters["ntasks_per_node"] == 4
    assert "ntasks-per-node" not in parameters["additional_parameters"]


def test_python_on_the_nodes() -> None:
    assert interpreter(cluster(cores_per_node=2), "python") == "python"
    assert interpreter(cluster(cores_per_node=2, python="python3.12"), "python") == "python3.12"
    container = cluster(cores_per_node=2, container="apptainer exec lab.sif")
    assert interpreter(container, "python") == "apptainer exec lab.sif python3"


def test_rank_0_listens_where_other_nodes_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(name="site", executor="slurm", gpus_per_node=1, nodes=2)
    monkeypatch.setenv("SLURMD_NODENAME", "here")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "here,127.0.0.2")
    assert job._address(cluster) == "here"  # by loopback no other node comes
    assert job._address(cluster.model_copy(update={"network_interface": "lo"})) == "127.0.0.1"
    assert job._address(cluster.model_copy(update={"network_interface": "none0,lo"})) == "127.0.0.1"
    addresses = [
        one.address
        for ones in psutil.net_if_addrs().values()
        for one in ones
        if one.family == socket.AF_INET and not one.address.startswith("127.")
    ]
    if addresses:  # which this machine reaches from there
        monkeypatch.setenv("SLURM_JOB_NODELIST", f"here,{addresses[0]}")
        assert job._address(cluster) == addresses[0]


def test_a_rank_expands_the_variables_of_its_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    for name in ("LAB_CACHE", "FIRST", "SECOND"):
        monkeypatch.setenv(name, "as before")
    wanted = {"LAB_CACHE": "$SCRATCH/cache", "FIRST": "a", "SECOND": "${FIRST}b"}
    site = Cluster(name="site", environment=wanted)
    job.set_variables(site)
    assert [os.environ[name] for name in wanted] == ["/scratch/me/cache", "a", "ab"]
    with pytest.raises(
        InputError, match=r"environment.LAB_CACHE: '\$NOWHERE': NOWHERE is not set on"
    ):
        job.set_variables(site.model_copy(update={"environment": {"LAB_CACHE": "$NOWHERE"}}))
