"""What else used the machine: others' CPU time, and what nvidia-smi prints of GPUs.

nvidia-smi's lines are read as they are documented; no GPU ran here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor

from lab.records.schema import GpuState
from lab.worker.context import RankContext
from lab.worker.environment import (
    CpuUse,
    MachineWatch,
    background_cpu,
    cpu_use,
    parse_states,
    state_bytes,
)

ONE, TWO = "GPU-6f4f1d2e-0a3b-4c5d-8e9f-112233445566", "GPU-00000000-1111-2222-3333-444444444444"


def test_optimizer_state_in_lists_counts() -> None:
    weight = torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.LBFGS([weight], max_iter=1)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        (value := weight.pow(4).sum()).backward()
        return value

    kept = []
    for _ in range(3):
        optimizer.step(loss)
        kept.append(state_bytes([weight], optimizer).optimizer)
    # A direction and a step of 5 values, and two factors of theirs.
    assert kept[2] - kept[1] == 4 * (5 + 5 + 2)


def test_a_tensor_made_of_others_counts_as_what_they_hold() -> None:
    made_of_bytes = TwoTensor(torch.ones(4, dtype=torch.int8), torch.ones(4, dtype=torch.int8))
    assert state_bytes([TwoTensor(made_of_bytes, made_of_bytes)]).parameters == 2 * 2 * 4


def test_of_a_sharded_tensor_the_shard_of_this_rank_counts() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        sharded = DTensor.from_local(torch.ones(4), mesh, [Shard(0)], run_check=False)
        assert sharded.shape == (8,)
        assert state_bytes([sharded]).parameters == 4 * 4
    finally:
        dist.destroy_process_group()


def test_others_are_what_the_ranks_did_not_use_themselves() -> None:
    uses = [
        ("a", CpuUse(wall=10.0, own=8.0, busy={0: 10.0})),
        ("a", CpuUse(wall=10.0, own=9.0, busy={1: 9.0})),
    ]
    assert background_cpu(uses) == pytest.approx(0.2)


def test_a_core_of_two_ranks_counts_once_and_the_same_core_of_two_hosts_twice() -> None:
    shared = [("a", CpuUse(10.0, 5.0, {0: 10.0})), ("a", CpuUse(10.0, 5.0, {0: 10.0}))]
    assert background_cpu(shared) == 0.0
    apart = [("a", CpuUse(10.0, 5.0, {0: 10.0})), ("b", CpuUse(10.0, 5.0, {0: 10.0}))]
    assert background_cpu(apart) == pytest.approx(1.0)


def test_what_the_system_does_not_tell_is_none() -> None:
    assert background_cpu([("a", CpuUse(10.0, 5.0, {}))]) is None


def test_what_two_clock_ticks_could_have_made_is_not_judged() -> None:
    assert background_cpu([("a", CpuUse(wall=0.09, own=0.07, busy={0: 0.09}))]) is None
    long, short = ("a", CpuUse(2.0, 1.5, {0: 2.0})), ("a", CpuUse(0.2, 0.1, {1: 0.2}))
    assert background_cpu([long]) == pytest.approx(0.25)
    assert background_cpu([long, short]) is None


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
def test_own_work_is_seen_on_the_own_cores() -> None:
    cores = tuple(os.sched_getaffinity(0))
    before = cpu_use(cores)
    start, end = time.perf_counter(), time.process_time() + 0.3
    while time.process_time() < end:
        pass
    at_least = time.perf_counter() - start
    use = cpu_use(cores).since(before)
    assert set(use.busy) == set(cores)
    assert use.own >= 0.25
    assert use.wall >= at_least
    assert sum(use.busy.values()) >= 0.2  # counted in ticks


def state(samples: list[str], processes: list[str] = (), uuid: str = ONE) -> GpuState:
    (only,) = parse_states(samples, processes, uuids=[uuid])
    return only


def test_clocks_and_reasons_are_those_of_samples_that_were_not_idle() -> None:
    lines = [
        f"{ONE}, 345, 1980, 0x0000000000000001",  # idle: before the first step
        f"{ONE}, 1980, 1980, 0x0000000000000000",
        f"{ONE}, 1755, 1980, 0x0000000000000004",
        f"{ONE}, 1740, 1980, 0x0000000000000024",
        f"{TWO}, 210, 1980, 0x0000000000000000",
    ]
    assert state(lines) == GpuState(
        samples=3,
        sm_clock=1755.0,
        sm_clock_low=1740.0,
        sm_clock_max=1980.0,
        reasons={"sw_power_cap": 2 / 3, "sw_thermal_slowdown": 1 / 3},
        other_processes=None,
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "No devices were found",
        'Field "clocks_event_reasons.active" is not a valid field to query.',
        "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error",
        f"{ONE}, [N/A], [N/A], [N/A]",
        f"{ONE}, [Insufficient Permissions]",
        f"{ONE}, 1980",  # cut off when the sampler ended
    ],
)
def test_what_is_no_sample_tells_nothing(line: str) -> None:
    assert state([line]) == GpuState(samples=0, sm_clock=None, sm_clock_low=None, sm_clock_max=None)
    assert not state([line]).disturbed


def test_a_gpu_that_gives_its_clock_alone() -> None:
    gpu_state = state([f"{ONE}, 1410, [Not Supported], [Not Supported]\n"])
    assert (gpu_state.samples, gpu_state.sm_clock, gpu_state.sm_clock_max, gpu_state.reasons) == (
        1,
        1410.0,
        None,
        {},
    )


@pytest.mark.parametrize(
    ("processes", "others"),
    [
        ([f"{ONE}, 40170"], 0),
        ([f"{ONE}, 40170", f"{ONE}, 28290", f"{TWO}, 7"], 1),
        ([], None),  # a container shows not even the rank itself
        (["No running processes found"], None),
        ([f"{ONE}, [Insufficient Permissions]"], None),
    ],
)
def test_others_are_all_processes_of_a_gpu_but_the_rank(processes, others) -> None:
    assert state([], processes).other_processes == others
    assert state([], processes).disturbed == bool(others)


@pytest.mark.parametrize(
    ("mask", "share", "throttled"),
    [
        ("0x0000000000000040", 1.0, ["hw_thermal_slowdown"]),
        ("0x0000000000000088", 1.0, ["hw_slowdown", "hw_power_brake_slowdown"]),
        ("0x0000000000000020", 0.02, []),  # a moment is less than the noise of repeats
        ("0x0000000000000004", 1.0, []),  # the power cap belongs to the machine
        ("0x0000000000000002", 1.0, []),
    ],
)
def test_heat_and_a_failing_supply_disturb(mask: str, share: float, throttled: list[str]) -> None:
    count = round(100 * share)
    lines = [f"{ONE}, 1200, 1980, {mask}"] * count + [f"{ONE}, 1980, 1980, 0x0"] * (100 - count)
    assert state(lines).throttled == throttled
    assert state(lines).disturbed == bool(throttled)


DRIVER = """#!/bin/sh
case "$*" in
*clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field'; exit 2 ;;
*compute-apps*) echo "UUID, 11"; echo "UUID, 12" ;;
*--loop-ms*) while true; do echo "UUID, 1500, 1980, 0x0000000000000000"; sleep 0.02; done ;;
*) echo "UUID, 300, 1980, 0x0000000000000001" ;;
esac
"""


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device whose driver is older than the newer name of the reasons."""
    program = tmp_path / "nvidia-smi"
    program.write_text(DRIVER.replace("UUID", ONE))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    properties = SimpleNamespace(uuid=ONE.removeprefix("GPU-"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    return torch.device("cuda", 0)


def watching(device: torch.device) -> MachineWatch:
    return MachineWatch(RankContext(0, 1, 0, device.type, (), 1, "local", Path("meeting")), device)


def test_the_sampler_ends_with_what_it_has_seen(gpu: torch.device) -> None:
    watch = watching(gpu)
    while len(watch._lines) < watch._first + 3:
        pass
    (gpu_state,) = watch.stop().gpus
    assert (
        gpu_state.samples >= 3 and gpu_state.sm_clock == 1500.0 and gpu_state.other_processes == 1
    )
    assert watch._sampler is not None and watch._sampler.poll() is not None


def test_what_was_sampled_before_the_measured_steps_does_not_count(gpu: torch.device) -> None:
    watch = watching(gpu)
    while len(watch._lines) < 3:
        pass
    watch._lines[:] = [f"{ONE}, 345, 1980, 0x0000000000000000"] * len(watch._lines)
    watch.restart()
    early = len(watch._lines)
    while len(watch._lines) < early + 3:
        pass
    (gpu_state,) = watch.stop().gpus
    assert gpu_state.sm_clock_low == 1500.0 and gpu_state.samples >= 3


def test_nothing_is_sampled_without_a_gpu_or_without_its_tool(gpu, monkeypatch) -> None:
    assert watching(torch.device("cpu")).stop().gpus == []
    monkeypatch.setenv("PATH", "")
    assert watching(gpu).stop().gpus == []
