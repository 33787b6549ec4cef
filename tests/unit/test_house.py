"""The rules of the house: how a module may be named, what a notebook may hold, which names are public."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / "lab").rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


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
