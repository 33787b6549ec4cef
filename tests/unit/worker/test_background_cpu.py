from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lab.worker.environment import CpuUse, background_cpu, cpu_use


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
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    use = cpu_use(cores).since(before)
    assert set(use.busy) == set(cores)
    assert use.own >= 0.25
    assert use.wall >= 0.3
    assert sum(use.busy.values()) >= 0.2  # counted in ticks
