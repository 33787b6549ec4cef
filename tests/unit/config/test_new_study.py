"""A study to begin with is one that can be planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.config.new_study import new_study
from lab.config.study import Study
from lab.errors import InputError


@pytest.mark.parametrize("like", [None, "own-model", "quickstart"])
@pytest.mark.parametrize("quick", [False, True])
def test_a_new_study_can_be_read_in_both_forms(
    tmp_path: Path, like: str | None, quick: bool
) -> None:
    files = new_study(str(tmp_path / "mine"), like=like)
    assert all(path.is_file() for path in files)
    assert Study.load(tmp_path / "mine", quick=quick).runs


def test_a_study_is_never_written_over(tmp_path: Path) -> None:
    (path,) = new_study(tmp_path)
    path.write_text("mine")
    with pytest.raises(InputError, match="there already is one"):
        new_study(tmp_path)
    assert path.read_text() == "mine"


def test_code_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "unet.py").write_text("mine")
    with pytest.raises(InputError, match=r"unet\.py: there already is one; choose another folder"):
        new_study(tmp_path, like="own-model")
    assert (tmp_path / "unet.py").read_text() == "mine"
    assert not (tmp_path / "study.yaml").exists()


def test_a_link_to_nowhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").symlink_to("elsewhere.yaml")
    with pytest.raises(InputError, match="there already is one"):
        new_study(tmp_path)
    assert not (tmp_path / "elsewhere.yaml").exists()


def test_no_folder_is_not_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="folder: is empty; give the path of a folder"):
        new_study("")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file", "file/mine"])
def test_a_file_is_no_folder_for_a_study(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=f"{place}: is not a folder; rename or remove it"):
        new_study(tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_unknown_example_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'own-model'"):
        new_study(tmp_path / "mine", like="own-modle")
    assert not (tmp_path / "mine").exists()
