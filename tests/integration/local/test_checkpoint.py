"""Checkpoints of real trainings: killed while writing, taken up again, read without pickle and across strategies."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from studies import CORPUS

from lab.config.run import Run
from lab.worker import calibrate, checkpoint, data, models
from lab.worker.context import RankContext
from lab.worker.distributed import RankJob, leave_group
from lab.worker.main import measure
from lab.worker.train import evaluate

# The same sums in the same order: only the loss curve passes through fp32 once more.
TOLERANCE = 1e-6
# Sums over ranks in another order.
ACROSS = 2e-4
STOP = 11

BASE: dict[str, Any] = {
    "model": {
        "kind": "gpt",
        "layers": 2,
        "heads": 2,
        "width": 32,
        "block_size": 32,
        "dropout": 0.1,
    },
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
    "global_batch_size": 8,
    "steps": 18,
    "warmup_steps": 1,
    "lr_warmup_steps": 2,
    "eval_batches": 1,
    "keep_model": True,
}


def quiet(*told: object) -> None:
    pass


def stop(phase: str, step: int, steps: int, loss: float | None = None) -> None:
    if phase == "measuring" and step == STOP:
        raise KeyboardInterrupt


def place(folder: Path, *, rank: int, world_size: int, every_s: float | None) -> RankContext:
    return RankContext(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        device="cpu",
        cores=(rank % 2,),
        threads=1,
        cluster="local",
        rendezvous=folder / f"address-{every_s}-{time.monotonic_ns() if world_size == 1 else ''}",
        timeout_s=60.0,
        checkpoint_every_s=every_s,
    )


def train_all(rank: int, root: str) -> dict[int, tuple[list[float], float | None, int]]:
    """At each world size: a whole training, then one that is stopped and taken up again."""
    calibrate.PEAK_BUDGET_S = 0.05
    found = {}
    for world_size in (1, 2):
        if rank >= world_size:
            continue
        run = Run.model_validate(BASE | {"world_size": world_size})
        whole, broken = Path(root) / f"whole-{world_size}", Path(root) / f"broken-{world_size}"
        whole_place, first, second = (
            place(folder, rank=rank, world_size=world_size, every_s=every)
            for folder, every in ((whole, None), (broken, 1e-6), (broken, 2e-6))
        )
        measured = measure(run, whole_place, data_root=Path(root), folder=whole, progress=quiet)
        try:
            measure(run, first, data_root=Path(root), folder=broken, progress=stop)
        except KeyboardInterrupt:
            if torch.distributed.is_initialized():
                leave_group()
        left = checkpoint.newest(broken / "checkpoint")
        again = measure(run, second, data_root=Path(root), folder=broken, progress=quiet)
        if measured is not None and again is not None:
            assert left is not None
            found[world_size] = (measured.quality.loss, measured.quality.validation_loss, left.step)
            found[-world_size] = (
                again.quality.loss,
                again.quality.validation_loss,
                again.timing.measured_steps,
            )
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    (folder / "corpus.txt").write_text(CORPUS)
    for name in ("whole-1", "whole-2", "broken-1", "broken-2"):
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def trained(root: Path) -> dict[int, tuple[list[float], float | None, int]]:
    with (
        pytest.MonkeyPatch.context() as patch,
        ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool,
    ):
        patch.setenv("LAB_CACHE", str(root / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        return next(iter(list(pool.map(train_all, range(2), [str(root)] * 2))))


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_training_that_was_interrupted_learns_the_same(
    trained: dict[int, tuple[list[float], float | None, int]], root: Path, world_size: int
) -> None:
    whole, validation, left = trained[world_size]
    again, validation_again, measured_steps = trained[-world_size]
    assert (
        left == STOP - 1
    )  # the checkpoint of the step before: that of its own step was not reached
    assert again == pytest.approx(whole, rel=TOLERANCE)
    assert validation_again == pytest.approx(validation, rel=TOLERANCE)
    assert measured_steps == BASE["steps"] - left - BASE["warmup_steps"]
    steps = pd.read_parquet(root / f"broken-{world_size}" / "steps.parquet")
    assert steps["step"].tolist() == list(range(left, BASE["steps"])) * world_size
    assert [path.name for path in (root / f"broken-{world_size}" / "checkpoint").iterdir()] == [
        checkpoint.FINAL
    ]


def test_a_model_of_two_ranks_is_read_by_one_without_pickle(
    trained: dict[int, tuple[list[float], float | None, int]],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAB_CACHE", str(root / "cache"))
    found = checkpoint.kept_model(root / "whole-2")
    assert found is not None
    assert sorted(path.name for path in found.folder.iterdir()) == [
        "checkpoint.json",
        "model.safetensors",
        "run.json",
        "tokenizer.json",
    ]
    run = found.run.model_copy(
        update={"strategy": "single", "world_size": 1, "micro_batch_size": 8}
    )
    dataset = data.prepare(run, data_root=root, progress=quiet)
    torch.manual_seed(0)
    model = models.build(run, dataset)
    checkpoint.load_model(model, found)
    here = place(root, rank=0, world_size=1, every_s=None)
    loss, _ = evaluate(model, RankJob(run, here, torch.device("cpu"), dataset, quiet))
    assert loss == pytest.approx(trained[2][1], rel=ACROSS)
    assert json.loads((found.folder / "tokenizer.json").read_text())["model"]["type"] == "BPE"


def write_on(root: str) -> None:
    """Write checkpoint after checkpoint, each full of its own step, until killed."""
    torch.set_num_threads(1)  # a fork has lost the threads of its parent
    run = Run(model="gpt-nano", global_batch_size=1)
    for step in range(1, 10_000):
        meta = checkpoint.describe(
            run, step=step, vocab_size=300, data_sha256="", tokenizer=None, scaler={}, groups=[]
        )
        tensors = {f"tensor {number}": torch.full((50_000,), float(step)) for number in range(8)}
        checkpoint.write(Path(root) / f"{step:09d}", {**meta, checkpoint.MODEL: tensors})


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_while_writing_leaves_a_whole_checkpoint(tmp_path: Path, seed: int) -> None:
    writer = multiprocessing.get_context("fork").Process(target=write_on, args=(str(tmp_path),))
    writer.start()
    while checkpoint.newest(tmp_path) is None:
        assert writer.is_alive()
        time.sleep(0.001)
    time.sleep(random.Random(seed).uniform(0, 0.1))
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    found = checkpoint.newest(tmp_path)
    assert found is not None
    values = np.concatenate([tensor.numpy() for tensor in found.tensors(checkpoint.MODEL).values()])
    assert len(values) == 400_000 and (values == found.step).all()
    checkpoint.write(
        tmp_path / f"{found.step + 1:09d}", {"run.json": b"{}"}
    )  # what was left unfinished hinders nobody
