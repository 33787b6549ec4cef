from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from lab.config.models import GPT as Config
from lab.config.run import Run
from lab.errors import InputError
from lab.worker import models
from lab.worker.data.dataset import Dataset, Windows
from lab.worker.models.gpt import GPT

CONFIG = Config(layers=2, heads=2, width=32, block_size=16)


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG, vocab_size=300)


def tokens(samples: int = 3, length: int = 16) -> torch.Tensor:
    return torch.randint(300, (samples, length), generator=torch.Generator().manual_seed(1))


def test_an_untrained_model_knows_nothing(model: GPT) -> None:
    assert model(tokens(), tokens().roll(1)).item() == pytest.approx(math.log(300), rel=0.02)


def test_loss_is_the_cross_entropy_of_the_logits(model: GPT) -> None:
    targets = tokens().roll(1, dims=1)
    expected = functional.cross_entropy(model(tokens()).flatten(0, 1), targets.flatten())
    assert model(tokens(), targets).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("position", [1, 7, 15])
def test_no_position_sees_what_comes_after_it(model: GPT, position: int) -> None:
    changed = tokens()
    changed[:, position] = (changed[:, position] + 1) % 300
    before, after = model(tokens()), model(changed)
    assert torch.allclose(before[:, :position], after[:, :position], atol=1e-6)
    assert not torch.allclose(before[:, position:], after[:, position:], atol=1e-6)


def test_weights_start_as_in_gpt2() -> None:
    torch.manual_seed(0)
    block = GPT(Config(layers=8, heads=2, width=256, block_size=8), vocab_size=300).blocks[0]
    assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.attention.projection.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert block.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert block.up.bias.abs().max() == 0


def test_it_learns_a_batch_by_heart(model: GPT) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    targets = tokens().roll(-1, dims=1)
    for _ in range(40):
        loss = model(tokens(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.3


def test_a_model_vocabulary_that_is_too_small_is_refused() -> None:
    run = Run(model=CONFIG.model_copy(update={"vocab_size": 100}), global_batch_size=1)
    nothing = Windows(np.zeros(17, dtype=np.uint16), block_size=16)
    with pytest.raises(InputError, match=r"vocab_size.*100 is less than the 300"):
        models.build(run, Dataset(nothing, nothing, sha256="", description="", vocab_size=300))
