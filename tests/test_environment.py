from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lab.worker import environment


def git(folder: Path, *arguments: str) -> str:
    name = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *name, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_and_dirty_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.git_state() == (None, None)
    git(tmp_path, "init")
    assert environment.git_state() == (None, None)
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert environment.git_state() == (commit, False)
    (tmp_path / "file").write_text("two")
    assert environment.git_state() == (commit, True)


def test_without_git_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert environment.git_state() == (None, None)
