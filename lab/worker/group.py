"""The ranks of a run as a process group."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lab.atomic import write_atomically
from lab.errors import LabError
from lab.jobs.place import Place
from lab.worker.environment import backend
from lab.worker.pacing import pace_sockets
from lab.worker.timing import FloatArray

T = TypeVar("T")
_LEFT: list[dist.ProcessGroup] = []  # groups that this process was in


@contextmanager
def process_group(place: Place, *, device: torch.device) -> Iterator[None]:
    """Form the group of all ranks and leave it at the end; raises LabError where rank 0 gives no address in time."""
    if place.host.startswith("127.") and sys.platform == "linux":
        # Else gloo asks for the host's name, which on many a laptop resolves to nothing that can be reached.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        backend(place),
        store=_store(place),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=place.timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    pace_sockets(place.emulated)
    yield
    # Only a good end leaves in order: after a failure the others may be gone, and waiting for them would hide the cause.
    dist.barrier()
    leave_group()


def leave_group() -> None:
    """Leave the group of all ranks, whether or not the others do."""
    # Gloo's thread needs the interpreter to let go of its last call, and whoever frees a group waits for that thread with
    # the interpreter in hand: seen to hang. So none is freed before the process ends.
    _LEFT.extend(dist.distributed_c10d._world.pg_map)
    dist.destroy_process_group()


def _store(place: Place) -> TCPStore:
    """Rank 0 listens on a port of the system's choice and publishes it in a file; the others wait for the file."""
    timeout = timedelta(seconds=place.start_timeout_s)
    if place.rank == 0:
        store = TCPStore(place.host, 0, place.world_size, is_master=True, timeout=timeout, wait_for_workers=False)
        write_atomically(place.rendezvous, f"{place.host} {store.port}".encode(), durable=False)
        return store
    end = time.monotonic() + place.start_timeout_s
    while not place.rendezvous.exists():
        if time.monotonic() > end:
            raise LabError(
                f"Timed out waiting {place.start_timeout_s:.0f} s for the address of rank 0 in {place.rendezvous}: did it start?"
            )
        time.sleep(0.05)
        if place.rendezvous.parent.is_dir():
            list(place.rendezvous.parent.iterdir())  # makes NFS look at the server instead of its cache
    host, port = place.rendezvous.read_text().split()
    return TCPStore(host, int(port), place.world_size, is_master=False, timeout=timeout, wait_for_workers=False)


def gather(value: T) -> list[T] | None:
    """The values of all ranks in their order, on rank 0; None on the others."""
    if not dist.is_initialized():
        return [value]
    values: list[T] | None = [value] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values)
    return values


def share(value: T) -> list[T]:
    """The values of all ranks in their order, on each rank."""
    if not dist.is_initialized():
        return [value]
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def mean_over_ranks(values: FloatArray, *, device: torch.device) -> FloatArray:
    """The elementwise mean over all ranks, the same on each."""
    if not dist.is_initialized():
        return values
    total = torch.from_numpy(values).to(device, copy=True)
    dist.all_reduce(total)
    mean: FloatArray = (total / dist.get_world_size()).cpu().numpy().astype(np.float64)
    return mean
