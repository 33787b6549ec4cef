"""The most that a rank's device could do, in FLOP/s: the denominator of MFU."""

from __future__ import annotations

import re
import time

import torch

from lab.machine import cpu_model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BUDGET_S = 0.6
_SIZES = {"cpu": (128, 256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192)}

# TFLOP/s by the name that CUDA gives the device: dense, without the sparsity that vendors double their figures by;
# fp32 without TF32, bf16 and fp16 on tensor cores with fp32 accumulation.
_VENDOR: list[tuple[str, dict[str, float], str]] = [
    (r"Tesla V100-SXM2-\d+GB", {"fp32": 15.7, "fp16": 125.0}, "NVIDIA V100 datasheet"),
    (r"Tesla V100-PCIE-\d+GB", {"fp32": 14.0, "fp16": 112.0}, "NVIDIA V100 datasheet"),
    (
        r"(NVIDIA )?A100-(SXM4|PCIE|PCIe)-\d+GB|NVIDIA A100 80GB PCIe",
        {"fp32": 19.5, "bf16": 312.0, "fp16": 312.0},
        "NVIDIA A100 datasheet",
    ),
    (r"NVIDIA H100 80GB HBM3", {"fp32": 67.0, "bf16": 989.5, "fp16": 989.5}, "NVIDIA H100 datasheet, SXM"),
    (r"NVIDIA H100 NVL", {"fp32": 60.0, "bf16": 835.5, "fp16": 835.5}, "NVIDIA H100 datasheet, NVL"),
    (r"NVIDIA H100 PCIe", {"fp32": 51.0, "bf16": 756.5, "fp16": 756.5}, "NVIDIA H100 datasheet of 2022, PCIe"),
    (r"NVIDIA H200", {"fp32": 67.0, "bf16": 989.5, "fp16": 989.5}, "NVIDIA H200 datasheet, SXM"),
    (r"NVIDIA H200 NVL", {"fp32": 60.0, "bf16": 835.5, "fp16": 835.5}, "NVIDIA H200 datasheet, NVL"),
    (r"NVIDIA B200", {"fp32": 75.0, "bf16": 2250.0, "fp16": 2250.0}, "NVIDIA Blackwell datasheet, HGX B200"),
    (r"NVIDIA GeForce RTX 3090", {"fp32": 35.6, "bf16": 71.2, "fp16": 71.2}, "NVIDIA GA102 whitepaper, appendix A"),
    (r"NVIDIA GeForce RTX 4090", {"fp32": 82.6, "bf16": 165.2, "fp16": 165.2}, "NVIDIA Ada whitepaper, appendix A"),
]


def peak_flops(device: torch.device, *, precision: str) -> tuple[float, str]:
    """FLOP/s of one rank's device in the run's precision, and where the figure comes from.

    The vendor's figure where the device is known, else the best matrix product with this rank's threads in under a second.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    # Where TF32 stands in for fp32, the figure without it would be the wrong one.
    plain = precision != "fp32" or torch.get_float32_matmul_precision() == "highest"
    known = vendor_peak(name, precision=precision) if device.type == "cuda" and plain else None
    if known is not None:
        return known
    flops, size = measured_peak(device, dtype=DTYPES[precision])
    with_threads = f" with {torch.get_num_threads()} thread(s)" if device.type == "cpu" else ""
    return flops, f"measured on {name}: the best {precision} matrix product ({size} x {size}) of a rank{with_threads}"


def vendor_peak(name: str, *, precision: str) -> tuple[float, str] | None:
    """The vendor's dense figure in FLOP/s with its source; None for a device or precision that the table does not hold."""
    for pattern, teraflops, source in _VENDOR:
        if re.fullmatch(pattern, name) and precision in teraflops:
            return teraflops[precision] * 1e12, f"{source}: {teraflops[precision]:g} TFLOP/s {precision}, dense"
    return None


def measured_peak(device: torch.device, *, dtype: torch.dtype) -> tuple[float, int]:
    """The FLOP/s of the fastest square matrix product found within BUDGET_S, and its size."""
    end = time.perf_counter() + BUDGET_S
    best, best_size = 0.0, 0
    for size in _SIZES[device.type]:
        flops = 2 * size**3
        # Three products at the best rate so far must still fit: where a precision is emulated, large ones take minutes.
        if best and time.perf_counter() + 3 * flops / best > end:
            break
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = a @ b
        stop = min(time.perf_counter() + BUDGET_S / len(_SIZES[device.type]), end)
        while True:
            _wait(device)
            begin = time.perf_counter()
            torch.matmul(a, b, out=out)
            _wait(device)
            now = time.perf_counter()
            if flops / (now - begin) > best:
                best, best_size = flops / (now - begin), size
            if now >= stop:
                break
    return best, best_size


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
