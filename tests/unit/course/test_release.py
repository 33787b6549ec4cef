"""What learners hand in is copied as data: links, pipes and masses of it are not."""

from __future__ import annotations

import io
import os
import shutil
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lab
from lab import cli
from lab.course import release
from lab.errors import InputError

LESSON = "03-data-parallel"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_lessons_of_a_read_only_installation_can_be_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed"
    shutil.copytree(release.LESSONS, installed)
    for path in (*installed.rglob("*"), installed):
        path.chmod(path.stat().st_mode & ~0o222)
    monkeypatch.setattr(release, "LESSONS", installed)
    release.copy_lessons(tmp_path / "copy")
    assert all(path.stat().st_mode & stat.S_IWUSR for path in (tmp_path / "copy").rglob("*"))


@pytest.fixture
def handed_in(tmp_path: Path) -> Path:
    """Of ada a lesson, of bob one with tricks, of eve an archive."""
    place = tmp_path / "handed-in"
    for student in ("ada", "bob"):
        answers = place / student / LESSON / "answers"
        answers.mkdir(parents=True)
        (answers / "1.1.json").write_text(student)
    (tmp_path / "secret").write_text("of the instructor")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "a").write_text("of the instructor")
    tricks = place / "bob" / LESSON
    (tricks / "link").symlink_to(tmp_path / "secret")
    (tricks / "folder").symlink_to(tmp_path / "secrets")
    os.mkfifo(tricks / "pipe")
    (place / "eve.zip").write_bytes(b"PK")
    (place / ".hidden").mkdir()
    return place


def test_lessons_are_copied_for_the_instructor_alone(handed_in: Path, tmp_path: Path) -> None:
    ada, bob, eve = lab.collect([handed_in], into=tmp_path / "submitted")
    assert (ada.files, ada.bytes, ada.problem) == (1, 3, "") and ada.owner and ada.newest
    assert bob.files == 1 and bob.problem.startswith("left out 3 of its entries")
    assert not eve.files and "unpack" in eve.problem
    copied = tmp_path / "submitted" / "bob" / LESSON
    assert [path.name for path in copied.rglob("*")] == ["answers", "1.1.json"]
    assert stat.S_IMODE((tmp_path / "submitted").stat().st_mode) == 0o700


def test_lessons_need_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="file: is not a folder; rename or remove it"):
        release.copy_lessons(tmp_path / "file")


def test_what_is_handed_in_again_replaces_what_was(handed_in: Path, tmp_path: Path) -> None:
    target = tmp_path / "submitted"
    lab.collect([handed_in], into=target)
    answers = handed_in / "ada" / LESSON / "answers"
    (answers / "1.1.json").unlink()
    (answers / "1.2.json").write_text("later")
    lab.collect([handed_in], into=target)
    assert names(target / "ada" / LESSON / "answers") == ["1.2.json"]
    assert names(target / "ada") == [LESSON]


def test_masses_are_left_and_what_was_collected_stays(
    handed_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "submitted"
    lab.collect([handed_in], into=target)
    monkeypatch.setattr(release, "MOST_BYTES", 100)
    with (handed_in / "ada" / LESSON / "large").open("wb") as stream:
        stream.truncate(101)
    ada, *_ = lab.collect([handed_in], into=target)
    assert not ada.files and "more than 50000 files or 1e-07 GB" in ada.problem
    assert names(target / "ada" / LESSON) == ["answers"]


def test_a_file_that_grows_while_it_is_copied_fills_no_disk() -> None:
    target = io.BytesIO()
    with pytest.raises(release._TooMuchError), Path("/dev/zero").open("rb") as endless:
        release._copy_file(endless, target, at_most=3 * release.BLOCK)
    assert len(target.getvalue()) <= 3 * release.BLOCK


def test_a_name_that_no_table_can_hold_is_not_copied(handed_in: Path, tmp_path: Path) -> None:
    (handed_in / "\udcff" / LESSON).mkdir(parents=True)
    odd = lab.collect([handed_in], into=tmp_path / "submitted")[-1]
    assert odd.student == r"'\udcff'" and not odd.files and "rename it" in odd.problem


def test_an_empty_folder_is_said_to_be_empty(handed_in: Path, tmp_path: Path) -> None:
    (handed_in / "zoe" / LESSON).mkdir(parents=True)
    last = lab.collect([handed_in], into=tmp_path / "submitted")[-1]
    assert (last.student, last.files, last.problem) == ("zoe", 0, "an empty folder")


def test_what_lies_beside_a_lesson_under_another_name_is_named(
    handed_in: Path, tmp_path: Path
) -> None:
    (handed_in / "ada" / "4-strong-scaling").mkdir()
    (handed_in / "ada" / "05.tar").touch()
    (handed_in / "ada" / ".DS_Store").touch()
    lesson, rest, *_ = lab.collect([handed_in], into=tmp_path / "submitted")
    assert lesson.student == rest.student == "ada" and lesson.files and not lesson.problem
    assert not rest.files and rest.problem.endswith(
        "name: 05.tar; 4-strong-scaling (did you mean '04-strong-scaling'?)"
    )


def test_a_lesson_within_a_folder_of_its_name_is_collected(handed_in: Path, tmp_path: Path) -> None:
    lesson = handed_in / "ada" / LESSON
    lesson.rename(handed_in / "inner")
    lesson.mkdir()
    (handed_in / "inner").rename(lesson / LESSON)
    lab.collect([handed_in], into=tmp_path / "submitted")
    assert names(tmp_path / "submitted" / "ada" / LESSON) == ["answers"]


def test_nothing_to_collect_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        lab.collect([tmp_path / "nowhere"], into=tmp_path / "submitted")
    (tmp_path / "place" / "ada" / "03-data-paralel").mkdir(parents=True)
    with pytest.raises(InputError, match=r"ada: .*name: 03-data-paralel \(did you mean"):
        lab.collect([tmp_path / "place"], into=tmp_path / "submitted")


def test_the_command_names_whose_was_not_copied(handed_in: Path, tmp_path: Path) -> None:
    words = ["course", "collect", str(handed_in), "--into", str(tmp_path / "submitted")]
    ended = CliRunner().invoke(cli.app, words)
    assert "ada" in ended.stdout and str(ended.exception) == "not copied completely: bob, eve.zip"


def test_a_lesson_that_does_not_exist_is_refused_before_a_course_folder_is_made(
    tmp_path: Path,
) -> None:
    ended = CliRunner().invoke(cli.app, ["course", "release", str(tmp_path / "course"), "04-strng"])
    assert "did you mean '04-strong-scaling'?" in str(ended.exception)
    assert isinstance(ended.exception, InputError) and not (tmp_path / "course").exists()
