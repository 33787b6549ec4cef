"""What runs ask of their ranks: bytes that they hold, and what they send at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories import run

from lab.config.datasets import vocab_size_of
from lab.errors import LabError
from lab.perfmodel.flops import model_cost
from lab.perfmodel.layout import MICRO_BATCH, Bucket, Profile
from lab.perfmodel.requirements import calls_of, layout_of, memory_of, messages_of

MINI = {"model": "gpt-mini"}
SIZE = model_cost(run(1, 8, **MINI)).parameters
PROFILE = Profile(2.0, 4.0, 1.0, tuple(Bucket(float(nth), 2**20) for nth in range(1, 5)))


def test_state_is_that_of_adamw_in_fp32_shared_as_the_strategy_does() -> None:
    ddp, zero1, fsdp = (
        memory_of(run(4, 32, strategy=name, **MINI)) for name in ("ddp", "zero1", "fsdp")
    )
    assert (ddp.weights, ddp.gradients, ddp.optimizer) == (4 * SIZE, 4 * SIZE, 8 * SIZE)
    assert zero1.optimizer == ddp.optimizer / 4 and zero1.weights == ddp.weights
    assert (
        fsdp.weights == ddp.weights / 4
        and fsdp.optimizer == ddp.optimizer / 4
        and fsdp.gathered > 0
    )


def test_gradients_that_come_and_go_share_room_with_activations() -> None:
    alone, lasting = (
        memory_of(run(1, 8, strategy="single", grad_accum=accum, **MINI)) for accum in (1, 2)
    )
    assert alone.gradients == 0 and lasting.gradients == 4 * SIZE
    assert memory_of(run(1, 1, strategy="single", **MINI)).activations >= 4 * SIZE


def test_a_gpu_has_more_logits_at_once_than_a_cpu() -> None:
    for samples, chunk in ((2, 2 * 1024), (16, 8192)):  # a micro-batch of fewer tokens is one chunk
        training_run = run(1, samples, model="gpt2-small", data="synthetic")
        on_gpu, on_cpu = (
            memory_of(training_run, device=name).activations for name in ("cuda", "cpu")
        )
        words = vocab_size_of(training_run.architecture, training_run.dataset)
        assert on_gpu - on_cpu == words * 8 * (chunk - 512)


def test_activations_follow_the_micro_batch_and_checkpointing_keeps_one_block() -> None:
    one, two, four = (memory_of(run(1, batch, **MINI)).activations for batch in (4, 8, 16))
    # Beside the gradient of the head's weight and a chunk of logits, which are of one size.
    assert four - two == pytest.approx(2 * (two - one), rel=1e-6)
    assert one < two < 2 * one < 1.1 * two
    checkpointed = memory_of(run(1, 8, activation_checkpointing=True, **MINI)).activations
    assert 0.15 * two < checkpointed < 0.6 * two
    # Fewer layers keep less where all is kept, hardly less where each keeps its input.
    shallow = {"kind": "gpt", "layers": 3, "heads": 6, "width": 384, "block_size": 256}
    half = memory_of(run(1, 8, model=shallow, activation_checkpointing=True)).activations
    assert checkpointed - half == pytest.approx(3 * 4 * 8 * 256 * 384, rel=0.2)


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({}, [2**20, 3 * 2**20]),  # DDP's first bucket is small where no size is given
        ({"bucket_cap_mb": 2.0}, [2 * 2**20, 2 * 2**20]),
        ({"bucket_cap_mb": 2.0, "compression": "fp16"}, [2**20, 2**20]),
        ({"strategy": "naive_ddp"}, [2**20] * 4),
        ({"strategy": "naive_ddp", "flat": True}, [4 * 2**20]),
        ({"strategy": "zero1"}, [4 * 2**20]),
    ],
)
def test_what_is_sent_at_a_time(fields: dict[str, object], sizes: list[int]) -> None:
    assert [bucket.bytes for bucket in messages_of(PROFILE, run(2, 16, **fields))] == sizes


@pytest.mark.parametrize(
    ("blocks", "units"),
    [
        ([1, 1, 0, None], [(2.0, 2), (3.0, 1), (4.0, 1)]),
        ([None, 1, 0, None], [(2.0, 1), (3.0, 1), (4.0, 2)]),  # the rest is ready with its last
        ([None] * 4, [(4.0, 4)]),  # a model without blocks is one unit
    ],
)
def test_fsdp_sends_blocks_and_the_rest(
    blocks: list[int | None], units: list[tuple[float, int]]
) -> None:
    gradients = tuple(map(lambda one, block: replace(one, block=block), PROFILE.gradients, blocks))
    sent = messages_of(
        replace(PROFILE, gradients=gradients),
        run(2, 16, model="resnet18", data="digits", strategy="fsdp"),
    )
    assert [(unit.ready_s, unit.bytes / 2**20) for unit in sent] == units


def test_layouts_of_split_models() -> None:
    tensor, pipeline = (
        layout_of(run(2, 8, strategy=f"{name}_parallel", **MINI)) for name in ("tensor", "pipeline")
    )
    assert (tensor.tensor, tensor.pipeline, tensor.activation_bytes) == (2, 1, 4 * 8 * 256 * 384)
    assert (pipeline.tensor, pipeline.pipeline) == (
        1,
        2,
    ) and pipeline.activation_bytes == tensor.activation_bytes / 2
    assert PROFILE.scaled(1 / 4, MICRO_BATCH).step_s(4) == pytest.approx(PROFILE.step_s())


def test_the_head_is_divided_neither_by_tensors_nor_by_stages() -> None:
    # Per token and layer 24 d^2 + 4 T d, for the head 2 V d: with d = 8, T = 16 and V = 128
    # 2048 FLOPs for each of 4 layers, and as many for the head.
    model = {"kind": "gpt", "layers": 4, "heads": 2, "width": 8, "block_size": 16}
    small = {"model": model, "data": {"kind": "synthetic", "vocab_size": 128}}
    tensor, pipeline = (
        layout_of(run(2, 8, strategy=f"{name}_parallel", **small))
        for name in ("tensor", "pipeline")
    )
    assert tensor.divided == pytest.approx(4 / 5)
    assert tensor.compute_share == pytest.approx(0.4 + 0.2)
    assert pipeline.busiest == pytest.approx(3 / 5)
    assert pipeline.tied_bytes == 4 * 128 * 8
    assert 0.5 < pipeline.largest < 1.0 and 0.5 < tensor.parameter_share < 1.0


@pytest.mark.parametrize(
    ("fields", "messages", "calls"),
    [
        ({}, 2, 2),
        ({"strategy": "naive_ddp"}, 52, 52),
        ({"strategy": "fsdp"}, 5, 15),  # two gathers and a scatter of each unit
        ({"strategy": "fsdp", "grad_accum": 2}, 5, 25),
        ({"strategy": "tensor_parallel"}, 4, 6),
        ({"strategy": "pipeline_parallel", "microbatches": 4}, 4, 12),
    ],
)
def test_calls_of_a_strategy(fields: dict[str, object], messages: int, calls: int) -> None:
    assert calls_of(run(2, 16, **MINI, **fields), messages) == calls


@pytest.mark.parametrize(
    "fields",
    [
        {"compression": "powersgd"},
        {"strategy": "fsdp", "shard_size": 2},
        {"strategy": "vanilla_data_parallel"},
    ],
)
def test_what_the_step_model_does_not_know_is_said(fields: dict[str, object]) -> None:
    with pytest.raises(LabError, match="does not know"):
        layout_of(run(4, 16, **fields))
