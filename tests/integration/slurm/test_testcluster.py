"""The test cluster: a real Slurm that comes up, hands out nodes and fake GPUs, and leaves nothing behind."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import testcluster
from daemons import Slurm, SlurmError, can_isolate_hosts

PROGRAM = Path(testcluster.__file__)


def batch(slurm: Slurm, script: str, *options: str) -> str:
    """Submit a script; returns its job id."""
    return slurm.ask(
        "sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script
    ).strip()


def state(slurm: Slurm, job: str) -> str:
    return slurm.ask("squeue", "-h", "--states=all", "-o", "%T", "-j", job).strip()


def await_state(slurm: Slurm, job: str, *wanted: str) -> str:
    deadline = time.monotonic() + 300
    while (job_state := state(slurm, job)) not in wanted:
        assert time.monotonic() < deadline, f"job {job} is {job_state}, not {wanted}"
        time.sleep(0.05)
    return job_state


def test_one_job_step_spans_all_nodes(slurm_cluster: Slurm) -> None:
    nodes = slurm_cluster.ask("srun", "-N4", "printenv", "SLURMD_NODENAME").split()
    assert sorted(nodes) == ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"]


@pytest.mark.skipif(not can_isolate_hosts(), reason="only root may create namespaces")
def test_each_node_is_a_host_that_all_can_resolve(slurm_cluster: Slurm) -> None:
    hosts = slurm_cluster.ask("srun", "-N4", "hostname").split()
    assert sorted(hosts) == ["node2", "node3", "node4", "node5"]
    assert len(slurm_cluster.ask("srun", "-N1", "getent", "hosts", *hosts).splitlines()) == 4
    # Seconds since the hosts were started, by their clocks.
    clock = "import time; print(time.perf_counter())"
    ages = sorted(map(float, slurm_cluster.ask("srun", "-N4", sys.executable, "-c", clock).split()))
    assert [later - earlier > 900 for earlier, later in itertools.pairwise(ages)] == [True] * 3


def test_two_jobs_on_one_node_get_different_gpus(slurm_cluster: Slurm, tmp_path: Path) -> None:
    script = (
        "echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS >{out}; until [ -e {other} ]; do sleep "
        "0.05; done"
    )
    first, second = (
        tmp_path / "first",
        tmp_path / "second",
    )  # each waits for the other: they run at the same time
    options = ("--nodelist=127.0.0.2", "--gres=gpu:2", "--mem=100")
    jobs = [
        batch(slurm_cluster, script.format(out=first, other=second), *options),
        batch(slurm_cluster, script.format(out=second, other=first), *options),
    ]
    for job in jobs:
        await_state(slurm_cluster, job, "COMPLETED")
    assert sorted(path.read_text().split() for path in (first, second)) == [
        ["0,1", "0,1"],
        ["2,3", "2,3"],
    ]


def test_more_gpus_than_a_node_has_are_refused(slurm_cluster: Slurm) -> None:
    with pytest.raises(SlurmError, match="configuration is not available"):
        batch(slurm_cluster, "true", "--gres=gpu:5")


def test_memory_limit_is_enforced(slurm_cluster: Slurm) -> None:
    eater = (
        f"exec {sys.executable} -c 'import time; b = bytearray(200 * 2**20); b[::4096] = "
        "b[::4096]; time.sleep(30)'"
    )
    job = batch(slurm_cluster, eater, "--mem=50")
    assert (
        await_state(slurm_cluster, job, "FAILED", "CANCELLED", "OUT_OF_MEMORY", "COMPLETED")
        != "COMPLETED"
    )


def test_preempted_job_is_warned_requeued_and_runs_again(
    slurm_cluster: Slurm, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    # Only the first time round it waits to be preempted.
    script = (
        f"trap 'echo warned >>{log}' USR1; trap : TERM; echo start $SLURM_RESTART_COUNT >>{log}; "
    )
    script += '[ -n "$SLURM_RESTART_COUNT" ] && exit; while true; do sleep 0.1; done'
    job = batch(
        slurm_cluster,
        script,
        "-p",
        "scavenge",
        "--nodelist=127.0.0.5",
        "--exclusive",
        "--signal=B:USR1@60",
        "--requeue",
    )
    await_state(slurm_cluster, job, "RUNNING")
    while not log.exists():
        time.sleep(0.05)
    slurm_cluster.ask("srun", "--nodelist=127.0.0.5", "--exclusive", "true")
    await_state(slurm_cluster, job, "COMPLETED")
    assert log.read_text().split() == ["start", "warned", "start", "1"]


def test_running_job_survives_a_restart_of_the_controller(
    slurm_cluster: Slurm, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    job = batch(slurm_cluster, f"until [ -e {go_on} ]; do sleep 0.05; done")
    await_state(slurm_cluster, job, "RUNNING")
    slurm_cluster.stop_controller()
    slurm_cluster.start_controller()
    go_on.touch()
    await_state(slurm_cluster, job, "COMPLETED")


def test_it_listens_on_its_own_address_only(slurm_cluster: Slurm) -> None:
    address = testcluster._this_host()[1]
    listening = [
        connection.laddr.ip
        for pid in slurm_cluster.processes()
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 5 and set(listening) == {address}


def test_private_folder(slurm_cluster: Slurm) -> None:
    assert slurm_cluster.folder.stat().st_mode & 0o777 == 0o700


def test_accounting_knows_the_end_of_a_job(slurm_accounting: Slurm) -> None:
    job = batch(slurm_accounting, "exit 3")
    deadline = time.monotonic() + 300
    query = ("sacct", "-X", "-n", "-P", "-o", "State,ExitCode", "-j", job)
    # The state may be known before the exit code.
    while (line := slurm_accounting.ask(*query).strip()) != "FAILED|3:0":
        assert time.monotonic() < deadline, line
        time.sleep(0.1)


def test_command_brings_it_up_and_leaves_nothing(
    slurm_cluster: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = slurm_cluster.folder.parent / "d"  # beside the other, which must survive it

    def command(action: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, PROGRAM, action, "--folder", folder, "--nodes", "2"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    up = command("up")
    assert up.returncode == 0 and f"export SLURM_CONF={folder}/slurm.conf" in up.stdout
    slurm = Slurm(folder)
    pid_file = tmp_path / "pid"
    job = batch(
        slurm, f"setsid sleep 300 & echo $! >{pid_file}; wait"
    )  # a task that leaves its session
    await_state(slurm, job, "RUNNING")
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.05)
    assert job in command("status").stdout and "already" in command("up").stderr
    user = subprocess.Popen(
        ["sleep", "60"], env=slurm.environment
    )  # what a user started in a terminal of theirs
    owned = slurm.processes()
    assert int(pid_file.read_text()) in owned and user.pid not in owned
    names = {one.info["name"] for one in psutil.process_iter(["name"]) if one.pid in owned}
    assert {"slurmctld", "slurmd", "slurmstepd"} <= names
    assert command("down").returncode == 0
    assert not [
        pid
        for pid in owned
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]
    assert not folder.exists() and user.poll() is None and slurm_cluster.nodes()
    user.kill()
    user.wait()
    assert command("down").stderr == f"testcluster: no test cluster lies in {folder}\n"


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(testcluster, "SEARCH_PATH", "")
    with pytest.raises(
        SlurmError,
        match="apt install --no-install-recommends munge slurmctld slurmd slurm-client slurmdbd "
        "mariadb-server-core",
    ):
        testcluster.up(tmp_path / "c", accounting=True)


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for action in (testcluster.up, testcluster.down):
        with pytest.raises(SlurmError):
            action(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
