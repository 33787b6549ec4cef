"""Quantized copies: near the base in their logits, smaller, and missing with a reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lab.config.models import GPT as Config
from lab.worker.inference.generate import generate
from lab.worker.inference.quality import cached_error
from lab.worker.inference.quantize import (
    UnavailableError,
    bytes_in_memory,
    bytes_on_disk,
    compile_alike,
    quantize,
)
from lab.worker.models.gpt import GPT


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(Config(layers=2, heads=2, width=64, block_size=32), vocab_size=300).eval()


# Bytes of a linear layer's weight (int4 with a scale and a zero point per 32), and how far logits
# may be from fp32.
WAYS = {
    "none": (4.0, 0.0),
    "bf16": (2.0, 0.02),
    "int8_dynamic": (1.0, 0.05),
    "int8_weight_only": (1.0, 0.03),
    "int4_weight_only": (0.5 + 4 / 32, 0.2),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_quantized_model_is_smaller_and_says_much_the_same(model: GPT, name: str) -> None:
    before = {key: value.clone() for key, value in model.state_dict().items()}
    copy = quantize(model, name)
    tokens = torch.randint(300, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        base, logits = model(tokens), copy.model(tokens).float()
    per_weight, tolerance = WAYS[name]
    assert (logits - base).norm() <= tolerance * base.norm()
    assert copy.seconds > 0 and copy.method
    linear = 2 * 12 * 64**2
    others = (300 + 32) * 64 * (4 if name in {"none", "int8_dynamic"} else 2)
    assert bytes_in_memory(copy.model) == pytest.approx(others + linear * per_weight, rel=0.1)
    assert bytes_on_disk(copy.model) == pytest.approx(bytes_in_memory(copy.model), rel=0.3)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_layers_that_cannot_be_quantized_stay_and_are_counted() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.Flatten(), nn.Linear(32 * 4, 32), nn.Linear(32, 10)
    ).eval()
    assert quantize(network, "int8_dynamic").method.endswith(
        "2 of 2 linear layers, 0 of 1 convolutions"
    )
    assert quantize(network, "int4_weight_only").method.endswith(
        "1 of 2 linear layers, 0 of 1 convolutions"
    )
    with pytest.raises(UnavailableError, match="none of the model's layers"):
        quantize(network[:1], "int8_weight_only")


@pytest.mark.skipif(torch.cuda.is_available(), reason="fp8 may be there")
def test_what_is_not_there_has_a_reason(model: GPT) -> None:
    with pytest.raises(UnavailableError, match="fp8 matrix products need a GPU"):
        quantize(model, "fp8")


@pytest.mark.parametrize("name", ["none", "int8_weight_only"])
def test_compiled_blocks_generate_the_same_with_few_graphs(model: GPT, name: str) -> None:
    copy = quantize(model, name).model
    assert isinstance(copy, GPT)
    prompts = torch.randint(300, (3, 9), generator=torch.Generator().manual_seed(0))

    def results() -> list[torch.Tensor]:
        tokens = [generate(copy, part, new_tokens=4) for part in (prompts, prompts[:1, :5])]
        with torch.inference_mode():
            return [*tokens, copy(prompts), copy(prompts[:, :1]), copy(prompts[:1, :1])]

    expected = results()
    torch._dynamo.utils.counters.clear()
    compile_alike(copy, backend="eager")
    for output, right in zip(results(), expected, strict=True):
        assert torch.equal(output, right)
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] <= 12


def test_an_error_behind_a_full_cache_is_seen(model: GPT) -> None:
    prompts = torch.randint(300, (2, 9), generator=torch.Generator().manual_seed(0))
    other = quantize(model, "int8_dynamic").model
    assert isinstance(other, GPT)
    assert cached_error((model, model), prompts) == 0.0
    assert 0.0 < cached_error((model, other), prompts) < 0.05
