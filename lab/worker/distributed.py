"""The ranks of a run as a process group."""

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
from lab.errors import LabError
from lab.files import write_atomically
from lab.worker.context import RankContext
from lab.worker.environment import backend
from lab.worker.measure.clock import FloatArray

T = TypeVar("T")
_LEFT: list[dist.ProcessGroup] = []  # groups that this process was in


@contextmanager
def process_group(place: RankContext, *, device: torch.device) -> Iterator[None]:
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


def _store(place: RankContext) -> TCPStore:
    """Rank 0 listens on a port of the system's choice and publishes it in a file; the others wait for the file."""
    timeout = timedelta(seconds=place.start_timeout_s)
    if place.rank == 0:
        store = TCPStore(
            place.host, 0, place.world_size, is_master=True, timeout=timeout, wait_for_workers=False
        )
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
            list(
                place.rendezvous.parent.iterdir()
            )  # makes NFS look at the server instead of its cache
    host, port = place.rendezvous.read_text().split()
    return TCPStore(
        host, int(port), place.world_size, is_master=False, timeout=timeout, wait_for_workers=False
    )


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
    """Pace the connections that this process has by now, where its link is emulated in this way; says how many.

    In a ring each rank sends through one connection, so that the rate of a connection is that of the rank's link.
    """
    if emulated is None or emulated.link is None or emulated.way != "pacing":
        return 0
    return sum(
        _pace(int(entry.name), emulated.link.bytes_per_s)
        for entry in Path("/proc/self/fd").iterdir()
    )


def _pace(descriptor: int, bytes_per_s: float) -> bool:
    try:
        if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:"):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family not in {socket.AF_INET, socket.AF_INET6}:
                return False
            connection.getpeername()
            # 32 bits on older kernels: more than that is no limit anyway.
            connection.setsockopt(
                socket.SOL_SOCKET, SO_MAX_PACING_RATE, min(int(bytes_per_s), 2**32 - 2)
            )
            return True
    except OSError:
        return False


EXCHANGES = 20


@dataclass(frozen=True)
class ClockOffset:
    """A clock's distance from that of rank 0 at one moment, both in s: `here` + `offset` is what rank 0 reads."""

    here: float
    offset: float


def read_clock_offset(host: str, *, now: Callable[[], float] = time.perf_counter) -> ClockOffset:
    """This rank's distance from rank 0; all ranks must call it.

    The first rank of each host exchanges messages with rank 0 over gloo, and the exchange with the shortest round trip
    counts, its answer taken as given half-way (as in NTP, RFC 5905, section 8). Ranks of one host share one clock.
    """
    if not dist.is_initialized():
        return ClockOffset(now(), 0.0)
    hosts = all_gather_object(host)
    leaders = sorted({hosts.index(name) for name in hosts} - {0})
    if not leaders:
        return ClockOffset(now(), 0.0)
    messages = dist.new_group(backend="gloo")
    mine = ClockOffset(now(), 0.0)
    for leader in leaders:
        if dist.get_rank() == 0:
            _answer(leader, messages, now)
        elif dist.get_rank() == leader:
            mine = _ask(messages, now)
    return all_gather_object(mine)[hosts.index(host)]


def _answer(leader: int, messages: dist.ProcessGroup | None, now: Callable[[], float]) -> None:
    question = torch.zeros(1, dtype=torch.float64)
    for _ in range(EXCHANGES):
        dist.recv(question, leader, group=messages)
        dist.send(torch.tensor([now()], dtype=torch.float64), leader, group=messages)


def _ask(messages: dist.ProcessGroup | None, now: Callable[[], float]) -> ClockOffset:
    answer = torch.zeros(1, dtype=torch.float64)
    found = []
    for _ in range(EXCHANGES):
        begin = now()
        dist.send(answer, 0, group=messages)
        dist.recv(answer, 0, group=messages)
        end = now()
        found.append(
            (end - begin, ClockOffset((begin + end) / 2, float(answer) - (begin + end) / 2))
        )
    return min(found, key=lambda one: one[0])[1]


def on_clock_of_rank_0(times: FloatArray, readings: Sequence[ClockOffset]) -> FloatArray:
    """Times of this rank as rank 0 reads them, the drift between two readings taken as even."""
    first, last = readings
    drift = (
        (last.offset - first.offset) / (last.here - first.here) if last.here > first.here else 0.0
    )
    moved: FloatArray = times + first.offset + drift * (np.asarray(times) - first.here)
    return moved


def device_of(place: RankContext) -> torch.device:
    """The device of a rank, made current where it is a GPU; raises LabError where the promised one is not there."""
    if place.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LabError(
            f"cluster {place.cluster!r} promises CUDA, torch {torch.__version__} on {socket.gethostname()} finds none: see `lab doctor`"
        )
    # Where the scheduler shows each rank its own GPU only, that one is number 0.
    device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
