from __future__ import annotations

import re
from pathlib import Path

import pytest

import lab
from lab.config.variables import NAMES, doubtful_variables


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LAB_CASHE", "LAB_CACHE"),
        ("LAB_CACHE_DIR", "LAB_CACHE"),
        ("LAB_DATA", "LAB_DATA_PATH"),
        ("LAB_CATALOG", "LAB_CATALOGUE"),
        ("LAB_PRE_LOAD", "LAB_PRELOAD"),
    ],
)
def test_a_misspelt_variable_is_named_with_the_nearest_one(name: str, meant: str) -> None:
    (problem,) = doubtful_variables({name: "x"})
    assert str(problem) == f"{name}: the lab reads no such variable; did you mean {meant}?"


def test_variables_of_other_programs_and_right_ones_pass() -> None:
    others = {"LAB_NAME": "physics", "LAB_HOST": "a", "LABEL": "b", "PATH": "/bin"}
    assert not list(doubtful_variables(dict.fromkeys(NAMES, "0") | others))


def test_a_switch_that_is_neither_on_nor_off_is_named() -> None:
    (problem,) = doubtful_variables({"LAB_PRELOAD": "no"})
    assert str(problem) == "LAB_PRELOAD: 'no' has no effect; 0 turns it off"


def test_the_names_are_those_that_the_code_reads() -> None:
    code = "".join(path.read_text() for path in Path(lab.__file__).parent.rglob("*.py"))
    assert set(re.findall(r'\("(LAB_[A-Z_]+)"', code)) == set(NAMES)
