"""Sections of the report on somebody's table: what they show, and what they leave out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.errors import InputError
from lab.report import table_sections
from lab.report.blocks import Figure, Markdown, Table
from lab.report.build import report_table

SECTIONS = ("head", "scaling", "parts", "stop", "request", "audit", "method", "reproduce")


def page(path: Path, **options: object) -> list[object]:
    report = table_sections.load(str(path), command="lab report x", **options)  # type: ignore[arg-type]
    return [block for name in SECTIONS for block in getattr(table_sections, name)(report)]


def prose(blocks: list[object]) -> str:
    return "\n".join(block.markdown for block in blocks if isinstance(block, Markdown)).replace(
        "\\", ""
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "results.csv"
    path.write_text(text)
    return path


def test_strong_and_weak_are_two_sections_with_figures_of_their_own(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "scaling,gpus,global_batch,step_time_ms\nstrong,1,256,800\nstrong,2,256,430\n"
        "strong,4,256,240\nweak,1,64,200\nweak,4,256,215\n",
    )
    blocks = page(path)
    labels = [block.label for block in blocks if isinstance(block, Figure)]
    assert labels[0] == "fig-speedup-strong" and "fig-speedup-weak" in labels
    assert len(set(labels)) == len(labels) == 6
    text = prose(blocks)
    assert "## Strong scaling" in text and "## Weak scaling" in text
    assert "Gustafson" in text and "Amdahl" in text


def test_nothing_is_said_to_be_measured_and_nothing_is_invented(tmp_path: Path) -> None:
    blocks = page(written(tmp_path, "gpus,time_s\n1,100\n2,55\n4,31\n8,20\n"))
    everything = prose(blocks) + "\n".join(
        f"{block.caption}\n{block.frame.to_string()}"
        for block in blocks
        if isinstance(block, Table)
    )
    everything += " ".join(b.alt + b.caption for b in blocks if isinstance(b, Figure))
    assert not re.search(
        r"measured here|not measured|batch \d|samples/s|\bnan\b|\bNone\b", everything
    )
    assert "## Where the time goes" not in everything  # the table gives no parts
    assert "8 GPUs" in everything and "nothing was run" in everything


def test_times_that_tell_no_kind_of_scaling_get_no_speedup(tmp_path: Path) -> None:
    blocks = page(written(tmp_path, "ranks,step_ms\n1,100\n2,104\n4,111\n"))
    text = prose(blocks)
    assert "no speedup can be stated" in text and "## Where to stop" not in text
    assert [b.label for b in blocks if isinstance(b, Figure)] == ["fig-step-time"]


def test_parts_of_the_time_are_shown_with_their_share(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "gpus,step_ms,compute_ms,communication_ms,global_batch_size\n1,100,98,0,8\n2,60,48,12,8\n",
    )
    (table,) = [b for b in page(path) if isinstance(b, Table) and b.label == "tbl-parts"]
    assert table.frame["communication"].iloc[1] == "12.0 ms (20.0 %)"


def test_gpu_hours_are_multiplied_out(tmp_path: Path) -> None:
    path = written(tmp_path, "gpus,run_time_h\n1,10\n2,5.5\n4,3\n")
    text = prose(page(path, gpu_hours=120))
    assert "10 runs x 10800 s x 4 GPUs = 120 of the 120 GPU-hours" in text


def test_what_a_user_writes_is_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)> $x^2$ #let *b*"
    path = written(
        tmp_path, f"{evil},gpus,time_s\n{evil},1,100\n{evil},2,60\nother,1,9\nother,2,5\n"
    )
    for block in page(path, title=evil):
        if isinstance(block, Markdown):
            assert "<img" not in block.markdown.replace(r"\<img", "")
        elif isinstance(block, Table):
            assert "<img" not in block._repr_html_()


def test_hours_of_nodes_whose_gpus_nobody_knows_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "nodes,time_s\n1,100\n2,60\n")
    with pytest.raises(InputError, match="counts nodes, and not their GPUs"):
        report_table(path, gpu_hours=10)
    with pytest.raises(InputError, match="cannot be"):
        report_table(path, gpu_hours=0)
    assert not (tmp_path / "results-report").exists()
