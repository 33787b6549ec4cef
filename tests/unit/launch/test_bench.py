"""The benchmark of predictions: what it makes of scores."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import frozen, run, study

from lab.config.study import Study
from lab.launch import bench
from lab.launch.held_out import STUDY, HeldOut
from lab.perfmodel.frozen import Score


def score(
    predicted: float, measured: float, *, memory: float | None = None, **fields: object
) -> Score:
    expected = frozen(
        run(2, 16, **fields), predicted, communication_s=0.01, exposed_s=0.005, memory_bytes=memory
    )
    return Score(
        frozen=expected,
        measured_s=measured,
        repeats=1,
        error=predicted / measured - 1,
        memory_measured=None if memory is None else 1e9,
    )


def test_errors_are_absolute_and_their_mean_is_held_to_the_limit(tmp_path: Path) -> None:
    two_ranks = study(tmp_path, [run(2, 16)])
    good = HeldOut(
        two_ranks, (score(0.102, 0.1, memory=1.1e9), score(0.094, 0.1, bucket_cap_mb=1.0)), {}
    )
    assert (
        good.error == pytest.approx(0.04)
        and good.within_limit
        and good.memory_error == pytest.approx(0.1)
    )
    assert not HeldOut(two_ranks, (score(0.12, 0.1),), {}).within_limit
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
    assert bench.ERROR_LIMIT == 0.05
