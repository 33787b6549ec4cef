"""Memory of a rank: its peak, and what it holds throughout."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor


class Held(NamedTuple):
    """Bytes that a rank holds at every moment of a step."""

    parameters: int
    optimizer: int  # its state


def reset_peak(device: torch.device) -> None:
    """Forget earlier peaks, such as that of building a tokenizer, where the system lets us."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # gives freed memory back to the system
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak of the resident set


def peaks(device: torch.device, devices: int = 1) -> list[int]:
    """Bytes: the allocator's peak on CUDA, on each device where the process drives several; the resident set's on CPU."""
    if device.type == "cuda":
        numbers = [device.index] if devices == 1 else range(devices)
        return [int(torch.cuda.max_memory_allocated(number)) for number in numbers]
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
    return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit]


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> Held:
    """What this rank holds of the parameters and of the optimizer's state, its shares where they are divided."""
    state = [value for values in optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor)]
    return Held(sum(map(_bytes, model.parameters())), sum(map(_bytes, state)))


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.to_local().nbytes if isinstance(tensor, DTensor) else tensor.nbytes)
