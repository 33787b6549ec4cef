"""Files that a study may read, and those that it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.config.paths import read_texts, resolve_text
from lab.errors import InputError


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    (folder / "texts").mkdir(parents=True)
    (folder / "texts" / "b.md").write_text("second")
    (folder / "texts" / "a.txt").write_text("first")
    return folder


def test_a_path_is_seen_from_the_study(study: Path) -> None:
    assert resolve_text("texts", study) == study / "texts"
    assert resolve_text("texts/a.txt", study) == study / "texts" / "a.txt"
    assert resolve_text(str(study / "texts"), study) == study / "texts"


@pytest.mark.parametrize("path", ["..", "../secret.txt", "/etc/passwd", "texts/../../secret.txt"])
def test_nothing_outside_is_read(study: Path, path: str) -> None:
    (study.parent / "secret.txt").write_text("secret")
    with pytest.raises(InputError, match=r"outside.*LAB_DATA_PATH"):
        resolve_text(path, study)


def test_no_link_leads_outside(study: Path) -> None:
    (study.parent / "secret.txt").write_text("secret")
    (study / "link.txt").symlink_to(study.parent / "secret.txt")
    with pytest.raises(InputError, match="outside"):
        resolve_text("link.txt", study)
    (study / "texts" / "link.txt").symlink_to(study.parent / "secret.txt")
    assert read_texts("texts", study) == ["first", "second"]


def test_a_folder_of_the_environment_is_allowed(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora = tmp_path / "corpora"
    (corpora / "poems").mkdir(parents=True)
    (corpora / "poems" / "one.txt").write_text("a poem")
    monkeypatch.setenv("LAB_DATA_PATH", f":{corpora}")
    assert resolve_text("poems", study) == corpora / "poems"
    assert resolve_text(str(corpora / "poems"), study) == corpora / "poems"
    assert read_texts("poems", study) == ["a poem"]


def test_a_wrong_name_is_answered_with_the_nearest(study: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'texts'"):
        resolve_text("text", study)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_names_that_no_system_takes_are_problems_not_crashes(study: Path, path: str) -> None:
    with pytest.raises(InputError):
        resolve_text(path, study)


def test_links_in_a_circle_are_a_problem_not_a_crash(study: Path) -> None:
    (study / "one").symlink_to(study / "two")
    (study / "two").symlink_to(study / "one")
    with pytest.raises(InputError):
        resolve_text("one", study)
    (study / "texts" / "loop").symlink_to("loop")
    assert read_texts("texts", study) == ["first", "second"]


def test_only_text_is_read_and_in_order(study: Path) -> None:
    (study / "texts" / "image.png").write_bytes(b"\x89PNG\xff\xfe")
    (study / "texts" / "zeros.bin").write_bytes(b"\0" * 10)
    (study / "texts" / ".hidden").write_text("hidden")
    (study / "texts" / ".git").mkdir()
    (study / "texts" / ".git" / "config").write_text("hidden too")
    (study / "texts" / "empty.txt").write_text("")
    assert read_texts("texts", study) == ["first", "second"]


def test_a_study_does_not_train_on_its_own_output(study: Path) -> None:
    (study / "out").mkdir()
    (study / "out" / "record.json").write_text("{}")
    assert read_texts(".", study) == ["first", "second"]


def test_a_folder_without_text_is_a_problem(study: Path) -> None:
    (study / "nothing").mkdir()
    with pytest.raises(InputError, match="no UTF-8 text"):
        read_texts("nothing", study)
