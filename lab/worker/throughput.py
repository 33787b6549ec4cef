"""What one rank's device does by itself: matrix products by dtype, and memory bandwidth."""

from __future__ import annotations

import time

import psutil
import torch

from lab.calibration import MatrixProduct, MemoryBandwidth
from lab.worker.peak import DTYPES, measured_peak

COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}  # far above the last cache
COPY_S = 1.5


def matrix_products(device: torch.device) -> tuple[list[MatrixProduct], dict[str, str]]:
    """The best square matrix product of each dtype, and why some are missing."""
    found, missing = [], {}
    for name, dtype in DTYPES.items():
        try:
            flops, size = measured_peak(device, dtype=dtype)
        except (RuntimeError, NotImplementedError) as error:
            missing[name] = str(error).strip().splitlines()[0]
        else:
            found.append(MatrixProduct(dtype=name, flops_per_s=flops, size=size))
    return found, missing


def memory_bandwidth(device: torch.device, *, copy_bytes: int | None = None, seconds: float = COPY_S) -> MemoryBandwidth:
    """Bytes/s of the fastest copy of a large tensor, read and written bytes counted (as STREAM does, McCalpin 1995).

    The tensor is made smaller where memory is short: two of them take a quarter of what is free at most.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    size = min(copy_bytes or COPY_BYTES[device.type], free // 8)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)  # the first copy pays for the pages
    best = float("inf")
    end = time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        _wait(device)
        begin = time.perf_counter()
        target.copy_(source)
        _wait(device)
        best = min(best, time.perf_counter() - begin)
    return MemoryBandwidth(bytes_per_s=2 * source.nbytes / best, bytes=source.nbytes)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
