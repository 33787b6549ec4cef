"""The fork server: which jobs are none of its own, and how a fork ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.config.cluster import Cluster
from lab.launch import fork_server
from lab.launch.executor import JobSpec
from lab.launch.local import LocalExecutor
from lab.machine import began, is_running


def spec(**changes: object) -> JobSpec:
    return JobSpec(Path("job"), 1, print, (), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cluster", "job"),
    [
        ({"device": "cuda"}, {}),
        ({"environment": {"OMP_PLACES": "cores"}}, {}),
        ({}, {"code": Path("snapshot")}),
    ],
)
def test_ranks_that_must_load_torch_themselves_do(
    cluster: dict[str, object], job: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "start", lambda *_, **__: pytest.fail("forked"))
    executor = LocalExecutor(Cluster.model_validate({"name": "here", "device": "cpu"} | cluster))
    assert executor._fork(spec(**job), Path("log"), {}) is None


@pytest.mark.parametrize("script", [False, True])
def test_ranks_of_a_script_start_without_what_reads_variables_that_it_may_set(
    monkeypatch: pytest.MonkeyPatch, *, script: bool
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(fork_server, "start", lambda *_, modules: loaded.extend(modules))
    executor = LocalExecutor(Cluster.model_validate({"name": "here", "device": "cpu"}))
    executor._fork(spec(script=script), Path("log"), {})
    assert "torch" in loaded and ("torch._dynamo" in loaded) != script


@pytest.mark.parametrize("variable", [{"LAB_PRELOAD": "0"}, {"PYTHONPATH": "site"}])
def test_the_environment_can_forbid_it(
    variable: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "start", lambda *_, **__: pytest.fail("forked"))
    executor = LocalExecutor(Cluster.model_validate({"name": "here", "device": "cpu"}))
    assert executor._fork(spec(), Path("log"), variable) is None


def test_a_server_that_cannot_start_leaves_the_job_to_a_start_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert fork_server.start(os.getpid, {}, os.environ, modules=("torch",)) is None


def test_a_server_whose_driver_was_killed_loads_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(
        "import os, pathlib, time\n"
        "driver = os.getppid()\n"
        "pathlib.Path(__file__).with_name(f'{os.getpid()}.pid').touch()\n"
        "while os.getppid() == driver:\n    time.sleep(0.01)\n"
    )
    (tmp_path / "second.py").write_text("open(__file__ + '.loaded', 'w')")
    code = (
        "import os, time; from lab.launch.fork_server import ForkServer; "
        "server = ForkServer(os.environ, ['first', 'second'], []); time.sleep(600)"
    )
    path = f"{tmp_path}:{Path(__file__).parents[3]}"
    driver = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path})
    deadline = time.monotonic() + 60
    while not (started := list(tmp_path.glob("*.pid"))):
        assert time.monotonic() < deadline and driver.poll() is None
        time.sleep(0.01)
    pid = int(started[0].stem)
    since = began(pid)
    driver.kill()
    driver.wait()
    while is_running(pid, since):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not list(tmp_path.glob("*.loaded"))


def ends(how: object) -> int:
    if isinstance(how, BaseException):
        raise how
    if callable(how):
        how()
    return how if isinstance(how, int) else 0


def test_ctrl_c_is_not_lost_while_a_fork_begins() -> None:
    """As in a hook that Python calls in the new process, where nothing can be raised."""
    code = """
import os, signal
from lab.launch import fork_server
signal.signal(signal.SIGINT, signal.default_int_handler)
os.register_at_fork(after_in_child=lambda: signal.raise_signal(signal.SIGINT))
child = fork_server.Child(lambda: 0)
print(child.wait())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ended.stdout) == -signal.SIGINT, ended.stderr


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (0, 0),
        (3, 3),
        (SystemExit(4), 4),
        (SystemExit("why"), 1),
        (ValueError("why"), 1),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
        (lambda: signal.raise_signal(signal.SIGINT), -signal.SIGINT),
    ],
)
def test_a_fork_ends_as_a_program_does(how: object, code: int) -> None:
    child = fork_server.Child(ends, how)
    deadline = time.monotonic() + 60
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child.poll() == child.wait() == code
    child.send_signal(signal.SIGTERM)  # of which nobody hears any more
