"""Every kind of model on every kind of data that needs no network, through the one loop on real process groups."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pretrained_folders
import pytest
from ranks import on_ranks

from lab.analysis.audit import apply_rules
from lab.analysis.audit.records import from_records
from lab.config.run import Run
from lab.records.store import Record
from lab.worker import calibrate
from lab.worker.context import Measurement
from lab.worker.selftest import measure_all

# Sums in another order round differently; the optimizer lets the difference grow.
TOLERANCE = 5e-4
# Without dropout and with batch norm frozen: only then does a sample's loss not depend on who else is in its micro-batch.
CNNS: dict[str, dict[str, Any]] = {
    "resnet18": {"image_size": 32, "batch_norm": "frozen"},
    "vgg16": {"image_size": 32, "trainable": "head", "dropout": 0.0},
    "squeezenet1_0": {"image_size": 32, "dropout": 0.0},
    "densenet121": {"image_size": 32, "batch_norm": "frozen", "trainable": 0.3},
    "alexnet": {"image_size": 63, "trainable": "head", "dropout": 0.0},
}
SMALL_TEXT = {"kind": "synthetic", "samples": 200, "vocab_size": 300, "classes": 4}
CLASSIFIER = {"kind": "text-classifier", "layers": 1, "heads": 2, "width": 32, "block_size": 16}
WORKLOADS: dict[str, dict[str, Any]] = {
    "text": {"model": CLASSIFIER, "data": SMALL_TEXT},
    "gpt": {
        "model": {"kind": "gpt", "layers": 1, "heads": 2, "width": 32, "block_size": 16},
        "data": SMALL_TEXT,
    },
    **{
        name: {"model": {"kind": "cnn", "network": name, **changes}, "data": "digits"}
        for name, changes in CNNS.items()
    },
    "distilbert": {"data": SMALL_TEXT},
    "gpt2 weights": {"data": SMALL_TEXT},
}
BASE = {
    "global_batch_size": 4,
    "steps": 3,
    "warmup_steps": 1,
    "eval_batches": 2,
    "lr_warmup_steps": 0,
    "learning_rate": 1e-3,
}
WAYS: dict[str, dict[str, Any]] = {
    "single": {"strategy": "single"},
    "ddp 1": {"world_size": 1},
    "ddp 2": {"world_size": 2},
}
# The large ones take seconds to build, and VGG16 half a gigabyte to broadcast.
SKIPPED = {(name, "ddp 1") for name in ("vgg16", "alexnet", "densenet121", "squeezenet1_0")} | {
    ("vgg16", "ddp 2")
}
MORE: dict[str, dict[str, Any]] = {
    "batch norm": {
        "model": {"kind": "cnn", "network": "resnet18", "image_size": 32},
        "data": "digits",
        "world_size": 2,
    },
    "classic": {
        "model": CLASSIFIER,
        "data": "topics",
        "strategy": "single",
        "loader": "classic",
        "loader_workers": 3,
    },
    "classic in process": {
        "model": CLASSIFIER,
        "data": "topics",
        "world_size": 2,
        "loader": "classic",
        "grad_accum": 2,
    },
    "fast": {"model": CLASSIFIER, "data": "topics", "strategy": "single"},
}


def runs(root: Path) -> dict[str, Run]:
    """Every workload in every way; the pretrained ones with the weights below `root`."""
    contents = {name: dict(content) for name, content in WORKLOADS.items()}
    contents["distilbert"]["model"] = pretrained_folders.distilbert_config(
        root / "encoder", block_size=16
    )
    contents["gpt2 weights"]["model"] = pretrained_folders.gpt2_config(root / "gpt2", positions=16)
    ways = itertools.product(contents.items(), WAYS.items())
    whole = {
        f"{name} {way}": content | changes
        for (name, content), (way, changes) in ways
        if (name, way) not in SKIPPED
    }
    return {name: Run.model_validate(BASE | content) for name, content in (whole | MORE).items()}


def run_all(rank: int, root: str) -> dict[str, Any]:
    calibrate.PEAK_BUDGET_S = 0.02
    return dict(measure_all(rank, runs(Path(root)), device="cpu", root=Path(root)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    pretrained_folders.distilbert(folder / "encoder", block_size=16)
    pretrained_folders.gpt2(folder / "gpt2", positions=16)
    return folder


@pytest.fixture(scope="module")
def measured(root: Path) -> dict[str, Measurement]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_CACHE", str(root / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        answers = on_ranks(2, run_all, str(root))
    return {name: value for name, value in answers[0].items() if value is not None}


@pytest.mark.parametrize(
    ("name", "way"),
    [pair for pair in itertools.product(WORKLOADS, ("ddp 1", "ddp 2")) if pair not in SKIPPED],
)
def test_the_same_learning_however_the_batch_is_split(
    measured: dict[str, Measurement], name: str, way: str
) -> None:
    alone, split_quality = measured[f"{name} single"].quality, measured[f"{name} {way}"].quality
    assert split_quality.depends_on_split is None
    assert split_quality.loss == pytest.approx(alone.loss, rel=TOLERANCE)
    assert split_quality.validation_loss == pytest.approx(alone.validation_loss, rel=TOLERANCE)
    assert split_quality.accuracy == alone.accuracy


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_what_is_measured_is_whole(measured: dict[str, Measurement], root: Path, name: str) -> None:
    way = "single" if (name, "ddp 2") in SKIPPED else "ddp 2"
    measurement, run = measured[f"{name} {way}"], runs(root)[f"{name} {way}"]
    language, images = name in {"gpt", "gpt2 weights"}, name in CNNS
    assert (measurement.quality.accuracy is None) == language
    assert (measurement.timing.tokens_per_second is None) == images
    assert measurement.timing.samples_per_second == pytest.approx(
        4 / measurement.timing.step.median
    )
    assert measurement.timing.flops_per_second > 0 and 0 < (measurement.timing.mfu or 0) < 1
    assert measurement.checks["same_parameters"]
    if way == "ddp 2":
        assert measurement.communication is not None
        # A frozen parameter is neither counted nor sent.
        assert measurement.communication.bytes == 4 * (measurement.environment.parameters or 0)
    everything = measurement.memory.parameters == 4 * (measurement.environment.parameters or 0)
    assert everything == (getattr(run.architecture, "trainable", "all") == "all")


def test_batch_norm_is_said_to_depend_on_the_split(measured: dict[str, Measurement]) -> None:
    measurement = measured["batch norm"]
    assert (
        measurement.quality.depends_on_split
        == "batch norm takes its statistics from each rank's micro-batch"
    )
    assert np.isfinite(measurement.quality.loss).all() and math.isfinite(
        measurement.quality.validation_loss or math.nan
    )
    assert measurement.checks["same_parameters"]


def test_both_loaders_give_the_same_samples_in_the_same_order(
    measured: dict[str, Measurement],
) -> None:
    assert measured["classic"].quality == measured["fast"].quality
    assert measured["classic in process"].quality.loss == pytest.approx(
        measured["fast"].quality.loss, rel=TOLERANCE
    )
    assert measured["classic"].environment.data_sha256 == measured["fast"].environment.data_sha256


def test_the_audit_finds_more_loader_processes_than_cores(
    measured: dict[str, Measurement], root: Path
) -> None:
    records = []
    for name in ("classic", "fast"):
        run = runs(root)[name]
        times = {
            "started_at": "2025-01-01T00:00:00+00:00",
            "finished_at": "2025-01-01T00:01:00+00:00",
        }
        parts = {
            field: getattr(measured[name], field) for field in Measurement.__dataclass_fields__
        }
        records.append(
            Record(run_id=run.id, repeat=0, run=run, status="completed", **times, **parts)
        )
    stalls = [
        finding
        for finding in apply_rules(from_records(records)).findings
        if finding.rule == "data-stall"
    ]
    crowded = [
        finding
        for finding in stalls
        if "Loader processes outnumber the CPUs (3 on 1, 3 for each of 1 rank)" in finding.evidence
    ]
    assert [finding.records for finding in crowded] == [(f"{records[0].run_id}/0",)]
