"""The accounting of memory against published figures."""

from __future__ import annotations

import pytest

from lab.config.models import GPT
from lab.perfmodel.flops import gpt_parameters
from lab.perfmodel.layout import Layout
from lab.perfmodel.memory import FP32, rank_memory, state_memory, transformer_activations


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


def test_activations_of_gpt3_as_published() -> None:
    """Korthikanti et al. (2022): a layer keeps s b h (34 + 5 a s / h) bytes, of which 5 a s / h =
    80 for GPT-3.
    """
    gpt3 = {"batch": 1, "sequence": 2048, "width": 12288, "heads": 96, "layers": 1}
    unit = 2048 * 12288
    assert transformer_activations(**gpt3) == unit * (34 + 80)
    assert transformer_activations(**gpt3, tensor=8) == unit * (10 + 24 / 8 + 80 / 8)
    assert transformer_activations(**gpt3, checkpointing="selective") == unit * 34
    assert transformer_activations(**gpt3, checkpointing="full") == unit * 2


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
