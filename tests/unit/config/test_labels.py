"""What runs are called: no two that differ have one name."""

from __future__ import annotations

from typing import Any

import pytest
from factories import record

from lab.analysis.scaling import summary
from lab.analysis.scaling_curves import curves
from lab.config.run import Run, distinct_labels, setting_label
from lab.records.table import table

BASE: dict[str, Any] = {"global_batch_size": 8, "world_size": 2}
CNN = {"kind": "cnn", "network": "vgg16"}
GPT = {"kind": "gpt", "layers": 2, "heads": 2, "width": 64, "block_size": 64}
# One change of each setting in a label, and its words.
CHANGES = [
    ({"model": "gpt-mini"}, "gpt-mini ddp x2, batch 8, fp32"),
    ({"data": "shakespeare"}, "shakespeare"),
    ({"data": {"kind": "synthetic", "samples": 512}}, "synthetic, samples 512"),
    ({"strategy": "zero1"}, "gpt-nano zero1 x2"),
    ({"world_size": 4}, "ddp x4"),
    ({"needs_device": "cuda"}, "x2 on CUDA"),
    ({"global_batch_size": 16}, "batch 16"),
    ({"precision": "bf16"}, "bf16"),
    ({"grad_accum": 2}, "accumulation 2"),
    ({"compile": True}, "compiled"),
    ({"bucket_cap_mb": 100.0}, "buckets of 100 MiB"),
    ({"gradient_as_bucket_view": False}, "gradients beside the buckets"),
    ({"static_graph": True}, "static graph"),
    ({"compression": "bf16"}, "bf16 on the link"),
    ({"compression": "powersgd"}, "PowerSGD on the link"),
    (
        {"compression": "powersgd", "powersgd_rank": 4},
        "PowerSGD on the link, rank-4 approximation",
    ),
    ({"strategy": "naive_ddp", "flat": True}, "naive_ddp x2, batch 8, fp32, flat"),
    ({"strategy": "fsdp", "reshard_after_forward": False}, "fsdp x2, batch 8, fp32, no resharding"),
    ({"strategy": "fsdp", "shard_size": 2}, "shards on 2 ranks"),
    (
        {"strategy": "pipeline_parallel", "schedule": "1f1b"},
        "pipeline_parallel x2, batch 8, fp32, 1F1B",
    ),
    ({"strategy": "pipeline_parallel", "microbatches": 4}, "4 microbatches"),
    ({"activation_checkpointing": True}, "checkpointing"),
    ({"loader": "classic"}, "classic loader"),
    ({"loader": "classic", "loader_workers": 3}, "classic loader, 3 workers"),
    ({"learning_rate": 0.0003}, "learning rate 0.0003"),
    ({"min_learning_rate": 0.0}, "minimum learning rate 0"),
    ({"weight_decay": 0.0}, "weight decay 0"),
    ({"grad_clip": 0.5}, "clipping at 0.5"),
    ({"seed": 1}, "seed 1"),
    ({"model": GPT}, "gpt 2x64 ddp x2, batch 8, fp32, 2 heads, 64 tokens"),
    ({"model": GPT | {"heads": 4}}, "4 heads"),
    ({"model": GPT | {"heads": 1}}, "1 head, 64 tokens"),
    ({"model": GPT | {"block_size": 32}}, "32 tokens"),
    ({"model": GPT | {"dropout": 0.1}}, "dropout 0.1"),
    ({"model": GPT | {"vocab_size": 5000}}, "vocabulary 5000"),
    ({"model": CNN, "data": "digits"}, "vgg16 64px ddp x2, batch 8, fp32, digits"),
    ({"model": CNN | {"trainable": "head"}, "data": "digits"}, "head only"),
    ({"model": CNN | {"trainable": 0.25}, "data": "digits"}, "last 25 %"),
    ({"model": CNN | {"dropout": 0.0}, "data": "digits"}, "dropout 0"),
    (
        {"model": {"kind": "cnn", "network": "resnet18", "batch_norm": "frozen"}, "data": "mnist"},
        "batch norm frozen, mnist",
    ),
    (
        {"model": {"kind": "distilbert", "trainable": "head"}, "data": "topics"},
        "distilbert 6x768 ddp x2, batch 8, fp32, head only",
    ),
    ({"model": {"kind": "distilbert", "weights": "mine"}, "data": "topics"}, "weights of mine"),
]


def run(**changes: Any) -> Run:
    return Run.model_validate(BASE | changes)


def test_a_kind_of_device_that_all_need_is_common() -> None:
    runs = [run(needs_device="cuda", world_size=size) for size in (1, 2)]
    labels, common = distinct_labels(runs)
    assert list(labels.values()) == ["x1", "x2"] and common.startswith(
        "gpt-nano ddp on CUDA, batch"
    )
    labels, common = distinct_labels([run(), run(needs_device="cuda")])
    assert list(labels.values()) == ["x2", "x2 on CUDA"] and "CUDA" not in common
    assert distinct_labels(runs[1:])[0][runs[1]] == runs[1].label


@pytest.mark.parametrize(("changes", "words"), CHANGES, ids=[words for _, words in CHANGES])
def test_label_tells_what_is_not_at_its_default(changes: dict[str, Any], words: str) -> None:
    assert words in run(**changes).label and words not in run().label


def test_no_two_labels_are_the_same() -> None:
    labels = [run().label, *(run(**changes).label for changes, _ in CHANGES)]
    assert len(set(labels)) == len(labels)


def test_plain_run_has_a_plain_label() -> None:
    assert run().label == "gpt-nano ddp x2, batch 8, fp32"
    assert run(steps=5, warmup_steps=2, eval_batches=1).label == run().label


def test_values_of_settings_are_formatted() -> None:
    assert setting_label("microbatches", 8.0) == "8 microbatches"  # as a table with gaps holds it
    assert setting_label("microbatches", 1.0) == "1 microbatch"
    assert setting_label("loader_workers", 1) == "1 worker"
    assert setting_label("lr_warmup_steps", 3) == "lr warmup steps 3"


def test_lines_are_told_apart_by_as_little_as_it_takes() -> None:
    models = [GPT, GPT | {"layers": 4}]
    kinds = [{"compression": "bf16"}, {}]
    runs = [
        run(model=model, world_size=size, **kind)
        for model in models
        for kind in kinds
        for size in (1, 2)
    ]
    lines = curves(
        summary(table([record(one) for one in runs]), baseline={"world_size": 1}, scaling="strong")
    )
    assert {line.label for line in lines} == {
        "gpt 2x64, batch 8",
        "gpt 2x64, batch 8, bf16 on the link",
        "gpt 4x64, batch 8",
        "gpt 4x64, batch 8, bf16 on the link",
    }


def test_models_that_differ_in_their_end_are_told_in_full() -> None:
    runs = [run(model=GPT | {"block_size": size}) for size in (32, 64)]
    lines = curves(
        summary(table([record(one) for one in runs]), baseline={"world_size": 1}, scaling="strong")
    )
    assert {line.label for line in lines} == {
        f"gpt 2x64, 2 heads, {size} tokens, batch 8" for size in (32, 64)
    }


def test_lengths_are_told_where_nothing_else_differs() -> None:
    one, other = run(steps=20), run(steps=40)
    lines = curves(
        summary(table([record(one), record(other)]), baseline={"world_size": 1}, scaling="strong")
    )
    assert {line.label for line in lines} == {"batch 8, steps 20", "batch 8, steps 40"}
    lines = curves(
        summary(
            table([record(one), record(run(steps=40, compile=True))]),
            baseline={"world_size": 1},
            scaling="strong",
        )
    )
    assert {line.label for line in lines} == {"batch 8", "batch 8, compiled"}
