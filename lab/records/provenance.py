"""The code that a job runs: its commit, and a copy that nobody edits."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from lab.config.own import hash_files
from lab.files import ROOT, private_folder, read_json, require_own_path

GIT_STATE = "code.json"  # in a copy of the code, which has no repository


def keep_code(out: Path) -> Path:
    """Copy the `lab` package to `out`/code/<hash of its content> once; returns that folder.

    A copy that does not match its name is made again. Raises InputError if others could change it.
    """
    package = ROOT / "lab"
    digest = _digest(package)
    folder = out / "code" / digest[:12]
    require_own_path(private_folder(folder.parent))
    if folder.is_dir() and _digest(folder / "lab") == digest:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    shutil.copytree(package, building / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    commit, dirty = git_state()
    (building / GIT_STATE).write_text(json.dumps({"commit": commit, "dirty": dirty}))
    try:
        building.rename(folder)
    except OSError:  # another driver was faster
        shutil.rmtree(building)
    return folder


def _digest(package: Path) -> str:
    files = (path for path in package.rglob("*") if "__pycache__" not in path.parts)
    return hash_files({str(path.relative_to(package)): path for path in files if path.is_file()})


def git_state() -> tuple[str | None, bool | None]:
    """The commit of the lab's repository and whether files differ from it; None without git."""
    if (state := read_json(ROOT / GIT_STATE)) is not None:
        return state["commit"], state["dirty"]
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return None, None
    commit = _output(git, "rev-parse", "HEAD")
    # An index of the studies measured here is not code.
    status = _output(
        git, "--no-optional-locks", "status", "--porcelain", "--", ".", ":!reports/README.md"
    )
    return commit, None if commit is None or status is None else bool(status)


def _output(program: str, *arguments: str) -> str | None:
    try:
        return subprocess.run(
            [program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
