"""What a rank is given before it begins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lab import machine
from lab.config.cluster import Cluster
from lab.errors import InputError
from lab.launch import job
from lab.launch.attempt import Attempt
from lab.launch.executor import prepare
from lab.worker.context import RankContext


def test_a_rank_of_several_devices_has_each_of_its_cores_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = SimpleNamespace(global_rank=0, local_rank=0, num_nodes=1)
    monkeypatch.setattr(job, "present", lambda folder: (here, Attempt(folder, "17")))
    monkeypatch.setattr(job, "listen_for_preemption", lambda: None)
    monkeypatch.setattr(machine, "cores", lambda: (4, 5, 6, 7))
    cluster = Cluster.model_validate({"name": "site", "executor": "slurm", "gpus_per_node": 4})
    context, _ = job.register(1, cluster, tmp_path, devices=4)
    assert context.cores == (4, 5, 6, 7)


@pytest.mark.parametrize(("cores", "threads"), [(range(16), 16), (range(64), 32)])
def test_hardware_threads_of_a_core_are_no_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: range, threads: int
) -> None:
    """Slurm may count both threads of a core, and bind a rank to 32 CPUs on 16 cores."""
    here = SimpleNamespace(global_rank=0, local_rank=0, num_nodes=1)
    monkeypatch.setattr(job, "present", lambda folder: (here, Attempt(folder, "17")))
    monkeypatch.setattr(job, "listen_for_preemption", lambda: None)
    monkeypatch.setattr(machine, "cores", lambda: tuple(cores))
    site = Cluster(name="site", executor="slurm", gpus_per_node=4, cpus_per_gpu=32)
    context, _ = job.register(1, site, tmp_path)
    assert context.threads == threads


def test_each_interface_of_a_profile_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "interfaces", lambda: ("lo", "hsn0"))
    site = Cluster(name="site", executor="slurm", gpus_per_node=4, network_interface="hsn0,hsn,x9")
    context = RankContext(0, 1, 0, "cpu", (0,), 1, "site", tmp_path / "rendezvous")
    with pytest.raises(InputError) as caught:
        job.setup_rank(context, site, Attempt(tmp_path, "17"))
    said = str(caught.value)
    assert "2 problems" in said and "no 'hsn' on" in said and "did you mean 'hsn0'?" in said


def test_a_later_job_with_the_same_number_finds_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    """Process ids come back, above all after a restart of the machine or its container."""
    prepare(tmp_path)
    log = tmp_path / "log"
    stale = ["4711.start", "4711.rendezvous", "4711.steps0", "17_3.r1.rank0.pid", "4711.part.json"]
    kept = ["4711_0_log.out", "20260101T000000.1.record.json", "controller.log"]
    for name in (*stale, *kept):
        (log / name).touch()
    prepare(tmp_path)
    assert sorted(path.name for path in log.iterdir()) == sorted(kept)
