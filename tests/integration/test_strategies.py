"""Every strategy learns what `single` learns at the same global batch, and says in the same words what that took."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from studies import CORPUS

from lab.errors import InputError
from lab.place import Place
from lab.study import Run
from lab.worker import peak
from lab.worker.main import Measured, measure

# Relative, on the whole loss curve: sums in another order round differently, and eight steps of AdamW let it grow.
TOLERANCES = {"fp32": 2e-4, "bf16": 2e-2}

BASE: dict[str, Any] = {
    "model": {"kind": "gpt", "layers": 2, "heads": 2, "width": 32, "block_size": 32},
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
    "global_batch_size": 8,
    "steps": 8,
    "warmup_steps": 2,
    "lr_warmup_steps": 2,
    "eval_batches": 1,
    "grad_clip": 0.5,  # low enough that every step is clipped, by the norm of the whole model
}
SPREAD = ["naive_ddp", "ddp", "zero1", "fsdp", "tensor_parallel", "pipeline_parallel", "vanilla_data_parallel"]
RUNS: dict[str, dict[str, Any]] = {
    "single": {"strategy": "single"},
    "single checkpointed": {"strategy": "single", "activation_checkpointing": True},
    "data_parallel 1": {"strategy": "data_parallel"},
    **{f"{name} {size}": {"strategy": name, "world_size": size} for name in SPREAD for size in (1, 2)},
    "naive_ddp 2 flat": {"strategy": "naive_ddp", "world_size": 2, "flat": True},
    "fsdp 2 kept": {"strategy": "fsdp", "world_size": 2, "reshard_after_forward": False},
    "pipeline_parallel 2 1f1b": {"strategy": "pipeline_parallel", "world_size": 2, "schedule": "1f1b", "microbatches": 4},
    **{
        f"{name} 2 accumulated": {"strategy": name, "world_size": 2, "grad_accum": 2}
        for name in SPREAD
        if name != "pipeline_parallel"
    },
    **{f"{name} 2 bf16": {"strategy": name, "world_size": 2, "precision": "bf16"} for name in SPREAD},
    **{
        f"{name} 2 checkpointed": {"strategy": name, "world_size": 2, "activation_checkpointing": True}
        for name in ("fsdp", "tensor_parallel", "pipeline_parallel", "vanilla_data_parallel")
    },
    "data_parallel 2": {"strategy": "data_parallel", "world_size": 2},
}
TRAINED = [name for name in RUNS if name != "data_parallel 2"]


def quiet(phase: str, step: int, steps: int) -> None:
    pass


def run_all(rank: int, root: str) -> dict[str, Any]:
    """Take part as one rank in every run that has one of this number."""
    peak.BUDGET_S = 0.02
    found: dict[str, Any] = {}
    for name, changes in RUNS.items():
        run = Run.model_validate(BASE | changes)
        folder = Path(root) / name
        if rank < run.processes:
            place = Place(rank, run.processes, rank, "cpu", (rank,), 1, "local", folder / "address", timeout_s=60.0)
            try:
                found[name] = measure(run, place, data_root=Path(root), folder=folder, progress=quiet)
            except InputError as error:
                found[name] = error
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strategies")
    (folder / "corpus.txt").write_text(CORPUS)
    for name in RUNS:
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def measured(root: Path) -> dict[str, Measured]:
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        patch.setenv("LAB_CACHE", str(root / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        answers = list(pool.map(run_all, range(2), [str(root)] * 2))
    assert all(value is None for value in answers[1].values())
    return answers[0]


@pytest.mark.parametrize("name", TRAINED)
def test_the_loss_curve_is_that_of_single(measured: dict[str, Measured], name: str) -> None:
    tolerance = TOLERANCES[RUNS[name].get("precision", "fp32")]
    found, single = measured[name].quality, measured["single"].quality
    assert found.loss == pytest.approx(single.loss, rel=tolerance)
    assert found.validation_loss == pytest.approx(single.validation_loss, rel=tolerance)
