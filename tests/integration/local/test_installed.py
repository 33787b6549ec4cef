"""The wheel in an environment of its own, in an empty folder: everything that a checkout has is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[3]
LEFT_OUT = shutil.ignore_patterns(".*", "out", "build", "*.egg-info", "tests")
WHERE = """
import importlib.metadata, json, lab, sys
copies = len(list(importlib.metadata.distributions(name="scaling-lab")))
print(json.dumps({"lab": lab.__file__, "path": sys.path, "copies": copies}))
"""


def needed(requires: list[str], extras: frozenset[str] = frozenset({""})) -> Iterator[Requirement]:
    """What a distribution requires here, with these extras of it."""
    for requirement in map(Requirement, requires):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def link_dependencies(requires: list[str], folder: Path) -> None:
    """Link what a distribution declares that it needs, from where it is installed, and no other."""
    folder.mkdir()
    waiting, linked_requirements = list(needed(requires)), set[str]()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in linked_requirements:
            continue
        linked_requirements.add(str(requirement))
        dependency = metadata.distribution(requirement.name)
        extras = frozenset({"", *requirement.extras})
        waiting += needed(dependency.requires or [], extras)
        for top in {file.parts[0] for file in dependency.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).is_symlink():
                (folder / top).symlink_to(Path(str(dependency.locate_file(top))))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that holds the wheel, and links to the packages that the wheel requires."""
    root = tmp_path_factory.mktemp("wheel")
    shutil.copytree(CHECKOUT, root / "source", ignore=LEFT_OUT)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", root, root / "source"]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = root.glob("*.whl")
    venv.create(root / "venv", symlinks=True)
    install = ["--python", root / "venv", "install", "--no-index", "--no-deps", wheel]
    subprocess.run([*pip, *install], check=True)
    (site,) = root.glob("venv/lib/python*/site-packages")
    (installed,) = metadata.distributions(path=[str(site)])
    link_dependencies(installed.requires or [], root / "dependencies")
    (site / "dependencies.pth").write_text(f"{root / 'dependencies'}\n")
    # Of Jupyter's packages a part lies beside Python's, which is nobody's to import.
    (root / "venv" / "share").symlink_to(Path(sys.prefix) / "share")
    return root / "venv"


def test_an_installed_lab_measures_a_new_study_and_hands_out_the_lessons(
    environment: Path, tmp_path: Path
) -> None:
    variables = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "LAB_CACHE": str(tmp_path / "cache"),
    }
    here = tmp_path / "empty"
    here.mkdir()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=here, env=variables, capture_output=True, text=True, check=False
        )

    def lab(*words: str) -> subprocess.CompletedProcess[str]:
        return run(str(environment / "bin" / "lab"), *words)

    imported = run(str(environment / "bin" / "python"), "-c", WHERE)
    where = json.loads(imported.stdout)
    site = Path(where["lab"]).parents[1]
    assert site.is_relative_to(environment) and where["copies"] == 1
    assert not [path for path in where["path"] if Path(path).is_relative_to(CHECKOUT)]
    assert lab("init", "mine", "--like", "own-model").returncode == 0
    assert (here / "mine" / "unet.py").exists()
    assert lab("init", "mystudy").returncode == 0
    study = here / "mystudy" / "study.yaml"
    content = study.read_text()
    for long, short in {
        "repeats: 3": "repeats: 1",
        "global_batch_size: [16]": "global_batch_size: [2]",
    }.items():
        assert long in content
        content = content.replace(long, short)
    study.write_text(content)
    done = lab("run", "mystudy", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (here / "mystudy" / "out" / "report.html").exists()
    assert (here / "mystudy" / "out" / "report.pdf").read_bytes().startswith(b"%PDF")
    assert lab("course", "lessons", "lessons").returncode == 0
    assert len(list((here / "lessons").glob("*.ipynb"))) == 12
    assert (here / "lessons" / "projects" / "studies" / "fault" / "study.yaml").exists()
    refused = lab("course", "lessons", "solved", "--solutions")
    assert refused.returncode == 1 and "in a checkout" in refused.stderr
    refused = lab("run", "quickstart")
    assert refused.returncode == 2 and "lab init quickstart --like quickstart" in refused.stderr
    assert {path.name for path in here.iterdir()} == {"mine", "mystudy", "lessons"}
    assert not list((site / "lab" / "share").rglob("out"))
    assert not holding_solutions(site / "lab" / "share")


def test_the_python_of_the_distribution_makes_a_report_too(tmp_path: Path) -> None:
    """With the packages of this environment, which must also work in older patch releases."""
    other = Path("/usr/bin/python{}.{}".format(*sys.version_info))
    if not other.exists() or other.resolve() == Path(sys.executable).resolve():
        pytest.skip(f"{other} is not another Python")
    table = tmp_path / "results.csv"
    table.write_text("gpus,step_time\n1,0.4\n2,0.21\n4,0.12\n")
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), sysconfig.get_path("purelib")]),
        "JUPYTER_PATH": str(Path(sys.prefix) / "share" / "jupyter"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    command = [other, "-m", "lab", "report", table.name]
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def holding_solutions(folder: Path) -> list[Path]:
    """Files that hold a solution of an exercise, in code or, of one of them, in words."""
    marks = ("BEGIN SOLUTION", "Naive DDP pays latency")
    paths = [*folder.rglob("*.ipynb"), *folder.rglob("*.py")]
    return [path for path in paths if any(mark in path.read_text() for mark in marks)]


def test_a_source_distribution_has_no_solutions_and_leaves_those_of_the_checkout(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    shutil.copytree(CHECKOUT, source, ignore=LEFT_OUT)
    solved = holding_solutions(source / "notebooks")
    assert len(solved) > 12
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run(command, cwd=source, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    assert len(list(tmp_path.glob("unpacked/*/notebooks/lessons/*.ipynb"))) == 12
    assert not holding_solutions(next(tmp_path.glob("unpacked/*/notebooks")))
    assert holding_solutions(source / "notebooks") == solved
