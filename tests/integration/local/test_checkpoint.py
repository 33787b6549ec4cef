"""Checkpoints of real trainings: killed while writing, taken up again, read without pickle and across strategies."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ranks import on_ranks
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
OWN: dict[str, Any] = {
    "model": {
        "kind": "python",
        "factory": "unet:UNet",
        "args": {"width": 4, "depth": 2},
        "loss": "unet:dice_and_cross_entropy",
        "blocks": "down",
    },
    "data": {"kind": "python", "factory": "unet:cells", "args": {"images": 32, "size": 16}},
    "strategy": "fsdp",
}
EXAMPLE = Path(__file__).parents[3] / "reports" / "own-model"
# World size, and the settings that are not those of BASE.
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "two ranks": (2, {}),
    "a model of one's own": (2, OWN),
}


def quiet(*report: object) -> None:
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


Trained = dict[str, list[tuple[list[float], float | None, int]]]


def train_all(rank: int, root: str) -> Trained:
    """Of each case: a whole training, then one that is stopped and taken up again."""
    calibrate.PEAK_BUDGET_S = 0.05
    case_losses: Trained = {}
    for name, (world_size, settings) in CASES.items():
        if rank >= world_size:
            continue
        content = BASE | settings | {"world_size": world_size}
        context = {"folder": Path(root), "digests": {}} if settings else None
        run = Run.model_validate(content, context=context)
        whole, broken = Path(root) / f"whole, {name}", Path(root) / f"broken, {name}"
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
            assert left is not None and measured.quality and again.quality and again.timing
            case_losses[name] = [
                (measured.quality.loss, measured.quality.validation_loss, left.step),
                (again.quality.loss, again.quality.validation_loss, again.timing.measured_steps),
            ]
    return case_losses


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    (folder / "corpus.txt").write_text(CORPUS)
    shutil.copy2(EXAMPLE / "unet.py", folder)
    for name in CASES:
        (folder / f"whole, {name}").mkdir()
        (folder / f"broken, {name}").mkdir()
    return folder


@pytest.fixture(scope="module")
def trained(root: Path) -> Trained:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_CACHE", str(root / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        return on_ranks(2, train_all, str(root))[0]


@pytest.mark.parametrize("case", CASES)
def test_a_training_that_was_interrupted_learns_the_same(
    trained: Trained, root: Path, case: str
) -> None:
    (whole, validation, left), (again, validation_again, measured_steps) = trained[case]
    assert (
        left == STOP - 1
    )  # the checkpoint of the step before: that of its own step was not reached
    assert again == pytest.approx(whole, rel=TOLERANCE)
    assert validation_again == pytest.approx(validation, rel=TOLERANCE)
    assert measured_steps == BASE["steps"] - left - BASE["warmup_steps"]
    steps = pd.read_parquet(root / f"broken, {case}" / "steps.parquet")
    assert steps["step"].tolist() == list(range(left, BASE["steps"])) * CASES[case][0]
    assert [path.name for path in (root / f"broken, {case}" / "checkpoint").iterdir()] == [
        checkpoint.FINAL
    ]


def test_a_model_of_two_ranks_is_read_by_one_without_pickle(
    trained: Trained,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAB_CACHE", str(root / "cache"))
    kept_checkpoint = checkpoint.kept_model(root / "whole, two ranks")
    assert kept_checkpoint is not None
    assert sorted(path.name for path in kept_checkpoint.folder.iterdir()) == [
        "checkpoint.json",
        "model.safetensors",
        "run.json",
        "tokenizer.json",
    ]
    run = kept_checkpoint.run.model_copy(
        update={"strategy": "single", "world_size": 1, "micro_batch_size": 8}
    )
    dataset = data.prepare(run, data_root=root, progress=quiet)
    torch.manual_seed(0)
    model = models.build(run, dataset)
    checkpoint.load_model(model, kept_checkpoint)
    here = place(root, rank=0, world_size=1, every_s=None)
    loss, _ = evaluate(model, RankJob(run, here, torch.device("cpu"), dataset, quiet))
    assert loss == pytest.approx(trained["two ranks"][0][1], rel=ACROSS)
    assert (
        json.loads((kept_checkpoint.folder / "tokenizer.json").read_text())["model"]["type"]
        == "BPE"
    )


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
    newest_checkpoint = checkpoint.newest(tmp_path)
    assert newest_checkpoint is not None
    values = np.concatenate(
        [tensor.numpy() for tensor in newest_checkpoint.tensors(checkpoint.MODEL).values()]
    )
    assert len(values) == 400_000 and (values == newest_checkpoint.step).all()
    checkpoint.write(
        tmp_path / f"{newest_checkpoint.step + 1:09d}", {"run.json": b"{}"}
    )  # what was left unfinished hinders nobody
