"""The benchmarks of predictions: what they make of scores, and the load that one puts on a core."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from factories import frozen, run, study

from lab.config.cluster import Cluster
from lab.config.strategies import STRATEGIES
from lab.config.study import Study
from lab.errors import LabError
from lab.launch import held_out
from lab.launch.held_out import ALL, LOADED, QUIET, STUDY, HeldOut, HeldOutStrategies
from lab.perfmodel.frozen import Score
from lab.perfmodel.memory import layout_of


def score(strategy: str, error: float, *, half_width: float = 0.1) -> Score:
    """A prediction of 100 ms that is wrong by `error`, with an interval of that half width."""
    wanted = run(2, 16 if strategy != "tensor_parallel" else 8, strategy=strategy)
    low_s, high_s = 0.1 * (1 - half_width), 0.1 * (1 + half_width)
    expected = frozen(wanted, 0.1, low_s=low_s, high_s=high_s)
    return Score(frozen=expected, measured_s=0.1 / (1 + error), repeats=1, error=error)


def results(quiet: list[Score], loaded: list[Score], folder: Path) -> HeldOutStrategies:
    one = study(folder, [run(2, 16)])
    return HeldOutStrategies(
        {QUIET: HeldOut(one, tuple(quiet), {}), LOADED: HeldOut(one, tuple(loaded), {})}
    )


def test_what_meets_every_target_misses_none(tmp_path: Path) -> None:
    good = results(
        [score("ddp", 0.03), score("fsdp", -0.08)],
        [score("ddp", -0.06), score("fsdp", 0.09)],
        tmp_path,
    )
    assert good.misses() == [] and good.inside == 1.0
    assert good.half_width == pytest.approx(0.1)
    assert good.errors() == pytest.approx({"ddp": 0.045, "fsdp": 0.085})
    *strategies, everything = good.summary()
    assert [row["strategy"] for row in strategies] == ["DDP", "FSDP"]
    assert strategies[0]["error"] == "4.5 %" and strategies[0]["error, loaded"] == "6.0 %"
    assert everything["predictions"] == 4 and len(good.table()) == 4
    assert "100 % of the measurements inside" in str(good)


@pytest.mark.parametrize(
    ("quiet", "loaded", "miss"),
    [
        ([score("ddp", 0.06)], [score("ddp", 0.06)], "of DDP are 6.0 % off"),
        ([score("zero1", 0.06)], [score("zero1", 0.15, half_width=0.3)], "of ZeRO-1 are 10.5 %"),
        ([score("ddp", 0.01)] * 8, [score("fsdp", 0.09, half_width=0.05)], "89 % of the meas"),
        ([score("ddp", 0.01, half_width=0.2)], [score("ddp", 0.01)], "±20 %"),
    ],
)
def test_a_missed_target_is_named(
    quiet: list[Score], loaded: list[Score], miss: str, tmp_path: Path
) -> None:
    (missed,) = results(quiet, loaded, tmp_path).misses()
    assert miss in missed


def test_wide_intervals_under_load_are_no_miss(tmp_path: Path) -> None:
    wide = results([score("ddp", 0.01)], [score("ddp", 0.01, half_width=0.5)], tmp_path)
    assert wide.misses() == []


def predictable(strategy: str) -> bool:
    with suppress(LabError):
        return bool(layout_of(run(2, 16, strategy=strategy)))
    return False


def test_the_study_holds_out_every_strategy_of_two_ranks_on_three_models() -> None:
    committed = Study.load(ALL)
    pairs = [one for one in committed.runs if one.world_size > 1]
    assert 2 * len(pairs) >= 60 and len({str(one.model) for one in pairs}) == 3
    several = [name for name, facts in STRATEGIES.items() if not facts.single_process]
    assert {one.strategy for one in pairs} == set(filter(predictable, several))
    assert {"ddp", "fsdp", "tensor_parallel", "pipeline_parallel"} <= {
        one.strategy for one in pairs
    }
    for one in pairs:
        layout_of(one)  # which the step model knows
    alone = {(str(one.model), one.micro_batch_size) for one in committed.runs if one not in pairs}
    assert alone == {(str(one.model), one.micro_batch_size) for one in pairs}


def test_the_load_takes_a_core_and_ends() -> None:
    before = {child.pid for child in psutil.Process().children()}
    with held_out.load(Cluster(name="local")):
        (hog,) = (child for child in psutil.Process().children() if child.pid not in before)
        deadline = time.monotonic() + 60
        while sum(hog.cpu_times()[:2]) < 0.5 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert sum(hog.cpu_times()[:2]) >= 0.5
    assert not hog.is_running() or hog.status() == psutil.STATUS_ZOMBIE


def measured(predicted: float, *, memory: float | None = None, **fields: object) -> Score:
    """A prediction on two ranks, and a measurement of 100 ms and 1 GB."""
    expected = frozen(
        run(2, 16, **fields), predicted, communication_s=0.01, exposed_s=0.005, memory_bytes=memory
    )
    held = None if memory is None else 1e9
    error = predicted / 0.1 - 1
    return Score(frozen=expected, measured_s=0.1, repeats=1, error=error, memory_measured=held)


def test_errors_are_absolute_and_their_mean_is_held_to_the_limit(tmp_path: Path) -> None:
    two_ranks = study(tmp_path, [run(2, 16)])
    good = HeldOut(
        two_ranks, (measured(0.102, memory=1.1e9), measured(0.094, bucket_cap_mb=1.0)), {}
    )
    assert (
        good.error == pytest.approx(0.04)
        and good.within_limit
        and good.memory_error == pytest.approx(0.1)
    )
    assert not HeldOut(two_ranks, (measured(0.12),), {}).within_limit
    first, second = good.table()
    assert (
        first["error"] == "+2.0 %"
        and first["memory error"] == "+10.0 %"
        and second["memory error"] == "-"
    )
    assert (
        first["buckets"] == "25 MiB"
        and second["buckets"] == "1 MiB"
        and first["model"] == "gpt-nano"
    )
    assert "4.00 %" in str(good) and "of memory 10.0 %" in str(good)


def test_the_study_holds_out_twelve_runs_of_different_model_batch_and_buckets() -> None:
    committed = Study.load(STUDY)
    pairs = [run for run in committed.runs if run.world_size > 1]
    assert len(pairs) >= 12
    assert all(
        len({str(getattr(run, name)) for run in pairs}) > 1
        for name in ("model", "micro_batch_size", "bucket_cap_mb")
    )
    profiled = {
        (str(run.model), run.micro_batch_size) for run in committed.runs if run.world_size == 1
    }
    assert profiled == {(str(run.model), run.micro_batch_size) for run in pairs}
    assert held_out.ERROR_LIMIT == 0.05
