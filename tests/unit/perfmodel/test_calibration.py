"""Calibrations: stored whole, asked for times, drawn, tabled; the driver's choice of what to
measure.
"""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import metadata
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch
from factories import environment
from torch import distributed as dist

from lab.analysis import tables
from lab.config.cluster import Cluster
from lab.errors import InputError, LabError
from lab.figures.curves import NO_COLLECTIVES, links, links_alt
from lab.launch.calibrate import _doubling, _reusable, _same_conditions, calibrate
from lab.perfmodel import calibration as stored
from lab.perfmodel.calibration import (
    Calibration,
    CollectiveTime,
    MatrixProduct,
    MemoryBandwidth,
    Part,
)
from lab.perfmodel.collectives import COLLECTIVES
from lab.worker import collectives

SIZES = [4096 * 4**power for power in range(7)]
ALPHA, RATE = 2e-4, 1e9


def part(world_size: int = 2, **fields: object) -> Part:
    times = [
        CollectiveTime(
            collective=name,
            world_size=world_size,
            bytes=size,
            seconds=time,
            low=0.95 * time,
            high=1.1 * time,
            calls=20,
        )
        for factor, name in enumerate(COLLECTIVES, start=1)
        for size in SIZES
        if (time := factor * (ALPHA + size / RATE)) and world_size > 1
    ]
    torch_here = {"torch": metadata.version("torch")}
    content = {
        "world_size": world_size,
        "quick": False,
        "measured_at": datetime.now(UTC),
        "profile": Cluster(name="local"),
        "environment": environment(
            world_size, hosts=[socket.gethostname()] * world_size, versions=torch_here
        ),
        "times": tuple(times),
    }
    if world_size == 1:
        content["matrix_products"] = (MatrixProduct(dtype="fp32", flops_per_s=5e10, size=512),)
        content["memory"] = MemoryBandwidth(bytes_per_s=2e10, bytes=2**28)
    return Part.model_validate(content | fields)


@pytest.fixture
def calibration() -> Calibration:
    return Calibration(cluster="local", wanted=(1, 2), parts=(part(1), part(2)))


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_it_comes_back_as_it_was_stored(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "calibration" / "local.json"
    stored.write_calibration(calibration, path)
    assert stored.read_calibration(path) == calibration
    assert [entry.name for entry in path.parent.iterdir()] == ["local.json"]


def test_what_cannot_be_read_is_none_and_what_is_newer_is_said(
    calibration: Calibration, tmp_path: Path
) -> None:
    path = tmp_path / "local.json"
    assert stored.read_calibration(path) is None
    path.write_text('{"cluster": "lo')
    assert stored.read_calibration(path) is None
    path.write_text(json.dumps(json.loads(calibration.model_dump_json()) | {"schema_version": 99}))
    with pytest.raises(LabError, match="newer lab"):
        stored.read_calibration(path)


def test_it_lies_beside_its_profile(calibration: Calibration, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text("executor: local\n")
    assert stored.calibration_path(profile) == tmp_path / "calibration" / "mine.json"
    assert stored.load_calibration(profile) is None
    stored.write_calibration(calibration, stored.calibration_path(profile))
    assert stored.load_calibration(profile) == calibration
    assert stored.load_calibration(Cluster(name="made-in-a-notebook")) is None
    with pytest.raises(InputError, match="did you mean 'local'"):
        stored.load_calibration("locla")


def test_time_of_any_size(calibration: Calibration) -> None:
    for size in (1, 4096, 5000, 3e6, 2e9):
        assert calibration.time("all_reduce", 2, size) == pytest.approx(ALPHA + size / RATE)
    assert calibration.time("all_gather", 2, 1e6) == pytest.approx(2 * (ALPHA + 1e6 / RATE))
    assert calibration.time("all_reduce", 1, 1e6) == 0
    with pytest.raises(LabError, match=r"no all_reduce on 4 ranks \(it is fitted for 2 ranks\)"):
        calibration.time("all_reduce", 4, 1e6)
    with pytest.raises(ValueError, match="some bytes"):
        calibration.time("all_reduce", 2, 0)


def test_bandwidths_by_hand() -> None:
    time = CollectiveTime(
        collective="all_reduce", world_size=4, bytes=8 * 10**9, seconds=2.0, calls=1
    )
    assert (time.algbw, time.busbw) == (4e9, pytest.approx(6e9))


def test_parts_are_added_and_replaced_by_world_size(calibration: Calibration) -> None:
    half = calibration.model_copy(update={"parts": (part(2),)})
    again = half.with_part(part(1)).with_part(part(2, quick=True))
    assert [(p.world_size, p.quick) for p in again.parts] == [(1, False), (2, True)]
    assert (
        again.memory is not None
        and again.environment is not None
        and len(again.environment.hosts) == 2
    )


def test_times_that_do_not_grow_have_no_fit() -> None:
    flat = [
        CollectiveTime(collective="broadcast", world_size=2, bytes=size, seconds=1e-3, calls=5)
        for size in SIZES
        if size >= 65536
    ]
    calibration = Calibration(cluster="local", wanted=(2,), parts=(part(2, times=tuple(flat)),))
    assert calibration.fits == {}
    with pytest.raises(LabError, match="it has no fit"):
        calibration.time("broadcast", 2, 1e6)
    assert "no fit" in links_alt(calibration)


def test_tables(calibration: Calibration) -> None:
    fits = tables.fits_table(calibration).set_index("collective")
    assert list(fits.index) == [name.replace("_", "-") for name in COLLECTIVES]
    assert fits.loc["all-reduce", ["alpha (µs)", "bandwidth (GB/s)"]].tolist() == ["200", "1.00"]
    assert fits.loc["all-gather", "busbw (GB/s)"] == "0.250"
    assert calibration.fits["all_reduce", 2].largest_relative_error < 1e-8
    assert fits["error up to"].str.endswith("%").all()
    times = tables.times_table(calibration)
    assert len(times) == len(COLLECTIVES) * len(SIZES)
    assert times["busbw (GB/s)"].iloc[0] == pytest.approx(4096 / (ALPHA + 4096 / RATE) / 1e9)
    rates = tables.throughput_table(calibration)
    assert list(rates["rate"]) == ["50.0", "20.0"] and list(rates["unit"]) == ["GFLOP/s", "GB/s"]


def test_figure_shows_points_lines_and_errors(calibration: Calibration) -> None:
    ax = plt.figure().subplots()
    links(ax, calibration)
    named = {container.get_label(): container for container in ax.containers}
    assert set(named) == {"all-reduce ×2", "all-gather ×2", "reduce-scatter ×2", "broadcast ×2"}
    points = named["all-reduce ×2"].lines[0]
    assert list(points.get_xdata()) == SIZES
    assert points.get_ydata() == pytest.approx([1e3 * (ALPHA + size / RATE) for size in SIZES])
    assert ax.get_ylabel() == "time of a call (ms)" and ax.get_xscale() == ax.get_yscale() == "log"
    assert all("fit within" in text.get_text() for text in ax.texts) and len(ax.texts) == 4


def test_alternative_text_has_the_numbers(calibration: Calibration) -> None:
    text = links_alt(calibration)
    assert (
        "all-reduce on 2 ranks" in text
        and "for 4 KiB" in text
        and "for 16 MiB" in text
        and "fit within" in text
    )


def test_empty_figure_says_so() -> None:
    empty = Calibration(cluster="local", wanted=(1,), parts=(part(1),))
    ax = plt.figure().subplots()
    links(ax, empty)
    assert [text.get_text() for text in ax.texts] == [NO_COLLECTIVES]
    assert links_alt(empty).startswith("An empty figure")


def test_the_error_of_times_is_that_of_their_intervals(calibration: Calibration) -> None:
    # From 0.95 to 1.1 of each time.
    assert calibration.time_error(2) == pytest.approx(0.15 / 3.92)
    assert calibration.time_error(4) is None


def test_what_is_measured_again() -> None:
    assert _doubling(1) == [1] and _doubling(6) == [1, 2, 4] and _doubling(8) == [1, 2, 4, 8]
    assert _reusable(part(), quick=False) and _reusable(part(), quick=True)
    assert not _reusable(part(quick=True), quick=False)
    assert not _reusable(part(measured_at=datetime.now(UTC) - timedelta(hours=25)), quick=False)
    noisy = {"environment": environment(2, foreign_cpu=0.9)}
    repeating = Cluster(name="local", repeat_disturbed=True)
    assert _reusable(part(**noisy), quick=False)
    assert not _reusable(part(**noisy, profile=repeating), quick=False)
    assert _same_conditions(part(), Cluster(name="local"))
    assert not _same_conditions(part(), Cluster(name="local", cores_per_rank=2))
    elsewhere = part(environment=environment(2, versions={"torch": metadata.version("torch")}))
    assert not _same_conditions(elsewhere, Cluster(name="local"))
    older = part(
        environment=environment(2, hosts=[socket.gethostname()] * 2, versions={"torch": "1.0"})
    )
    assert not _same_conditions(older, Cluster(name="local"))


@pytest.mark.parametrize(
    ("measured", "wanted", "covered"),
    [
        (None, None, True),
        (None, ["ddp"], True),
        (("ddp", "single"), None, False),
        (("ddp", "single"), ["ddp"], True),
        (("ddp", "single"), ["ddp", "fsdp"], False),
    ],
)
def test_a_part_covers_the_strategies_of_its_steps(
    measured: tuple[str, ...] | None, wanted: list[str] | None, covered: bool
) -> None:
    assert part(strategies=measured).covers(wanted) is covered


def test_disturbance_is_noticed() -> None:
    assert not part().disturbed
    assert part(environment=environment(2, foreign_cpu=1.0)).disturbed


def test_world_sizes_that_the_cluster_lacks_are_refused(tmp_path: Path) -> None:
    profile = tmp_path / "small.yaml"
    profile.write_text("device: cpu\ndevices: 1\n")
    with pytest.raises(InputError, match="4096 ranks; small: 1 CPU rank"):
        calibrate(profile, world_sizes=[1, 4096])
    assert not (tmp_path / "calibration").exists()


@pytest.fixture
def group_of_one(tmp_path: Path):
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_collectives_are_checked_before_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = [torch.zeros(1024) for _ in range(2)]
    for name in COLLECTIVES:
        reason = collectives._check(name, 4096, buffers)
        assert not reason or (name == "reduce_scatter" and reason.startswith("gloo of torch"))
        assert not buffers[0].any() and not buffers[1].any()
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.zero_())
    with pytest.raises(LabError, match="all_reduce of gloo gives a wrong result on 1 ranks"):
        collectives._check("all_reduce", 4096, buffers)


@pytest.mark.usefixtures("group_of_one")
def test_what_a_backend_lacks_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> None:
        raise RuntimeError("ProcessGroupGloo does not support _reduce_scatter_base\nmore")

    name = (
        "reduce_scatter_single"
        if hasattr(dist, "reduce_scatter_single")
        else "reduce_scatter_tensor"
    )
    monkeypatch.setattr(dist, name, lacking)
    reason = collectives._check("reduce_scatter", 4096, [torch.zeros(1024) for _ in range(2)])
    first_line = "ProcessGroupGloo does not support _reduce_scatter_base"
    assert reason == f"gloo of torch {torch.__version__} does not have it: {first_line}"


@pytest.mark.usefixtures("group_of_one")
def test_sizes_too_slow_for_the_budget_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def take(size: int) -> None:
        clock[0] += size / 1e6

    for name in ("time.perf_counter", "lab.worker.measure.clock.perf_counter"):
        monkeypatch.setattr(name, lambda: clock[0])
    calls = [
        collectives._Call("all_reduce", size, partial(take, size))
        for size in (10_000, 40_000, 160_000)
    ]
    device = torch.device("cpu")
    chosen = collectives._affordable(calls, device=device, budget_s=1.0)
    assert [call.bytes for call in chosen] == [10_000, 40_000]
    assert len(collectives._affordable(calls, device=device, budget_s=100.0)) == 3
    seconds = collectives._rounds(chosen, device=device, budget_s=0.05, progress=lambda *_: None)
    assert seconds == pytest.approx(np.tile([0.01, 0.04], (collectives.MIN_ROUNDS, 1)))
