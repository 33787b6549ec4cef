"""What notes and cells of settings say of layouts."""

from __future__ import annotations

import pytest

from lab.analysis.audit.columns import named_precision
from lab.analysis.layout_words import from_notes, noted_model, settings
from lab.perfmodel.frameworks import MEGATRON_CORE, NEMO


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "tp2, ep8, pp32, vpp3, mbs=1, recompute=select",
            {
                "tensor": 2,
                "expert": 8,
                "pipeline": 32,
                "interleave": 3,
                "micro_batch": 1,
                "recomputed": "select",
            },
        ),
        ("zero1(dp2)+tp2+pp4", {"data": 2, "tensor": 2, "pipeline": 4, "sharding": "zero1"}),
        ("FSDP 4, CP 2", {"context": 2, "data": 4, "sharding": "fsdp"}),
        ("FSDP2 with expert parallelism 8", {"expert": 8, "sharding": "fsdp"}),
        ("prime-rl, selective AC", {"recomputed": "selective"}),
        ("FSDP + torch.compile + Float8", {"sharding": "fsdp", "precision": "fp8"}),
        ("TP=8 instead of TP=4", {"tensor": 8}),
        ("TP=8 and TP=4", {}),
        ("06-10", {}),
        ("TP8, without FSDP, no fp8", {"tensor": 8}),
        ("http8", {}),
        ("tp4pp2", {"tensor": 4, "pipeline": 2}),
        ("TP8PP4DP1", {"tensor": 8, "pipeline": 4, "data": 1}),
        ("seq 16384, bs=2, ga=4", {"sequence": 16384, "batch": 2, "accum": 4}),
        ("FSDP, $h = 4096$, $s = 2048$", {"sequence": 2048, "sharding": "fsdp"}),
        ("64 GPUs, w/o activation recomputation", {"gpus": 64, "recomputed": "no"}),
        ("activation checkpointing: on", {"recomputed": "full"}),
        ("gradient checkpointing (selective)", {"recomputed": "selective"}),
        ("GBS: 3,072 (MBS=1)", {"global_batch": 3072, "micro_batch": 1}),
        ("`max_seq_len=4096`", {"sequence": 4096}),
        ("4 nodes, 8 H100 GPUs per node", {"nodes": 4, "per_node": 8, "gpu": "h100"}),
        ("global batch size 512, local batch size 2", {"global_batch": 512, "replica_batch": 2}),
        ("FSDP or ZeRO-1", {}),
    ],
)
def test_a_cell_of_settings(text: str, said: dict[str, object]) -> None:
    assert settings(text) == said


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("float16", "fp16"),
        ("BFloat16", "bf16"),
        ("bf16 mixed", "bf16"),
        ("AMP", "fp16"),
        ("TF-32", "tf32"),
        ("FP8-CS", "fp8"),
        ("O2", None),
    ],
)
def test_precisions_by_their_names(words: str, precision: str | None) -> None:
    assert named_precision(words) == precision


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
    assert from_notes(notes, set())[0]["sharding"] == sharding


@pytest.mark.parametrize(
    ("notes", "said"),
    [("FSDP, full AC", {"recomputed": "full"}), ("bf16, no fp8", {"precision": "bf16"})],
)
def test_notes_say_what_cells_say(notes: str, said: dict[str, str]) -> None:
    assert from_notes(notes, set())[0].items() >= said.items()


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
    assert from_notes(notes, set())[0].get("gpus") == gpus


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
    values, _ = from_notes(notes, set())
    names = ("nodes", "per_node", "gpus", "sequence", "micro_batch", "global_batch")
    assert {name: values[name] for name in names if name in values} == said


def test_notes_on_nemo_recompute_nothing_unless_they_say_so() -> None:
    _, sentences = from_notes("NeMo 25.04", set(), framework=NEMO)
    assert any("none, as this framework's default" in sentence for sentence in sentences)
    values, _ = from_notes("NeMo 25.04, full activation recomputation", set(), framework=NEMO)
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
    ("notes", "billions"),
    [
        ("Training of Qwen3-235B-A22B", 235.1),
        ("Model: Qwen3_30B_a3B", 30.5),
        ("Model: DeepSeekV3", 670.9),
        ("for 7B model training, on 300B tokens", 7.0),
        ("Llama 3.1 405B, 1F1B schedule", 405.9),
        ("Llama 3.1 405B, see blog/1f1b-overlap", 405.9),
        ("on Llama-like models of 7B and 70B", None),
        ("Results", None),
    ],
)
def test_the_model_of_a_table(notes: str, billions: float | None) -> None:
    model = noted_model(notes)
    assert (model and model.parameters / 1e9) == (billions and pytest.approx(billions, rel=0.01))


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
    assert from_notes(notes, set(), precisions)[0]["gpu"] == gpu


@pytest.mark.parametrize(
    ("notes", "gpu"), [("llama3_8b_mxfp8", "a100"), ("MXFP8", "b200"), ("fp8", "h100")]
)
def test_microscaled_numbers_need_later_gpus(notes: str, gpu: str) -> None:
    assert from_notes(notes, set())[0]["gpu"] == gpu


@pytest.mark.parametrize(
    ("notes", "adapters"),
    [("LoRA Performance", True), ("SFT and LoRA", None), ("pretraining, no LoRA", None)],
)
def test_notes_on_adapters_count_for_all_rows(notes: str, adapters: bool | None) -> None:
    assert from_notes(notes, set())[0].get("adapters") is adapters
