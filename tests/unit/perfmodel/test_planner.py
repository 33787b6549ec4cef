"""The planner on described machines: what fits, what is fastest, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories import run

from lab.config.models import GPT
from lab.perfmodel.hardware import machine
from lab.perfmodel.layout import Bucket, Candidate, Layout, sent
from lab.perfmodel.memory import memory_of
from lab.perfmodel.planner import Plan, Space, best, merged
from lab.perfmodel.predict import Described
from lab.perfmodel.transformer import Transformer

SMALL = GPT(layers=12, heads=12, width=768, block_size=1024, vocab_size=50257)
LARGE = GPT(layers=96, heads=96, width=12288, block_size=2048, vocab_size=50257)


def search(model: GPT, text: str, world_size: int, global_batch: int, **space: object) -> Plan:
    costing = Described(model, 50257, machine(text))
    return best(
        costing,
        Space(model.layers, 2 * model.block_size * model.width, **space),
        world_size=world_size,
        global_batch=global_batch,
    )  # type: ignore[arg-type]


def test_a_small_model_stays_data_parallel() -> None:
    plan = search(SMALL, "h100x8", 8, 512, tensor=(1, 2, 4))
    first = plan.ranked[0]
    assert first.candidate.layout.tensor == 1 and first.candidate.checkpointing != "full"
    steps = [ranked.prediction.step_s for ranked in plan.ranked]
    assert steps == sorted(steps)
    assert "The second (" in plan.why_second()
    assert (
        first.candidate.micro_batch * first.candidate.grad_accum * first.candidate.layout.data
        == 512
    )


@pytest.mark.parametrize(("other", "words"), [(0.5, "less"), (1.0, "as much"), (2.0, "more")])
def test_of_two_equally_fast_plans_the_memory_is_compared(other: float, words: str) -> None:
    first, *_ = search(SMALL, "h100x8", 8, 512).ranked
    second = replace(first, memory_bytes=other * first.memory_bytes)
    sentence = Plan((first, second), refused=0, searched=2).why_second()
    assert sentence.endswith(f"is as fast and takes {words} memory.")


@pytest.mark.parametrize(
    ("head", "words"),
    [(0.0, "is 20.0 ms slower: 20.0 ms more in compute."), (-0.01, "and less in other parts.")],
)
def test_a_part_that_loses_more_than_the_step_does_is_not_called_most_of_it(
    head: float, words: str
) -> None:
    first, *_ = search(SMALL, "h100x8", 8, 512).ranked
    slow = {"compute": 0.06, "head": 0.05 + head}
    steps = [
        replace(first.prediction, step_s=sum(parts.values()), parts=parts)
        for parts in ({"compute": 0.04, "head": 0.05}, slow)
    ]
    plans = tuple(replace(first, prediction=step) for step in steps)
    assert Plan(plans, refused=0, searched=2).why_second().endswith(words)


def test_what_cannot_fit_is_refused() -> None:
    plan = search(LARGE, "h100x8", 8, 8)
    assert plan.ranked == () and plan.why_second() == ""
    assert plan.refused == plan.searched > 0


def test_gpt3_needs_its_weights_shared() -> None:
    plan = search(LARGE, "h100x8", 1024, 1024, tensor=(1, 8), pipeline=(1, 8))
    assert plan.refused and plan.ranked
    first = plan.ranked[0].candidate.layout
    assert first.sharing == "fsdp" or first.tensor * first.pipeline > 1


def test_plain_ddp_of_gpt3_never_fits() -> None:
    plan = search(LARGE, "b200x8", 1024, 1024, sharings=("ddp",))
    assert not plan.ranked


def test_the_space_is_searched_whole_and_said() -> None:
    space = Space(12, 2 * 1024 * 768, tensor=(1, 2), precisions=("bf16", "fp32"))
    plan = search(SMALL, "h100x8", 8, 64, tensor=(1, 2), precisions=("bf16", "fp32"))
    assert plan.searched == len(set(space.candidates(8, 64))) == len(list(space.candidates(8, 64)))
    assert (
        "ddp, zero1, fsdp; tensor x1, x2" in space.description and "bf16, fp32" in space.description
    )
    assert plan.least_bytes <= min(ranked.memory_bytes for ranked in plan.ranked)


def test_zero_bubble_schedules_are_searched_where_they_have_enough_micro_batches() -> None:
    degrees = {
        "tensor": (8,),
        "pipeline": (16,),
        "sharings": ("zero1",),
        "checkpointing": ("none",),
    }
    plain = search(LARGE, "h100x8", 128, 64, **degrees)
    plan = search(LARGE, "h100x8", 128, 64, schedules=("1f1b", "zb-h1", "zb-h2"), **degrees)
    first = plan.ranked[0]
    assert first.prediction.step_s < plain.ranked[0].prediction.step_s
    assert first.candidate.layout.schedule in first.candidate.label
    space = Space(96, 1, pipeline=(1, 16), schedules=("1f1b", "zb-h1", "zb-h2"))
    fewest = {"1f1b": 1, "zb-h1": 16, "zb-h2": 31}
    counts = dict.fromkeys(fewest, 0)
    for candidate in space.candidates(16, 64):
        schedule = candidate.layout.schedule
        assert candidate.grad_accum >= fewest[schedule]
        assert schedule == "1f1b" or candidate.layout.pipeline == 16
        counts[schedule] += 1
    assert counts["1f1b"] > counts["zb-h1"] > counts["zb-h2"] > 0


def test_ways_that_differ_only_in_buckets_are_ranked_once() -> None:
    ways = [replace(way.candidate, bucket_mb=None) for way in search(SMALL, "h100x8", 8, 64).ranked]
    assert len(set(ways)) == len(ways)


def test_merged_buckets_keep_bytes_and_messages() -> None:
    buckets = [Bucket(float(nth), 10) for nth in range(1, 101)]
    groups = merged(buckets, 16)
    assert (
        len(groups) == 16
        and sum(b.bytes for b in groups) == 1000
        and sum(b.messages for b in groups) == 100
    )
    assert groups[-1].ready_s == 100.0
    assert merged(buckets[:3], 16) == tuple(buckets[:3])


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_described_profile_is_the_law_of_layouts_without_communication(precision: str) -> None:
    described = Described(LARGE, 50257, machine("a100"))
    profile = described.profile(Candidate(Layout(layers=96), 8, precision=precision))
    peak = described.machine.gpu.flops[precision]
    model = Transformer.of(LARGE, 0)
    reached = 8 * 2048 * model.flops_per_token(2048) / peak / profile.step_s()
    assert 0.45 < reached < 1 / described.law.coefficients["flops"]
    assert profile.gradient_bytes == described.parameters * (2 if precision == "bf16" else 4)
    assert profile.gradients[-1].ready_s == profile.backward_s
    # FSDP gathers each block by itself, and all that is in none.
    assert sent(profile, "fsdp", cap_bytes=0.0) == profile.gradients


def test_memory_on_a_described_machine_is_that_of_a_run() -> None:
    described = Described(SMALL, 50257, machine("h200"))
    # The peak of GPT-2 on an H200 (reports/gpu-training).
    assert described.memory(Candidate(Layout("single"), 64)) == pytest.approx(25.35e9, rel=0.02)
    for sharing in ("ddp", "zero1", "fsdp"):
        settings = {"strategy": sharing, "precision": "bf16"}
        same = run(8, None, model=SMALL, micro_batch_size=4, **settings)
        candidate = Candidate(Layout(sharing, data=8), 4)
        assert described.memory(candidate) == memory_of(same, device="cuda").total


def test_small_products_and_split_ones_reach_less() -> None:
    described = Described(SMALL, 50257, machine("a100"))

    def passes(micro: int, tensor: int = 1) -> float:
        layout = Layout("single", tensor=tensor, layers=12)
        profile = described.profile(Candidate(layout, micro))
        return (profile.forward_s + profile.backward_s) / micro

    assert passes(1) > 1.5 * passes(16)
    assert passes(4, tensor=8) > 1.5 * passes(4)


def test_further_nodes_cost_more() -> None:
    described = Described(SMALL, 50257, machine("h100x8"))
    nodes = [described.conditions(Layout(data=ranks)).node_s for ranks in (1, 8, 16, 512)]
    assert nodes[0] == nodes[1] == 0 < nodes[2] < nodes[3]
    assert not described.conditions(Layout(tensor=16)).node_s  # which sums nothing over replicas
