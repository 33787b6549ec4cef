"""Whole jobs on one GPU, and two ranks that share it; what a CPU proves of these is in tests/integration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from ranks import on_ranks
from studies import StudyMaker

import lab
from lab.config.run import Run
from lab.launch.calibrate import calibrate as calibrate_cluster
from lab.worker import calibrate
from lab.worker.context import RankContext
from lab.worker.main import measure
from lab.worker.measure.clock import WAITING_MARKS, CudaClock

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")
QUICKSTART = Path(__file__).parents[2] / "reports/quickstart/study.yaml"
SYNTHETIC = {"kind": "synthetic", "samples": 512, "vocab_size": 512}
BASE: dict[str, Any] = {
    "model": {"kind": "gpt", "layers": 2, "heads": 4, "width": 128, "block_size": 64},
    "data": SYNTHETIC,
    "strategy": "single",
    "global_batch_size": 8,
    "steps": 8,
    "warmup_steps": 2,
    "lr_warmup_steps": 2,
    "eval_batches": 1,
}
SHARED = ("ddp", "naive_ddp", "zero1", "fsdp", "tensor_parallel")


def quiet(*report: object) -> None:
    pass


def on_one_gpu(rank: int, root: str) -> dict[str, list[float]]:
    """Losses by strategy on two ranks of one GPU, which NCCL refuses and gloo does not."""
    calibrate.PEAK_BUDGET_S = 0.02
    losses = {}
    for name in ("single", *SHARED):
        size = 1 if name == "single" else 2
        if rank >= size:
            continue
        run = Run.model_validate(BASE | {"strategy": name, "world_size": size})
        folder = Path(root) / name
        folder.mkdir(exist_ok=True)
        context = RankContext(
            *(rank, size, rank, "cuda", (rank,), 1, "local", folder / "address"),
            timeout_s=40.0,
            backend="gloo",
        )
        measured = measure(run, context, data_root=Path(root), folder=folder, progress=quiet)
        if measured is not None and measured.quality is not None:
            losses[name] = measured.quality.loss
            assert measured.communication is None or measured.communication.total is None
    return losses


@pytest.mark.timeout(120)
def test_two_ranks_on_one_gpu_learn_what_one_does(tmp_path: Path) -> None:
    losses, _ = on_ranks(2, on_one_gpu, str(tmp_path))
    for name in SHARED:
        assert np.abs(np.array(losses[name]) / losses["single"] - 1).max() <= 2e-4, name


WAITED = {
    "fsdp": {"strategy": "fsdp", "precision": "bf16"},
    "gpipe": {"strategy": "pipeline_parallel"},
    "1f1b": {"strategy": "pipeline_parallel", "schedule": "1f1b", "microbatches": 4},
}


def over_nccl(rank: int, root: str) -> dict[str, list[float]]:
    """Exposed communication and the step of two ranks on two GPUs, in s."""
    calibrate.PEAK_BUDGET_S = 0.02
    seconds = {}
    for name, changes in WAITED.items():
        run = Run.model_validate(BASE | {"world_size": 2} | changes)
        folder = Path(root) / name
        folder.mkdir(exist_ok=True)
        context = RankContext(
            *(rank, 2, rank, "cuda", (rank,), 1, "local", folder / "address"), timeout_s=40.0
        )
        measured = measure(run, context, data_root=Path(root), folder=folder, progress=quiet)
        if measured is not None:
            assert measured.communication is not None and measured.timing is not None
            assert measured.communication.exposed is not None, name
            seconds[name] = [
                measured.communication.exposed.median,
                measured.timing.step.median,
            ]
    return seconds


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.timeout(120)
def test_what_sharded_and_pipelined_ranks_wait_for_is_known(tmp_path: Path) -> None:
    seconds, _ = on_ranks(2, over_nccl, str(tmp_path))
    assert set(seconds) == set(WAITED)
    assert all(0 < exposed < step for exposed, step in seconds.values())


def launched(make_study: StudyMaker, **base: Any) -> tuple[lab.Study, lab.Record]:
    folder = make_study(
        base={"data": SYNTHETIC, "precision": "bf16", "eval_batches": 1, "warmup_steps": 5} | base,
        grid={"world_size": [1]},
        scaling="none",
    )
    study = lab.Study.load(folder)
    (record,) = lab.launch(study, cluster="local").wait(progress=False)
    return study, record


def test_a_job_ends_in_a_record_of_the_gpu_and_a_report(make_study: StudyMaker) -> None:
    study, record = launched(make_study, model="gpt-mini", micro_batch_size=32, steps=60)
    assert record.completed and all(record.checks.values()), record.error
    assert record.environment is not None and record.timing is not None
    assert record.environment.device == "cuda" and record.environment.gpu is not None
    assert record.environment.gpu_count == 1 and record.environment.gpu_states
    assert record.memory is not None and record.memory.kind == "cuda_allocated"
    assert record.timing.mfu is None or 0 < record.timing.mfu < 1
    assert record.environment.gpu in lab.report(study).html.read_text()


def test_a_trace_shows_what_the_gpu_did(make_study: StudyMaker) -> None:
    _, record = launched(make_study, model="gpt-nano", micro_batch_size=8, steps=10, trace=True)
    assert record.completed and record.trace is not None, record.error
    assert record.trace.operators and 0 <= record.trace.idle(0) < 1
    assert max(record.trace.memory[0].bytes) >= record.trace.memory[0].held > 0


def test_too_large_a_batch_is_out_of_memory(make_study: StudyMaker) -> None:
    large = SYNTHETIC | {"samples": 16384}
    _, record = launched(make_study, model="gpt2-small", data=large, micro_batch_size=4096, steps=8)
    assert record.status == "oom", record.error


@pytest.mark.timeout(120)  # it took 50 s beside nine other processes
def test_a_gpu_is_calibrated(tmp_path: Path) -> None:
    profile = tmp_path / "gpu.yaml"
    profile.write_text("executor: local\ndevice: cuda\ndevices: 1\nhang_timeout_s: 60\n")
    calibration = calibrate_cluster(profile, world_sizes=[1], quick=True, progress=False)
    products = calibration.matrix_products
    assert products["fp16"].flops_per_s > products["fp32"].flops_per_s
    assert products["tf32"].flops_per_s > 0
    assert calibration.memory is not None and calibration.memory.bytes_per_s > 1e11


def test_what_measuring_costs_is_measured_on_the_gpu() -> None:
    overhead = lab.benchmarks.overhead(world_size=1, quick=True)
    assert overhead.device == "cuda" and overhead.rounds == 40
    assert overhead.largest_loss_difference is not None
    assert overhead.largest_loss_difference < 5e-2  # bf16; sums of a GPU come in any order


def test_old_events_become_numbers_while_a_training_goes_on() -> None:
    clock, steps = CudaClock(), 3 * WAITING_MARKS // 4
    for _ in range(steps):
        clock.start()
        for phase in ("data", "forward", "backward", "optimizer"):
            clock.lap(phase)
    torch.cuda.synchronize()
    clock.start()
    clock.lap("other")
    assert len(clock._waiting) <= WAITING_MARKS + 2
    laps = clock.read()
    assert len(laps["step_time"]) == steps + 1 and (np.diff(laps["start"]) >= 0).all()


def called(*words: str, statuses: tuple[int, ...] = (0,)) -> str:
    """What a verb of the command prints, which must end with one of these statuses."""
    done = subprocess.run([sys.executable, "-m", "lab", *words], capture_output=True, text=True)
    assert done.returncode in statuses, done.stderr
    return done.stdout


@pytest.mark.timeout(180)
def test_the_quickstart_ends_in_its_report(tmp_path: Path) -> None:
    study = yaml.safe_load(QUICKSTART.read_text())
    study["quick"]["grid"]["world_size"] = list({1, min(torch.cuda.device_count(), 2)})
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    called("run", str(tmp_path), "--quick")
    records = lab.load_records(lab.Study.load(tmp_path, quick=True))
    assert records and all(record.completed for record in records)
    assert {record.environment.device for record in records if record.environment} == {"cuda"}
    assert list(tmp_path.glob("out/**/report.pdf"))


def test_the_lab_is_timed_beside_a_plain_loop(make_study: StudyMaker) -> None:
    base = {"data": SYNTHETIC, "precision": "bf16", "global_batch_size": 8}
    folder = make_study(base=base, grid={"world_size": [1]})
    # The host limits so small a model, so that measuring may show: with status 1, as it must.
    answer = called("bench", "training", str(folder), "--json", statuses=(0, 1))
    comparisons = json.loads(answer)
    assert "plain" in {comparison["loop"] for comparison in comparisons}  # and Fabric, if installed
    for comparison in comparisons:
        assert comparison["device"] == "cuda"
        assert min(comparison["lab_s"], comparison["loop_s"]) > 0
