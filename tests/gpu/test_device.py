"""The worker on the device at hand: what a GPU must prove, and what a CPU can prove of the same.

Those of CUDA are skipped where there is none. `make gpu` runs all of them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from lab.config import models
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.perfmodel.hardware import vendor_peak
from lab.records.schema import PHASES
from lab.worker import data, strategies
from lab.worker.calibrate import measured_peak, memory_bandwidth
from lab.worker.context import RankContext
from lab.worker.data.dataset import FastLoader
from lab.worker.distributed import RankJob, device_of, process_group
from lab.worker.inference.generate import continuations
from lab.worker.inference.quantize import (
    METHODS,
    UnavailableError,
    cached_error,
    compile_alike,
    output_errors,
    quantize,
)
from lab.worker.measure.clock import CudaClock
from lab.worker.measure.collective_trace import CallRecorder, Calls
from lab.worker.measure.ddp_hook import BucketRecorder
from lab.worker.models.gpt import GPT, linear_cross_entropy
from lab.worker.optim import set_products
from lab.worker.strategies import base, ddp, fsdp, pipeline_parallel
from lab.worker.train import Training, train

pytestmark = pytest.mark.usefixtures("one_thread")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")
BASE: dict[str, Any] = {
    "model": {"kind": "gpt", "layers": 2, "heads": 4, "width": 128, "block_size": 64},
    "data": {"kind": "synthetic", "samples": 512, "vocab_size": 512},
    "strategy": "single",
    "global_batch_size": 8,
    "steps": 12,
    "warmup_steps": 4,
    "lr_warmup_steps": 2,
    "eval_batches": 1,
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def quiet(*report: object) -> None:
    pass


def trained(
    root: Path,
    device: torch.device,
    changes: dict[str, Any],
    *,
    progress: Any = quiet,
    folder: Path | None = None,
    checkpoint_every_s: float | None = None,
) -> Training:
    """One rank's training, in a process group where its strategy needs one."""
    run = Run.model_validate(BASE | changes)
    address = root / f"address-{time.time_ns()}"
    cores = tuple(sorted(os.sched_getaffinity(0)))
    context = RankContext(
        *(0, 1, 0, device.type, cores, 1, "local", address),
        checkpoint_every_s=checkpoint_every_s,
    )
    dataset = data.prepare(run, data_root=root, progress=quiet)
    grouped = strategies.of(run).needs_group
    here = device_of(context)
    with process_group(context, device=here) if grouped else contextlib.nullcontext():
        return train(RankJob(run, context, here, dataset, progress), folder=folder)


@cache
def loss_alone(device: torch.device) -> Any:
    """Losses of one process without a strategy, with which many tests compare theirs."""
    with tempfile.TemporaryDirectory() as root:
        return trained(Path(root), device, {}).loss


@pytest.mark.parametrize("words", [512, 50257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_head_has_the_loss_and_the_gradients_of_torch(
    device: torch.device, dtype: torch.dtype, words: int
) -> None:
    set_products("fp32")
    tokens = 600 if device.type == "cuda" else 100  # CPUs may have no instructions for bf16
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        hidden = torch.randn(tokens, 64).to(device).requires_grad_()
        weight = (0.1 * torch.randn(words, 64)).to(device).requires_grad_()
        targets = torch.randint(words, (tokens,)).to(device)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            if fused:
                loss = linear_cross_entropy(hidden, weight, targets)
            else:
                loss = functional.cross_entropy(functional.linear(hidden, weight), targets)
        loss.backward()
        results.append((loss.detach(), hidden.grad, weight.grad))
    for actual, expected in zip(*results, strict=True):
        assert actual is not None and expected is not None
        assert (actual - expected).norm() <= (1e-5, 2e-2)[dtype != torch.float32] * expected.norm()


@pytest.mark.parametrize("name", [name for name, facts in STRATEGIES.items() if name != "single"])
def test_every_strategy_learns_on_one_rank_as_one_process_does(
    device: torch.device, tmp_path: Path, name: str
) -> None:
    loss = trained(tmp_path, device, {"strategy": name}).loss
    assert np.abs(loss / loss_alone(device) - 1).max() <= 2e-4


@pytest.mark.parametrize(
    "changes",
    [{"activation_checkpointing": True}, {"grad_accum": 2}, {"compile": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_recomputed_accumulated_and_compiled_steps_learn_the_same(
    device: torch.device, tmp_path: Path, changes: dict[str, Any]
) -> None:
    if device.type == "cpu" and "compile" in changes:
        pytest.skip("the study gpu-training compiles on CPUs, in tests/integration")
    loss = trained(tmp_path, device, changes).loss
    assert np.abs(loss / loss_alone(device) - 1).max() <= 2e-3


@needs_cuda
@pytest.mark.timeout(120)  # gpt2-large took 64 s beside nine other processes
@pytest.mark.parametrize("model", ["gpt2-small", "gpt2-medium", "gpt2-large"])
def test_a_compiled_gpt2_learns_what_an_eager_one_does(tmp_path: Path, model: str) -> None:
    large = {"model": model, "precision": "bf16", "global_batch_size": 4, "steps": 20}
    large["data"] = BASE["data"] | {"vocab_size": 50257}
    eager, compiled = (
        trained(tmp_path, torch.device("cuda"), large | {"compile": compile}).loss
        for compile in (False, True)
    )
    assert np.abs(compiled / eager - 1).max() <= 5e-2


def test_an_interrupted_training_goes_on_and_learns_the_same(
    device: torch.device, tmp_path: Path
) -> None:
    more = {"steps": 30, "model": BASE["model"] | {"dropout": 0.1}}
    whole = trained(tmp_path, device, more).loss
    folder = tmp_path / "repeat"
    folder.mkdir()

    def stop(phase: str, step: int, steps: int, loss: float | None = None) -> None:
        if phase == "measuring" and step == 15:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        trained(tmp_path, device, more, progress=stop, folder=folder, checkpoint_every_s=1e-6)
    again = trained(tmp_path, device, more, folder=folder)
    assert again.first_step > 0 and np.abs(again.loss / whole - 1).max() < 1e-4


def test_the_cache_changes_no_generated_token(device: torch.device) -> None:
    torch.manual_seed(0)
    config = models.GPT(layers=2, heads=4, width=64, block_size=64)
    model = GPT(config, vocab_size=512).to(device).eval()
    prompts = torch.randint(0, 512, (2, 16), device=device)
    tokens = prompts
    with torch.inference_mode():
        for _ in range(24):
            likeliest = model(tokens)[:, -1].argmax(dim=-1, keepdim=True)
            tokens = torch.cat([tokens, likeliest], dim=1)
    assert torch.equal(continuations(model, prompts, new_tokens=24), tokens[:, 16:])


def test_peaks_are_measured(device: torch.device) -> None:
    flops, size = measured_peak(device, dtype=torch.float32)
    assert flops > 0 and size >= 128
    assert memory_bandwidth(device).bytes_per_s > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "ddp"},
        {"strategy": "ddp", "compression": "bf16"},
        {"strategy": "naive_ddp"},
        {"strategy": "naive_ddp", "flat": True},
        {"strategy": "zero1"},
    ],
    ids=str,
)
def test_every_call_of_a_rank_alone_has_its_times(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    # As on several ranks: alone, nothing is recorded.
    for strategy, recorder in ((base.Strategy, CallRecorder), (ddp.Ddp, BucketRecorder)):
        monkeypatch.setattr(
            strategy, "recorder", lambda _, clock, world_size, of=recorder: of(clock)
        )
    training = trained(tmp_path, device, changes | {"steps": 6, "warmup_steps": 2})
    assert training.sent is not None
    last = training.sent.of(int(training.sent.step.max()))
    assert len(last.step) and not np.isnan(last.launch).any()
    took = last.finish - last.launch
    assert (took >= 0).all() and took.max() <= training.steps["step_time"].max()
    if isinstance(last, Calls):
        assert not np.isnan(last.wait_begin).any() and set(last.phase) <= set(PHASES)


@needs_cuda
@pytest.mark.parametrize("name", list(METHODS))
def test_a_quantized_model_is_near_its_base(name: str) -> None:
    torch.manual_seed(0)
    config = models.GPT(layers=2, heads=8, width=1024, block_size=64)
    base = GPT(config, vocab_size=512).cuda().eval()
    try:
        quantized = quantize(base, name).model
    except UnavailableError as error:
        pytest.skip(str(error))
    for shape in ((1, 1), (4, 32)):
        tokens = torch.randint(0, 512, shape, device="cuda")
        with torch.inference_mode():
            expected = base(tokens)
            assert (quantized(tokens).float() - expected).norm() < 0.2 * expected.norm()


@needs_cuda
def test_products_and_convolutions_of_fp32_are_not_rounded_to_tf32() -> None:
    set_products("fp32")
    torch.manual_seed(0)
    x, w = (torch.randn(*shape, device="cuda") for shape in ((8, 64, 32, 32), (64, 64, 3, 3)))
    a = torch.randn(2048, 2048, device="cuda")
    for result, true in (
        (a @ a, a.double() @ a.double()),
        (torch.conv2d(x, w), torch.conv2d(x.double(), w.double())),
    ):
        assert (result.double() - true).norm() < 1e-5 * true.norm()


@needs_cuda
def test_tf32_rounds_products_and_is_asked_for_by_name() -> None:
    if vendor_peak(torch.cuda.get_device_name(), precision="tf32") is None:
        pytest.skip("no TF32 that the lab knows on this GPU")
    torch.manual_seed(0)
    a = torch.randn(2048, 2048, device="cuda")
    exact = a.double() @ a.double()
    errors = []
    for precision in ("tf32", "fp32"):
        set_products(precision)
        errors.append(float(((a @ a).double() - exact).norm() / exact.norm()))
    assert errors[1] < 1e-5 < 1e-4 < errors[0] < 1e-2


@needs_cuda
def test_the_first_peak_of_a_cold_device_is_that_of_a_warm_one() -> None:
    cold, warm = (measured_peak(torch.device("cuda", 0), dtype=torch.bfloat16)[0] for _ in range(2))
    assert cold > 0.9 * warm


@needs_cuda
def test_events_and_the_host_agree_also_on_a_side_stream() -> None:
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    clock, side = CudaClock(), torch.cuda.Stream()
    begin = time.perf_counter()
    clock.start()
    torch.cuda._sleep(10**8)
    clock.lap("forward")
    clock.lap("other")
    first = clock.now()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)
        late = clock.now()
    early = clock.now()
    torch.cuda.synchronize()
    host = time.perf_counter() - begin
    step = clock.read()["step_time"][0]
    marks = clock.seconds([first, late, early])
    assert abs(step + marks[1] - marks[0] - host) < 1e-3 and abs(marks[2] - marks[0]) < 1e-3
    assert abs(marks[0] - begin - step) < 1e-3


@needs_cuda
def test_batches_are_copied_from_pinned_memory(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    run = Run.model_validate(BASE)
    samples = data.prepare(run, data_root=tmp_path, progress=quiet).train
    torch.zeros(1, device="cuda")
    batch = FastLoader(samples, run=run, rank=0).micro_batch(0, 0).pin_memory()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        batch.to(torch.device("cuda"))
        torch.cuda.synchronize()
    copies = [event.name for event in profiler.events() or [] if "HtoD" in event.name]
    assert copies and not any("Pageable" in name for name in copies)


@needs_cuda
@pytest.mark.parametrize(
    "changes",
    [
        {},
        *({"precision": precision} for precision in ("tf32", "bf16", "fp16")),
        *({"strategy": name} for name in ("ddp", "zero1", "fsdp", "naive_ddp")),
    ],
    ids=str,
)
def test_nothing_in_the_timed_loop_makes_the_host_wait(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    def debug(phase: str, step: int, steps: int, loss: float | None = None) -> None:
        measured = phase == "measuring" and step < steps
        torch.cuda.set_sync_debug_mode("warn" if measured else "default")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trained(tmp_path, torch.device("cuda"), changes, progress=debug)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # torch also says once, in other words, that this mode does not see everything.
    waits = "called a synchronizing"
    assert not [str(warning.message) for warning in caught if waits in str(warning.message)]


def test_gpipe_keeps_no_gradient_of_the_head_while_other_microbatches_pass(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[str] = []

    def noted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            passes.append(name)
            return function(*arguments, **options)

        return call

    stage = pipeline_parallel.TimedStage
    for method in ("forward_one_chunk", "backward_one_chunk"):
        monkeypatch.setattr(stage, method, noted(method.split("_")[0], getattr(stage, method)))
    name = "linear_cross_entropy"
    monkeypatch.setattr(pipeline_parallel, name, noted("head", linear_cross_entropy))
    changes = {"strategy": "pipeline_parallel", "microbatches": 4, "steps": 2, "warmup_steps": 1}
    alone = trained(tmp_path, device, {"steps": 2, "warmup_steps": 1}).loss
    loss = trained(tmp_path, device, changes).loss
    # Since 2.13, torch learns the loss's shape from a first one of its own.
    of_torch = ["head"] if passes[0] == "head" else []
    assert passes == [*of_torch, *2 * [*4 * ["forward"], *4 * ["head", "backward"]]]
    assert np.abs(loss / alone - 1).max() <= 2e-4


def test_only_on_cuda_fsdp_gathers_blocks_in_the_precision_of_their_products() -> None:
    for kind, precision, expected in (
        ("cpu", "bf16", None),
        ("cuda", "fp32", None),
        ("cuda", "tf32", None),
        ("cuda", "bf16", torch.bfloat16),
    ):
        policy = fsdp._policy(
            Run.model_validate(BASE | {"precision": precision}), torch.device(kind)
        )
        assert policy.param_dtype == expected and not policy.cast_forward_inputs
        assert policy.reduce_dtype == (torch.float32 if expected else None)


@needs_cuda
@pytest.mark.parametrize("name", [name for name, facts in STRATEGIES.items() if name != "single"])
def test_every_strategy_learns_alike_in_bf16(tmp_path: Path, name: str) -> None:
    device = torch.device("cuda")
    alone = trained(tmp_path, device, {"precision": "bf16"}).loss
    loss = trained(tmp_path, device, {"precision": "bf16", "strategy": name}).loss
    assert np.abs(loss / alone - 1).max() <= 2e-2


@needs_cuda
@pytest.mark.parametrize("name", ["none", "int8_dynamic", "int8_weight_only", "int4_weight_only"])
def test_compiled_copies_are_near_their_base(name: str) -> None:
    torch.manual_seed(0)
    config = models.GPT(layers=2, heads=8, width=1024, block_size=64)
    base = GPT(config, vocab_size=512).cuda().eval()
    try:
        copy = quantize(base, name).model
    except UnavailableError as error:
        pytest.skip(str(error))
    assert isinstance(copy, GPT)
    prompts = torch.randint(0, 512, (4, 17), device="cuda")
    compile_alike(base, copy)
    assert cached_error((base, copy), prompts) < 0.2
    assert max(output_errors((base, copy), [prompts, prompts[:1, :1]]).values()) < 0.2
