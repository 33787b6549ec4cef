"""Jobs of one host beside each other: which of them start, and who gets which device."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from hypothesis import given
from hypothesis import strategies as st

from lab import machine
from lab.config.cluster import Cluster
from lab.errors import InputError
from lab.launch import job
from lab.launch.attempt import WAITING, Attempt, claim, read_progress
from lab.launch.bench_driver import EIGHT_DEVICES, DriverCost, Interval, longest_wait
from lab.launch.executor import JobSpec, LocalJob, read_job
from lab.launch.local import LocalExecutor, LocalHandle
from lab.launch.slurm.array import Array
from lab.launch.slurm.executor import SlurmHandle
from lab.worker.context import RankContext

sizes = st.lists(st.sampled_from([1, 2, 4, 8]), max_size=12)


def specs(slots: list[int | None]) -> list[JobSpec]:
    return [JobSpec(Path(str(n)), one or 1, print, (), slots=one) for n, one in enumerate(slots)]


def handles(slots: list[int | None]) -> list[LocalHandle]:
    fields = {"cluster": "here", "job_id": "17", "pid": 17, "began": 0.0, "submitted_at": 0.0}
    jobs = [LocalJob.model_validate(fields | {"slots": one}) for one in slots]
    return [LocalHandle(Path(), job) for job in jobs]


@given(sizes, st.lists(st.sampled_from([1, 2, 4]), max_size=2))
def test_no_job_that_fits_waits_and_none_is_passed_by_a_smaller_one(
    waiting: list[int], running: list[int]
) -> None:
    chosen = LocalExecutor(EIGHT_DEVICES).choose(specs([*waiting]), handles([*running]))
    taken = [spec.slots or 8 for spec in chosen]
    free = 8 - sum(running)
    assert sum(taken) <= free
    left = list(waiting)
    for size in taken:
        left.remove(size)
    for size in left:
        assert size > free - sum(taken)
        assert size > free - sum(one for one in taken if one >= size)


def test_a_job_that_claims_no_devices_has_the_host_to_itself() -> None:
    executor = LocalExecutor(EIGHT_DEVICES)
    first, *_ = jobs = specs([None, None])
    assert executor.choose(jobs, []) == [first]
    assert executor.choose(jobs, handles([1])) == []
    assert executor.choose(specs([1]), handles([None])) == []


def test_an_adopted_job_of_slurm_takes_no_device_here() -> None:
    elsewhere = SlurmHandle(Path(), Array(Path()), "17_0")
    waiting = specs([None])
    assert LocalExecutor(EIGHT_DEVICES).choose(waiting, [elsewhere]) == waiting


def test_on_cpus_jobs_run_one_at_a_time_in_their_order() -> None:
    executor = LocalExecutor(Cluster(name="local", device="cpu", pack_jobs=True))
    first, *_ = jobs = specs([None, None, None])
    assert executor.choose(jobs, []) == [first]
    assert executor.choose(jobs, handles([None])) == []


def test_a_job_says_which_file_its_profile_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalExecutor, "_fork", lambda *_: os.getpid())
    site = tmp_path / "site.yaml"
    site.write_text("device: cpu\n")
    LocalExecutor(Cluster.load(site)).submit([JobSpec(tmp_path / "job", 1, print, ())])
    submitted = read_job(tmp_path / "job")
    assert submitted is not None and submitted.cluster == str(site)


def is_held(path: Path) -> bool:
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "waited for five minutes"
        time.sleep(0.01)


def test_a_large_job_is_not_passed_by_small_ones_of_other_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names, ends = ["a", "b"], threading.Event()
    order: list[tuple[str, tuple[int, ...]]] = []

    def take(job_name: str, count: int | None) -> None:
        folder = tmp_path / job_name
        attempt = Attempt(folder, "17")
        if count is None:
            with claim(attempt, names=None):
                order.append((job_name, ()))
        else:
            with claim(attempt, names=names, count=count) as devices:
                order.append((job_name, devices))
                if job_name == "first":
                    ends.wait()

    def start(job_name: str, count: int | None) -> threading.Thread:
        (tmp_path / job_name / "log").mkdir(parents=True)  # as the driver makes it
        thread = threading.Thread(target=take, args=(job_name, count), daemon=True)
        thread.start()
        return thread

    locks = tmp_path / f"scaling-lab-{os.getuid()}"
    threads = [start("first", 1)]
    wait_for(lambda: len(order) == 1)
    threads.append(start("large", 2))
    wait_for(lambda: is_held(locks / "device-b.lock"))  # kept for it
    wait_for(lambda: read_progress(tmp_path / "large").phase == WAITING)
    threads += [start("small", 1), start("host", None)]
    wait_for(lambda: is_held(tmp_path / "small" / "lock") and is_held(tmp_path / "host" / "lock"))
    ends.set()
    for thread in threads:
        thread.join()
    assert order[:2] == [("first", (0,)), ("large", (0, 1))]
    assert sorted(order[2:]) == [("host", ()), ("small", (0,))]


def test_a_job_sees_its_own_gpus_and_each_rank_has_their_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: tuple(range(8)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
    cluster = Cluster(name="four", device="cuda", devices=4, pack_jobs=True)
    rank = RankContext(1, 2, 1, "cuda", (2, 3), 2, "four", Path())
    settled = job.settle(rank, cluster, (1, 3))
    assert settled.cores == (6, 7) and settled.shared_host
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-d"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
    one_process = RankContext(0, 1, 0, "cuda", (0, 1), 2, "four", Path())
    assert job.settle(one_process, cluster, (1, 3)).cores == (2, 3, 6, 7)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("device: cpu\n", "jobs that compute on CPUs would disturb each other"),
        ("link: {bandwidth_gbit: 1}\n", "jobs that compute on CPUs would disturb each other"),
        ("compute: {emulated: measured}\n", "jobs that compute on CPUs would disturb each other"),
        ("compute: {emulated: A100}\ncores_per_job: 1\n", "all ranks have the same cores"),
        ("environment: {CUDA_VISIBLE_DEVICES: '0'}\n", "CUDA_VISIBLE_DEVICES names each job's"),
    ],
)
def test_jobs_that_would_disturb_each_other_are_not_packed(
    tmp_path: Path, keys: str, problem: str
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(f"executor: local\npack_jobs: true\n{keys}")
    with pytest.raises(InputError, match=f"pack_jobs: true, but .*{problem}"):
        Cluster.load(path)


def test_packing_is_asked_for_and_needs_devices(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("executor: local\ncompute: {emulated: A100}\n")
    assert not Cluster.load(path).packs
    path.write_text("executor: local\npack_jobs: true\ncompute: {emulated: A100}\n")
    assert Cluster.load(path).packs


def test_a_wait_counts_from_when_enough_devices_were_free() -> None:
    small, other = Interval(0, 10, 20, 4), Interval(0, 10, 30, 4)
    assert longest_wait([small, other, Interval(0, 22, 40, 4)], 8) == 2
    assert longest_wait([small, other, Interval(0, 33, 40, 8)], 8) == 3
    assert longest_wait([small, other, Interval(31, 33, 40, 8)], 8) == 2
    assert longest_wait([small, Interval(18, 19, 30, 2)], 8) == 1


@pytest.mark.parametrize(
    ("study_s", "wait_s", "packed", "within"),
    [(105, 2, False, True), (106, 2, False, False), (105, 3, True, False), (60, 1, True, True)],
)
def test_the_drivers_limits(study_s: float, wait_s: float, packed: bool, within: bool) -> None:
    cost = DriverCost("local", (1,), 20, study_s, 100.0, wait_s, packed)
    assert cost.within_limits == within
    assert (cost.ratio is None) == packed
