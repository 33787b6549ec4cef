"""Peak memory of a rank."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path

import torch


def reset_peak(device: torch.device) -> None:
    """Forget earlier peaks, such as that of building a tokenizer, where the system lets us."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # gives freed memory back to the system
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak of the resident set


def peak(device: torch.device) -> int:
    """Bytes: the allocator's peak on CUDA, the resident set's on CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
