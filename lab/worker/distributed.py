"""The process group of a run's ranks, objects and means over ranks, one clock for all hosts."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lab.config.emulation import SO_MAX_PACING_RATE, Emulated
from lab.config.run import Run
from lab.errors import LabError
from lab.files import write_atomically
from lab.worker.context import Progress, RankContext
from lab.worker.data.dataset import Dataset
from lab.worker.environment import backend
from lab.worker.measure.clock import FloatArray

T = TypeVar("T")

EXCHANGES = 20  # of messages for one clock offset
_LEFT: list[dist.ProcessGroup] = []  # groups that this process was in


def device_of(context: RankContext) -> torch.device:
    """The device of a rank, a GPU made current; raises LabError where CUDA is missing."""
    if context.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LabError(
            f"cluster {context.cluster!r} promises CUDA, but torch {torch.__version__} on "
            f"{socket.gethostname()} finds none: see `lab doctor`"
        )
    # Where the scheduler shows each rank only its own GPU, that one is number 0.
    device = torch.device("cuda", context.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@dataclass(frozen=True)
class RankJob:
    """One rank's part of a run, as every stage of the job needs it."""

    run: Run
    context: RankContext
    device: torch.device
    dataset: Dataset
    progress: Progress


@contextmanager
def process_group(context: RankContext, *, device: torch.device) -> Iterator[None]:
    """Form the group of all ranks, and leave it after success; raises LabError without rank 0."""
    if context.host.startswith("127.") and sys.platform == "linux":
        # Else gloo resolves the host's name, which on many laptops leads nowhere.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        backend(context),
        store=_store(context),
        rank=context.rank,
        world_size=context.world_size,
        timeout=timedelta(seconds=context.timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    # Now, as the connections to pace exist once the group is formed.
    pace_sockets(context.emulated)
    yield
    # Not after a failure: the others may be gone, and waiting for them would hide the cause.
    dist.barrier()
    leave_group()


def leave_group() -> None:
    """Leave the group of all ranks, whether or not the others do."""
    # Gloo's thread needs the interpreter's lock to drop its last callback, and freeing a group
    # waits for that thread while holding the lock: seen to hang. So no group is freed before the
    # process ends.
    _LEFT.extend(dist.distributed_c10d._world.pg_map)
    dist.destroy_process_group()


def _store(context: RankContext) -> TCPStore:
    """Rank 0 listens on a free port and publishes it in a file; the others wait for the file."""

    def open_store(host: str, port: int) -> TCPStore:
        # No waiting for workers: rank 0 must publish its port before any of them can come.
        return TCPStore(
            host,
            port,
            context.world_size,
            is_master=context.rank == 0,
            timeout=timedelta(seconds=context.start_timeout_s),
            wait_for_workers=False,
        )

    path = context.rendezvous
    if context.rank == 0:
        store = open_store(
            context.host, 0
        )  # the system chooses the port, so that jobs never collide
        write_atomically(path, f"{context.host} {store.port}".encode(), durable=False)
        return store
    end = time.monotonic() + context.start_timeout_s
    while not path.exists():
        if time.monotonic() > end:
            raise LabError(
                f"Timed out waiting {context.start_timeout_s:.0f} s for the address of rank 0 in "
                f"{path}: did it start?"
            )
        time.sleep(0.05)
        if path.parent.is_dir():
            list(path.parent.iterdir())  # makes NFS ask the server instead of its cache
    host, port = path.read_text().split()
    return open_store(host, int(port))


def gather(value: T) -> list[T] | None:
    """The values of all ranks in their order, on rank 0; None on the others."""
    if not dist.is_initialized():
        return [value]
    values: list[T] | None = [value] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values)
    return values


def all_gather_object(value: T) -> list[T]:
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


def pace_sockets(emulated: Emulated | None) -> int:
    """Limit this process's connections to the emulated link's rate, if so emulated; their number.

    In a ring each rank sends through one connection, whose rate is that of the rank's link.
    """
    if emulated is None or emulated.link is None or emulated.way != "pacing":
        return 0
    # gloo does not show its sockets: they are found among the open files.
    descriptors = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return sum(_pace(descriptor, emulated.link.bytes_per_s) for descriptor in descriptors)


def _pace(descriptor: int, bytes_per_s: float) -> bool:
    try:
        if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:"):
            return False
        # A duplicate: closing this object must not close gloo's connection.
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family not in {socket.AF_INET, socket.AF_INET6}:
                return False
            connection.getpeername()  # raises OSError unless connected
            # Older kernels take 32 bits; more than that is no limit anyway.
            rate = min(int(bytes_per_s), 2**32 - 2)
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
            return True
    except OSError:
        return False


@dataclass(frozen=True)
class ClockOffset:
    """A clock's distance from rank 0's at one moment, in s: rank 0 reads `here` + `offset`."""

    here: float
    offset: float


def read_clock_offset(host: str, *, now: Callable[[], float] = time.perf_counter) -> ClockOffset:
    """This rank's distance from rank 0; all ranks must call it.

    The first rank of each host exchanges messages with rank 0 over gloo. The exchange with the
    shortest round trip counts, its answer taken as given half-way (as in NTP, RFC 5905, section 8).
    """
    if not dist.is_initialized():
        return ClockOffset(now(), 0.0)
    # Ranks of one host share one clock, as `perf_counter` counts from the host's start.
    hosts = all_gather_object(host)
    leaders = sorted({hosts.index(name) for name in hosts} - {0})
    if not leaders:
        return ClockOffset(now(), 0.0)
    # Over gloo, whose calls return with the message: on NCCL the clock would be read too early.
    group = dist.new_group(backend="gloo")
    offset = ClockOffset(now(), 0.0)
    # One host after the other, so that rank 0 answers at once.
    for leader in leaders:
        if dist.get_rank() == 0:
            message = torch.zeros(1, dtype=torch.float64)
            for _ in range(EXCHANGES):
                dist.recv(message, leader, group=group)
                dist.send(torch.tensor([now()], dtype=torch.float64), leader, group=group)
        elif dist.get_rank() == leader:
            offset = _ask_rank_0(group, now)
    return all_gather_object(offset)[hosts.index(host)]


def _ask_rank_0(group: dist.ProcessGroup | None, now: Callable[[], float]) -> ClockOffset:
    answer = torch.zeros(1, dtype=torch.float64)
    exchanges = []
    for _ in range(EXCHANGES):
        begin = now()
        dist.send(answer, 0, group=group)
        dist.recv(answer, 0, group=group)
        end = now()
        middle = (begin + end) / 2
        exchanges.append((end - begin, ClockOffset(middle, float(answer) - middle)))
    # The fastest one waited least in queues, whose delays need not be equal both ways.
    return min(exchanges, key=lambda exchange: exchange[0])[1]


def on_clock_of_rank_0(times: FloatArray, offsets: Sequence[ClockOffset]) -> FloatArray:
    """Times of this rank as rank 0 reads them, by offsets before and after; drift taken as even."""
    first, last = offsets
    elapsed = last.here - first.here
    drift = (last.offset - first.offset) / elapsed if elapsed > 0 else 0.0
    return times + first.offset + drift * (np.asarray(times) - first.here)
