"""What the text around a table of layouts says of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.analysis.layout_table import read_layouts
from lab.errors import InputError

SETUP = """## Setup
Llama3-8B, sequence length 8,192, local batch size 4. All jobs run on 128 H200 GPUs (FSDP2).
## Results
| Run | TPS/GPU |
|---|---:|
| eager | 8,330 |
"""
OTHER = (
    SETUP
    + """
## More
| Run | loss |
|---|---:|
| eager | 2.1 |
"""
)


def test_in_a_document_with_one_table_all_text_belongs_to_it(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    path.write_text(SETUP)
    (row,) = read_layouts(path).rows
    assert row.case.candidate.layout.data == 128 and row.case.machine.gpu.name == "h200"
    assert row.step_s == pytest.approx(4 * 8192 / 8330)
    path.write_text(OTHER)
    with pytest.raises(InputError, match="no sequence length"):
        read_layouts(path)


PAGE = """# Performance
As part of the NeMo framework, Megatron Bridge provides these.

## 26.06 container

### Pre-training

#### System: DGX-H100

{0}
- In case of GB200, blocks of 32 x 32.

### LoRA performance

#### Model: LLAMA3_70B

{0}
"""
LINES = """
| Model | #-GPUs | GBS | MBS | Sequence Length | TP | PP | Precision | Tokens / sec / GPU |
|---|---|---|---|---|---|---|---|---|
| LLAMA3_8B | 8 | 128 | 1 | 8192 | 1 | 1 | FP8 | 14079 |
"""


def test_what_a_page_and_its_sections_say_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE.format(LINES))
    (row,) = read_layouts(path, number=1).rows
    assert row.case.framework.name == "nemo" and row.case.machine.gpu.name == "h100"
    with pytest.raises(InputError, match="LoRA trains adapters only"):
        read_layouts(path, number=2)


def test_the_gpu_that_only_the_rest_of_a_page_names(tmp_path: Path) -> None:
    """It is the first of the page, unless another has a heading of its own."""
    path = tmp_path / "page.md"
    text = "# Megatron\n\n## Cluster\n\n16 nodes of H800\n\n## Results\n{}\n## Also\nOn H100.\n"
    path.write_text(text.format(LINES.replace("FP8", "BF16")))
    table = read_layouts(path, number=1)
    assert table.rows[0].case.machine.gpu.name == "h800"
    path.write_text(text.replace("Results", "In MXFP8").format(LINES + "\n## More\n" + LINES))
    assert read_layouts(path, number=1).rows[0].case.machine.gpu.name == "b200"
    path.write_text(text.format(LINES + "\n## On H100\n" + LINES))
    table = read_layouts(path, number=1)
    assert "H100 GPUs, because the table names no GPU, and earlier ones have no fp8" in table.notes


def test_what_a_section_says_counts_for_the_tables_of_its_subsections(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    table = """
| GPUs | MBS | GBS | Tokens / sec / GPU |
|---|---|---|---|
| 8 | 1 | 128 | 4079 |
"""
    page = (
        "# Llama 3 8B\n\nH100\n\n## A\nSEQ_LEN=8192 tp=2\n### Sizes of 8B\n{0}\n### Also 8B\n{0}\n"
    )
    path.write_text(page.format(table) + "## B\nseq 2048\n### More of 8B\n" + table)
    cases = [read_layouts(path, number=number).rows[0].case for number in (1, 2, 3)]
    assert [one.sequence for one in cases] == [8192, 8192, 2048]
    assert [one.candidate.layout.tensor for one in cases] == [2, 2, 1]
    path.write_text(page.format(table) * 2)
    with pytest.raises(InputError, match="no sequence length"):
        read_layouts(path, number=1)
