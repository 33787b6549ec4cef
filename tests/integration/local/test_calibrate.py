"""A calibration with real ranks: its laws, what it keeps, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
import yaml

from lab import machine
from lab.config.strategies import STRATEGIES
from lab.launch.calibrate import calibrate
from lab.machine import is_running
from lab.perfmodel.calibration import (
    REFERENCES,
    Calibration,
    load_calibration,
)
from lab.perfmodel.simulate import spread
from lab.worker.calibrate import (
    COPY_BYTES,
    QUICK_STARTS,
    QUICK_STARTS_TOGETHER,
    matrix_products,
    memory_bandwidth,
)

pytestmark = pytest.mark.skipif(len(machine.cores()) < 2, reason="two ranks need two cores")


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a device lock of these tests' own."""
    folder = tmp_path_factory.mktemp("calibrations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield folder


def profile_of(folder: Path) -> Path:
    """A profile of two ranks in that folder, which believes what others disturbed."""
    folder.mkdir()
    path = folder / "small.yaml"
    settings = {"executor": "local", "device": "cpu", "devices": 2, "hang_timeout_s": 60}
    path.write_text(yaml.safe_dump(settings | {"repeat_disturbed": False}))
    return path


@dataclass(frozen=True)
class Resumed:
    """A calibration that Ctrl-C ended on two ranks, and the same one to its end."""

    profile: Path
    output: str
    left_alive: list[int]
    kept: Calibration | None
    whole: Calibration


@pytest.fixture(scope="module")
def resumed(temporary: Path) -> Resumed:
    """Interrupt a quick calibration while two ranks work, then call it again."""
    profile = profile_of(temporary / "resumed")
    process = driver(profile, "quick=True")
    work = work_of(profile)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not list(work.glob("log/*.rank1.pid")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    pids = [json.loads(path.read_text()) for path in work.glob("log/*.pid")]
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    alive = [pid["pid"] for pid in pids if is_running(pid["pid"], pid["began"])]
    kept = load_calibration(profile)
    return Resumed(profile, output, alive, kept, calibrate(profile, quick=True, progress=False))


def driver(profile: Path, call: str) -> subprocess.Popen[str]:
    code = f"from lab.launch.calibrate import calibrate; calibrate({str(profile)!r}, {call})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def work_of(profile: Path) -> Path:
    return profile.parent / "calibration" / "small" / "x2"


@pytest.mark.quiet
def test_ctrl_c_keeps_the_world_sizes_that_are_measured(resumed: Resumed) -> None:
    assert "interrupted: 1 of 2 world sizes are kept" in resumed.output
    assert not resumed.left_alive
    kept = resumed.kept
    assert kept is not None and [part.world_size for part in kept.parts] == [1]
    assert kept.memory is not None and kept.matrix_products["fp32"].flops_per_s > 1e8
    assert [part.world_size for part in resumed.whole.parts] == [*resumed.whole.wanted]
    assert resumed.whole.parts[0] == kept.parts[0]


@pytest.mark.quiet
def test_two_ranks_obey_the_laws_and_are_not_measured_twice(resumed: Resumed) -> None:
    profile, whole = resumed.profile, resumed.whole
    part = whole.parts[1]
    assert part.world_size == 2 and load_calibration(profile) == whole
    assert {entry.name for entry in (profile.parent / "calibration").iterdir()} <= {
        "small.json",
        "small.lock",
    }
    names = {row.collective for row in whole.rows}
    assert {"all_reduce", "all_gather", "broadcast"} <= names
    assert names | set(part.missing) == {
        "all_reduce",
        "all_gather",
        "broadcast",
        "reduce_scatter",
    }
    for name in names:
        rows = [row for row in whole.rows if row.collective == name]
        assert [row.bytes for row in rows] == sorted({row.bytes for row in rows})
        assert all(
            row.busbw / row.algbw == pytest.approx({"all_reduce": 1, "broadcast": 1}.get(name, 0.5))
            for row in rows
        )
        assert all(
            row.low is not None and row.high is not None and row.low <= row.seconds <= row.high
            for row in rows
        )
        least, most = rows[0], rows[-1]  # whose intervals other work can widen
        assert most.high > least.low, f"{name}: {most.bytes // least.bytes} times the bytes"
        assert all(row.calls >= 7 for row in rows)
    environment = part.environment
    assert (
        environment.backend == "gloo"
        and len(environment.hosts) == 2
        and environment.cpus_granted[0] != environment.cpus_granted[1]
    )
    assert calibrate(profile, quick=True, progress=False) == whole
    steps = part.steps
    assert {(step.run.strategy, step.run.world_size) for step in steps} == {
        (name, 1 if name == "single" else 2)
        for name, facts in STRATEGIES.items()
        if name == "single" or not facts.single_process
    }
    for step in steps:
        assert len(step.seconds) == QUICK_STARTS_TOGETHER and step.median > 0
        assert sum(step.phases.values()) == pytest.approx(step.median, rel=0.5)


@pytest.mark.quiet
def test_one_rank_starts_its_steps_in_processes_that_begin_anew(resumed: Resumed) -> None:
    part = resumed.whole.parts[0]
    alone = [step for step in part.steps if step.run.strategy == "single"]
    assert [len(step.seconds) for step in alone] == [QUICK_STARTS] * len(REFERENCES)
    # The wider and deeper models have more gradients, and all tell when these are ready.
    sizes = [sum(gradient.bytes for gradient in step.gradients) for step in alone]
    assert sizes[0] < min(sizes[1:])
    assert all(step.gradients[-1].ready == pytest.approx(1, abs=0.2) for step in alone)
    processes = spread(step.seconds for step in alone)
    assert processes and processes.sd > 0
    others = {step.run.strategy for step in part.steps} - {"single"}
    assert others == {name for name, facts in STRATEGIES.items() if not facts.single_process}


def test_a_lost_rank_is_named(temporary: Path) -> None:
    profile = profile_of(temporary / "lost")
    process = driver(profile, "world_sizes=[2]")
    work = work_of(profile)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and "collectives" not in _phase(work):
        time.sleep(0.05)
    (path,) = work.glob("log/*.rank1.pid")
    psutil.Process(json.loads(path.read_text())["pid"]).kill()
    output, _ = process.communicate(timeout=300)
    assert (
        process.returncode == 1
        and "LabError: calibration on 2 ranks: rank" in output
        and "the log is in" in output
    )
    assert load_calibration(profile) is None


def _phase(work: Path) -> str:
    path = work / "progress.json"
    return path.read_text() if path.exists() else ""


def test_memory_and_matrix_products_of_this_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    monkeypatch.setitem(COPY_BYTES, "cpu", 2**24)
    monkeypatch.setattr("lab.worker.calibrate.COPY_S", 0.05)
    memory = memory_bandwidth(device)
    assert memory.bytes == 2**24 and 1e7 < memory.bytes_per_s < 1e13
    products, missing = matrix_products(device)
    assert {product.dtype for product in products} | set(missing) == {"fp32", "bf16", "fp16"}
    assert all(product.flops_per_s > 1e7 for product in products)
