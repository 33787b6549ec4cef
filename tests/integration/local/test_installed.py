"""The wheel, installed, in an empty folder: everything that a checkout has is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
LEFT_OUT = shutil.ignore_patterns(".*", "out", "build", "*.egg-info", "tests")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel; the packages that it needs are those of this interpreter."""
    root = tmp_path_factory.mktemp("wheel")
    shutil.copytree(CHECKOUT, root / "source", ignore=LEFT_OUT)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", root, root / "source"]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = root.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", root / "site", wheel], check=True)
    return root / "site"


def test_an_installed_lab_measures_a_new_study_and_hands_out_the_lessons(
    site: Path, tmp_path: Path
) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(site),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "LAB_CACHE": str(tmp_path / "cache"),
    }
    here = tmp_path / "empty"
    here.mkdir()

    def lab(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lab", *words]
        return subprocess.run(
            command, cwd=here, env=environment, capture_output=True, text=True, check=False
        )

    where = [sys.executable, "-c", "import lab; print(lab.__file__)"]
    imported = subprocess.run(where, cwd=here, env=environment, capture_output=True, text=True)
    assert Path(imported.stdout.strip()).is_relative_to(site)
    assert lab("init", "mine", "--like", "own-model").returncode == 0
    assert (here / "mine" / "unet.py").exists()
    assert lab("init", "mystudy").returncode == 0
    done = lab("run", "mystudy", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (here / "mystudy" / "out" / "report.html").exists()
    assert (here / "mystudy" / "out" / "report.pdf").read_bytes().startswith(b"%PDF")
    assert lab("course", "lessons", "lessons").returncode == 0
    assert len(list((here / "lessons").glob("*.ipynb"))) == 12
    refused = lab("run", "quickstart")
    assert refused.returncode == 2 and "lab init quickstart --like quickstart" in refused.stderr
    assert {path.name for path in here.iterdir()} == {"mine", "mystudy", "lessons"}
    assert not list((site / "lab" / "share").rglob("out"))
