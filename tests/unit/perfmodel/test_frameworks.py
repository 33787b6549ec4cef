"""Frameworks: by which words they are known, and what they hold."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from lab.perfmodel.frameworks import (
    ANY,
    AUTOMODEL,
    FRAMEWORKS,
    MEGATRON_CORE,
    NANOTRON,
    NEMO,
    named_framework,
)
from lab.perfmodel.hardware import machine
from lab.perfmodel.layout import Candidate, Layout
from lab.perfmodel.layout_law import NAMES, expected
from lab.perfmodel.layout_terms import Case
from lab.perfmodel.transformer import named


def test_a_framework_is_known_by_its_name() -> None:
    assert named_framework("benchmarks of Nanotron, H100") is NANOTRON
    assert named_framework("Megatron-LM") is ANY
    for words in (
        "Megatron-LM on\nH100",
        "Megatron-LM, 2024",
        "MCore v0.9",
        "GB200, Megatron",
        "Megatron FP8",
        "mcore_bridge",
        "Primus on MI300X",
        "`cu` is `turbo_deepep_num_cu`, on 8x MI355X",
        "MoEFlexTokenDispatcher",
    ):
        assert named_framework(words) is MEGATRON_CORE
    assert named_framework("NeMo on Megatron-Core, H100") is NEMO
    assert named_framework("NVIDIA-NeMo+Automodel") is AUTOMODEL
    assert named_framework("llama3_h100_202412_torchtitan").sequence_parallel
    law = expected("h100", NANOTRON)
    assert law.coefficients["crossing"] == NANOTRON.coefficients["crossing"][0]
    assert set(NANOTRON.coefficients) <= set(NAMES)


def test_a_framework_holds_less_than_others() -> None:
    llama = named("llama3 70b")
    assert llama is not None
    place = machine("h100x8:nvlink4:infiniband-ndr")
    layout = Layout("zero1", 2, 4, 4, llama.layers, context=2, interleave=5, sequence_parallel=True)
    one = Case(llama, 8192, Candidate(layout, 1, 64, precision="fp8"), place)
    nemo = replace(one, framework=NEMO)
    assert nemo.fits and not one.fits
    assert not replace(nemo, candidate=replace(nemo.candidate, micro_batch=4)).fits
    # AutoModel's recipes train bf16 weights without masters.
    state = replace(nemo, candidate=Candidate(Layout("fsdp", 64), 1), framework=AUTOMODEL).memory()
    assert state.weights + state.gradients + state.optimizer == pytest.approx(
        8 * llama.parameters / 64
    )
    # FSDP's activations go to the host only where it is a Grace.
    sharded = Candidate(Layout("fsdp", 64, layers=llama.layers), 2)
    cases = [Case(llama, 8192, sharded, machine(gpu), framework=NEMO) for gpu in ("b200", "gb200")]
    whole, halved = (case.memory().activations for case in cases)
    assert halved < 0.55 * whole


def test_patterns_read_a_page_from_its_start_only() -> None:
    # A search begins at each place of a text, so that `.*` from there took time by its square.
    for framework in FRAMEWORKS:
        for choice in re.split(r"\|(?![^()]*\))", framework.pattern):
            assert not re.match(r"\(\?=\.\*|\.\*", choice), (framework.name, choice)
    words = "release notes of a library; " * 50
    assert named_framework(f"Megatron-LM, {words} 2021").counts_recomputed
    assert named_framework(f"{words} H100, {words} Megatron") is MEGATRON_CORE
