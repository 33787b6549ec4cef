"""The code that a job runs: its commit, and the copy of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lab.records import provenance


def git(folder: Path, *arguments: str) -> str:
    name = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *name, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_and_dirty_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.git_state() == (None, None)
    git(tmp_path, "init")
    assert provenance.git_state() == (None, None)
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert provenance.git_state() == (commit, False)
    (tmp_path / "file").write_text("two")
    assert provenance.git_state() == (commit, True)


def test_without_git_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert provenance.git_state() == (None, None)


def test_a_copy_of_the_code_keeps_its_commit_and_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").write_text("one")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "git_state", lambda: ("abc", True))
    copy = provenance.keep_code(tmp_path / "out")
    assert provenance.keep_code(tmp_path / "out") == copy
    (tmp_path / "lab" / "__init__.py").write_text("two")
    assert provenance.keep_code(tmp_path / "out") != copy
    assert (copy / "lab" / "__init__.py").read_text() == "one"
    (tmp_path / "lab" / "__init__.py").write_text("one")
    (copy / "lab" / "__init__.py").write_text("somebody else's")
    assert provenance.keep_code(tmp_path / "out") == copy
    assert (copy / "lab" / "__init__.py").read_text() == "one"
    monkeypatch.undo()
    monkeypatch.setattr(provenance, "ROOT", copy)
    assert provenance.git_state() == ("abc", True)
