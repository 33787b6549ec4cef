"""What the text around a table of layouts says of its rows."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lab.analysis.layout_page import Page, table_defaults
from lab.analysis.layout_table import read_layouts
from lab.errors import InputError
from lab.perfmodel.frameworks import ANY, MEGATRON_CORE, NEMO, Framework

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


def from_notes(
    notes: str,
    known: Collection[str] = (),
    precisions: Collection[str] = (),
    framework: Framework = ANY,
) -> tuple[dict[str, Any], list[str]]:
    """The defaults of a table about which only its notes say something."""
    page = Page(frame=pd.DataFrame(), name="rows", notes=notes)
    return table_defaults(page, known, precisions, framework)


CAPTION = (
    "Llama 3.1 70B model. 256 H100 GPUs (FSDP 32, TP 8). Local batch size 16, global batch size "
    "512, sequence length of 8192. Full activation checkpointing, Float8"
)


def test_a_caption_says_what_holds_for_all_rows() -> None:
    values, sentences = from_notes(CAPTION, {"tokens_per_gpu"})
    model = values.pop("noted_model")
    assert model.parameters == pytest.approx(70.6e9, rel=0.01)
    assert values == {
        "sequence": 8192, "global_batch": 512, "replica_batch": 16, "gpus": 256, "tensor": 8,
        "data": 32,
        "gpu": "h100", "precision": "fp8", "recomputed": "full", "sharding": "fsdp",
    }  # fmt: skip
    assert "gpus 256, from the notes" in sentences
    assert "a model of 70.6B parameters, from the notes" in sentences


@pytest.mark.parametrize(
    ("notes", "sharding"), [("trained with HSDP", "hsdp"), ("FSDP or HSDP", "fsdp")]
)
def test_notes_on_hybrid_sharding_count_where_there_is_no_other(notes: str, sharding: str) -> None:
    assert from_notes(notes)[0]["sharding"] == sharding


@pytest.mark.parametrize(
    ("notes", "said"),
    [("FSDP, full AC", {"recomputed": "full"}), ("bf16, no fp8", {"precision": "bf16"})],
)
def test_notes_say_what_cells_say(notes: str, said: dict[str, str]) -> None:
    assert from_notes(notes)[0].items() >= said.items()


def test_columns_count_before_notes() -> None:
    known = {"sequence", "nodes", "micro_batch", "tensor", "model", "gpu", "precision"}
    values, _ = from_notes(CAPTION, known)
    batches = {"global_batch": 512, "replica_batch": 16}  # kept: they are those of the same step
    assert values == {"recomputed": "full", "sharding": "fsdp", **batches}


@pytest.mark.parametrize(
    ("notes", "gpus"),
    [
        ("training on 64 A100 (80GB memory) GPUs", 64),
        ("8x NVIDIA H100 80GB GPUs", 8),
        ("on 8 GPUs, then on 128 H100 GPUs", None),
        ("4 nodes of 8 GPUs", None),
        ("4 nodes with 8 GPUs each", None),
        ("8 GPUs per node", None),
        ("16x H100", 16),
        ("a machine with A800 x 8", 8),
        ("H100 x 2048 matrices, 8 GPUs", None),
        ("a single A100 80GB GPU", 1),
        ("H100 GPUs", None),
        ("a single-node, eight-GPU A800 environment", 8),
        ("A800单机8卡（1x8）", 8),
        ("2 nodes x 8 H100", None),
        ("One 8xH100 node, bf16", 8),
        ("on 8xH100 nodes", None),
        ("Each host has 8 NVIDIA H100 GPUs", None),
    ],
)
def test_the_gpus_of_a_table_are_not_those_of_a_node(notes: str, gpus: int | None) -> None:
    assert from_notes(notes)[0].get("gpus") == gpus


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ("8 nodes, 4x NVIDIA H200 (141 GB) per node", {"nodes": 8, "per_node": 4}),
        ("Each host has 8 NVIDIA H100 GPUs", {"per_node": 8}),
        ("Each host has - 8 NVIDIA H200 GPUs connected", {"per_node": 8}),
        ("on 16 hosts, 8 H100 GPUs per host", {"nodes": 16, "per_node": 8}),
        ("context length 8192", {"sequence": 8192}),
        ("2 global batch size, 1 micro batch size", {"global_batch": 2, "micro_batch": 1}),
        ("global batch size 8, 4 micro batches", {"global_batch": 8}),
        ("run with per_device_train_batch_size=2", {"micro_batch": 2}),
        ("8,192 tokens of context", {}),
        ("a context length of 8,192 tokens", {"sequence": 8192}),
        ("at 8,192-token context", {"sequence": 8192}),
        ("bs1, 4 nodes × 8, seq 16384", {"nodes": 4, "per_node": 8, "sequence": 16384}),
    ],
)
def test_notes_give_nodes_hosts_and_context(notes: str, said: dict[str, float]) -> None:
    values, _ = from_notes(notes)
    names = ("nodes", "per_node", "gpus", "sequence", "micro_batch", "global_batch")
    assert {name: values[name] for name in names if name in values} == said


def test_notes_on_nemo_recompute_nothing_unless_they_say_so() -> None:
    _, sentences = from_notes("NeMo 25.04", framework=NEMO)
    assert any("none, as this framework's default" in sentence for sentence in sentences)
    values, _ = from_notes("NeMo 25.04, full activation recomputation", framework=NEMO)
    assert values["recomputed"] == "full"


@pytest.mark.parametrize(
    ("notes", "known", "stages"),
    [
        ("Megatron-LM 2024", {"pipeline"}, 2),
        ("Megatron-LM 2024, VP 4", {"pipeline"}, 4),
        ("Megatron-LM 2024", {"pipeline", "interleave"}, None),
        ("Megatron-LM 2024", set(), None),
    ],
)
def test_pipelines_of_benchmarks_with_megatron_are_likely_interleaved(
    notes: str, known: set[str], stages: int | None
) -> None:
    values, sentences = from_notes(notes, known, framework=MEGATRON_CORE)
    assert values.get("interleave") == stages
    assert any("interleaved" in sentence for sentence in sentences) == (stages == 2)


@pytest.mark.parametrize(
    ("notes", "precisions", "gpu"),
    [
        ("", (), "a100"),
        ("", ("bf16", "fp8"), "h100"),
        ("in FP8", (), "h100"),
        ("", ("fp4",), "b200"),
    ],
)
def test_a_table_without_a_gpu_has_one_that_knows_its_precision(
    notes: str, precisions: tuple[str, ...], gpu: str
) -> None:
    assert from_notes(notes, precisions=precisions)[0]["gpu"] == gpu


@pytest.mark.parametrize(
    ("notes", "gpu"), [("llama3_8b_mxfp8", "a100"), ("MXFP8", "b200"), ("fp8", "h100")]
)
def test_microscaled_numbers_need_later_gpus(notes: str, gpu: str) -> None:
    assert from_notes(notes)[0]["gpu"] == gpu


@pytest.mark.parametrize(
    ("notes", "adapters"),
    [("LoRA Performance", True), ("SFT and LoRA", None), ("pretraining, no LoRA", None)],
)
def test_notes_on_adapters_count_for_all_rows(notes: str, adapters: bool | None) -> None:
    assert from_notes(notes)[0].get("adapters") is adapters
