"""Described machines against what was measured on such."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pandas as pd
import pytest

from lab.config.emulation import Compute, GpuName
from lab.config.run import Run
from lab.errors import InputError
from lab.perfmodel.collectives import busbw
from lab.perfmodel.hardware import (
    GPUS,
    LINKS,
    emulated_gpu,
    machine,
    named_gpu,
    named_link,
    vendor_peak,
)
from lab.perfmodel.layout import Layout
from lab.perfmodel.predict import on_described
from lab.records.store import read_record

MEASURED = Path(__file__).parents[2] / "fixtures" / "tables" / "nccl_all_reduce.csv"
KEPT = Path(__file__).parents[3] / "reports" / "gpu-training" / "kept" / "out" / "runs"


def test_names_and_defaults() -> None:
    described = machine("h100")
    assert (
        described.gpu.name,
        described.gpus_per_node,
        described.inner.name,
        described.outer.name,
    ) == (
        "h100",
        8,
        "nvlink4",
        "infiniband-ndr",
    )
    assert machine("gb200").gpus_per_node == 72 and machine("gb200x4").gpus_per_node == 4
    assert GPUS["gb300"].fastest("fp4") == 15e15 and GPUS["h100"].fastest("fp4") == 989.5e12
    given = machine("A100x4:pcie4:ethernet-25g")
    assert (given.gpus_per_node, given.inner.name, given.outer.bytes_per_s) == (
        4,
        "pcie4",
        25e9 / 8,
    )
    assert "datasheet" in given.description
    assert all(gpu.link in LINKS and gpu.source for gpu in GPUS.values()) and all(
        link.source for link in LINKS.values()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h10", "h100"),
        ("h100:nvlink44", "nvlink4"),
        ("h100x0", "0 GPUs"),
        ("v100", "has no bf16"),
        ("a b", "cannot be read"),
    ],
)
def test_what_is_not_known_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        machine(text)


def test_eight_a100_reduce_as_measured() -> None:
    table = pd.read_csv(MEASURED, comment="#")
    links = machine("a100x8").links(Layout(data=8))
    for size, measured in zip(table["message_mib"], table["a100_x8"], strict=True):
        assert links.data("all_reduce", size * 2**20) == pytest.approx(
            measured / 1e6, rel=0.6 if size < 256 else 0.1
        )


def test_eight_h100_sum_in_their_switch_as_fast_as_nccl_says() -> None:
    """Bus bandwidths of 480 GB/s with NVLS (issue 212 of nccl-tests); an A100's switch has none."""
    links = machine("h100x8:nvlink4-nvls").links(Layout(data=8))
    seconds = links.data("all_reduce", 16e9)
    assert busbw("all_reduce", 8, 16e9, seconds) == pytest.approx(480e9, rel=0.01)
    ring = machine("h100x8").links(Layout(data=8))
    assert links.data("all_gather", 16e9) == ring.data("all_gather", 16e9)
    assert ring.data("all_reduce", 16e9) > 1.3 * seconds


def test_nodes_add_a_level() -> None:
    cluster = machine("a100x8")
    inside, across = cluster.links(Layout(data=8)), cluster.links(Layout(data=16))
    assert across.data("all_reduce", 1e9) > inside.data("all_reduce", 1e9)
    # Replicas of eight tensor parallel ranks meet on the card of each GPU.
    alone = cluster.links(Layout(data=2, tensor=8)).data("all_reduce", 1e9)
    assert alone == pytest.approx(1e9 / 40e9, rel=0.01)


def test_every_gpu_that_a_profile_can_emulate_is_in_the_table() -> None:
    names = set(get_args(Compute.model_fields["emulated"].annotation)) - {"measured"}
    assert names == set(get_args(GpuName))
    assert all(emulated_gpu(name).peak("fp32") for name in names)
    assert emulated_gpu("RTX 4090").peak("bf16")[0] == 165.2e12  # type: ignore[index]
    assert vendor_peak("Tesla V100-SXM2-32GB", precision="fp16") == emulated_gpu("V100").peak(
        "fp16"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVLink 5", "nvlink5"),
        ("GB200", "nvlink5"),
        ("8x H100 SXM", "nvlink4"),
        ("A100 80GB", "nvlink3"),
        ("Tesla V100", "nvlink2"),
        ("PCIe Gen5 x16", "pcie5"),
        ("PCIe 4.0", "pcie4"),
        ("PCIe", "pcie3"),
        ("InfiniBand NDR", "infiniband-ndr"),
        ("hdr", "infiniband-hdr"),
    ],
)
def test_links_by_the_words_of_tables(text: str, name: str) -> None:
    link = named_link(text)
    assert link is not None and link.name == name


def test_words_that_name_no_link() -> None:
    assert named_link("loopback") is None


def test_pcie3_has_one_speed() -> None:
    assert LINKS["pcie3"].bytes_per_s == 15.75e9


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("8x A100 40GB", "a100-40gb"),
        ("a100_40gb", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("DGX-H100", "h100"),
        ("RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("L40S", "l40s"),
        ("H1000", None),
        ("TPU v5", None),
    ],
)
def test_gpus_are_found_by_the_words_of_tables(words: str, name: str | None) -> None:
    gpu = named_gpu(words)
    assert (gpu and gpu.name) == name


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("8xH100", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM4-80GB", "a100"),
        ("1x 4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("DGX-B300", "b300"),
        ("A800", "a800"),
        ("8 x MI325X", "mi325x"),
        ("8 H100, NVLink and InfiniBand", "h100"),
        ("H100 NVL", "h100-nvl"),
        ("MI350X", "mi350x"),
        ("4 nodes of MI355", "mi355x"),
        ("MI300A", None),
        ("4090 tokens", None),
    ],
)
def test_gpus_as_tables_write_them(words: str, name: str | None) -> None:
    gpu = named_gpu(words)
    assert (gpu and gpu.name) == name


def test_no_name_of_cuda_means_two_gpus() -> None:
    for cuda, precision in (("NVIDIA A100-SXM4-40GB", "bf16"), ("NVIDIA A10G", "bf16")):
        fits = [gpu for gpu in GPUS.values() if re.fullmatch(gpu.cuda, cuda)]
        assert len(fits) == 1 and fits[0].peak(precision)
    assert vendor_peak("NVIDIA L40S", precision="fp8") == GPUS["l40s"].peak("fp8")


def test_peaks_are_dense_and_what_no_source_gives_is_unknown() -> None:
    """NVIDIA's page says 1,671 and 3,341 TFLOP/s for the H100 NVL, with sparsity."""
    nvl = GPUS["h100-nvl"].flops
    assert (2 * nvl["bf16"], 2 * nvl["fp8"]) == (1671e12, 3341e12)
    assert GPUS["a10g"].peak("fp32") is None and GPUS["a10g"].peak("fp8") is None
    assert GPUS["a10g"].fastest("fp32") == 70e12


def test_tf32_has_a_peak_of_its_own_where_there_is_any() -> None:
    # NVIDIA's datasheets: 156 TFLOP/s of an A100, 494.7 of an H100 in SXM form.
    for name, expected in {"a100": 156e12, "h100": 494.75e12, "v100": None, "t4": None}.items():
        assert GPUS[name].flops.get("tf32") == expected
    for gpu in GPUS.values():
        peak = gpu.flops.get("tf32")
        assert peak is None or 0.99 * gpu.flops.get("fp32", 0) <= peak < gpu.flops["bf16"]


def test_the_lab_on_an_h200_takes_what_it_was_measured_to_take() -> None:
    """GPT-2 of three sizes at micro-batches from 8 to 64, eager and compiled, in bf16."""
    records = [record for path in KEPT.glob("*/*/record.json") if (record := read_record(path))]
    measured = [record for record in records if record.timing and record.peak_memory]
    assert len(measured) >= 24
    for record in measured:
        assert record.timing and isinstance(record.run, Run)
        forecast = on_described(record.run, machine("h200x1"))
        assert forecast.prediction and forecast.memory_bytes
        step_s = record.timing.step.median
        assert forecast.prediction.step_s == pytest.approx(step_s, rel=0.1), record.run.label
        assert forecast.memory_bytes == pytest.approx(record.peak_memory, rel=0.03)


def test_ranks_that_do_not_fill_the_nodes_are_spread_evenly() -> None:
    parts = {ranks: [level.parts for level in machine("h100").levels(ranks)] for ranks in (4, 12)}
    assert parts == {4: [4, 1], 12: [6, 2]}
    assert [level.parts for level in machine("h100").levels(4, stride=16)] == [1, 4]
