from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt
from factories import record, run

from lab import figures
from lab.figures import StudyResults, alt_text
from lab.records.store import Record

GPU_RECORDS = Path(__file__).parents[2] / "fixtures/gpu_records"


@pytest.fixture
def of_gpu() -> list[Record]:
    return [
        Record.model_validate_json(path.read_text()) for path in sorted(GPU_RECORDS.glob("*.json"))
    ]


def test_mfu_rises_with_the_batch_and_wrongly_compiled_runs_are_not_drawn(
    of_gpu: list[Record],
) -> None:
    """Of records of an H200 with torch 2.11, whose compiler mistakes gpt2-large."""
    ax = figures.mfu_by_batch(of_gpu)
    curves = {line.get_linestyle(): line.get_xydata() for line in ax.get_lines()}
    assert len(ax.get_lines()) == 3 and set(curves) == {"-", "--"}
    assert curves["-"].ravel() == pytest.approx([8, 34.0, 16, 42.7], abs=0.05)
    words = {text.get_text().replace("\n", " ") for text in ax.texts}
    assert "gpt2-large: 45.7 %" in words
    plt.close("all")
    text = alt_text("mfu_by_batch", of_gpu)
    assert "gpt2-small, 32.4 % at 8 and 36.4 % at 16" in text and "large, compiled" not in text


def test_one_batch_is_no_curve() -> None:
    reason = figures.FIGURES["mfu_by_batch"].missing(StudyResults([record(run(1))]))
    assert reason == "no configuration was measured with two micro-batches"
