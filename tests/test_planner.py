"""The planner on described machines: what fits, what is fastest, why, and how long it takes to say so."""

from __future__ import annotations

import time

import pytest

from lab.analysis.described import Described
from lab.analysis.layouts import Bucket
from lab.analysis.machines import machine
from lab.analysis.planner import Plan, Space, best, merged
from lab.analysis.predict import Conditions
from lab.workloads import GPT

SMALL = GPT(layers=12, heads=12, width=768, block_size=1024, vocab_size=50257)
LARGE = GPT(layers=96, heads=96, width=12288, block_size=2048, vocab_size=50257)


def search(model: GPT, text: str, world_size: int, global_batch: int, **space: object) -> Plan:
    costing = Described(model, 50257, machine(text))
    return best(
        costing,
        Space(model.layers, 2 * model.block_size * model.width, **space),
        world_size=world_size,
        global_batch=global_batch,
        conditions=Conditions(),
    )  # type: ignore[arg-type]


def test_a_small_model_stays_data_parallel() -> None:
    plan = search(SMALL, "h100x8", 8, 512, tensor=(1, 2, 4))
    first = plan.ranked[0]
    assert first.candidate.layout.tensor == 1 and first.candidate.checkpointing != "full"
    steps = [ranked.prediction.step_s for ranked in plan.ranked]
    assert steps == sorted(steps)
    assert "The second (" in plan.why_second()
    assert first.candidate.micro_batch * first.candidate.grad_accum * first.candidate.layout.data == 512


def test_what_cannot_fit_is_refused() -> None:
    plan = search(LARGE, "h100x8", 8, 8)
    assert plan.ranked == () and plan.why_second() == ""
    assert plan.refused["does not fit into memory"] == plan.searched > 0


def test_gpt3_needs_its_weights_shared() -> None:
    plan = search(LARGE, "h100x8", 1024, 1024, tensor=(1, 8), pipeline=(1, 8))
    assert plan.refused and plan.ranked
    first = plan.ranked[0].candidate.layout
    assert first.sharing == "fsdp" or first.tensor * first.pipeline > 1


def test_plain_ddp_of_gpt3_never_fits() -> None:
    plan = search(LARGE, "b200x8", 1024, 1024, sharings=("ddp",))
    assert not plan.ranked


def test_ten_thousand_candidates_in_ten_seconds() -> None:
    began = time.process_time()
    plan = search(
        GPT(layers=24, heads=16, width=1024, block_size=1024, vocab_size=50257),
        "h100x8",
        256,
        2**12,
        tensor=(1, 2, 4, 8),
        pipeline=(1, 2, 4, 8, 16),
        precisions=("bf16", "fp16", "fp32"),
        buckets_mb=(1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0),
    )
    assert plan.searched >= 10_000
    assert time.process_time() - began < 10.0


def test_merged_buckets_keep_bytes_and_messages() -> None:
    buckets = [Bucket(float(nth), 10) for nth in range(1, 101)]
    found = merged(buckets, 16)
    assert len(found) == 16 and sum(b.bytes for b in found) == 1000 and sum(b.messages for b in found) == 100
    assert found[-1].ready_s == 100.0
    assert merged(buckets[:3], 16) == tuple(buckets[:3])


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_described_profile_reaches_its_share_of_the_peak(precision: str) -> None:
    described = Described(SMALL, 50257, machine("a100"))
    profile = described.profile(micro_batch=8, precision=precision)
    flops = 8 * 1024 * (6 * 123_653_376 + 12 * 12 * 1024 * 768)
    assert flops / (profile.forward_s + profile.backward_s) == pytest.approx(0.45 * described.machine.gpu.flops[precision])
    assert profile.gradient_bytes == described.parameters * (2 if precision == "bf16" else 4)
    assert profile.gradients[-1].ready_s == profile.backward_s
