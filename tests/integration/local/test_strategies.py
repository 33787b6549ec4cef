"""Every strategy learns what `single` learns, and reports its communication in the same fields."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ranks import on_ranks
from studies import CORPUS

import lab
from lab.config.run import Run
from lab.errors import InputError
from lab.launch import bench
from lab.records.schema import Communication
from lab.records.store import Record
from lab.worker import calibrate
from lab.worker.context import Measurement
from lab.worker.selftest import measure_all

BASE: dict[str, Any] = bench.BASE | {
    "model": {"kind": "gpt", "layers": 2, "heads": 2, "width": 32, "block_size": 32},
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
}
# The middle one of three stages has no embedding or head; a hybrid needs two copies on two ranks.
WIDER: dict[str, dict[str, Any]] = {
    "fsdp 4 hybrid": {"strategy": "fsdp", "world_size": 4, "shard_size": 2},
    "pipeline_parallel 3": {
        "strategy": "pipeline_parallel",
        "world_size": 3,
        "model": BASE["model"] | {"layers": 3},
        "global_batch_size": 6,
    },
    "single of 3 layers": {
        "strategy": "single",
        "model": BASE["model"] | {"layers": 3},
        "global_batch_size": 6,
    },
}
RUNS = {
    name: Run.model_validate(BASE | changes) for name, changes in (bench.cases() | WIDER).items()
}
NOT_ON_CPU = "data_parallel 2"
TWO = [
    f"{name} 2"
    for name in ("naive_ddp", "ddp", "zero1", "fsdp", "tensor_parallel", "pipeline_parallel")
]
DDP_BYTES = 4 * 36_096  # fp32 parameters of this GPT


def run_all(rank: int, root: str) -> dict[str, Any]:
    calibrate.PEAK_BUDGET_S = 0.02
    return dict(measure_all(rank, RUNS, device="cpu", root=Path(root)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strategies")
    (folder / "corpus.txt").write_text(CORPUS)
    return folder


@pytest.fixture(scope="module")
def answers(root: Path) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_CACHE", str(root / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONWARNINGS", "error::FutureWarning")  # as torch warns of old names
        return on_ranks(4, run_all, str(root))


@pytest.fixture(scope="module")
def measured(answers: list[dict[str, Any]]) -> dict[str, Measurement]:
    assert all(value is None for answer in answers[1:] for value in answer.values())
    return answers[0]


def communication(measured: dict[str, Measurement], name: str) -> Communication:
    traffic = measured[name].communication
    assert traffic is not None
    return traffic


@pytest.mark.parametrize("name", [name for name in RUNS if name != NOT_ON_CPU])
def test_the_losses_are_those_of_single(measured: dict[str, Measurement], name: str) -> None:
    quality = measured[name].quality
    single = measured["single of 3 layers" if name == "pipeline_parallel 3" else "single"].quality
    if name == "single of 3 layers":
        return
    tolerance = bench.TOLERANCES[RUNS[name].precision]
    assert quality.loss == pytest.approx(single.loss, rel=tolerance)
    assert quality.validation_loss == pytest.approx(single.validation_loss, rel=tolerance)
    assert measured[name].checks["same_parameters"]


def test_the_norms_that_clip_are_those_of_the_whole_model(
    measured: dict[str, Measurement], root: Path
) -> None:
    def norms(name: str) -> list[float]:
        table = pd.read_parquet(root / name / "steps.parquet")
        assert (
            table.groupby("step")["grad_norm"]
            .apply(lambda step_norms: step_norms.max() / step_norms.min() < 1 + 1e-6)
            .all()
        )
        return [float(value) for value in table.groupby("step")["grad_norm"].first()]

    for name in TWO:
        assert norms(name) == pytest.approx(norms("single"), rel=1e-3)
    assert min(norms("single")[:4]) > BASE["grad_clip"]


def test_torchs_data_parallel_says_that_it_needs_gpus(answers: list[dict[str, Any]]) -> None:
    assert isinstance(answers[0][NOT_ON_CPU], InputError)
    assert "divides its work only among GPUs" in str(answers[0][NOT_ON_CPU])


@pytest.mark.parametrize("name", TWO)
def test_communication_is_told_in_the_same_words(
    measured: dict[str, Measurement], root: Path, name: str
) -> None:
    traffic = communication(measured, name)
    assert (
        traffic.bytes
        and traffic.bytes_moved
        and traffic.calls == sum(part.calls for part in traffic.operations.values())
    )
    assert traffic.exposed is not None and traffic.exposed.median > 0
    assert (
        set(traffic.exposed_in) <= {"forward", "backward", "optimizer"}
        and max(traffic.exposed_in.values()) > 0
    )
    if name == "pipeline_parallel 2":  # when a message over gloo has arrived is not known
        assert traffic.total is None and traffic.straggler is None and traffic.overlap is None
    else:
        assert traffic.total is not None and traffic.total.median >= traffic.exposed.median * 0.999
        assert traffic.straggler is not None
    file = root / name / ("buckets.parquet" if name == "ddp 2" else "calls.parquet")
    table = pd.read_parquet(file)
    assert set(table["rank"]) == {0, 1} and set(table["step"]) == set(range(BASE["steps"]))
    assert {event.rank for event in traffic.timeline} == {0, 1}
    assert any(event.bytes for event in traffic.timeline)


def padded(size: int) -> Any:
    """Shares of equal size hold up to some per cent more than the parameters."""
    return pytest.approx(size, rel=0.02)


OPERATIONS: dict[str, dict[str, tuple[Callable[[int], bool], Any]]] = {
    "naive_ddp 2": {"all_reduce": (lambda calls: calls == 28, DDP_BYTES)},
    "naive_ddp 2 flat": {"all_reduce": (lambda calls: calls == 1, DDP_BYTES)},
    "ddp 2": {"all_reduce": (lambda calls: calls >= 1, DDP_BYTES)},
    "zero1 2": {
        "reduce_scatter": (lambda calls: calls == 2, padded(DDP_BYTES)),
        "all_gather": (lambda calls: calls == 2, padded(DDP_BYTES)),
        "all_reduce": (lambda calls: calls == 1, 4),  # the norm
    },
    # Two blocks and the rest are gathered, the blocks once more in the backward pass.
    "fsdp 2": {
        "all_gather": (lambda calls: calls == 5, None),
        "reduce_scatter": (lambda calls: calls == 3, padded(DDP_BYTES)),
        "all_reduce": (lambda calls: calls == 1, 4),
    },
    "fsdp 2 not resharded": {
        "all_gather": (lambda calls: calls == 3, padded(DDP_BYTES)),
        "reduce_scatter": (lambda calls: calls == 3, padded(DDP_BYTES)),
        "all_reduce": (lambda calls: calls == 1, 4),
    },
    # Activations of 8 x 32 tokens x width 32, after each pair of layers in two blocks, forward and
    # backward; the norm.
    "tensor_parallel 2": {"all_reduce": (lambda calls: calls == 9, 8 * (8 * 32 * 32 * 4) + 4)},
    # One message per microbatch and direction; the tied matrix and the norm.
    "pipeline_parallel 2": {
        "send": (lambda calls: calls == 2, 8 * 32 * 32 * 4),
        "receive": (lambda calls: calls == 2, 8 * 32 * 32 * 4),
        "all_reduce": (lambda calls: calls == 2, 300 * 32 * 4 + 4),
    },
    "vanilla_data_parallel 2": {
        "replicate": (lambda calls: calls == 1, DDP_BYTES),
        "scatter": (lambda calls: calls == 1, 2 * 4 * 32 * 8),
        "gather": (lambda calls: calls == 1, 4),
        "reduce": (lambda calls: calls == 1, DDP_BYTES),
    },
}


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_what_is_sent_is_what_the_textbook_says(
    measured: dict[str, Measurement], name: str
) -> None:
    operations = communication(measured, name).operations
    assert set(operations) == set(OPERATIONS[name])
    for operation, (calls, size) in OPERATIONS[name].items():
        assert calls(operations[operation].calls), (operation, operations[operation])
        assert size is None or operations[operation].bytes == size


def test_sharing_out_what_is_kept_divides_the_memory(measured: dict[str, Measurement]) -> None:
    whole = measured["ddp 2"].memory
    assert whole.parameters == DDP_BYTES and whole.optimizer == pytest.approx(
        2 * DDP_BYTES, rel=0.01
    )
    assert measured["zero1 2"].memory.parameters == whole.parameters
    assert measured["zero1 2"].memory.optimizer == pytest.approx(whole.optimizer / 2, rel=0.01)
    for name in ("parameters", "optimizer"):
        assert getattr(measured["fsdp 2"].memory, name) == pytest.approx(
            getattr(whole, name) / 2, rel=0.02
        )
        assert getattr(measured["tensor_parallel 2"].memory, name) < 0.7 * getattr(whole, name)
        assert getattr(measured["pipeline_parallel 2"].memory, name) < 0.7 * getattr(whole, name)
    assert {
        measurement.environment.parameters for name, measurement in measured.items() if name in TWO
    } == {DDP_BYTES // 4}


def test_one_rank_sends_nothing(measured: dict[str, Measurement]) -> None:
    for name in RUNS:
        if name.endswith(" 1") and name != "ddp 1":
            assert measured[name].communication is None


def test_a_pass_is_compared_with_one_that_sends_nothing_only_where_that_is_possible(
    measured: dict[str, Measurement],
) -> None:
    assert {name for name in TWO if communication(measured, name).sync_cost} == {"ddp 2"}


@pytest.mark.parametrize("name", [*TWO, "vanilla_data_parallel 2"])
def test_the_audit_finds_no_error_in_a_healthy_run(
    measured: dict[str, Measurement], name: str
) -> None:
    measurement = measured[name]
    run = RUNS[name]
    record = Record(
        run_id=run.id,
        repeat=0,
        run=run,
        status="completed",
        finished_at="2025-01-01T00:01:00+00:00",
        **vars(measurement),
    )
    # What other load on this machine does to these tiny steps is no fault of the strategy.
    noisy = {"rank-imbalance", "data-stall", "phases-close"}
    assert {
        finding.rule for finding in lab.audit([record]).findings if finding.severity == "error"
    } <= noisy
