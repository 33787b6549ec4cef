"""What holds for all rows of a table of layouts, by its notes or as usual."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pandas as pd
import pytest

from lab.analysis.layout_defaults import table_defaults
from lab.analysis.layout_page import Page
from lab.perfmodel.frameworks import ANY, MEGATRON_CORE, NEMO, Framework


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
