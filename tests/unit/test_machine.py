"""Processes by id and beginning, whatever happens to the clock; GPUs as nvidia-smi lists them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from lab import machine
from lab.machine import age, began, is_running, loading


def test_a_process_is_known_again_and_one_that_has_its_id_is_not() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    since = began(process.pid)
    assert is_running(process.pid, since) and not is_running(process.pid, since - 1.0)
    assert since >= began(os.getpid())
    process.kill()
    deadline = time.monotonic() + 30
    while is_running(process.pid, since):  # a zombie from the moment it ends
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.wait()
    with pytest.raises(psutil.NoSuchProcess):
        began(process.pid)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("raise KeyboardInterrupt('enough')", -signal.SIGINT),
        ("signal.signal(15, machine.interrupt); signal.raise_signal(15)", -signal.SIGTERM),
        ("sys.exit(-1)", 255),
        ("sys.exit('why')", 1),
        ("return 3", 3),
    ],
)
def test_a_process_ends_as_its_function_does(statement: str, code: int) -> None:
    program = (
        "import signal, sys\nfrom lab import machine\n"
        f"def f():\n    {statement}\nmachine.exit_with(f)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ended.returncode == code, ended.stderr


def test_processes_are_killed_unless_they_end_in_time() -> None:
    quick, late, tracker = (
        psutil.Popen([sys.executable, "-c", f"{code} # {mark}"], stdin=subprocess.PIPE)
        for code, mark in (("pass", ""), ("input()", ""), ("input()", machine.TRACKER))
    )
    quick.wait()  # unlike a process of somebody else's, which would stay as a zombie
    threading.Timer(0.5, tracker.stdin.close).start()  # as once the processes it serves are gone
    assert machine.end_processes([quick, late, tracker], patience_s=0.1) == [
        f"{sys.executable} -c input() # "
    ]
    assert (late.wait(), tracker.wait()) == (-signal.SIGKILL, 1)


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="other systems tell only the time of day at which a process began",
)
def test_setting_the_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before, since = age(), began(os.getpid())
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(psutil, "boot_time", lambda: 0.0)
    assert before <= age() < before + 30 and began(os.getpid()) == since


GPUS = """GPU-aaaa1111-0000, NVIDIA H100 80GB HBM3, 570.86.15, 81559 MiB
GPU-aaaa2222-0000, NVIDIA A100-SXM4-40GB, 570.86.15, 40960 MiB
GPU-bbbb3333-0000, NVIDIA GH200 480GB, 570.86.15, [N/A]
"""
SLICES = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa1111-0000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa2222-0000)
  MIG 1g.5gb     Device  0: (UUID: MIG-cccc4444-0000)
  MIG 2g.10gb    Device  1: (UUID: MIG-dddd5555-0000)
GPU 2: NVIDIA GH200 480GB (UUID: GPU-bbbb3333-0000)
"""
H100, A100, GH200 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA GH200 480GB"


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, [H100, A100, GH200]),
        ("", []),
        ("-1", []),
        ("2", [GH200]),
        ("0,2", [H100, GH200]),
        ("1, 0", [A100, H100]),
        ("0,-1,1", [H100]),
        ("0,7,1", [H100]),
        ("GPU-bbbb", [GH200]),
        ("GPU-aaaa", []),  # which of the two?
        ("GPU-aaaa2222-0000,0", [A100, H100]),
        ("MIG-dddd5555-0000", [f"{A100} MIG 2g.10gb"]),
        ("none", []),
    ],
)
def test_gpus_are_those_that_cuda_may_see(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str | None, names: list[str]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -L ]; then cat <<END\n{SLICES}END\nelse cat <<END\n{GPUS}END\nfi\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus = machine.gpus.__wrapped__()
    assert [gpu.name for gpu in gpus] == names
    lost = "Unable to determine the device handle for GPU1: 0000:41:00.0: GPU is lost"
    program.write_text(f"#!/bin/sh\ncat <<END\n{lost}\n{GPUS}END\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpu.name for gpu in machine.gpus.__wrapped__()] == [H100, A100, GH200]
    memory = {H100: 81559 * 2**20, A100: 40960 * 2**20}
    assert [gpu.memory for gpu in gpus] == [memory.get(name) for name in names]


GROUPS = {
    "a job of version 2": (
        "0::/slurm/job_1/step_0\n",
        {"slurm/job_1/memory.max": "5000\n"},
        [5000],
    ),
    "no limit": ("0::/user\n", {"user/memory.max": "max\n"}, []),
    "a container that sees its group as the root": (
        "9:cpuset:/docker/1\n4:memory:/docker/1\n0::/\n",
        {"memory/memory.limit_in_bytes": "7000\n", "cpuset/memory.limit_in_bytes": "1\n"},
        [7000],
    ),
    "no control groups": ("", {}, []),
}


@pytest.mark.parametrize(("own", "files", "limits"), GROUPS.values(), ids=GROUPS)
def test_memory_is_what_the_control_groups_allow(
    tmp_path: Path, own: str, files: dict[str, str], limits: list[int]
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(machine._memory_limits(tmp_path, tmp_path / "own")) == limits


QUOTAS = {
    "a service of version 2": (
        "0::/user.slice/run-1.scope\n",
        {"user.slice/run-1.scope/cpu.max": "150000 100000\n", "user.slice/cpu.max": "max 100000"},
        [1.5],
    ),
    "a container that sees its group as the root": (
        "9:cpuset:/docker/1\n4:cpu,cpuacct:/docker/1\n",
        {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"},
        [2.0],
    ),
    "no limit": (
        "1:cpu:/\n",
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
        [],
    ),
}


@pytest.mark.parametrize(("own", "files", "quotas"), QUOTAS.values(), ids=QUOTAS)
def test_cores_are_as_many_as_the_control_groups_allow(
    tmp_path: Path, own: str, files: dict[str, str], quotas: list[float]
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(machine._cpu_quotas(tmp_path, tmp_path / "own")) == quotas


def test_what_is_loaded_is_collected_neither_then_nor_later() -> None:
    before = gc.get_freeze_count()
    with loading():
        assert not gc.isenabled()
        loaded = [[] for _ in range(1000)]
    assert gc.isenabled() and gc.get_freeze_count() >= before + len(loaded)
