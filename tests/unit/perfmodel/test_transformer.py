"""Sizes of published models, counted and found by name."""

from __future__ import annotations

import pytest

from lab.config.models import GPT, MODELS
from lab.perfmodel.flops import gpt_flops_per_token
from lab.perfmodel.transformer import (
    Transformer,
    has_experts,
    named,
    of_parameters,
    other_kind,
    size,
)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Llama-2-7b", 6.74),
        ("meta-llama/Llama-3.1-8B", 8.03),
        ("LLAMA3_70B", 70.6),
        ("LLAMA3.1_405B", 405.9),
        ("Mixtral 8x7B", 46.7),
        ("mixtral-8x22b", 140.6),
        ("Qwen3_30B_a3B", 30.5),
        ("Qwen3-235B-A22B", 235.1),
        ("Qwen3 8B", 8.19),
        ("Qwen3 32B", 32.8),
        ("GPT OSS 120B", 116.8),
        ("DeepSeek V3 671B", 671.0),
        ("Kimi K2", 1026.0),
        ("Qwen2.5-7B", 7.62),
        ("Qwen2.5 72B", 72.7),
        ("CodeLlama-34b", 33.7),
        ("Mixtral 8×22B", 140.6),
        ("openai/gpt-oss-20b", 20.9),
        ("GPT-3 175B", 175.0),
        ("Llama 3.2 1B", 1.236),
        ("llama3.2-3b", 3.21),
        ("LLaMA 33B", 32.5),  # not the 3B of Llama 3
        ("llama-30b", 32.5),
        ("deepseek3-671b", 671.0),
        ("DeepSeek-V2", 235.7),
        ("DeepSeek-V2-Lite 16B", 15.7),
        ("Moonlight-16B-A3B", 15.96),
        ("LLAMA4-Scout-LLM", 107.8),
        ("Llama 4 Maverick 400B", 400.7),
        ("Qwen3-Coder-480B-A35B", 480.0),
        ("Qwen2-57B-A14B", 57.4),
        ("Qwen1.5-MoE-A2.7B", 14.3),
        ("GLM-4.5-Air", 106.9),
        ("GLM-4.6", 352.8),
        ("allenai/OLMoE-1B-7B", 6.92),
        ("DBRX 132B", 131.6),
        ("Phi-3.5-MoE", 41.9),
        ("Grok-1", 314.0),
        ("Qwen3-4B", 4.02),
        ("Qwen3 1.7B", 1.72),
        ("Qwen3-0.6B", 0.596),
        ("Qwen2-72B", 72.7),
        ("Qwen2.5 3B", 3.09),
        ("Qwen2.5-1.5B", 1.54),
        ("Qwen2.5-0.5B", 0.494),
        ("gemma-2-27b", 27.2),
        ("gemma-2-9b", 9.24),
        ("Yi-34B", 34.4),
        ("baichuan2_13b", 13.9),
        ("Phi-3-mini", 3.82),
        ("Mistral-Nemo-12B", 12.25),
        ("Mistral Small 24B", 23.6),
        ("Mistral-Large-123B", 122.6),
        ("GPT-NeoX-20B", 20.55),
        ("BLOOM 176B", 176.2),
        ("OPT-175B", 175.0),
    ],
)
def test_published_models_have_the_parameters_that_they_are_known_by(
    name: str, billions: float
) -> None:
    model = named(name)
    assert model is not None and model.parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("words", ["Llama 28.7B", "llama3-14.8b", "Llama 170B", "Qwen3 1.8B"])
def test_a_size_is_not_the_end_of_another(words: str) -> None:
    assert named(words) is None


def test_a_gpt_has_the_flops_of_the_published_formula() -> None:
    gpt = MODELS["gpt2-small"]
    assert isinstance(gpt, GPT)
    model = Transformer.of(gpt, 0)
    # The formula counts biases and norms too.
    expected = gpt_flops_per_token(gpt, 0)
    assert model.flops_per_token(gpt.block_size) == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize(
    ("name", "teraflops", "tokens_per_s"),
    [
        ("DeepSeek V3 671B", 250, 1002),
        ("Kimi K2", 189, 924),
        ("GPT OSS 120B", 1077, 33024),
        ("Qwen3 30B-A3B", 277, 12040),
        ("Qwen3 235B-A22B", 1306, 8816),
    ],
)
def test_latent_and_windowed_attention_has_the_flops_that_nemo_counts(
    name: str, teraflops: float, tokens_per_s: float
) -> None:
    # Summaries of AutoModel and Megatron-Bridge: rates of a GPU with sequences of 4096 tokens.
    model = named(name)
    assert model is not None
    counted = model.flops_per_token(4096, masked=True)
    assert counted == pytest.approx(teraflops * 1e12 / tokens_per_s, rel=0.01)


def test_the_playbook_says_how_large_its_model_is() -> None:
    # 39.2 % of 989.5 TFLOP/s at 40,150 tokens/s of a GPU.
    model = named("1B", "benchmarks of nanotron")
    assert model is not None
    assert model.flops_per_token(4096) == pytest.approx(0.392 * 989.5e12 / 40150, rel=0.01)


def test_experts_cost_memory_but_only_the_active_ones_cost_time() -> None:
    mixtral, dense = named("mixtral-8x7b"), named("mistral-7b")
    assert mixtral and dense
    assert mixtral.block() > 7 * dense.block() * 0.8
    assert mixtral.layer_flops(1, 4096) < 2 * dense.layer_flops(1, 4096)


def test_grouped_queries_and_a_gate_change_a_block() -> None:
    plain = Transformer(layers=1, width=64, heads=8, hidden=256)
    assert plain.block() == 12 * 64**2
    grouped = Transformer(layers=1, width=64, heads=8, hidden=256, key_value_heads=2, gated=True)
    assert grouped.block() == 2 * 64**2 + 2 * 64 * 16 + 3 * 64 * 256


@pytest.mark.parametrize("count", [1.25e8, 3.5e8, 1.3e9, 7e9, 6.5e10, 1.75e11])
def test_a_number_of_parameters_makes_a_model_of_that_size(count: float) -> None:
    assert of_parameters(count).parameters == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize(
    ("text", "mixed"),
    [
        *(("our 30B-A3B", True), ("8x7B", True), ("MoE of 16B", True), ("DeepSeekV3", True)),
        *(("ibm/PowerMoE-3b", True), ("OLMoE-1B-7B", True), ("Qwen1.5-MoE-A2.7B", True)),
        *(
            ("Llama-3 8B", False),
            ("Moebius 7B", False),
            ("13B A100", False),
            ("1.3B, 2x8 GPUs", False),
        ),
    ],
)
def test_mixtures_of_experts_are_known_by_their_names(text: str, mixed: bool) -> None:
    assert has_experts(text) == mixed


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("7b", 7e9), ("some 1.3B model", 1.3e9), ("350M", 3.5e8), ("gpt", None)),
        *(
            ("llama7b", 7e9),
            ("Qwen1.5-MoE-A2.7B", None),
            ("llama2-7B在A100", 7e9),
            ("0B of 2", None),
        ),
    ],
)
def test_sizes_are_read_from_names(text: str, count: float | None) -> None:
    assert size(text) == count


@pytest.mark.parametrize(
    ("text", "kind"),
    [("CLIP ViT-L", "a vision model"), ("clip_grad 1.0", ""), ("gradient clip 1.0", "")],
)
def test_a_gradient_that_is_clipped_is_no_vision_model(text: str, kind: str) -> None:
    assert other_kind(text) == kind
