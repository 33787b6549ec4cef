"""The rules of the house: who imports what, how large a file may be, what a notebook may hold."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / "lab").rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


def test_importing_lab_loads_no_torch_and_nothing_heavy() -> None:
    heavy = [
        "torch",
        "numpy",
        "pandas",
        "matplotlib",
        "scipy",
        "papermill",
        "nbconvert",
        "submitit",
        "IPython",
        "ipywidgets",
    ]
    assert not loaded_by("lab, lab.cli") & set(heavy)


def test_the_kernel_of_a_report_loads_nothing_that_edits_its_page() -> None:
    heavy = {"torch", "scipy.stats", "papermill", "nbconvert", "bs4", "typst", "fontTools.subset"}
    assert not loaded_by("lab.report.study_sections") & heavy


def loaded_by(modules: str) -> set[str]:
    """All modules that importing some loads."""
    code = f"import {modules}, json, sys; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(json.loads(answer.stdout))


def test_no_module_is_named_after_nothing() -> None:
    assert not {path.name for path in LIBRARY} & {"utils.py", "common.py", "helpers.py", "misc.py"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_hold_prose_and_calls_and_no_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            assert cell["outputs"] == [] and cell["execution_count"] is None
            if not {"exercise", "solution"} & set(cell["metadata"].get("tags", [])):
                assert not any(
                    isinstance(node, ast.FunctionDef | ast.ClassDef)
                    for node in ast.walk(ast.parse(source))
                )


def test_public_names_are_there() -> None:
    import lab

    assert all(hasattr(lab, name) for name in lab.__all__)
    assert (
        callable(lab.launch)
        and callable(lab.report)
        and callable(lab.plan)
        and callable(lab.doctor)
    )
    assert lab.__all__ == sorted(lab.__all__)
