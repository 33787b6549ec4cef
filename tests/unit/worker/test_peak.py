from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lab.config.emulation import Emulated, Link
from lab.errors import LabError
from lab.perfmodel.hardware import vendor_peak
from lab.worker import calibrate
from lab.worker.calibrate import measured_peak, peak_flops
from lab.worker.context import RankContext, silent
from lab.worker.optim import DTYPES

BUDGET_S = calibrate.PEAK_BUDGET_S


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few products of each size: these tests believe no rate."""
    monkeypatch.setattr(calibrate, "PEAK_BUDGET_S", 0.02)


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-PCIE-40GB", "fp32", 19.5),
        ("NVIDIA A100 80GB PCIe", "fp16", 312),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA H200", "fp32", 67),
        ("NVIDIA B200", "bf16", 2250),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("NVIDIA GeForce RTX 3090", "bf16", 71.2),
        ("NVIDIA GeForce RTX 4090", "fp16", 165.2),
    ],
)
def test_vendor_figures_are_dense_and_name_their_source(
    name: str, precision: str, teraflops: float
) -> None:
    peak = vendor_peak(name, precision=precision)
    assert peak is not None
    assert peak[0] == pytest.approx(teraflops * 1e12)
    assert "dense" in peak[1] and "NVIDIA" in peak[1]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("Tesla V100-SXM2-16GB", "bf16"),  # Volta has no bf16
        ("NVIDIA GeForce RTX 3090 Ti", "fp32"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "fp32"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16"),
        ("Somebody's GPU", "fp32"),
    ],
)
def test_what_the_table_does_not_hold_is_not_guessed(name: str, precision: str) -> None:
    assert vendor_peak(name, precision=precision) is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_cpu_is_measured(precision: str) -> None:
    flops, source = peak_flops(torch.device("cpu"), precision=precision)
    assert 0 < flops < 1e14
    assert source.startswith("measured on") and precision in source


def test_no_product_is_faster_than_the_peak() -> None:
    flops, size = measured_peak(torch.device("cpu"), dtype=DTYPES["fp32"])
    assert size in (128, 256, 512, 1024, 2048)
    assert flops > 0


@pytest.mark.parametrize(("fastest", "largest"), [(128, 512), (256, 1024), (2048, 2048)])
def test_products_that_are_no_faster_end_the_search(
    monkeypatch: pytest.MonkeyPatch, fastest: int, largest: int
) -> None:
    """On a clock on which a product of any other size is slower than the fastest."""
    clock, sizes = [0.0], list[int]()

    def seconds_of(product: partial[object], device: torch.device) -> float:
        sizes.append(len(product.args[0]))
        ratio = max(sizes[-1] / fastest, fastest / sizes[-1])
        seconds = 2 * sizes[-1] ** 3 * ratio / 2e12
        clock[0] += seconds
        return seconds

    monkeypatch.setattr(calibrate, "PEAK_BUDGET_S", BUDGET_S)
    monkeypatch.setattr(calibrate, "seconds_of", seconds_of)
    monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    flops, size = measured_peak(torch.device("cpu"), dtype=DTYPES["fp32"])
    assert (size, max(sizes)) == (fastest, largest) and flops == pytest.approx(2e12)
    assert min(sizes.count(one) for one in set(sizes)) >= calibrate.FEWEST


def test_fp32_is_not_tf32_in_products_and_convolutions() -> None:
    torch.backends.cudnn.allow_tf32 = True  # torch's default
    peak_flops(torch.device("cpu"), precision="fp32")
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


def test_reference_steps_know_the_whole_context_of_their_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks: list[RankContext] = []

    def in_new_process(rank: RankContext, *_: object, **__: object) -> tuple[()]:
        ranks.append(rank)
        return ()

    monkeypatch.setattr(calibrate, "_in_new_process", in_new_process)
    emulated = Emulated(link=Link(bandwidth_gbit=1.0), way="pacing")
    context = RankContext(0, 1, 0, "cpu", (3,), 1, "local-1g", Path("7.rendezvous"))
    for one in (context, replace(context, emulated=emulated)):
        calibrate.reference_steps(one, ["ddp"], quick=True, progress=silent)
        assert replace(ranks[-1], rendezvous=one.rendezvous) == one
        assert len({rank.rendezvous for rank in ranks}) == calibrate.QUICK_STARTS


def test_reference_steps_are_those_of_the_strategies_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrate.data, "prepare", lambda *_, **__: None)
    monkeypatch.setattr(calibrate, "_step", lambda job, **_: job.run.strategy)
    context = RankContext(0, 1, 0, "cpu", (0,), 1, "local", Path("7.rendezvous"))
    steps = calibrate._turn(context, torch.device("cpu"), ["single", "fsdp"], first=True)
    assert set(steps) == {"single", "fsdp"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a rank without its GPU")
@pytest.mark.parametrize("in_long_path", [False, True])
def test_reference_steps_that_fail_say_why(
    in_long_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_long_path:
        temporary = tmp_path / ("of-a-scheduler" * 6)
        temporary.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    context = RankContext(0, 1, 0, "cuda", (0,), 1, "local", tmp_path / "7.rendezvous")
    with pytest.raises(LabError, match=r"the reference steps failed:\nTraceback(.|\n)*needs CUDA"):
        calibrate.reference_steps(context, ["ddp"], quick=True, progress=silent)
