"""The notebooks of a report load its records and compute its results once, however many sections they have."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from executed import execute
from factories import frozen, record, run, study, write_prediction

from lab import figures
from lab.analysis.scaling import summary
from lab.config.study import Study
from lab.figures import StudyResults
from lab.perfmodel.frozen import scores
from lab.records.store import Store, load_records, read_record, write_record
from lab.report import blocks, inference_sections, sections, study_sections


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often records are read and results are computed, wherever these functions were imported."""
    counter: Counter[str] = Counter()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(source: Any, *args: Any, **options: Any) -> Any:
            if not (function is load_records and isinstance(source, list)):  # they are loaded
                counter[function.__name__] += 1
            return function(source, *args, **options)

        return call

    for function in (load_records, read_record, scores, summary):
        wrapper = counted(function)
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] == "lab":
                for attribute, value in list(vars(module).items()):
                    if value is function:
                        monkeypatch.setattr(module, attribute, wrapper)
    yield counter


@pytest.fixture
def measured(tmp_path: Path) -> Study:
    """Three repeats of two world sizes, the second of which was predicted."""
    made = study(tmp_path, [run(1), run(2)])
    for task in made.tasks:
        seconds = 0.2 / task.run.world_size * (1 + 0.01 * task.repeat)
        content = record(task.run, task.repeat, step_time=seconds, communication=(0.03, 0.02))
        write_record(content, Store(made.out).folder(task))
    write_prediction(made, frozen(run(2), 0.11, frozen_at="2024-12-31T00:00:00Z"))
    return made


def test_all_sections_and_figures_share_one_computation(
    measured: Study, calls: Counter[str]
) -> None:
    results = StudyResults(measured)
    makers = (getattr(module, name) for module in PAGES for name in sections_of(module))
    made = [maker(results) for maker in makers]
    made += [blocks.figure(name, results) for name in figures.FIGURES]
    assert len(made) > 30 and results.scores
    once = {"load_records": 1, "summary": 1, "scores": 1, "read_record": len(measured.tasks)}
    assert calls == once


PAGES = (sections, study_sections, inference_sections)
OTHER_ARGUMENTS = {"links", "environment_rows", "tradeoff", "traced_step"}


def sections_of(module: Any) -> list[str]:
    """The functions of a module that make a section of results."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and getattr(value, "__module__", "") == module.__name__
        and not name.startswith("_")
        and name not in OTHER_ARGUMENTS
    ]


@pytest.mark.parametrize("notebook", ["report.ipynb", "inference.ipynb"])
def test_a_report_loads_and_computes_once(
    notebook: str, measured: Study, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Study, "load", lambda *_, **__: measured)
    shown, variables = execute(notebook, study=str(measured.folder))
    assert len(shown) > 8 and variables["results"].study is measured
    assert calls["load_records"] == 1 and calls["read_record"] == len(measured.tasks)
    assert calls["summary"] == 1 and calls["scores"] == 1


def test_the_notebook_of_a_run_reads_its_record_once(
    measured: Study, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Study, "load", lambda *_, **__: measured)
    run_id = measured.tasks[0].run.id
    execute("run.ipynb", study=str(measured.folder), run_id=run_id, measure=False)
    assert calls == {"load_records": 1, "read_record": 1, "summary": 1}


def test_the_notebook_of_a_comparison_computes_once(
    make_study: Callable[..., Path], calls: Counter[str]
) -> None:
    folders = [make_study("a"), make_study("b")]
    for number, folder in enumerate(folders, 1):
        loaded = Study.load(folder)
        for task in loaded.tasks:
            content = record(task.run, task.repeat, step_time=0.1 * number, cpu=f"CPU {number}")
            write_record(content, Store(loaded.out).folder(task))
    shown, _ = execute("compare.ipynb", studies=[str(folder) for folder in folders])
    # One of all machines, and one of each for its strip.
    assert len(shown) > 8 and calls["summary"] == 1 + len(folders)
