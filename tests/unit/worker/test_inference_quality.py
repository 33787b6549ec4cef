"""Agreement of two classifiers with known answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lab.worker.data.loader import Batch
from lab.worker.inference.latency import time_classification
from lab.worker.inference.quality import compare_classifiers, output_errors
from lab.worker.models.classifier import Classifier

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
    points = time_classification((BASE, OTHER), batches, rounds=5, progress=lambda *_: None)
    assert [point.batch_size for point in points] == [1, 4]
    for point in points:
        assert point.ratio.interval is not None and point.base.median > 0
        assert point.samples_per_second == pytest.approx(point.batch_size / point.quantized.median)
