"""Profiles: what they give to a rank, and what can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import machine
from lab.cluster import Cluster
from lab.errors import InputError


def profile(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_local_profile_gives_each_rank_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: (0, 2, 4, 6))
    monkeypatch.setattr(machine, "gpus", lambda: ())
    cluster = Cluster.load("local")
    assert cluster.device_kind == "cpu" and cluster.capacity == 4
    assert [cluster.cores_of(rank) for rank in range(4)] == [(0,), (2,), (4,), (6,)]
    pairs = cluster.model_copy(update={"cores_per_rank": 2})
    assert pairs.capacity == 2 and pairs.cores_of(1) == (4, 6) and pairs.threads_per_rank == 2


def test_gpus_are_the_devices_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: tuple(range(16)))
    monkeypatch.setattr(machine, "gpus", lambda: tuple(machine.Gpu("NVIDIA H200", "570", 141 * 2**30) for _ in range(4)))
    cluster = Cluster.load("local")
    assert cluster.device_kind == "cuda" and cluster.capacity == 4
    assert cluster.cores_of(1) == (4, 5, 6, 7) and cluster.memory_bytes_per_rank == 141 * 2**30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exceutor: local\n", "exceutor: unknown key (did you mean 'executor'?)"),
        ("executor: locall\n", "executor: 'locall' is not a choice"),
        ("device: gpu\n", "device: 'gpu' is not a choice"),
        ("devices: 100000\n", "devices: 100000, and there are"),
        ("devices: many\n", "devices"),
        ("cores_per_rank: 0\n", "cores_per_rank: input should be greater than or equal to 1"),
        ("hang_timeout_s: 1\n", "hang_timeout_s"),
        ("environment: {A: 1}\n", "environment.A: input should be a valid string"),
    ],
)
def test_bad_profile_says_what_where_and_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Cluster.load(profile(tmp_path, text))
    assert message in str(caught.value)


def test_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'local'"):
        Cluster.load("locla")


def test_cores_are_within_what_this_process_may_use() -> None:
    assert 1 <= len(machine.cores()) <= len(machine.allowed_cpus())
    assert set(machine.cores()) <= set(machine.allowed_cpus())


def test_cpu_quota_limits_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "allowed_cpus", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(machine, "_siblings", lambda cpu: frozenset({cpu}))
    monkeypatch.setattr(machine, "_cpu_quota", lambda: 2.5)
    assert machine.cores() == (0, 1)
    monkeypatch.setattr(machine, "_siblings", lambda cpu: frozenset({cpu % 2, cpu % 2 + 2}))
    monkeypatch.setattr(machine, "_cpu_quota", lambda: None)
    assert machine.cores() == (0, 1)
