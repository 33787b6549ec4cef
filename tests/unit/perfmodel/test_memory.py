"""The accounting of memory against published figures."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from factories import run

from lab.analysis.layout_table import read_layouts
from lab.config.datasets import vocab_size_of
from lab.config.models import GPT
from lab.config.strategies import STRATEGIES
from lab.errors import LabError
from lab.files import SHARED
from lab.perfmodel.flops import block_parameters, gpt_parameters, model_cost
from lab.perfmodel.frameworks import ANY
from lab.perfmodel.hardware import machine
from lab.perfmodel.layout import MICRO_BATCH, Bucket, Candidate, Layout, Profile
from lab.perfmodel.layout_terms import FUSED_LOGIT, IDLE, LOGIT, PLAIN, Case
from lab.perfmodel.memory import (
    USABLE,
    WORKSPACES,
    MemoryParts,
    calls_of,
    layout_of,
    memory_of,
    messages_of,
    state_memory,
)
from lab.perfmodel.transformer import Transformer, named


def transformer_memory(
    model: Transformer, sequence: int, candidate: Candidate, **framework: object
) -> MemoryParts:
    case = Case(model, sequence, candidate, machine("gb200"), framework=replace(ANY, **framework))  # type: ignore[arg-type]
    return case.memory()


@pytest.mark.parametrize(("strategy", "gigabytes"), [("ddp", 120), ("zero1", 31.4), ("fsdp", 1.9)])
def test_zero_on_64_ranks(strategy: str, gigabytes: float) -> None:
    """Rajbhandari et al. (2020), figure 1: 7.5 B parameters, 64 ranks."""
    state = state_memory(7.5e9, sharded=STRATEGIES[strategy].sharded, ranks=64)
    assert state.total / 1e9 == pytest.approx(gigabytes, abs=0.06)


def test_gpt_parameters_as_published() -> None:
    gpt2 = GPT(layers=12, heads=12, width=768, block_size=1024, vocab_size=50257)
    assert gpt_parameters(gpt2, 0) == 124_439_808
    gpt3 = GPT(layers=96, heads=96, width=12288, block_size=2048, vocab_size=50257)
    assert gpt_parameters(gpt3, 0) == pytest.approx(175e9, rel=0.005)
    assert state_memory(gpt_parameters(gpt3, 0)).total == pytest.approx(2.8e12, rel=0.01)


def test_layers_hold_their_values_once_per_micro_batch_in_flight() -> None:
    gpt = Transformer(layers=8, width=1024, heads=8, hidden=4096, vocabulary=1024)
    inputs = 2 * 512 * 2 * 1024  # of a layer and a sample of 512 tokens: whole on every rank
    values = PLAIN * 2 * 512 * (2 * 4096 + 4 * 1024) + inputs

    def activations(layout: Layout, **more: object) -> float:
        candidate = Candidate(layout, 1, 8, **more)  # type: ignore[arg-type]
        return transformer_memory(gpt, 512, candidate).activations - IDLE

    logits = 512 * 1024 * LOGIT
    assert activations(Layout()) == pytest.approx(8 * values + logits)
    halves = (8 * values + logits + 8 * inputs) / 2
    assert activations(Layout(tensor=2)) == pytest.approx(halves)
    split = activations(Layout(tensor=2, sequence_parallel=True))
    assert split == pytest.approx((8 * values + logits) / 2)
    # Four stages of two layers: the first holds four micro-batches, the last the logits.
    assert activations(Layout(pipeline=4)) == pytest.approx(4 * 2 * values)
    # For the gradients of weights, the last stage holds as many as the first: 2p - 1 with ZB-H2.
    h1, h2 = (activations(Layout(pipeline=4, schedule=name)) for name in ("zb-h1", "zb-h2"))
    assert h1 == pytest.approx(4 * 2 * values + logits)
    assert h2 == pytest.approx(7 * 2 * values + logits)
    kept = 2 * 512 * 1024
    full = activations(Layout(), checkpointing="full")
    assert full == pytest.approx(8 * kept + values + logits)


def test_rank_0_holds_no_logits_of_a_pipeline() -> None:
    llama = Transformer(4, 1024, 8, 4096, vocabulary=10**6, gated=True)
    candidate = Candidate(Layout(pipeline=2), 1, 1)
    case = Case(llama, 512, candidate, machine("h100"))
    assert case.memory().total > 1.3 * case.memory(first_stage=True).total
    alone = replace(case, candidate=Candidate(Layout(), 1, 1))
    assert alone.memory(first_stage=True) == alone.memory()


def test_fused_code_has_no_copies_of_a_gates_values() -> None:
    llama = Transformer(8, 1024, 8, 4096, vocabulary=10**5, gated=True)
    one = Candidate(Layout(), 1)
    fused = transformer_memory(llama, 512, one, fused=True).activations - IDLE
    inputs = 2 * 512 * 2 * 1024
    values = PLAIN * 2 * 512 * (3 * 4096 + 4 * 1024) + inputs
    logits = 512 * 10**5 * FUSED_LOGIT
    assert fused == pytest.approx(8 * values + logits)
    assert transformer_memory(llama, 512, one).activations - IDLE > 1.5 * fused
    sharded = Candidate(Layout("fsdp"), 1)
    moved = transformer_memory(llama, 512, sharded, fused=True, offloads=0.5).activations - IDLE
    assert moved == pytest.approx(4 * values + logits)


def test_the_first_of_unequal_stages_is_not_the_longest() -> None:
    gpt = Transformer(layers=14, width=1024, heads=8, hidden=4096, vocabulary=1024)
    for interleave, in_flight in ((1, 3), (2, 4 + 3 / 2 - 1)):
        layout = Layout(pipeline=4, interleave=interleave)
        parts, equal = (
            transformer_memory(replace(gpt, layers=layers), 512, Candidate(layout, 1, 64))
            for layers in (14, 16)
        )
        ahead = 4 + (3 / 2 if interleave == 2 else 0)
        share = (parts.activations - IDLE) / (equal.activations - IDLE)
        assert share == pytest.approx(in_flight / ahead)
        assert equal.weights - parts.weights == 2 * gpt.embedding
    # The others are the fullest if an embedding is larger than a layer.
    wide = replace(gpt, vocabulary=10**6)
    fullest = transformer_memory(wide, 512, Candidate(Layout(pipeline=4), 1, 64))
    assert fullest.weights > 2 * wide.embedding


def test_peaks_of_layouts_are_near_those_that_were_measured() -> None:
    table = read_layouts(SHARED / "docs" / "tables" / "playbook_1b_h100.csv")
    errors = [
        row.case.memory(first_stage=True).total / row.memory_bytes - 1
        for row in table.rows
        if row.memory_bytes
    ]
    assert len(errors) == 525 and abs(median(errors)) < 0.05
    assert sum(map(abs, errors)) / len(errors) < 0.12


def test_memory_of_layouts() -> None:
    def memory(accum: int = 8, precision: str = "fp32", **layout: object) -> MemoryParts:
        settings = {"strategy": "single", "grad_accum": accum, "precision": precision} | MINI
        return memory_of(run(1, accum, **settings), layout=Layout(**{"sharing": "single"} | layout))

    plain = memory()
    kept = plain.activations
    assert plain.total == 16 * SIZE + kept
    halves = memory(tensor=2)
    assert halves.total == plain.total / 2
    # What tensor parallelism does not divide is whole on each rank; so is a stage with more.
    assert memory(tensor=2, divided_parameters=0.5).weights == 0.75 * plain.weights
    assert memory(pipeline=4, largest=0.5).weights == 0.5 * plain.weights
    stages = memory(pipeline=4)
    assert stages.weights == plain.weights / 4 and stages.activations == kept
    assert memory(2, pipeline=4).activations == 2 * kept / 4
    # A stage copies its own weights once, for however many micro-batches.
    copies = model_cost(run(1, 1, precision="bf16", **MINI)).copy_bytes
    low = memory(precision="bf16").activations - copies
    assert memory(precision="bf16", pipeline=4).activations == low + copies / 4
    assert memory(pipeline=4, schedule="zb-h2").activations == kept * 7 / 4
    sharded, unit = memory(sharing="fsdp", data=4), 4 * block_parameters(384)
    assert sharded.total - kept == 4 * SIZE + 2 * unit


def test_fsdp_shards_fp32_and_gathers_two_blocks_in_bf16() -> None:
    model = Transformer(layers=48, width=7168, heads=56, hidden=4 * 7168)  # MPT-30B
    layout = Layout(sharing="fsdp", data=8)
    parts = transformer_memory(model, 2048, Candidate(layout, 3, checkpointing="full"))
    assert parts.weights == parts.gradients == pytest.approx(4 * model.parameters / 8)
    assert parts.optimizer == 2 * parts.weights
    assert parts.gathered == 2 * 2 * model.block()
    assert parts.total < USABLE * 80e9  # it ran on 8 A100 80 GB


def test_fsdp_shares_state_among_the_ranks_of_a_sequence_too() -> None:
    model = Transformer(layers=8, width=1024, heads=8, hidden=4096)
    one, split = (
        transformer_memory(model, 4096, Candidate(Layout("fsdp", data, context=context), 1))
        for data, context in ((8, 1), (2, 4))
    )
    assert (split.weights, split.optimizer) == (one.weights, one.optimizer)
    assert split.activations < one.activations


def test_a_pipeline_keeps_all_that_fsdp_gathered_for_its_stage() -> None:
    model = Transformer(layers=8, width=1024, heads=8, hidden=4096)
    layout = Layout("fsdp", data=8, pipeline=2)
    assert (
        transformer_memory(model, 1024, Candidate(layout, 1, 4)).gathered == 4 * 2 * model.block()
    )


def test_selective_checkpointing_keeps_half_of_the_activations() -> None:
    # torchtitan, December 2024: 67 to 82 GiB of 94 GB H100s.
    model, layout = named("Llama 3.1 8B"), Layout(sharing="fsdp", data=128)
    assert model is not None
    none, selective = (
        transformer_memory(model, 8192, Candidate(layout, 2, checkpointing=kind))
        for kind in ("none", "selective")
    )
    assert selective.total < USABLE * 94e9 < none.total
    logits = transformer_memory(replace(model, layers=0), 8192, Candidate(layout, 2)).activations
    assert 2 * (selective.activations - logits) == pytest.approx(none.activations - logits)


def test_ranks_that_share_experts_keep_the_rest_of_the_model_whole() -> None:
    """Mixtral 8x7B, by hand: 46.7 billion parameters, of which 45.1 in experts of 176 million."""
    model = named("Mixtral 8x7B")
    assert model is not None

    def memory(expert: int) -> MemoryParts:
        layout = Layout(sharing="zero1", data=8, expert=expert)
        return transformer_memory(model, 4096, Candidate(layout, 1))

    experts = 32 * 8 * 3 * 4096 * 14336
    rest = model.parameters - experts
    for expert in (1, 2, 8):
        parts = memory(expert)
        assert parts.weights == pytest.approx(2 * (rest + experts / expert))
        assert parts.gradients == pytest.approx(2 * parts.weights)
        # Fewer ranks have copies of an expert, so that ZeRO-1 divides its share by fewer.
        assert parts.optimizer == pytest.approx(12 * model.parameters / 8)
    assert memory(8).activations == memory(1).activations


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


def test_fsdp_shards_frozen_weights_too() -> None:
    head = {"model": {"kind": "distilbert", "trainable": "head"}, "data": "topics"}
    ddp, fsdp = (memory_of(run(4, 32, strategy=name, **head)) for name in ("ddp", "fsdp"))
    assert fsdp.weights == ddp.weights / 4 and 2 * ddp.optimizer < ddp.weights


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
        # A CPU keeps probabilities, too.
        assert on_gpu - WORKSPACES - on_cpu == words * (4 * chunk - 8 * 512)


def test_copies_in_low_precision_stay_until_the_backward_pass() -> None:
    def activations(precision: str, device: str = "cuda", **fields: object) -> float:
        return memory_of(
            run(2, 2, precision=precision, **MINI, **fields), device=device
        ).activations

    copies = 2 * 6 * 12 * 384**2  # two bytes of each weight of the blocks' products
    without = {"strategy": "fsdp"}  # its gathered weights have low precision, and are freed
    difference = activations("bf16") - activations("bf16", **without)
    assert difference == copies == model_cost(run(2, 2, precision="bf16", **MINI)).copy_bytes
    assert activations("bf16", reshard_after_forward=False, **without) == activations("bf16")
    assert activations("bf16", "cpu", **without) == activations("bf16", "cpu")
    assert activations("fp32") == activations("fp32", **without)


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
    ("fields", "calls"),
    [
        ({}, 2),  # the first MiB, and the others
        ({"strategy": "naive_ddp"}, 4),
        ({"strategy": "naive_ddp", "flat": True}, 1),
        ({"strategy": "fsdp"}, 12),  # two gathers and a scatter of each unit
        ({"strategy": "fsdp", "grad_accum": 2}, 20),
        ({"strategy": "tensor_parallel"}, 6),
        ({"strategy": "pipeline_parallel", "microbatches": 4}, 12),
    ],
)
def test_calls_of_a_strategy(fields: dict[str, object], calls: int) -> None:
    gradients = tuple(replace(one, block=nth) for nth, one in enumerate(PROFILE.gradients))
    four = replace(PROFILE, gradients=gradients)
    assert calls_of(run(2, 16, **MINI, **fields), four) == calls


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
