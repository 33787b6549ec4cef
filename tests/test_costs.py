from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lab.analysis.costs import gpt_flops_per_token, gpt_parameters
from lab.worker.models.gpt import GPT
from lab.workloads import GPT as Config
from lab.workloads import MODELS


def test_gpt2_small_has_the_published_number_of_parameters() -> None:
    assert gpt_parameters(MODELS["gpt2-small"], 4096) == 124_439_808


def test_flops_of_gpt2_small_by_hand() -> None:
    assert gpt_flops_per_token(MODELS["gpt2-small"], 50257) == 6 * (124_439_808 - 1024 * 768) + 12 * 12 * 1024 * 768


def test_the_vocabulary_of_the_data_counts_where_the_model_names_none() -> None:
    config = MODELS["gpt-nano"]
    assert gpt_parameters(config, 4097) - gpt_parameters(config, 4096) == config.width


@pytest.mark.parametrize("name", list(MODELS))
def test_parameters_are_those_of_the_real_model(name: str) -> None:
    config = MODELS[name]
    with torch.device("meta"):
        model = GPT(config, vocab_size=config.vocab_size or 1000)
    assert gpt_parameters(config, 1000) == sum(parameter.numel() for parameter in model.parameters())


def test_flops_are_those_that_torch_counts_without_attention() -> None:
    # Head, embedding and blocks; attention is left tiny, since its backward pass computes the scores a second time.
    config = Config(layers=2, heads=2, width=128, block_size=8)
    model = GPT(config, vocab_size=512)
    tokens = torch.randint(512, (4, 8))
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    assert gpt_flops_per_token(config, 512) == pytest.approx(counter.get_total_flops() / tokens.numel(), rel=0.02)
