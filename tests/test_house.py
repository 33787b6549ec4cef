"""The rules of the house: who imports what, how large a file may be, what a notebook may hold."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = sorted((ROOT / "lab").rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


def imports(path: Path) -> set[str]:
    """Dotted names that a module imports for use at run time, wherever in it they stand."""
    tree = ast.parse(path.read_text())
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", [path for path in LIBRARY if "worker" not in path.parts], ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_worker_imports_torch(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] in {"torch", "torchvision"}}


def test_importing_lab_loads_no_torch_and_nothing_heavy() -> None:
    heavy = ["torch", "numpy", "pandas", "matplotlib", "scipy", "papermill", "nbconvert", "submitit", "IPython", "ipywidgets"]
    code = f"import sys, lab, lab.cli; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("path", [path for path in LIBRARY if "analysis" in path.parts], ids=lambda p: p.name)
def test_analysis_is_pure(path: Path) -> None:
    allowed = ("lab.analysis", "lab.study", "lab.records", "lab.errors", "lab.words", "lab.workloads")
    foreign = {name for name in imports(path) if name.split(".")[0] == "lab" and name != "lab" and not name.startswith(allowed)}
    assert not foreign
    assert not {name for name in imports(path) if name.split(".")[0] in {"matplotlib", "torch", "os", "subprocess"}}


@pytest.mark.parametrize("name", ["cluster", "machine", "jobs/place"])
def test_clusters_know_nothing_of_runs(name: str) -> None:
    names = imports(ROOT / "lab" / f"{name}.py")
    assert not {"lab.study.Run", "lab.study.Study", "lab.study.Task", "lab.records", "lab.launch"} & names


@pytest.mark.parametrize("name", ["study", "workloads", "records"])
def test_runs_know_nothing_of_clusters(name: str) -> None:
    place = ROOT / "lab" / name
    files = sorted(place.glob("*.py")) or [place.with_suffix(".py")]
    assert not {imported for file in files for imported in imports(file) if imported.startswith(("lab.cluster", "lab.launch"))}


def test_no_module_is_named_after_nothing() -> None:
    assert not {path.name for path in LIBRARY} & {"utils.py", "common.py", "helpers.py", "misc.py"}


def test_files_stay_one_concept_long() -> None:
    assert {str(path.relative_to(ROOT)): lines for path in LIBRARY if (lines := len(path.read_text().splitlines())) > 300} == {}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_hold_prose_and_calls_and_no_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            assert cell["outputs"] == [] and cell["execution_count"] is None
            if not {"exercise", "solution"} & set(cell["metadata"].get("tags", [])):
                assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.walk(ast.parse(source)))


def test_public_names_are_there() -> None:
    import lab

    assert all(hasattr(lab, name) for name in lab.__all__)
    assert callable(lab.launch) and callable(lab.report) and callable(lab.plan) and callable(lab.doctor)
    assert lab.__all__ == sorted(lab.__all__)
