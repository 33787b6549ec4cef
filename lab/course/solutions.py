"""Solutions in lessons and in files of the ladder: where they stand, and copies without them.

It imports nothing of the lab: the build of a wheel runs it before the lab's requirements exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CODE_STUB = "# Put your answer here."
TEXT_STUB = "Put your answer here, in two to five sentences."
_BEGIN, _END = "### BEGIN SOLUTION", "### END SOLUTION"  # nbgrader's marks
_SOLUTION = re.compile(rf"^( *){_BEGIN}\n.*?{_END}", re.MULTILINE | re.DOTALL)


def is_answer(cell: Mapping[str, Any]) -> bool:
    """Whether a cell of a notebook is a student's to fill in, and holds a solution until then."""
    return bool(cell["metadata"].get("nbgrader", {}).get("solution"))


def without_solutions(text: str) -> str:
    """Python source in which a comment replaces each solution."""
    return _SOLUTION.sub(rf"\1{CODE_STUB}", text)


def has_solutions(folder: Path) -> bool:
    """Whether the notebooks of a folder hold solutions; those that a wheel installs do not."""
    return any(_BEGIN in path.read_text("utf-8") for path in folder.glob("*.ipynb"))


def clear(folder: Path) -> None:
    """Replace all solutions in the notebooks and Python files of a folder, at any depth."""
    clear_files(folder)
    for path in folder.rglob("*.ipynb"):
        content = json.loads(path.read_text("utf-8"))
        for cell in filter(is_answer, content["cells"]):
            is_code, text = cell["cell_type"] == "code", "".join(cell["source"])
            cleared = without_solutions(text) if is_code else TEXT_STUB
            cell["source"] = cleared.splitlines(keepends=True)
        _replace(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def clear_files(folder: Path) -> None:
    """Replace all solutions in the Python files of a folder, at any depth."""
    for path in folder.rglob("*.py"):
        text = path.read_text("utf-8")
        if (cleared := without_solutions(text)) != text:
            _replace(path, cleared)


def _replace(path: Path, text: str) -> None:
    path.unlink()  # a source distribution is built from hard links to the files of the checkout
    path.write_text(text, "utf-8")
