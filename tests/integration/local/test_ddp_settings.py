"""DDP's settings: each trains, learns alike and is measured; instruments change no loss."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_ranks
from studies import CORPUS

from lab.config.run import Run
from lab.records.schema import Communication
from lab.worker import calibrate, data, distributed
from lab.worker.context import Measurement, RankContext, silent
from lab.worker.distributed import (
    ClockOffset,
    RankJob,
    process_group,
    read_clock_offset,
)
from lab.worker.selftest import CONTROL, PLAIN, PlainDdpLoop, compare, measure_all

FP32_TOLERANCE = 2e-4  # sums in another order, over eight steps of AdamW
# Relative, on the whole loss curve. 16 bits round each gradient to 3 or 4 digits; rank 4 keeps the
# largest directions.
TOLERANCES = {"bf16": 2e-3, "fp16": 1e-3, "powersgd": 3e-2}
ONE_BUCKET = 100.0
AHEAD = 1234.5  # s, of a clock that is wrong on purpose

BASE: dict[str, Any] = {
    "model": {"kind": "gpt", "layers": 2, "heads": 2, "width": 32, "block_size": 32},
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
    "global_batch_size": 8,
    "world_size": 2,
    "steps": 8,
    "warmup_steps": 2,
    "lr_warmup_steps": 2,
    "eval_batches": 1,
}
RUNS: dict[str, dict[str, Any]] = {
    "none": {},
    "small buckets": {"bucket_cap_mb": 0.02},
    "own gradients": {"gradient_as_bucket_view": False},
    "static graph": {"static_graph": True},
    "bf16": {"compression": "bf16"},
    "fp16": {"compression": "fp16"},
    "powersgd": {"compression": "powersgd", "powersgd_rank": 4, "bucket_cap_mb": ONE_BUCKET},
    "bf16 alone": {"compression": "bf16", "world_size": 1},
    "powersgd in two buckets": {"compression": "powersgd"},
}


def run_all(rank: int, root: str) -> dict[str, Any]:
    calibrate.PEAK_BUDGET_S = 0.02
    # First, as the last of the runs ends with an error and leaves its group in disorder.
    overhead, reading = in_one_group(rank, root)
    runs = {name: Run.model_validate(BASE | changes) for name, changes in RUNS.items()}
    results = measure_all(rank, runs, device="cpu", root=Path(root))
    return {"overhead": overhead, "offset": reading, **results}


def in_one_group(rank: int, root: str) -> tuple[dict[str, Any] | None, ClockOffset]:
    """The plain loop against the instrumented one on the same steps; a clock of another host."""
    run = Run.model_validate(BASE)
    device = torch.device("cpu")
    dataset = data.prepare(run, data_root=Path(root), progress=silent)
    here = RankContext(rank, 2, rank, "cpu", (rank,), 1, "local", Path(root) / "address")
    with process_group(here, device=device):
        distributed.EXCHANGES = 40
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: f"host {rank}")
            reading = read_clock_offset(now=lambda: time.perf_counter() + AHEAD * rank)
        job = RankJob(run, here, device, dataset, silent)
        return compare(job, {name: PlainDdpLoop(job) for name in (PLAIN, CONTROL)}), reading


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = tmp_path_factory.mktemp("settings")
    (root / "corpus.txt").write_text(CORPUS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_CACHE", str(root / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        return on_ranks(2, run_all, str(root))


@pytest.fixture(scope="module")
def measured(answers: list[dict[str, Any]]) -> dict[str, Measurement]:
    return answers[0]


def communication(measured: dict[str, Measurement], name: str) -> Communication:
    traffic = measured[name].communication
    assert traffic is not None
    return traffic


@pytest.mark.parametrize("name", ["small buckets", "own gradients", "static graph"])
def test_settings_that_are_not_numeric_change_no_loss(
    measured: dict[str, Measurement], name: str
) -> None:
    assert measured[name].quality.loss == pytest.approx(
        measured["none"].quality.loss, rel=FP32_TOLERANCE
    )
    assert (
        communication(measured, name).bytes
        == communication(measured, "none").bytes
        == measured["none"].memory.parameters
    )


def test_the_cap_decides_how_many_buckets_are_sent(measured: dict[str, Measurement]) -> None:
    few, many = (communication(measured, name).buckets or [] for name in ("none", "small buckets"))
    assert len(few) == 1 and len(many) > 2
    assert sum(few) == sum(many)


@pytest.mark.parametrize("name", list(TOLERANCES))
def test_compression_learns_alike_within_its_tolerance(
    measured: dict[str, Measurement], name: str
) -> None:
    plain, compressed = measured["none"].quality.loss, measured[name].quality.loss
    assert compressed == pytest.approx(plain, rel=TOLERANCES[name])
    assert compressed != plain
    assert measured[name].checks["same_parameters"]


def test_compression_sends_fewer_bytes(measured: dict[str, Measurement]) -> None:
    whole = communication(measured, "none").bytes
    assert whole is not None
    assert (
        communication(measured, "bf16").bytes == communication(measured, "fp16").bytes == whole / 2
    )
    thin = communication(measured, "powersgd").bytes
    assert thin is not None and 0 < thin < 0.6 * whole


def test_one_rank_rounds_like_many_and_sends_nothing(measured: dict[str, Measurement]) -> None:
    alone = measured["bf16 alone"]
    assert alone.quality.loss == pytest.approx(
        measured["bf16"].quality.loss, rel=TOLERANCES["bf16"]
    )
    assert alone.quality.loss != pytest.approx(measured["none"].quality.loss, rel=1e-7)
    traffic = communication(measured, "bf16 alone")
    assert traffic.total is None and traffic.exposed is None and traffic.bytes is None


def test_powersgd_over_gloo_says_that_it_needs_one_bucket(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert "bucket_cap_mb" in str(answer["powersgd in two buckets"]) and "one bucket" in str(
            answer["powersgd in two buckets"]
        )


def test_instruments_change_no_loss(answers: list[dict[str, Any]]) -> None:
    overhead = answers[0]["overhead"]
    assert answers[1]["overhead"] is None
    assert overhead["largest_loss_difference"] < 1e-5
    assert overhead["rounds"] == BASE["steps"] - BASE["warmup_steps"] - 1
    for seconds in (overhead["wall"], overhead["cpu"]):
        assert set(seconds) == {"plain", "control", "instrumented"}
        assert {len(values) for values in seconds.values()} == {overhead["rounds"]}
    assert np.min(list(overhead["wall"].values())) > 0


def test_a_clock_on_another_host_is_set_right(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["offset"].offset == 0.0
    assert answers[1]["offset"].offset == pytest.approx(-AHEAD, abs=0.05)
