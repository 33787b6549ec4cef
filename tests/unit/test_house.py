"""The rules of the house: names and places of modules, what notebooks hold, which names are public."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / "lab").rglob("*.py"))
LIBRARY_INIT = ROOT / "lab" / "__init__.py"
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LAYERS = CONTRACTS["contracts"][0]["layers"][::-1]
# How high each package and module beside them lies, from the ground.
FLOORS = {name: floor for floor, names in enumerate(LAYERS) for name in names.split(" | ")}


def test_no_module_is_named_after_nothing() -> None:
    assert not {path.name for path in LIBRARY} & {"utils.py", "common.py", "helpers.py", "misc.py"}


def test_there_are_ten_packages_and_seven_modules_beside_them() -> None:
    packages = {path.parent.name for path in (ROOT / "lab").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "lab").glob("*.py")} - {"__init__", "__main__"}
    assert len(packages) <= 10 and len(modules) <= 7
    assert packages | modules | {"__main__"} == set(FLOORS)


# The linter of imports reads no strings, no folder without __init__.py, and not lab/__init__.py.
@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_by_name_keep_to_the_floors(path: Path) -> None:
    first = path.relative_to(ROOT / "lab").with_suffix("").parts[0]
    imported: set[str] = set()  # by statements and by calls
    named: set[str] = set()  # all modules of lab in strings
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
        elif isinstance(node, ast.Call) and re.search("import", ast.unparse(node.func)):
            imported |= {x.value for x in node.args if isinstance(x, ast.Constant)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named |= {*re.findall(r"^(?: ?-m )?lab\.(\w+)", node.value)} & set(FLOORS)
    if first != "worker":
        assert not {"torch", "torchvision", "torchao"} & {name.split(".")[0] for name in imported}
    if first in FLOORS:
        assert not {name for name in named if FLOORS[name] > FLOORS[first]}


def uses(path: Path) -> Iterator[str]:
    """Names that code uses, also in strings such as `lab.cli:main`, but not those of prose."""
    code = path.read_text()
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(code)["cells"] if cell["cell_type"] == "code"]
        code = "\n".join("".join(cell["source"]) for cell in cells)
    for node in ast.walk(ast.parse(code)):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name) | ast.alias(name=name)
            ):
                yield name
            case ast.Constant(value=str(text)) if not re.search(r"\s", text):
                yield from re.findall(r"\w+", text)


# Such as a section that no report shows. What decorators register is found in their tables.
def test_nothing_is_defined_that_no_code_uses() -> None:
    folders = ("lab", "notebooks", "reports", "slurm")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    used = {name for path in files if path.suffix in {".py", ".ipynb"} for name in uses(path)}
    others = [*ROOT.glob("*.toml"), *(path for path in files if path.suffix == ".j2")]
    used |= {"__all__", *(word for path in others for word in re.findall(r"\w+", path.read_text()))}
    for path in LIBRARY:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
                assert node.name in used, f"{path}: {node.name}"
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assert node.targets[0].id in used, f"{path}: {node.targets[0].id}"


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
    assert {*lab.__all__, "__file__"} <= {*dir(lab)}


def test_type_checkers_see_the_public_names_where_they_are_loaded_from() -> None:
    import lab

    (block,) = [
        node for node in ast.parse(LIBRARY_INIT.read_text()).body if isinstance(node, ast.If)
    ]
    imported = {
        alias.asname: node.module
        if alias.asname not in lab._MODULES
        else f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == lab._PUBLIC


def test_the_pins_are_versions_that_pyproject_allows() -> None:
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    pins = dict(line.split("==") for line in lock if not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = chain.from_iterable(project["optional-dependencies"].values())
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        if requirement.name != project["name"]:
            pin = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), f"{requirement}: {pin}"
