"""The tree of the README: a line for every file of `lab`, made of what the file says about itself; `python tests/tree.py`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
HIDDEN = {"__init__.py", "__main__.py", "__pycache__"}


def about(path: Path) -> str:
    """The first sentence of a module, of a package's `__init__`, or the first comment of another file."""
    if path.is_dir():
        path = path / "__init__.py"
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
    else:
        comments = re.findall(r"^(?:--|//|/\*) (.+?)(?: \*/)?$", path.read_text(), re.MULTILINE)
        text = comments[0]
    return text.split("\n\n")[0].replace("\n", " ").rstrip(".")


def lines(folder: Path, depth: int = 1) -> list[str]:
    """One line per file, folders with what is in them below."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name in HIDDEN:
            continue
        found.append(f"{'  ' * depth + path.name + '/' * path.is_dir():<28}  {about(path)}")
        if path.is_dir():
            found += lines(path, depth + 1)
    return found


if __name__ == "__main__":
    print("\n".join(lines(ROOT / "lab")))
