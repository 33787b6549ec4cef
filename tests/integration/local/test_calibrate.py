"""A calibration with real ranks: its laws, what it keeps, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from lab import machine
from lab.config.strategies import STRATEGIES
from lab.launch.calibrate import calibrate
from lab.machine import is_running
from lab.perfmodel.calibration import load_calibration
from lab.perfmodel.intervals import spread
from lab.perfmodel.reference import MODELS
from lab.worker.calibrate import matrix_products, memory_bandwidth
from lab.worker.reference import QUICK_ROUNDS, QUICK_STARTS

pytestmark = [
    pytest.mark.skipif(len(machine.cores()) < 2, reason="two ranks need two cores"),
    pytest.mark.alone,
]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile of two ranks, and a device lock of this test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "small.yaml"
    path.write_text("executor: local\ndevice: cpu\ndevices: 2\nhang_timeout_s: 60\n")
    return path


def driver(profile: Path, call: str) -> subprocess.Popen[str]:
    code = f"from lab.launch.calibrate import calibrate; calibrate({str(profile)!r}, {call})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_two_ranks_obey_the_laws_and_are_not_measured_twice(profile: Path) -> None:
    found = calibrate(profile, world_sizes=[2], quick=True, progress=False)
    assert found.complete and load_calibration(profile) == found
    assert {entry.name for entry in (profile.parent / "calibration").iterdir()} <= {
        "small.json",
        "small.lock",
    }
    names = {row.collective for row in found.rows}
    assert {"all_reduce", "all_gather", "broadcast"} <= names
    assert names | set(found.parts[0].missing) == {
        "all_reduce",
        "all_gather",
        "broadcast",
        "reduce_scatter",
    }
    for name in names:
        rows = [row for row in found.rows if row.collective == name]
        assert [row.bytes for row in rows] == sorted({row.bytes for row in rows})
        large = [row.seconds for row in rows if row.bytes >= 256 * 2**10]
        assert large[-1] > large[0], f"{name}: 16 times the bytes took no longer"
        assert all(
            row.busbw / row.algbw == pytest.approx({"all_reduce": 1, "broadcast": 1}.get(name, 0.5))
            for row in rows
        )
        assert all(
            row.low is not None and row.high is not None and row.low <= row.seconds <= row.high
            for row in rows
        )
        assert all(row.calls >= 7 for row in rows)
    environment = found.parts[0].environment
    assert (
        environment.backend == "gloo"
        and len(environment.hosts) == 2
        and environment.cpus_granted[0] != environment.cpus_granted[1]
    )
    again = calibrate(profile, world_sizes=[2], quick=True, progress=False)
    assert again == found
    steps = found.parts[0].steps
    assert {(step.run.strategy, step.run.world_size) for step in steps} == {
        (name, 1 if name == "single" else 2)
        for name, facts in STRATEGIES.items()
        if name == "single" or not facts.single_process
    }
    for step in steps:
        assert len(step.seconds) == QUICK_ROUNDS and step.median > 0
        assert sum(step.phases.values()) == pytest.approx(step.median, rel=0.5)


def test_one_rank_starts_its_steps_in_processes_that_begin_anew(profile: Path) -> None:
    (part,) = calibrate(profile, world_sizes=[1], quick=True, progress=False).parts
    alone = [step for step in part.steps if step.run.strategy == "single"]
    assert [len(step.seconds) for step in alone] == [QUICK_STARTS] * len(MODELS)
    # The wider and deeper models take longer in every process, and tell when gradients are ready.
    assert alone[0].median < min(alone[1].median, alone[2].median)
    assert all(step.gradients[-1].ready == pytest.approx(1, abs=0.2) for step in alone)
    processes = spread(step.seconds for step in alone)
    assert processes and processes.sd > 0
    others = {step.run.strategy for step in part.steps} - {"single"}
    assert others == {name for name, facts in STRATEGIES.items() if not facts.single_process}


def test_ctrl_c_keeps_the_world_sizes_that_are_measured(profile: Path) -> None:
    process = driver(profile, "quick=True")
    work = profile.parent / "calibration" / "small" / "x2"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(work.glob("log/*.rank1.pid")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    pids = [json.loads(path.read_text()) for path in work.glob("log/*.pid")]
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "interrupted: 1 of 2 world sizes are kept" in output
    assert not [pid for pid in pids if is_running(pid["pid"], pid["began"])]
    kept = load_calibration(profile)
    assert (
        kept is not None and not kept.complete and [part.world_size for part in kept.parts] == [1]
    )
    assert kept.memory is not None and kept.matrix_products["fp32"].flops_per_s > 1e8
    whole = calibrate(profile, quick=True, progress=False)
    assert whole.complete and whole.parts[0] == kept.parts[0]


def test_a_lost_rank_is_named(profile: Path) -> None:
    process = driver(profile, "world_sizes=[2]")
    work = profile.parent / "calibration" / "small" / "x2"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and "collectives" not in _phase(work):
        time.sleep(0.05)
    (path,) = work.glob("log/*.rank1.pid")
    psutil.Process(json.loads(path.read_text())["pid"]).kill()
    output, _ = process.communicate(timeout=90)
    assert (
        process.returncode == 1
        and "LabError: calibration on 2 ranks: rank" in output
        and "its log is in" in output
    )
    assert load_calibration(profile) is None


def _phase(work: Path) -> str:
    path = work / "progress.json"
    return path.read_text() if path.exists() else ""


def test_memory_and_matrix_products_of_this_device() -> None:
    device = torch.device("cpu")
    memory = memory_bandwidth(device, copy_bytes=2**24, seconds=0.05)
    assert memory.bytes == 2**24 and 1e7 < memory.bytes_per_s < 1e13
    products, missing = matrix_products(device)
    assert {product.dtype for product in products} | set(missing) == {"fp32", "bf16", "fp16"}
    assert all(product.flops_per_s > 1e7 for product in products)
