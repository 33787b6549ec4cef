"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

SMALL_STUDY = {
    "title": "A small study",
    "question": "Does it work?",
    "scaling": "strong",
    "base": {
        "model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 16, "block_size": 16},
        "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
        "steps": 4,
        "warmup_steps": 1,
        "eval_batches": 1,
    },
    "grid": {"global_batch_size": [4], "world_size": [1, 2]},
    "repeats": 1,
    "baseline": {"world_size": 1},
}
CORPUS = "".join(f"def square_{i}(x):\n    return x * {i} + x ** 2  # the sum of two terms\n\n" for i in range(400))

StudyMaker = Callable[..., Path]


@pytest.fixture
def make_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyMaker:
    """Writes a study folder; keyword arguments replace keys of SMALL_STUDY, None removes one."""
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))

    def make(name: str = "small", **changes: object) -> Path:
        folder = tmp_path / "reports" / name
        folder.mkdir(parents=True)
        content = {key: value for key, value in (SMALL_STUDY | changes).items() if value is not None}
        (folder / "study.yaml").write_text(yaml.safe_dump(content))
        (folder / "corpus.txt").write_text(CORPUS)
        return folder

    return make
