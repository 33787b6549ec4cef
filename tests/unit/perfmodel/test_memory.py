"""The accounting of memory against published figures."""

from __future__ import annotations

from statistics import median

import pytest

from lab.analysis.layout_table import read_layouts
from lab.config.models import GPT
from lab.files import SHARED
from lab.perfmodel.flops import gpt_parameters
from lab.perfmodel.layout import Candidate, Layout
from lab.perfmodel.memory import (
    FP32,
    IDLE,
    LOGIT,
    PLAIN,
    MemoryParts,
    rank_memory,
    state_memory,
    transformer_memory,
)
from lab.perfmodel.transformer import Transformer, named


@pytest.mark.parametrize(("sharing", "gigabytes"), [("ddp", 120), ("zero1", 31.4), ("fsdp", 1.9)])
def test_zero_on_64_ranks(sharing: str, gigabytes: float) -> None:
    """Rajbhandari et al. (2020), figure 1: 7.5 B parameters, 64 ranks."""
    state = state_memory(7.5e9, sharing=sharing, ranks=64)  # type: ignore[arg-type]
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
    fullest, first = (
        transformer_memory(llama, 512, candidate, first_stage=only).total for only in (False, True)
    )
    assert fullest > 1.3 * first
    alone = Candidate(Layout(), 1, 1)
    assert transformer_memory(llama, 512, alone, first_stage=True) == transformer_memory(
        llama, 512, alone
    )


def test_peaks_of_layouts_are_near_those_that_were_measured() -> None:
    table = read_layouts(SHARED / "docs" / "tables" / "playbook_1b_h100.csv")
    errors = [
        transformer_memory(
            row.case.model,
            row.case.sequence,
            row.case.candidate,
            balanced=True,
            first_stage=True,
        ).total
        / row.memory_bytes
        - 1
        for row in table.rows
        if row.memory_bytes
    ]
    assert len(errors) == 525 and abs(median(errors)) < 0.05
    assert sum(map(abs, errors)) / len(errors) < 0.12


def test_memory_of_layouts() -> None:
    plain = rank_memory(1e9, Layout(), activation_bytes=8e9)
    assert plain.total == 16e9 + 8e9
    halves = rank_memory(1e9, Layout(tensor=2), activation_bytes=8e9)
    assert halves.total == 8e9 + 4e9
    stages = rank_memory(1e9, Layout(pipeline=4), activation_bytes=8e9, grad_accum=8)
    assert stages.weights == 1e9 and stages.activations == 8e9
    assert (
        rank_memory(1e9, Layout(pipeline=4), activation_bytes=8e9, grad_accum=1).activations == 2e9
    )
    sharded = rank_memory(1e9, Layout(sharing="fsdp", data=4), state=FP32, largest_unit=1e8)
    assert sharded.total == 4e9 + 2e8


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
