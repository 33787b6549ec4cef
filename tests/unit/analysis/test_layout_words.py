"""What notes and cells of settings say of layouts."""

from __future__ import annotations

import pytest

from lab.analysis.audit.columns import named_precision
from lab.analysis.layout_words import noted_model, settings


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
