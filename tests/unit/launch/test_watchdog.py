"""What a rank tells of itself while it trains."""

from __future__ import annotations

import multiprocessing
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.files import private_folder, read_json
from lab.launch import watchdog
from lab.launch.attempt import Attempt, RankProgress
from lab.launch.executor import LocalJob, SlurmJob, write_job
from lab.launch.watchdog import Watchdog
from lab.worker.context import RankContext
from lab.worker.measure import collective_trace


@contextmanager
def watched(folder: Path, *, rank: int = 0) -> Iterator[Watchdog]:
    context = RankContext(rank, 2, rank, "cpu", (0,), 1, "test", folder / "rendezvous")
    attempt = Attempt(folder, "17")
    attempt.register_rank(rank)
    guard = Watchdog(context, attempt, steps=30, on_hang=lambda: None)
    guard.start()
    yield guard
    guard.stop()


def published(folder: Path, phase: str) -> dict[str, object]:
    """The progress in a folder, when it is of that phase."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        content = read_json(folder / "progress.json")
        if content and content["phase"] == phase:
            return content
        time.sleep(0.01)
    raise AssertionError(f"{phase} was never published")


def test_progress_is_told_by_rank_0(tmp_path: Path) -> None:
    with watched(tmp_path / "0") as guard, watched(tmp_path / "1", rank=1) as other:
        published(tmp_path / "0", "loading torch")
        for each in (guard, other):
            each.progress("measuring", 3, 30, 2.5)
        content = published(tmp_path / "0", "measuring")
        assert (content["step"], content["steps"], content["loss"]) == (3, 30, 2.5)
        assert guard.phase == other.phase == "measuring"
    assert not (tmp_path / "1" / "progress.json").exists()


def test_a_slow_disk_does_not_hold_up_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, free = threading.Event(), threading.Event()
    writers = set()

    def slow(folder: Path, progress: RankProgress) -> None:
        writers.add(threading.current_thread())
        writing.set()
        free.wait(20)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(watchdog, "write_progress", slow)
    with watched(tmp_path) as guard:
        assert writing.wait(20)
        guard.progress("measuring", 1, 30)
        writing.clear()
        free.set()
        assert writing.wait(20), "a disk that was full once is not tried again"
    assert threading.current_thread() not in writers


@pytest.mark.parametrize("name", ["all_gather_single", "reduce_scatter_single"])
def test_a_rank_in_a_collective_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from torch import distributed as dist

    from lab.worker import distributed

    stacks = []
    old = {"all_gather_single": "all_gather_into_tensor"}.get(name, "reduce_scatter_tensor")
    monkeypatch.setattr(
        dist,
        name if hasattr(dist, name) else old,
        lambda *tensors: stacks.append(traceback.extract_stack()),
    )
    tensor = torch.zeros(1)
    getattr(distributed, name)(tensor, tensor)
    assert watchdog._waits_for_others(stacks[0])
    assert not watchdog._waits_for_others(traceback.extract_stack())


def test_a_job_is_removed_if_its_folder_belongs_to_a_later_one(tmp_path: Path) -> None:
    local = LocalJob(cluster="local", job_id="17", pid=17, began=0.0, submitted_at=0.0)
    array = SlurmJob(cluster="slurm", array="../arrays/lab-1", index=0, submitted_at=0.0)
    folder = private_folder(tmp_path / "0")
    with watched(folder) as guard:
        assert not guard.is_removed()
        (folder / "log" / "17.rank0.pid").unlink()
        assert guard.is_removed()
        write_job(folder, local)
        assert not guard.is_removed()  # only its logs are
        write_job(folder, local.model_copy(update={"job_id": "18"}))
        assert guard.is_removed()
    attempt = Attempt(folder, "17_0", output=tmp_path / "arrays" / "lab-1")
    guard = Watchdog(guard._context, attempt, steps=1, on_hang=lambda: None)
    write_job(folder, array)
    assert not guard.is_removed()
    write_job(folder, array.model_copy(update={"array": "../arrays/lab-2"}))
    assert guard.is_removed()


def test_a_rank_waits_for_the_others_where_a_traced_call_does() -> None:
    stacks = []

    def wait(work: object) -> None:
        stacks.append(traceback.extract_stack())

    collective_trace._wait(wait, id, object())
    assert watchdog._waits_for_others(stacks[0])


@pytest.mark.parametrize("busy", [True, False])
def test_a_rank_whose_gpu_has_work_left_only_waits(
    monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    from lab.worker import distributed

    assert not watchdog._device_waits()  # there is no GPU
    monkeypatch.setattr(distributed, "device_is_busy", lambda: busy)
    assert watchdog._device_waits() is busy


def test_a_rank_whose_gpu_failed_is_no_rank_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.worker import distributed

    def fail() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(distributed, "device_is_busy", fail)
    assert watchdog._device_waits() is False  # and the watchdog goes on to end it


def naps(ready: Any) -> None:
    ready.set()
    time.sleep(600)


def works(ready: Any, work: Any) -> None:
    ready.set()
    work.get()


def test_where_busy_children_stand_is_told() -> None:
    children, fork = watchdog.Children(), multiprocessing.get_context("fork")
    begun = [fork.Event(), fork.Event()]
    processes = [
        fork.Process(target=naps, args=(begun[0],), daemon=True),
        fork.Process(target=works, args=(begun[1], fork.Queue()), daemon=True),
    ]
    for process, ready in zip(processes, begun, strict=True):
        process.start()
        assert ready.wait(60)
    try:
        deadline = time.monotonic() + 60
        while len(places := children.places()) != 1:  # until the second waits for work
            assert time.monotonic() < deadline, places
        assert places[0].startswith(f"its process {processes[0].pid} stood in naps (test_watchdog.")
    finally:
        for process in processes:
            process.kill()
