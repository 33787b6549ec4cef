"""The best way to train a study: on a described machine, and from what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import calibration, profile, run, study

import lab
from lab.config.cluster import Cluster
from lab.config.study import Study
from lab.errors import LabError
from lab.records.store import Store, write_record

GPT2 = {
    "kind": "gpt",
    "layers": 12,
    "heads": 12,
    "width": 768,
    "block_size": 1024,
    "vocab_size": 50257,
}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """One rank measured at two micro-batches, on a calibrated cluster of two ranks."""
    monkeypatch.setattr("lab.perfmodel.frozen.load_calibration", lambda cluster: calibration(2))
    planned = study(tmp_path, [run(1, 4), run(1, 16), run(2, 16)], repeats=1)
    for task, step in zip(planned.tasks, (0.05, 0.2), strict=False):
        write_record(profile(task.run, step_time=step), Store(planned.out).folder(task))
    return planned


def cluster(devices: int = 2, **fields: object) -> Cluster:
    return Cluster.model_validate({"name": "here", "device": "cpu", "devices": devices, **fields})


def test_measured_clusters_are_searched_over_what_the_lab_can_run(measured: Study) -> None:
    first, second = lab.best_plans(measured, cluster())
    assert "global batch 4" in first.work and "global batch 16" in second.work
    ways = {ranked.candidate.layout.sharing for ranked in second.plan.ranked}
    assert ways <= {"naive_ddp", "ddp", "zero1", "fsdp", "single"} and "ddp" in ways
    steps = [ranked.prediction.step_s for ranked in second.plan.ranked]
    assert steps == sorted(steps) and second.plan.searched >= len(steps)
    assert second.plan.ranked[0].candidate.precision == "fp32"  # nothing else was measured
    assert "candidates in" in second.summary and "The second" in second.summary
    assert len(second.table()) == len(second.content()["ranked"]) and second.content()["why_second"]
    recomputed = [r for r in second.plan.ranked if r.candidate.checkpointing == "full"]
    assert all(r.prediction.step_s > steps[0] for r in recomputed)


def test_what_cannot_fit_is_refused_with_what_it_needs(
    measured: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "memory_bytes_per_rank", property(lambda self: 10**8))
    with pytest.raises(
        LabError,
        match=r"nothing fits: of \d+ ways the smallest needs 0\.\d+ GB on a rank, but a rank has 0\.1 GB",
    ):
        lab.best_plans(measured, cluster())


def test_without_a_profile_or_a_divisible_batch_it_says_so(measured: Study, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"no record on one rank .* `lab run`, or name"):
        lab.best_plans(study(tmp_path / "other", [run(2, 16)]), cluster())
    script = {"model": {"kind": "script", "command": ["train.py"]}, "data": {"kind": "script"}}
    with pytest.raises(LabError, match="does not know a script's model"):
        lab.best_plans(study(tmp_path / "script", [run(1, **script), run(2, **script)]), cluster())
    with pytest.raises(LabError, match="cannot be divided"):
        lab.best_plans(measured, machine="h100x8", world_size=3000)


def test_described_machines_need_nothing_measured(tmp_path: Path) -> None:
    described = study(tmp_path, [run(8, 512, model=GPT2, precision="bf16")])
    (search,) = lab.best_plans(described, machine="h100x8")
    assert search.plan.ranked[0].candidate.layout.world_size == 8
    assert search.memory_limit == pytest.approx(0.95 * 80e9) and "tensor x1, x2, x4" in search.space


def test_plans_tell_what_is_predicted(measured: Study) -> None:
    rows = {row["configuration"]: row for row in lab.plan(measured, cluster())}
    alone, pair = rows[run(1, 16).label], rows[run(2, 16).label]
    assert pair["predicted_step_ms"] < alone["predicted_step_ms"] == pytest.approx(200, rel=0.01)
    assert pair["predicted_s"] == pytest.approx(2.0 + 30 * pair["predicted_step_ms"] / 1e3, abs=0.1)
    assert pair["predicted_mb"] > 0 and alone["predicted_mb"] == 400.0
