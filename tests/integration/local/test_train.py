"""Training on real process groups: the same samples and losses, however the work is split."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ranks import on_ranks
from studies import CORPUS

from lab.config.run import Run
from lab.errors import LabError
from lab.records.schema import PHASES
from lab.worker import calibrate
from lab.worker.context import Measurement, RankContext
from lab.worker.main import measure
from lab.worker.optim import learning_rate
from lab.worker.rank_report import COLUMNS

# Sums in another order round differently; eight steps of AdamW let the difference grow.
FP32_TOLERANCE = 2e-4
BF16_TOLERANCE = 2e-2

BASE: dict[str, Any] = {
    "model": {"kind": "gpt", "layers": 2, "heads": 2, "width": 32, "block_size": 32},
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
    "global_batch_size": 8,
    "steps": 8,
    "warmup_steps": 2,
    "lr_warmup_steps": 2,
    "eval_batches": 2,
}
RUNS = {
    "single": {"strategy": "single"},
    "single again": {"strategy": "single"},
    "single accumulated": {"strategy": "single", "grad_accum": 2},
    "single bf16": {"strategy": "single", "precision": "bf16"},
    "single fp16": {"strategy": "single", "precision": "fp16"},
    "other seed": {"strategy": "single", "seed": 1},
    "ddp 1": {"world_size": 1},
    "ddp 2": {"world_size": 2},
    "ddp 4": {"world_size": 4},
    "ddp 2 accumulated": {"world_size": 2, "grad_accum": 2},
    "ddp 2 bf16": {"world_size": 2, "precision": "bf16"},
}


def quiet(*report: object) -> None:
    pass


def place(folder: Path, *, rank: int = 0, world_size: int = 1, device: str = "cpu") -> RankContext:
    return RankContext(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        device=device,
        cores=(rank % 2,),
        threads=1,
        cluster="local",
        rendezvous=folder / "address",
        timeout_s=60.0,
    )


def run_all(rank: int, root: str) -> dict[str, Measurement | None]:
    """Take part as one rank in every run that has one of this number."""
    calibrate.PEAK_BUDGET_S = 0.05
    measured = {}
    for name, changes in RUNS.items():
        run = Run.model_validate(BASE | changes)
        if rank < run.world_size:
            folder = Path(root) / name
            here = place(folder, rank=rank, world_size=run.world_size)
            measured[name] = measure(run, here, data_root=Path(root), folder=folder, progress=quiet)
    return measured


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "corpus.txt").write_text(CORPUS)
    for name in RUNS:
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def measured(root: Path) -> dict[str, Measurement]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_CACHE", str(root / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        answers = on_ranks(4, run_all, str(root))
    assert all(value is None for answer in answers[1:] for value in answer.values())
    return {name: value for name, value in answers[0].items() if value is not None}


def loss(measured: dict[str, Measurement], name: str) -> np.ndarray:
    return np.array(measured[name].quality.loss)


@pytest.mark.parametrize(
    "name", ["ddp 1", "ddp 2", "ddp 4", "single accumulated", "ddp 2 accumulated"]
)
def test_the_same_learning_however_the_batch_is_split(
    measured: dict[str, Measurement], name: str
) -> None:
    assert loss(measured, name) == pytest.approx(loss(measured, "single"), rel=FP32_TOLERANCE)
    validation, expected = (
        measured[name].quality.validation_loss,
        measured["single"].quality.validation_loss,
    )
    assert validation == pytest.approx(expected, rel=FP32_TOLERANCE)


@pytest.mark.parametrize("name", ["single bf16", "single fp16", "ddp 2 bf16"])
def test_low_precision_learns_alike_and_not_the_same(
    measured: dict[str, Measurement], name: str
) -> None:
    assert loss(measured, name) == pytest.approx(loss(measured, "single"), rel=BF16_TOLERANCE)
    assert not np.array_equal(loss(measured, name), loss(measured, "single"))


def test_a_seed_repeats_itself_to_the_last_bit_and_another_does_not(
    measured: dict[str, Measurement],
) -> None:
    assert measured["single"].quality == measured["single again"].quality
    assert not np.allclose(
        loss(measured, "single"), loss(measured, "other seed"), rtol=FP32_TOLERANCE
    )


def test_it_learns(measured: dict[str, Measurement]) -> None:
    curve = loss(measured, "single")
    assert curve[0] == pytest.approx(math.log(300), rel=0.02)
    assert curve[-1] < curve[0] - 0.1
    assert measured["single"].quality.validation_loss == pytest.approx(curve[-1], rel=0.05)


@pytest.mark.parametrize("name", list(RUNS))
def test_every_step_of_every_rank_is_kept(
    measured: dict[str, Measurement], root: Path, name: str
) -> None:
    run = Run.model_validate(BASE | RUNS[name])
    table = pd.read_parquet(root / name / "steps.parquet")
    assert tuple(table.columns) == COLUMNS
    assert list(zip(table["rank"], table["step"], strict=True)) == [
        (r, s) for r in range(run.world_size) for s in range(8)
    ]
    assert table["warmup"].tolist() == [step < 2 for step in range(8)] * run.world_size
    assert np.allclose(table[list(PHASES)].sum(axis=1), table["step_time"])
    assert (table[["data", "forward", "backward", "optimizer", "cpu_time"]] > 0).all(axis=None)
    communication = table[
        ["communication_total", "communication_exposed", "communication_straggler"]
    ]
    assert (
        communication.isna().all(axis=None)
        if run.world_size == 1
        else communication.notna().all(axis=None)
    )
    assert not (communication["communication_exposed"] > table["backward"]).any()
    assert table.groupby("step")["loss"].mean().to_numpy() == pytest.approx(
        loss(measured, name), rel=1e-12
    )
    assert (
        table["learning_rate"].tolist()
        == [learning_rate(run, step) for step in range(8)] * run.world_size
    )
    assert (
        table.groupby("step")["grad_norm"].nunique().eq(1).all()
    )  # after the exchange all ranks hold one gradient
    assert [path.name for path in (root / name).iterdir() if "building" in path.name] == []


@pytest.mark.parametrize("name", list(RUNS))
def test_what_is_measured_is_whole(measured: dict[str, Measurement], name: str) -> None:
    run, measurement = Run.model_validate(BASE | RUNS[name]), measured[name]
    assert measurement.timing.measured_steps == 6
    assert measurement.timing.setup_time > 0 and measurement.timing.train_time > 0
    assert measurement.timing.samples_per_second == pytest.approx(
        8 / measurement.timing.step.median
    )
    assert (
        (measurement.timing.flops_per_second or 0)
        > 0
        < (measurement.timing.peak_flops_per_second or 0)
    )
    # Beside other tests the peak may come out too low; then there is no share of it.
    assert measurement.timing.mfu is None or 0 < measurement.timing.mfu < 1
    assert [len(values) for values in measurement.timing.per_rank.values()] == [run.world_size] * 7
    assert len(measurement.memory.peak) == run.world_size
    assert (
        min(measurement.memory.peak)
        > measurement.memory.parameters
        == 4 * (measurement.environment.parameters or 0)
    )
    assert measurement.environment.backend == (None if run.world_size == 1 else "gloo")
    assert measurement.environment.cpus_granted == [[rank % 2] for rank in range(run.world_size)]
    assert measurement.environment.threads_per_rank == 1
    assert measurement.environment.versions["torch"] == torch.__version__
    assert measurement.checks["same_parameters"]
    several = {"communication_methods_agree"} if run.world_size > 1 else set()
    assert set(measurement.checks) == {"phases_close", "same_parameters"} | several


def test_all_runs_saw_the_same_data(measured: dict[str, Measurement]) -> None:
    assert len({measurement.environment.data_sha256 for measurement in measured.values()}) == 1


def test_a_loss_that_is_not_finite_names_its_step(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAB_CACHE", str(root / "cache"))
    run = Run.model_validate(
        BASE
        | {"strategy": "single", "learning_rate": 10.0, "weight_decay": 1e30, "lr_warmup_steps": 0}
    )
    with pytest.raises(LabError, match=r"the loss is nan at step [1-7] of 8.*lower learning_rate"):
        measure(run, place(tmp_path), data_root=root, folder=tmp_path, progress=quiet)
    assert not (tmp_path / "steps.parquet").exists()


def test_progress_is_told_step_by_step(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAB_CACHE", str(root / "cache"))
    reports: list[tuple[Any, ...]] = []
    run = Run.model_validate(BASE | {"strategy": "single"})
    measure(
        run,
        place(tmp_path),
        data_root=root,
        folder=tmp_path,
        progress=lambda *step: reports.append(step),
    )
    steps = [
        ("setting up", 0, 8),
        ("first step", 0, 8),
        ("warm-up", 1, 8),
        ("warm-up", 2, 8),
        *(("measuring", step, 8) for step in range(3, 9)),
    ]
    assert [step[:3] for step in reports if step[0] != "data"] == [
        *steps,
        ("evaluating", 1, 2),
        ("evaluating", 2, 2),
    ]
    assert reports[0][0] == "data"
    losses = [step[3] for step in reports if step[0] in {"warm-up", "measuring"}]
    assert losses[0] == pytest.approx(math.log(300), rel=0.1) and losses[-1] < losses[0]


def test_a_rank_does_not_wait_forever_for_the_first(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAB_CACHE", str(root / "cache"))
    run = Run.model_validate(BASE | {"world_size": 2})
    monkeypatch.setattr(RankContext, "start_timeout_s", 0.3)
    with pytest.raises(LabError, match="Timed out waiting 0 s for the address of rank 0"):
        measure(
            run,
            place(tmp_path, rank=1, world_size=2),
            data_root=root,
            folder=tmp_path,
            progress=quiet,
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_promised_gpu_that_is_not_there_is_named(root: Path, tmp_path: Path) -> None:
    run = Run.model_validate(BASE | {"strategy": "single"})
    with pytest.raises(LabError, match=r"needs CUDA.*lab doctor"):
        measure(
            run, place(tmp_path, device="cuda"), data_root=root, folder=tmp_path, progress=quiet
        )


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    run = Run(
        global_batch_size=1,
        steps=101,
        warmup_steps=0,
        lr_warmup_steps=10,
        learning_rate=1e-3,
        min_learning_rate=1e-4,
    )
    rates = [learning_rate(run, step) for step in range(101)]
    assert rates[0] == pytest.approx(1e-4) and rates[9] == rates[10] == pytest.approx(1e-3)
    assert rates[55] == pytest.approx(5.5e-4)
    assert rates[100] == pytest.approx(1e-4)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[10:]))
