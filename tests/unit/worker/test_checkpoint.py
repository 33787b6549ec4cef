"""Checkpoints that somebody cut off, emptied or replaced: told, never a fault of the lab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from lab.config.run import Run
from lab.errors import LabError
from lab.worker import checkpoint
from lab.worker.checkpoint import FINAL, META, MODEL

RUN = Run(global_batch_size=8, world_size=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repeat's folder with the kept model of a linear layer."""
    facts = {"step": 1, "vocab_size": 2, "data_sha256": "", "scaler": {}, "groups": []}
    files = checkpoint.describe(RUN, tokenizer=None, **facts)
    place = tmp_path / "checkpoint" / FINAL
    checkpoint.write(place, {**files, MODEL: nn.Linear(2, 2).state_dict()})
    return tmp_path


def test_a_whole_one_is_read_back(folder: Path) -> None:
    kept, model = checkpoint.kept_model(folder), nn.Linear(2, 2)
    assert kept is not None and kept.run == RUN
    checkpoint.load_model(model, kept)
    assert torch.equal(model.weight, kept.tensors(MODEL)["weight"])


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:20]),
        lambda path: path.write_bytes(b"\xff" * 100),
    ],
    ids=["missing", "empty", "cut off", "other bytes"],
)
def test_damaged_tensors_are_told_with_their_file(
    folder: Path, damage: Callable[[Path], object]
) -> None:
    damage(folder / "checkpoint" / FINAL / MODEL)
    kept = checkpoint.kept_model(folder)
    assert kept is not None
    with pytest.raises(LabError, match=rf"{MODEL} is missing or damaged"):
        checkpoint.load_model(nn.Linear(2, 2), kept)


def test_tensors_of_another_model_are_told(folder: Path) -> None:
    kept = checkpoint.kept_model(folder)
    assert kept is not None
    with pytest.raises(LabError, match="does not hold this model"):
        checkpoint.load_model(nn.Linear(3, 2), kept)


@pytest.mark.parametrize("content", ["{}", '{"format": 1}', "[]", "{", '{"format": 2}'])
def test_a_checkpoint_without_its_facts_is_none(folder: Path, content: str) -> None:
    (folder / "checkpoint" / FINAL / META).write_text(content)
    assert checkpoint.kept_model(folder) is None
