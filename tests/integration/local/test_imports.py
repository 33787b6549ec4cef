"""Processes import only what they need: modules cost time and memory, on all ranks of all jobs too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# One rank as submitit starts it on this machine; prints the modules that it has imported.
RANK = """
import json, os, sys
from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.launch.job import execute
run = Run.model_validate_json(sys.argv[2])
cluster = Cluster.load("local").model_dump_json()
assert execute(run.model_dump_json(), 0, cluster, sys.argv[1], sys.argv[1]) == "done"
print(json.dumps(sorted(sys.modules)))
"""
ENVIRONMENT = {
    "SUBMITIT_EXECUTOR": "local",
    "SUBMITIT_LOCAL_JOB_ID": "1",
    "SUBMITIT_LOCAL_NTASKS": "1",
    "SUBMITIT_LOCAL_LOCALID": "0",
    "SUBMITIT_LOCAL_GLOBALID": "0",
    "SUBMITIT_LOCAL_NODEID": "0",
    "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
}
SMALL = {"global_batch_size": 4, "steps": 8, "warmup_steps": 2, "eval_batches": 1}
GPT = {"kind": "gpt", "layers": 1, "heads": 2, "width": 16, "block_size": 16}
CNN = {"kind": "cnn", "network": "squeezenet1_0", "image_size": 32}
# Of each run: its fields, and the modules of these packages that it uses.
RUNS: dict[str, tuple[dict[str, Any], dict[str, set[str]]]] = {
    "gpt": (
        {"model": GPT, "data": {"kind": "synthetic", "samples": 64}, "strategy": "single"},
        {
            "lab.worker.strategies": {"base", "single"},
            "lab.worker.models": {"gpt"},
            "lab.worker.data": {"cache", "dataset", "synthetic"},
        },
    ),
    "cnn": (
        {"model": CNN, "data": "digits", "strategy": "ddp"},
        {
            "lab.worker.strategies": {"base", "ddp"},
            "lab.worker.models": {"classifier", "gpt"},  # one of them has the blocks of a GPT
            "lab.worker.data": {"cache", "dataset", "images"},
        },
    ),
}
# The job's own parts: it claims its folder and devices, joins an emulated network, watches
# (its DataLoader workers too) and writes how it ended.
LAUNCH = {"attempt", "job", "netem", "outcome", "watchdog"}
# Packages for notebooks, reports and other models, which take a second or more to import.
HEAVY = {"IPython", "matplotlib", "nbconvert", "rich", "scipy.stats", "torchao", "transformers"}
HEAVY |= {"pandas", "sklearn", "torch.distributed.checkpoint"}


@pytest.mark.parametrize("name", list(RUNS))
def test_a_rank_imports_only_what_it_needs(tmp_path: Path, name: str) -> None:
    fields, used = RUNS[name]
    folder = tmp_path / "repeat"
    (folder / "log").mkdir(parents=True)
    environment = os.environ | ENVIRONMENT | {"SUBMITIT_FOLDER": str(folder / "log")}
    environment["LAB_CACHE"] = str(tmp_path / "cache")
    rank = subprocess.run(
        [sys.executable, "-c", RANK, str(folder), json.dumps(SMALL | fields)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert rank.returncode == 0, rank.stderr
    assert (folder / "record.json").exists()
    imported = set(json.loads(rank.stdout.splitlines()[-1]))
    assert {module.split(".")[1] for module in imported if module.startswith("lab.")} == {
        *("config", "errors", "files", "formatting", "launch", "machine"),
        *("perfmodel", "records", "worker"),
    }, "a floor that no rank needs"
    for package, modules in ({"lab.launch": LAUNCH} | used).items():
        prefix = f"{package}."
        assert {
            module.removeprefix(prefix) for module in imported if module.startswith(prefix)
        } == modules, package
    assert not {module for module in imported if module.startswith("lab.worker.inference")}
    assert not imported & HEAVY


def loaded_by(code: str) -> set[str]:
    """All modules that a process has loaded after some code, without garbage collections."""
    begin, end = "import gc, json, sys; gc.disable()", "print(json.dumps(list(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-c", f"{begin}; {code}; {end}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(ended.stdout))


def test_most_of_what_a_rank_imports_is_loaded_before_it_is_forked() -> None:
    loaded = loaded_by(
        "from importlib import import_module; from lab.launch.local import LOADED; "
        "[*map(import_module, LOADED)]"
    )
    assert loaded >= {"torch._dynamo", "numpy.ma", "lab.launch.netem", "lab.worker.sync_cost"}
    assert loaded >= {f"lab.worker.{name}" for name in ("models.gpt", "strategies.ddp")}
    assert not loaded & HEAVY
    assert not any(name.startswith(("pyarrow", "lab.worker.inference")) for name in loaded)


def test_ranks_of_a_script_share_neither_random_numbers_nor_settings_of_torch() -> None:
    loaded = loaded_by(
        "from importlib import import_module; from lab.launch.local import LOADED_FOR_SCRIPTS; "
        "[*map(import_module, LOADED_FOR_SCRIPTS)]"
    )
    assert loaded >= {"torch", "numpy.ma", "lab.worker.script.hooks"}
    # numpy draws a seed when it is imported, torch._dynamo and torch._inductor read variables.
    assert not loaded & {"numpy.random", "torch._dynamo", "torch._inductor.config"}
    assert not loaded & HEAVY


def test_importing_lab_loads_no_torch_and_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "pandas", "matplotlib", "scipy", "papermill", "nbconvert"}
    heavy |= {"submitit", "IPython", "ipywidgets"}
    assert not loaded_by("import lab, lab.cli") & heavy


def test_the_kernel_of_a_report_loads_nothing_that_edits_its_page() -> None:
    heavy = {"torch", "scipy.stats", "papermill", "nbconvert", "bs4", "typst", "fontTools.subset"}
    assert not loaded_by("import lab.report.study_sections") & heavy


def test_a_submission_is_judged_without_what_notebooks_show(tmp_path: Path) -> None:
    judged = (
        f"from lab.course import replay; replay.judged('00-setup', replay.Path({str(tmp_path)!r}))"
    )
    shown = (
        "replay._show_nothing(); import lab; from lab.course import pictures; "
        "from lab.report import blocks, inference_sections, sections, study_sections; "
        "assert sections.strip(lab.figures.StudyResults(3)) is None"
    )
    loaded = loaded_by(f"{judged}; {shown}")
    assert not loaded & {"torch", "pandas", "matplotlib", "IPython"}


def test_whoever_exports_a_report_draws_nothing() -> None:
    loaded = loaded_by("import lab.analysis.results, lab.report.html, lab.report.pdf")
    assert not loaded & {"torch", "matplotlib"}


def test_only_the_module_of_the_data_is_imported() -> None:
    loaded = loaded_by(
        "from lab.config.datasets import Stdlib; from lab.worker import data; "
        "data.module_of(Stdlib())"
    )
    prefix = "lab.worker.data."
    modules = {name.removeprefix(prefix) for name in loaded if name.startswith(prefix)}
    assert modules == {"cache", "corpora", "dataset"}
