"""Quantized copies: near the base in their logits, smaller, and missing with a reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lab.config.models import GPT as Config
from lab.config.run import Run
from lab.worker.context import silent
from lab.worker.data.dataset import Batch
from lab.worker.inference.main import time_classification
from lab.worker.inference.quantize import (
    UnavailableError,
    bytes_in_memory,
    bytes_on_disk,
    cached_error,
    compare_classifiers,
    output_errors,
    quantize,
)
from lab.worker.models.classifier import Classifier
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


def test_an_error_behind_a_full_cache_is_seen(model: GPT) -> None:
    prompts = torch.randint(300, (2, 9), generator=torch.Generator().manual_seed(0))
    other = quantize(model, "int8_dynamic").model
    assert isinstance(other, GPT)
    assert cached_error((model, model), prompts) == 0.0
    assert 0.0 < cached_error((model, other), prompts) < 0.05


CPU = torch.device("cpu")


class Made(Classifier):
    """Answers sample number i with the i-th row of made logits."""

    def __init__(self, classes: list[int], *, scale: float = 1.0) -> None:
        super().__init__()
        self.rows = scale * torch.nn.functional.one_hot(torch.tensor(classes), 3).float()

    def logits(self, inputs: Tensor) -> Tensor:
        return self.rows[inputs]


TARGETS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
BASE = Made([0, 1, 2, 0, 1, 2, 0, 1, 0, 1])  # 8 of 10 right
OTHER = Made(
    [0, 1, 2, 0, 1, 0, 1, 1, 2, 1]
)  # 7 of 10: two more wrong, one more right; 7 as the base's
BATCHES = [
    Batch(torch.arange(10)[part], TARGETS[part])
    for part in (slice(0, 4), slice(4, 8), slice(8, 10))
]


def test_accuracies_and_their_paired_change() -> None:
    fields = compare_classifiers((BASE, OTHER), BATCHES, device=CPU)
    assert (fields["held_out_samples"], fields["base_accuracy"], fields["accuracy"]) == (
        10,
        0.8,
        0.7,
    )
    assert fields["accuracy_change"].value == pytest.approx(-0.1) and fields[
        "same_classes"
    ].value == pytest.approx(0.7)
    # Ten draws with chances 0.2 for -1 and 0.1 for +1: mean -0.1, its deviation sqrt(0.29 / 10).
    assert fields["accuracy_change"].low == pytest.approx(-0.1 - 1.96 * 0.17, abs=0.08)
    assert fields["accuracy_change"].high == pytest.approx(-0.1 + 1.96 * 0.17, abs=0.08)


def test_pairs_are_kept_together() -> None:
    fields = compare_classifiers((BASE, BASE), BATCHES, device=CPU)
    assert (
        fields["accuracy_change"].value,
        fields["accuracy_change"].low,
        fields["accuracy_change"].high,
    ) == (0.0, 0.0, 0.0)
    assert fields["same_classes"].value == 1.0 and fields["accuracy"] == 0.8


def test_errors_of_a_classifiers_logits_by_shape() -> None:
    scaled = Made([0, 1, 2, 0, 1, 2, 0, 1, 0, 1], scale=1.1)
    errors = output_errors((BASE, scaled), [torch.arange(4), torch.arange(2)])
    assert errors == {"4": pytest.approx(0.1), "2": pytest.approx(0.1)}


def test_both_classifiers_are_timed_at_every_batch_size() -> None:
    batches = {1: torch.arange(1), 4: torch.arange(4)}
    run = Run(task="inference", model="gpt-nano", global_batch_size=4, rounds=5)
    points = time_classification((BASE, OTHER), batches, run, silent)
    assert [point.batch_size for point in points] == [1, 4]
    for point in points:
        assert point.ratio.interval is not None and point.base.median > 0
        assert point.samples_per_second == pytest.approx(point.batch_size / point.quantized.median)
