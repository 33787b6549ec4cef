"""What the pages repeat of the code is what the code says: keys, defaults, thresholds, figures."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml

import lab
from lab.analysis.audit import points
from lab.analysis.audit.rules import (
    environment,
    identities,
    links,
    repeats,
    speedup,
    timing,
    utilization,
)
from lab.cli import app
from lab.config.cluster import MOST_SLEEPING, Cluster
from lab.config.datasets import DATASETS
from lab.config.emulation import GpuName
from lab.config.models import MODELS, Model
from lab.config.run import PrecisionName, Run
from lab.config.strategies import STRATEGIES, StrategyFacts
from lab.config.study import Study
from lab.perfmodel.hardware import GPUS, LINKS
from lab.records import schema

ROOT = Path(lab.__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.md")}


def rows(page: str, header: str) -> list[list[str]]:
    """The cells of every table of a page with this header."""
    tables = re.findall(rf"^\| {header} \|\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert tables, header
    lines = "".join(tables).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def in_code(text: str) -> list[str]:
    """The names in code style, also those with a value: `task: inference`."""
    return re.findall(r"`(\w+)(?::[^`]*)?`", text)


def value(text: str) -> Any:
    """A value as a study file writes it."""
    read = yaml.safe_load(text.replace("`", ""))
    if isinstance(read, list):
        return tuple(map(value, map(str, read)))
    return float(read) if re.fullmatch(r"\d+e-\d+", str(read)) else read


def test_the_keys_of_a_study_and_of_its_runs_stand_on_their_page() -> None:
    made_from_others = {"folder", "runs", "axes", "own_strategy", "has_quick_form"}
    keys = {*Study.model_fields, "base", "grid", *Run.model_fields} - made_from_others
    assert keys <= set(in_code(PAGES["studies"]))


def test_the_keys_of_a_profile_stand_on_their_pages() -> None:
    given_otherwise = {"name", "file", "published"}
    text = PAGES["running-on-slurm"] + PAGES["emulation"]
    keys = {*in_code(text), *re.findall(r"^(\w+):", text, re.MULTILINE)}
    assert set(Cluster.model_fields) - given_otherwise <= keys


def test_the_defaults_of_settings_are_those_of_the_code() -> None:
    compared = 0
    for names, defaults, _ in rows(PAGES["studies"], r"setting \| default \| meaning"):
        for name, default in zip(in_code(names), value(f"[{defaults}]"), strict=bool(defaults)):
            assert Run.model_fields[name].default == default, name
            compared += 1
    assert compared > 20


def test_the_settings_of_strategies_and_their_defaults_are_those_of_the_code() -> None:
    header = r"strategy \| what each rank does \| settings of its own, with their defaults"
    for strategy, _, settings in rows(PAGES["studies"], header):
        facts = STRATEGIES[strategy.strip("`")]
        assert set(facts.settings) <= set(in_code(settings))
        for name, default in re.findall(r"`(\w+)` \((`\w+`|\d+|true|false)", settings):
            assert Run.model_fields[name].default == value(default), name


# What a page says of several strategies, and whether it holds for one.
SENTENCES: list[tuple[str, str, Callable[[StrategyFacts], bool]]] = [
    ("studies", r"`torch\.compile`, with ([^|]*)", lambda facts: facts.compiles),
    ("studies", r"whole gradients: not ([^.]*)\.", lambda facts: facts.partial_gradients),
    ("running-on-slurm", r"Runs with (.*?) save no checkpoints", lambda facts: not facts.resumable),
    ("emulation", r"the strategies ([^.]*)\.", lambda facts: facts.emulable),
]


@pytest.mark.parametrize(("page", "sentence", "holds"), SENTENCES, ids=lambda part: str(part)[:20])
def test_what_pages_say_of_strategies_is_what_their_facts_say(
    page: str, sentence: str, holds: Callable[[StrategyFacts], bool]
) -> None:
    (listed,) = re.findall(sentence, PAGES[page], re.DOTALL)
    assert set(in_code(listed)) == {name for name, facts in STRATEGIES.items() if holds(facts)}


def test_what_can_be_emulated_is_what_the_page_says() -> None:
    page = PAGES["emulation"]
    (listed,) = re.findall(r"emulated: measured   # or (.*)", page)
    assert set(listed.split(", ")) == set(get_args(GpuName))
    assert f"at most {MOST_SLEEPING} ranks" in page
    assert f"less than {links.CARRIED:g} of the emulated" in page


def test_the_settings_of_synthetic_data_and_their_defaults_are_those_of_the_code() -> None:
    (row,) = [row for row in rows(PAGES["studies"], "data set.*") if row[0] == "`synthetic`"]
    settings = dict(re.findall(r"`(\w+): (\d+)`", row[2]))
    assert settings == {
        name: str(default)
        for name, default in DATASETS["synthetic"].model_dump().items()
        if name != "kind"
    }


def test_the_kinds_of_models_and_of_their_presets_are_those_of_the_code() -> None:
    for presets, kind, _ in rows(PAGES["studies"], r"preset \| kind \| notes"):
        names = re.findall(r"`([\w-]+)`", presets)
        assert {MODELS[name].kind for name in names} == {kind.strip("`")}
    assert {kind.model_fields["kind"].default for kind in get_args(Model)} >= {
        model.kind for model in MODELS.values()
    }


def test_the_precisions_are_those_of_the_code() -> None:
    names = get_args(PrecisionName)
    assert f"# {' | '.join(names)}\n" in README
    (row,) = [row for row in rows(PAGES["studies"], "setting.*") if row[0] == "`precision`"]
    assert set(in_code(row[2].partition(";")[0])) == set(names)


# Of each rule: the thresholds in its row of the README, and of the page.
PERCENT: dict[str, list[float]] = {
    "slowest-rank": [timing.QUOTED_TOLERANCE],
    "communication-alone": [timing.ALONE],
    "rank-imbalance": [timing.IMBALANCE, timing.NOT_ONE_RUN],
    "equal-work": [speedup.WORK],
    "fixed-overhead": [speedup.LESS_WORK, speedup.HARDLY],
    "repeats": [repeats.CLAIM],
    "phases-close": [timing.PARTS_TOLERANCE],
    "data-stall": [timing.STALL],
    "cold-start": [timing.COLD],
    "mixed-environment": [schema.FOREIGN_SHARE],
    "same-learning": [environment.LOSS_TOLERANCE, environment.REDUCED_TOLERANCE],
    "too-regular": [repeats.EXACT],
    "quoted-against-own": [points.QUOTED],
    "mfu-consistent": [utilization.CONSTANT],
}
WORDS: dict[str, list[str]] = {
    "super-linear": [f"over {1 + speedup.MARGIN:g} N", f"over {speedup.IMPOSSIBLE:g} N"],
    "baseline": [f"over {speedup.IMPOSSIBLE:g} times"],
    "cold-start": [f"{timing.FEWEST_WARMUP} warm-up steps"],
    "same-learning": [f"over {100 * environment.ACCURACY_TOLERANCE:g} point"],
    "plausible-bandwidth": [f"over {links.CALIBRATED:g} times the link"],
}
# Only on the page.
IN_FULL: dict[str, list[str]] = {
    "rank-imbalance": [f"over {timing.SKEW_STEPS} of the measured steps"],
    "phases-close": [f"over {100 * timing.MEDIANS_TOLERANCE:g} %"],
    "quoted-against-own": [
        f"of a whole run: {100 * identities.WHOLE_RUN:g} %",
        f"over {100 * points.ROUNDING:g} %",
    ],
    "plausible-bandwidth": [
        f"under {links.CARRIED:g} of an emulated link's",
        f"under {100 * links.NON_MONOTONIC:g} %",
        f"over {links.IN_NETWORK * links.FASTEST / 1e9:g} GB/s",
    ],
    "impossible-mfu": [f"within {100 * utilization.SPARSE_TOLERANCE:g} %"],
}


@pytest.mark.parametrize("rule", sorted({*PERCENT, *WORDS, *IN_FULL}))
def test_the_thresholds_of_a_rule_are_those_of_the_code(rule: str) -> None:
    expected = [f"{100 * share:g} %" for share in PERCENT.get(rule, [])] + WORDS.get(rule, [])
    (short,) = [row for row in rows(README, "rule.*") if row[0] == f"`{rule}`"]
    (full,) = [row for row in rows(PAGES["audit"], "rule.*") if row[0] == f"`{rule}`"]
    assert not [text for text in expected if text not in " ".join(short)]
    assert not [text for text in expected + IN_FULL.get(rule, []) if text not in " ".join(full)]


def test_the_machines_that_can_be_described_are_those_of_the_code() -> None:
    named = {
        kind: set(re.findall(r"`([\w-]+)`", row))
        for kind, row in rows(PAGES["predictions"], r"\| names")
    }
    assert named["GPUs"] == {name for name, gpu in GPUS.items() if "bf16" in gpu.flops}
    assert named["links"] == set(LINKS)


def test_the_speeds_of_links_are_those_of_the_code() -> None:
    speeds = {name: f"{link.bytes_per_s / 1e9:.3g}" for name, link in LINKS.items()}
    table = dict(rows(PAGES["audit"], r"link \| GB/s"))
    assert table == {
        "NVLink of Blackwell, Hopper, Ampere, Volta": ", ".join(
            speeds[f"nvlink{generation}"] for generation in (5, 4, 3, 2)
        ),
        "PCIe 5, 4, other": ", ".join(speeds[f"pcie{generation}"] for generation in (5, 4, 3)),
        "InfiniBand NDR, HDR, EDR": ", ".join(
            speeds[f"infiniband-{name}"] for name in ("ndr", "hdr", "edr")
        ),
    }
    assert f"PCIe 3.0 ({speeds['pcie3']} GB/s)" in PAGES["audit"]


def test_calls_on_the_page_of_the_api_have_the_arguments_of_the_code() -> None:
    compared = 0
    for name, arguments in re.findall(r"`([\w.]+)(\([^`]*?\))[^`(]*`", PAGES["python-api"]):
        try:
            target = attrgetter(name)(lab)
        except AttributeError:
            continue  # of an object, as `.states()`
        call = ast.parse(f"call{arguments}", mode="eval").body
        assert isinstance(call, ast.Call)
        given = {keyword.arg for keyword in call.keywords}
        parameters = inspect.signature(target).parameters
        assert given <= set(parameters), name
        assert len(call.args) <= len(parameters), name
        compared += 1
    assert compared > 20


def test_options_that_pages_mention_exist() -> None:
    commands = list(typer.main.get_command(app).commands.values())  # type: ignore[attr-defined]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
    known = {option for one in commands for parameter in one.params for option in parameter.opts}
    of_others = {"--help", "--test-only", "--to"}  # of every command, sbatch and nbconvert
    for page, text in {**PAGES, "README": README}.items():
        named = {
            option
            for code in re.findall(r"`([^`\n]+)`", text)
            # This page has the options of Slurm's commands, too.
            if page != "running-on-slurm" or code.startswith("lab ")
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", code.partition(" -- ")[0])
        }
        assert named <= known | of_others, page


def test_the_labs_own_variables_are_those_of_the_code() -> None:
    paths = [*(ROOT / "lab").rglob("*.py"), *(ROOT / "slurm").rglob("*.py")]
    code = "\n".join(path.read_text() for path in paths)
    assert set(re.findall(r"\bLAB_[A-Z_]+", PAGES["variables"])) == set(
        re.findall(r"[\"']\$?(LAB_[A-Z_]+)[\"']", code)
    )


def test_the_versions_of_python_are_the_same_everywhere() -> None:
    (first,), (beyond,) = (
        re.findall(rf'requires-python = ".*{sign}3\.(\d+)', (ROOT / "pyproject.toml").read_text())
        for sign in (">=", "<")
    )
    minors = range(int(first), int(beyond))
    condition = f"(3, {minors[0]}) <= sys.version_info[:2] <= (3, {minors[-1]})"
    versions = ", ".join(f"3.{minor}" for minor in minors[:-1]) + f" or 3.{minors[-1]}"
    for path in ("Makefile", "lab/launch/doctor.py"):
        text = (ROOT / path).read_text()
        assert condition in text and f"Python {versions}" in text, path
    assert f"Python {versions}" in (ROOT / "README.md").read_text()
