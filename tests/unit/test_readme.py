"""README and docs match the code: links, commands, studies, strategies, audit rules, examples."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer

import lab
from lab.analysis.audit.rules import RULES
from lab.cli import app
from lab.config.datasets import DATASETS
from lab.config.models import MODELS
from lab.config.strategies import STRATEGIES
from lab.figures import FIGURES

ROOT = Path(lab.__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "notebooks" / "instructors.md",
    ROOT / "slurm" / "site" / "README.md",
    ROOT / "slurm" / "testcluster" / "README.md",
]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
TOP_LEVEL = {
    *(
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Makefile",
        "pyproject.toml",
        "setup.py",
        "MANIFEST.in",
        "requirements.lock",
    ),
    *("environment.yml", "docs", "lab", "notebooks", "reports", "slurm", "tests"),
}

documents = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)


def prose(text: str) -> str:
    """Markdown without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    """The contents of the blocks of code in a language; "" is none."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def first_cells(header: str) -> list[str]:
    """Names in code style in the first column of the README's table with this header."""
    (table,) = re.findall(rf"^\| {header} \|.*\n\|[-|]+\n((?:\|.*\n)+)", README, re.MULTILINE)
    return [
        name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200


@documents
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        assert place.is_relative_to(ROOT) and place.exists(), target
        assert not anchor or anchor in anchors(place), target


def test_the_readme_links_every_page() -> None:
    assert {path.name for path in (ROOT / "docs").iterdir()} <= set(
        re.findall(r"\(docs/([\w.-]+)\)", README)
    )


def test_the_commands_in_the_readme_are_those_that_exist() -> None:
    assert {name.split()[1] for name in first_cells("command")} == set(COMMANDS)


# What is new may be announced later; what is announced must exist.
def test_the_studies_in_the_readme_exist() -> None:
    studies = {path.parent.name for path in (ROOT / "reports").glob("*/study.yaml")}
    assert set(first_cells("study")) <= studies


def test_the_rules_of_the_audit_are_in_the_readme_and_on_their_page() -> None:
    page = (ROOT / "docs" / "audit.md").read_text()
    rows = set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))
    assert set(first_cells("rule")) == rows == {rule.name for rule in RULES}


def test_the_strategies_in_the_readme_are_those_that_exist() -> None:
    (row,) = re.findall(r"^\| strategies \| (.+) \|$", README, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == set(STRATEGIES)


@pytest.mark.parametrize("known", [STRATEGIES, MODELS, DATASETS], ids=["strategy", "model", "data"])
def test_what_a_study_may_name_stands_on_its_page(known: Mapping[str, object]) -> None:
    page = (ROOT / "docs" / "studies.md").read_text()
    assert set(known) <= set(re.findall(r"`([\w-]+)`", page))


def test_the_tree_in_the_readme_is_that_of_the_packages() -> None:
    named = set(re.findall(r"^  (\w+)/", README, re.MULTILINE))
    assert named == {path.parent.name for path in (ROOT / "lab").glob("*/__init__.py")}


@documents
def test_python_examples_use_public_names(document: Path) -> None:
    for block in blocks(document.read_text(), "python"):
        attributes = [
            node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Attribute)
        ]
        used = {
            node.attr
            for node in attributes
            if isinstance(node.value, ast.Name) and node.value.id == "lab"
        }
        assert used <= set(lab.__all__)


def test_all_public_names_and_figures_stand_on_their_page() -> None:
    page = (ROOT / "docs" / "python-api.md").read_text()
    tables, figures = page.split("## Figures")
    assert set(lab.__all__) <= set(re.findall(r"`(\w+)", tables))
    assert set(FIGURES) <= set(re.findall(r"`(\w+)`", figures))


def test_the_variables_that_the_code_reads_and_sets_stand_on_their_page() -> None:
    page = (ROOT / "docs" / "variables.md").read_text()
    used = {
        name
        for path in (ROOT / "lab").rglob("*.py")
        for name in re.findall(
            r"(?:environ|variables)(?:\.\w+\(|\[)\s*\"([A-Z][A-Z_]+)\"", path.read_text()
        )
    }
    assert len(used) > 20
    assert not {name for name in used if f"`{name}`" not in page}


def test_the_readme_has_ten_lines_of_python() -> None:
    (block,) = blocks(README, "python")
    assert len([line for line in block.splitlines() if line]) == 10
    strings = [node.value for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Constant)]
    paths = [value for value in strings if isinstance(value, str) and "/" in value]
    assert paths and all((ROOT / path).exists() for path in paths)


def test_the_study_in_the_readme_is_valid(tmp_path: Path) -> None:
    (block,) = blocks(README, "yaml")
    (tmp_path / "study.yaml").write_text(block)
    assert len(lab.Study.load(tmp_path).runs) == 6
    assert len(lab.Study.load(tmp_path, quick=True).runs) == 2


@documents
def test_commands_in_examples_exist(document: Path) -> None:
    lines = "".join(blocks(document.read_text(), "")).splitlines()
    for words in (shlex.split(line, comments=True) for line in lines if line.startswith("lab ")):
        words = words[: words.index("--")] if "--" in words else words  # a script's own follow
        command = COMMANDS[words[1]]
        command = getattr(command, "commands", {}).get("".join(words[2:3]), command)
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= options


def test_nothing_else_lies_at_the_top() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    assert {
        name for path in tracked if not (name := path.split("/")[0]).startswith(".")
    } <= TOP_LEVEL
