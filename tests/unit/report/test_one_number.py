"""One quantity of one configuration is one text, wherever a report shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from executed import execute
from factories import frozen, record, run, stat, study, write_prediction

from lab.config.study import Study, Task
from lab.figures import StudyResults, alt_text
from lab.records.schema import Communication, Memory
from lab.records.store import Store, write_record
from lab.report import sections
from lab.report.blocks import Markdown, Table

STEPS = {"single": 0.1873, "ddp": 0.10671, "fsdp": 0.2654}


@pytest.fixture
def shipped(tmp_path: Path) -> Study:
    """A study of strategies whose numbers have many digits, and whose repeats lie apart."""
    runs = [run(1 if name == "single" else 2, strategy=name) for name in STEPS]
    made = study(tmp_path, runs, scaling="none", baseline={"strategy": "single", "world_size": 1})
    for nth, one in enumerate(runs):
        for repeat in range(3):
            seconds = STEPS[one.strategy] * (1 + 0.0312 * repeat)
            content = record(one, repeat, step_time=seconds)
            memory = Memory(
                kind="resident",
                peak=[(417 + 13 * nth) * 10**6 + 123_456] * one.world_size,
                parameters=5_234_567 // one.world_size,
                optimizer=10_469_134 // one.world_size,
            )
            sent = Communication(
                total=stat(0.0323 * (1 + 0.05 * repeat)),
                exposed=stat(0.02171 * (1 + 0.04 * repeat)),
                bytes=5_234_567,
                bytes_moved=5_234_567 + 1_234_567 * nth,
                calls=7,
            )
            parts = {"memory": memory, "communication": sent if one.world_size > 1 else None}
            write_record(
                content.model_copy(update=parts), Store(made.out).folder(Task(one, repeat))
            )
    write_prediction(made, frozen(runs[1], 0.11, frozen_at="2024-12-31T00:00:00Z"))
    return made


def numbers(shown: list[Any]) -> Iterator[tuple[str, str, str, str]]:
    """Quantity, strategy, text and place of what tables of a report show."""
    names = {
        "step": "step",
        "measured": "step",
        "samples/s": "throughput",
        "peak (MB)": "peak memory",
        "peak memory of a rank (MB)": "peak memory",
        "sent (MB)": "sent",
        "exposed": "exposed",
        "exposed communication": "exposed",
        "total": "communication",
        "communication": "communication",
        "step time": "step",
        "speedup over the baseline": "speedup",
        "efficiency": "efficiency",
    }
    for table in (one for one in shown if isinstance(one, Table)):
        caption = table.caption.split(",")[0]
        if caption.startswith("Every repeat"):
            continue
        frame = table.frame if table.index is False else table.frame.reset_index()
        for row in frame.astype(str).to_dict("records"):
            owner = next((name for name in STEPS if name in " ".join(row.values())), None)
            for column, text in row.items():
                quantity = names.get(str(column))
                if quantity and owner and re.match(r"[0-9]", text):
                    yield quantity, owner, text, f"{table.caption[:40]}: {column}"


def without_unit(text: str) -> str:
    return re.sub(r" (ms|s|%|in \d+ \w+)$", "", text)


def test_a_report_shows_one_text_for_one_quantity(shipped: Study, monkeypatch: Any) -> None:
    monkeypatch.setattr(Study, "load", lambda *_, **__: shipped)
    shown, _ = execute("report.ipynb", study=str(shipped.folder))
    quantity_texts: dict[tuple[str, str], dict[str, list[str]]] = {}
    for quantity, owner, text, place in numbers(shown):
        quantity_texts.setdefault((quantity, owner), {}).setdefault(without_unit(text), []).append(
            place
        )
    differing = {key: texts for key, texts in quantity_texts.items() if len(texts) > 1}
    assert not differing
    for quantity, least in {
        "step": 3,
        "throughput": 2,
        "peak memory": 2,
        "sent": 2,
        "exposed": 2,
        "speedup": 1,
    }.items():
        [places] = quantity_texts[quantity, "ddp"].values()
        assert len(places) >= least, (quantity, places)
    # The sentences, and the words for the figures, use the same texts.
    [text] = [
        one.markdown for one in shown if isinstance(one, Markdown) and "shortest" in one.markdown
    ][:1]
    said = text.replace("\\", "")
    results = StudyResults(shipped)
    [step] = quantity_texts["step", "ddp"]
    [speedup] = quantity_texts["speedup", "ddp"]
    [sent] = quantity_texts["sent", "ddp"]
    [exposed] = quantity_texts["exposed", "ddp"]
    assert f"The shortest step, {step} ms" in said
    assert f"That step is {speedup} times as fast as that of single" in said
    assert f"{sent} MB (ddp" in said
    assert f"{exposed} ms with" in said
    assert f"ddp, {step} ms on 2 CPU processes" in alt_text("step_time", results)
    assert f"ddp, {speedup} on 2 CPU processes" in alt_text("speedup", results)


def test_numbers_that_differ_would_be_found(shipped: Study) -> None:
    """The comparison above is no tautology: a table with other bytes is told apart."""
    frame = pd.DataFrame([{"configuration": "ddp x2", "sent (MB)": "5.23"}])
    other = pd.DataFrame([{"configuration": "2 ranks, ddp", "sent (MB)": "6.47"}])
    tables = [Table("one", frame, index=False), Table("two", other, index=False)]
    assert {text for _, _, text, _ in numbers(tables)} == {"5.23", "6.47"}


def test_a_scaling_report_shows_one_text_for_one_quantity(tmp_path: Path) -> None:
    runs = [run(1), run(2)]
    made = study(tmp_path, runs)
    for one, seconds in zip(runs, (0.1873, 0.10671), strict=True):
        for repeat in range(3):
            parts = (0.0323 * (1 + 0.05 * repeat), 0.02171) if one.world_size > 1 else None
            content = record(
                one, repeat, step_time=seconds * (1 + 0.0312 * repeat), communication=parts
            )
            write_record(content, Store(made.out).folder(Task(one, repeat)))
    results = StudyResults(made)
    time, speedup, efficiency, parts_of_step = (
        table.frame for table in sections.result_tables(results)
    )
    step, times, share = (frame.loc[2, "batch 64"] for frame in (time, speedup, efficiency))
    headline = sections.answer(results).markdown.replace("\\", "")
    assert f"a step is {times} times as fast as on 1 CPU process (efficiency {share})" in headline
    [finding, *_] = sections.findings(results).markdown.replace("\\", "").splitlines()
    assert f"{times} times" in finding and f"(efficiency {share})" in finding
    for name, text in (("step_time", step), ("speedup", times), ("efficiency", share)):
        assert f"{text} on 2 CPU processes" in alt_text(name, results)
    [waterfall] = sections.waterfall(results)
    assert waterfall.frame["measured"].tolist() == [step.removesuffix(" ms")]
    [sent] = sections.communication(results).frame.to_dict("records")
    row = parts_of_step.loc["2 CPU processes, batch 64"]
    assert sent["exposed"] == row["exposed communication"]
    assert sent["total"] == row["communication"]
    learned = sections.learning(results).frame["samples/s"].tolist()
    assert all(rate in alt_text("throughput", results) for rate in learned)
