"""The lab's step beside other loops: what is compared, and what of a study every loop can train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from factories import run

from lab.errors import InputError
from lab.launch import bench
from lab.launch.bench import compared, training

SECONDS = {
    "plain": [1.0, 2.0, 1.0, 2.0, 1.0, 2.0],
    "control": [1.0, 2.0, 1.1, 2.2, 1.0, 2.0],
    "nanoGPT": [0.5, 1.0, 0.5, 1.0, 0.5, 1.0],
    "instrumented": [1.0, 2.0, 1.0, 2.0, 1.0, 2.0],
}


def test_steps_are_compared_round_by_round() -> None:
    answer = {"wall": SECONDS, "rounds": 6}
    plain, other = compared(run(1, 8, strategy="single"), "cpu", answer)
    assert (plain.loop, plain.ratio.median, plain.slower) == ("plain", 1.0, False)
    assert (other.loop, other.ratio.median, other.slower) == ("nanoGPT", 2.0, True)
    assert other.control.median == 1.0 and other.lab_s == 1.5 and other.loop_s == 0.75
    assert other.row()["beside"] == "nanoGPT" and other.row()["lab / other"].startswith("2")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What the ranks were asked for, in place of their steps."""
    calls: list[tuple[str, ...]] = []

    def ranks(*arguments: str) -> dict[str, Any]:
        calls.append(arguments)
        return {"wall": SECONDS, "rounds": 6}

    monkeypatch.setattr(bench, "selftest", ranks)
    monkeypatch.setattr("lab.machine.gpus", lambda: ())
    return calls


def test_of_a_study_each_gpt_on_one_device_is_trained_once(trained: list[tuple[str, ...]]) -> None:
    names = {comparison.run.label for comparison in training("quickstart", quick=True)}
    assert len(names) == len(trained) == 1 and "single x1" in names.pop()
    assert all(arguments[0] == "training" and arguments[2:] == ("cpu", "") for arguments in trained)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "a folder"),
        ("import torch\nfrom model import GPTConfig, GPT", "does not define GPT or GPTConfig"),
        ("class GPT: pass", "does not define GPTConfig"),
        ("class GPT(", r"line 1: .* was never closed; name nanoGPT"),
    ],
)
def test_what_is_not_nanogpts_model_is_not_run(
    trained: list[tuple[str, ...]], tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "train.py"
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(InputError, match=message):
        training(nanogpt=str(path))
    assert not trained
    path = tmp_path / "model.py"
    path.write_text("class GPTConfig: pass\nclass GPT: pass")
    assert training(nanogpt=str(path)) and trained[0][-1] == str(path)


def test_a_study_for_gpus_has_nothing_for_a_cpu(trained: list[tuple[str, ...]]) -> None:
    with pytest.raises(InputError, match="no run of a GPT on one device"):
        training("gpu-training")
    assert {comparison.run.compile for comparison in training("gpu-training", quick=True)} == {
        False,
        True,
    }
    assert not any("50257" in arguments[1] for arguments in trained)
