"""Runs: their batch, their id, and which settings go together."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lab.config.models import GPT
from lab.config.run import Run, distinct_labels

ALONE: dict[str, Any] = {"global_batch_size": 8}
BASE: dict[str, Any] = ALONE | {"world_size": 2}


def test_run_completes_its_batch() -> None:
    run = Run(global_batch_size=64, world_size=4, grad_accum=2)
    assert run.micro_batch_size == 8
    assert Run(micro_batch_size=8, world_size=4, grad_accum=2).global_batch_size == 64
    assert Run(global_batch_size=64, micro_batch_size=8, world_size=4).grad_accum == 2


@given(micro=st.integers(1, 64), accum=st.integers(1, 8), world=st.integers(1, 64))
def test_batch_arithmetic_holds_however_it_is_given(micro: int, accum: int, world: int) -> None:
    whole = micro * accum * world
    given_whole = Run(global_batch_size=whole, grad_accum=accum, world_size=world)
    given_micro = Run(micro_batch_size=micro, grad_accum=accum, world_size=world)
    given_both = Run(global_batch_size=whole, micro_batch_size=micro, world_size=world)
    assert given_whole == given_micro == given_both
    assert given_whole.id == given_micro.id == given_both.id


def test_run_is_frozen_and_hashable() -> None:
    run = Run(**ALONE)
    with pytest.raises(ValidationError):
        run.steps = 3  # type: ignore[misc]
    assert len({run, Run(**ALONE)}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"model": "gpt-mini"},
        {"data": "shakespeare"},
        {"strategy": "single"},
        {"precision": "bf16"},
        {"world_size": 2},
        {"global_batch_size": 16},
        {"grad_accum": 2},
        {"steps": 61},
        {"warmup_steps": 9},
        {"learning_rate": 2e-3},
        {"seed": 1},
        {"compile": True},
        {"eval_batches": 5},
        {"grad_clip": 2.0},
        {"weight_decay": 0.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_id_changes_with_everything_that_changes_the_measurement(change: dict[str, object]) -> None:
    assert Run(**ALONE | change).id != Run(**ALONE).id


def test_id_looks_behind_names_and_defaults() -> None:
    nano = Run(**ALONE)
    assert (
        nano.id
        == Run(**ALONE, steps=60, model=GPT(layers=4, heads=4, width=128, block_size=128)).id
    )
    assert len(nano.id) == 10 and nano.id == Run.model_validate_json(nano.model_dump_json()).id


def test_an_id_is_computed_once_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    digests: list[bytes] = []
    sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda data: digests.append(data) or sha256(data))
    run = Run(**ALONE)
    assert len({run.id for _ in range(3)}) == len(digests) == 1
    other = run.model_copy(update={"seed": 1})
    assert other.id == Run(**ALONE, seed=1).id != run.id
    assert run == Run(**ALONE) and "id" not in run.model_dump()


@pytest.mark.parametrize(
    "change",
    [
        {"bucket_cap_mb": 4.0},
        {"gradient_as_bucket_view": False},
        {"static_graph": True},
        {"compression": "bf16"},
        {"compression": "powersgd", "powersgd_rank": 2},
        {"activation_checkpointing": True},
    ],
    ids=lambda change: " ".join(change),
)
def test_a_setting_makes_another_run_and_its_default_does_not(change: dict[str, Any]) -> None:
    assert Run.model_validate(BASE | change).id != Run.model_validate(BASE).id
    defaults = {name: Run.model_fields[name].default for name in change}
    assert Run.model_validate(BASE | defaults).id == Run.model_validate(BASE).id


def test_ids_are_those_from_before_there_were_settings() -> None:
    assert Run(global_batch_size=8).id == "4415a1f836"  # type: ignore[call-arg]


def test_a_setting_that_came_later_is_dumped_where_it_is_given() -> None:
    inference = ALONE | {"task": "inference", "prompt_tokens": (4,), "new_tokens": 4}
    plain, other = (
        Run.model_validate(inference | more) for more in ({}, {"base_precision": "bf16"})
    )
    assert "base_precision" not in plain.model_dump() and plain.id != other.id

    assert Run.model_validate_json(other.model_dump_json()) == other
    assert "base in bf16" in other.label and "base" not in plain.label


def test_a_traced_run_has_an_id_of_its_own_and_others_are_dumped_as_before() -> None:
    plain, traced = (
        Run.model_validate({"global_batch_size": 8} | more) for more in ({}, {"trace": True})
    )
    assert "trace" not in plain.model_dump()
    assert plain.id != traced.id and plain.label == traced.label


def test_labels_of_scripts_leave_out_the_end_of_many_arguments() -> None:
    command = ["train.py", *(f"--option-{nth} {{out}}" for nth in range(30))]
    script = {"kind": "script", "command": command}
    runs = [Run.model_validate({"model": script, "world_size": size}) for size in (1, 2)]
    assert all(len(run.label) < 100 for run in runs) and runs[1].label.endswith("…")
    assert runs[1].label.startswith("train.py script x2, --option-0 {out} --option-1")
    labels, common = distinct_labels(runs)
    assert [*labels.values()] == ["x1", "x2"] and "--option-29" in common


def test_the_label_of_a_script_in_a_deep_folder_keeps_its_name() -> None:
    place = f"/{'folder/' * 20}train.py"
    run = Run.model_validate({"model": {"kind": "script", "command": [place, "--epochs", "3"]}})
    assert run.label.startswith("…/folder/") and "/train.py script x1, --epochs 3" in run.label
    assert len(run.label) < 100


def test_tf32_needs_a_gpu() -> None:
    assert Run.model_validate(BASE | {"precision": "tf32"}).device_needed == "cuda"
    assert Run.model_validate(BASE).device_needed == "any"


OTHERS: list[dict[str, Any]] = [
    {"strategy": "naive_ddp", "flat": True},
    {"strategy": "fsdp", "reshard_after_forward": False},
    {"strategy": "fsdp", "world_size": 4, "shard_size": 2},
    {"strategy": "pipeline_parallel", "schedule": "1f1b"},
    {"strategy": "pipeline_parallel", "microbatches": 8},
]


@pytest.mark.parametrize("change", OTHERS, ids=lambda change: " ".join(change))
def test_a_setting_of_another_strategy_makes_another_run_too(change: dict[str, Any]) -> None:
    *setup, (name, _) = change.items()
    assert Run.model_validate(BASE | change).id != Run.model_validate(BASE | dict(setup)).id
    with pytest.raises(
        ValidationError, match=f"{name} is a setting of .*, which strategy 'ddp' does not have"
    ):
        Run.model_validate(BASE | change | {"strategy": "ddp"})


@pytest.mark.parametrize(
    ("strategy", "shares", "processes"),
    [
        ("ddp", 2, 2),
        ("naive_ddp", 2, 2),
        ("zero1", 2, 2),
        ("fsdp", 2, 2),
        ("tensor_parallel", 1, 2),
        ("pipeline_parallel", 1, 2),
        ("data_parallel", 2, 1),
        ("vanilla_data_parallel", 2, 1),
    ],
)
def test_ranks_share_out_the_samples_or_the_model(
    strategy: str, shares: int, processes: int
) -> None:
    run = Run.model_validate(BASE | {"strategy": strategy})
    assert (run.data_parallel_size, run.processes) == (shares, processes)
    assert run.micro_batch_size * shares == run.global_batch_size
    assert (
        Run.model_validate(
            {"micro_batch_size": 4, "world_size": 2, "strategy": strategy}
        ).global_batch_size
        == 4 * shares
    )


CONFLICTS: dict[str, tuple[dict[str, Any], str]] = {
    "single": (
        {"world_size": 1, "strategy": "single", "compression": "bf16"},
        "compression is a setting of DDP",
    ),
    "single buckets": (
        {"world_size": 1, "strategy": "single", "bucket_cap_mb": 1.0},
        "bucket_cap_mb is a setting of DDP",
    ),
    "rank alone": ({"powersgd_rank": 4}, "powersgd_rank 4 without PowerSGD"),
    "a part is no model": (
        {"strategy": "tensor_parallel", "keep_model": True},
        "keep_model, but no rank of tensor_parallel has the whole model",
    ),
    "begins late": (
        {"compression": "powersgd", "warmup_steps": 1},
        "PowerSGD compresses from step 2 on, but warmup_steps is 1",
    ),
    "static accumulation": (
        {"static_graph": True, "grad_accum": 2},
        "static_graph with grad_accum 2",
    ),
    "endless": ({"grad_clip": float("inf")}, "finite number"),
    "no bucket": ({"bucket_cap_mb": 0}, "greater than 0"),
    "compression of naive": (
        {"strategy": "naive_ddp", "compression": "bf16"},
        "compression is a setting of DDP",
    ),
    "fp16 in part": (
        {"strategy": "zero1", "precision": "fp16"},
        "fp16 needs all gradients to scale the loss.*use bf16",
    ),
    "compiled stages": (
        {"strategy": "pipeline_parallel", "compile": True},
        "compile does not work with strategy 'pipeline_parallel'",
    ),
    "uneven copies": (
        {"strategy": "fsdp", "world_size": 4, "shard_size": 3},
        "shard_size 3 does not divide world_size 4",
    ),
    "half a head": (
        {"strategy": "tensor_parallel", "world_size": 8},
        "world_size 8 does not divide the 4 heads",
    ),
    "more stages than layers": (
        {"strategy": "pipeline_parallel", "world_size": 8},
        "a pipeline of 8 stages needs 8 layers",
    ),
    "accumulated twice": (
        {"strategy": "pipeline_parallel", "grad_accum": 2},
        "a pipeline accumulates over its microbatches",
    ),
    "uneven microbatches": (
        {"strategy": "pipeline_parallel", "microbatches": 3},
        "cannot be cut into 3 equal microbatches",
    ),
    "idle stage": (
        {"strategy": "pipeline_parallel", "schedule": "1f1b", "microbatches": 1},
        "needs a microbatch for each of 2 stages, but microbatches is 1",
    ),
    "indivisible, same samples": (
        {"strategy": "tensor_parallel", "micro_batch_size": 4, "grad_accum": 1},
        "all ranks of 'tensor_parallel' see the same samples",
    ),
    "TF32 on CPU": ({"precision": "tf32", "needs_device": "cpu"}, "tf32 needs a GPU"),
    "trace of inference": ({"task": "inference", "trace": True}, "trace is a setting of training"),
    "base of a training": ({"base_precision": "bf16"}, "base_precision is a setting of inference"),
    "unknown": ({"compression": "zip"}, "'none', 'bf16', 'fp16' or 'powersgd'"),
}


@pytest.mark.parametrize(("change", "message"), CONFLICTS.values(), ids=CONFLICTS.keys())
def test_settings_that_do_not_go_together_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Run.model_validate(BASE | change)
