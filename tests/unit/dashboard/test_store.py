"""From the bench to a study that `lab run` takes."""

from __future__ import annotations

from pathlib import Path

import factories
import pytest

from lab.config.study import Study
from lab.dashboard import store
from lab.errors import InputError


def test_a_sent_configuration_is_a_study_with_its_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = factories.run(4, 16, strategy="fsdp", precision="bf16")
    study = store.send(run, name="mine", reports=Path("reports"))
    assert Study.load("mine") == study and study.repeats == 3
    assert [one.world_size for one in study.runs] == [1, 2, 4] and study.runs[-1] == run


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"global_batch_size": 12, "world_size": 6}, [1, 2, 4, 6]),
        ({"global_batch_size": 6, "world_size": 6}, [1, 2, 6]),
        ({"global_batch_size": 8, "world_size": 1, "strategy": "single"}, [1]),
    ],
)
def test_world_sizes_divide_the_batch(changes: dict[str, object], sizes: list[int]) -> None:
    run = factories.run().model_validate(changes)
    assert store.world_sizes(run) == sizes


@pytest.mark.parametrize("name", ["", "../up", "Big", "a b", ".hidden", "x" * 200])
def test_names_that_are_no_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="invalid study name"):
        store.send(factories.run(), name=name, reports=tmp_path / "reports")
    assert not (tmp_path / "reports").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    run = factories.run(2, 8)
    name = store.suggested(run)
    assert name == "gpt-nano-ddp-x2-batch-8-fp32"
    written = (store.send(run, name=name, reports=tmp_path).folder / "study.yaml").read_bytes()
    with pytest.raises(InputError, match="already exists"):
        store.send(factories.run(1, 8), name=name, reports=tmp_path)
    assert (tmp_path / name / "study.yaml").read_bytes() == written
