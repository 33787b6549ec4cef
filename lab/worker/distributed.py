"""The process group of a run's ranks, objects and means across ranks, one clock for all hosts.

Messages between ranks are JSON with arrays and the lab's own types, no pickle.
"""

from __future__ import annotations

import base64
import dataclasses
import ipaddress
import itertools
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
import psutil
import torch
from pydantic import BaseModel
from torch import distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from lab.config.emulation import SO_MAX_PACING_RATE, Emulated
from lab.config.run import Run
from lab.errors import LabError
from lab.files import write_atomically
from lab.worker.context import Progress, RankContext, from_rank_0
from lab.worker.data.dataset import Batch, Dataset, FastLoader
from lab.worker.environment import backend
from lab.worker.measure.clock import FloatArray

_PLAIN = (bool, int, float, str, type(None))
_SEQUENCES: dict[str, type[Any]] = {"list": list, "tuple": tuple}
T = TypeVar("T")
EXCHANGES = 20  # of messages for one clock offset
LATE_S = 5.0  # room for the watchdog, which looks once a second, on a busy machine
_LEFT: list[dist.ProcessGroup] = []  # groups that this process has left
_device: torch.device | None = None  # this process's GPU
_readings = itertools.count()  # of clock offsets, equal on all ranks


def encode(value: Any) -> bytes:
    """A value as bytes.

    It may hold numbers, text, None, lists, tuples, dictionaries, arrays, tensors, and instances of
    the lab's dataclasses, named tuples and pydantic models; raises TypeError for anything else.
    Tensors arrive in main memory.
    """
    return json.dumps(_tagged(value), separators=(",", ":")).encode()


def decode(content: bytes) -> Any:
    """The value passed to `encode`; raises TypeError for anything that `encode` does not take."""
    return _untagged(json.loads(content))


def _tagged(value: Any) -> Any:
    """Plain values unchanged, others as a list of their constructor and parts."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return ["tensor", _tagged(value.detach().cpu().numpy())]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return ["array", value.dtype.str, value.shape, data]
    if type(value) is dict:
        return ["dict", *([_tagged(key), _tagged(one)] for key, one in value.items())]
    if type(value) in _SEQUENCES.values():
        return [type(value).__name__, *map(_tagged, value)]
    names = _fields(type(value))
    fields = {name: _tagged(getattr(value, name)) for name in names}
    return [f"{type(value).__module__}:{type(value).__qualname__}", fields]


def _untagged(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    tag, *parts = content
    if tag == "tensor":
        return torch.from_numpy(_untagged(parts[0]))
    if tag == "array":
        dtype, shape, data = parts
        return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()
    if tag == "dict":
        return {_untagged(key): _untagged(value) for key, value in parts}
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](map(_untagged, parts))
    module, _, name = tag.partition(":")
    kind: Any = getattr(sys.modules.get(module), name, None)
    _fields(kind)
    return kind(**{name: _untagged(value) for name, value in parts[0].items()})


def _fields(kind: Any) -> list[str]:
    """The fields of one of the lab's plain data types; raises TypeError for any other type."""
    if isinstance(kind, type) and kind.__module__.split(".")[0] == "lab":
        if dataclasses.is_dataclass(kind):
            return [field.name for field in dataclasses.fields(kind)]
        if issubclass(kind, BaseModel):
            return list(kind.model_fields)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return list(kind._fields)
    raise TypeError(f"ranks do not send each other {kind!r}")


def device_of(context: RankContext) -> torch.device:
    """The device of a rank; a GPU is made current. Raises LabError if CUDA is missing."""
    if context.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LabError(
            f"cluster {context.cluster!r} needs CUDA, but torch {torch.__version__} on "
            f"{socket.gethostname()} does not find it; see `lab doctor`"
        )
    # If the scheduler shows each rank only its own GPU, that one is number 0.
    device = torch.device("cuda", context.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    global _device
    _device = device
    return device


@dataclass(frozen=True)
class RankJob:
    """One rank's part of a run, as every stage of the job needs it."""

    run: Run
    context: RankContext
    device: torch.device
    dataset: Dataset
    progress: Progress

    @property
    def first_batch(self) -> Batch:
        """The rank's first micro-batch of training samples, on its device."""
        loader = FastLoader(self.dataset.train, run=self.run, rank=self.context.rank)
        return loader.micro_batch(0, 0).to(self.device)


@contextmanager
def process_group(
    context: RankContext,
    *,
    device: torch.device,
    over: str | None = None,
    alone: bool = True,
    patience_s: float | None = None,
) -> Iterator[None]:
    """Form the group of all ranks, and leave it after success; raises LabError without rank 0.

    `over` is its back end, by default the context's; unless `alone`, a single rank forms no group.
    `patience_s` is how long to wait for the other ranks, at the start and in collectives; by
    default until a first step is due, and longer than the lab's own watchdog.
    """
    if context.world_size == 1 and not alone:
        yield
        return
    if interface := context.interface:
        # Otherwise gloo resolves the host name, which fails on many laptops, and on nodes whose own
        # name is that of a loopback address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group(
        over or backend(context),
        store=open_store(context, patience_s=patience_s),
        rank=context.rank,
        world_size=context.world_size,
        timeout=timedelta(seconds=patience_s or _collective_timeout(context)),
        device_id=device if device.type == "cuda" else None,
    )
    # Now, because the connections to pace exist once the group is formed.
    pace_sockets(context.emulated)
    yield
    # Not after a failure: the others may be gone, and waiting for them would hide the cause.
    dist.barrier()
    leave_group()


def _collective_timeout(context: RankContext) -> float:
    """Seconds after which the back end ends a collective: the lab's own watchdog comes first."""
    if backend(context) != "nccl":
        # A rank that handles gloo's error would seem to hang by itself.
        return context.timeout_s + LATE_S
    # NCCL's kills the process without naming the late rank.
    return context.start_timeout_s + context.timeout_s


def device_is_busy() -> bool:
    """Whether this process's GPU has work left; callable from any thread."""
    if not torch.cuda.is_initialized() or _device is None:
        return False
    return not torch.cuda.default_stream(_device).query()


def leave_group() -> None:
    """Leave the group of all ranks, whether or not the others do."""
    # Gloo's thread needs the interpreter's lock to drop its last callback, and freeing a group
    # waits for that thread while holding the lock: seen to hang. So no group is freed before the
    # process ends.
    _LEFT.extend(dist.distributed_c10d._world.pg_map)
    dist.destroy_process_group()


def open_store(context: RankContext, *, patience_s: float | None = None) -> PrefixStore:
    """Let rank 0 listen on a free port and publish it in a file that the others wait for.

    The file is private. It also holds a secret with which all keys begin, so that nobody who finds
    the port can interfere with the ranks.
    """

    def connect(port: int, secret: str, listener: int | None = None) -> PrefixStore:
        # Don't wait for workers: rank 0 must publish its port before any of them can connect.
        connected = partial(
            TCPStore,
            host,
            port,
            context.world_size,
            is_master=context.rank == 0,
            timeout=timedelta(seconds=patience),
            wait_for_workers=False,
            master_listen_fd=listener,
        )
        try:
            store = connected()
        except NotImplementedError:  # of torch 2.6, whose newer backend takes no socket
            store = connected(use_libuv=False)
        return PrefixStore(secret, store)

    path, host = context.rendezvous, context.host
    patience = patience_s or context.start_timeout_s
    if context.rank == 0:
        # The system chooses the port, so jobs never collide.
        listener = socket.create_server((_own_address(host), 0))
        port, secret = listener.getsockname()[1], secrets.token_hex(16)
        store = connect(port, secret, listener.detach())
        content = f"{host} {port} {secret}".encode()
        write_atomically(path, content, durable=False, mode=0o600)
        return store
    host, number, secret = from_rank_0(path, "the address", patience).decode().split()
    _require_reachable(host, int(number), rank=context.rank, patience_s=patience)
    return connect(int(number), secret)


def _require_reachable(host: str, port: int, *, rank: int, patience_s: float) -> None:
    """Raise LabError unless rank 0, which listens before it tells its address, can be reached."""
    try:
        # torch would go on trying even if the connection is refused.
        socket.create_connection((host, port), timeout=patience_s).close()
    except OSError as error:
        reason = error.strerror or error
        raise LabError(
            f"rank {rank} on {socket.gethostname()} cannot reach rank 0 at {host}, port {port}: "
            f"{reason}. Did rank 0 end? On several nodes, network_interface must name a network "
            "that connects them"
        ) from None


def _own_address(host: str) -> str:
    """Where rank 0 listens: at its address, or at all addresses if only its name is known.

    A name may resolve differently from node to node; a profile's network_interface is an address.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return ""


def default_store() -> Store:
    """The store through which the ranks of the group have met."""
    return dist.distributed_c10d._get_default_store()


def gather(value: T) -> list[T] | None:
    """The values of all ranks in rank order, on rank 0; None on the others."""
    return _exchange(value, everywhere=False)


def all_gather_object(value: T) -> list[T]:
    """The values of all ranks in rank order, on each rank."""
    values = _exchange(value, everywhere=True)
    assert values is not None
    return values


def _exchange(value: T, *, everywhere: bool) -> list[T] | None:
    """Send values as bytes; torch's own functions for objects send pickles."""
    if not dist.is_initialized():
        return [value]
    # NCCL sends only tensors on a device.
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    content = torch.frombuffer(bytearray(encode(value)), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(content)], device=device))
    padded = content.new_zeros(max(int(size) for size in sizes))
    padded[: len(content)] = content
    received = everywhere or dist.get_rank() == 0
    parts = [torch.empty_like(padded) for _ in sizes] if received else None
    if everywhere:
        dist.all_gather(parts, padded)
    else:
        dist.gather(padded, parts)
    if parts is None:
        return None
    pairs = zip(parts, sizes, strict=True)
    return [decode(part[: int(size)].cpu().numpy().tobytes()) for part, size in pairs]


def mean_over_ranks(values: FloatArray, *, device: torch.device) -> FloatArray:
    """The elementwise mean over all ranks, the same on each."""
    if not dist.is_initialized():
        return values
    total = torch.from_numpy(values).to(device, copy=True)
    dist.all_reduce(total)
    return (total / dist.get_world_size()).cpu().numpy().astype(np.float64)


def averaging(tensor: torch.Tensor) -> Any:
    """The operation with which a collective on this tensor averages over the ranks."""
    # On one rank some NCCL leave the end of an averaged tensor unwritten (NVIDIA/nccl issue 1950).
    if dist.get_backend() == "nccl" and dist.get_world_size() > 1:
        return dist.ReduceOp.AVG  # during the reduction, instead of one more pass over the tensor
    tensor.div_(dist.get_world_size())  # before the sum, which might overflow
    return dist.ReduceOp.SUM


# torch 2.13 renamed these two and deprecates the old names.
def all_gather_single(whole: torch.Tensor, part: torch.Tensor) -> None:
    """Gather the equal parts of all ranks on each rank, in rank order."""
    gather_parts = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather_parts(whole, part)


def reduce_scatter_single(
    part: torch.Tensor, whole: torch.Tensor, operation: Any = dist.ReduceOp.SUM
) -> None:
    """Reduce the tensors of all ranks, and give each rank its part of the result."""
    scatter_parts = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter_parts(part, whole, operation)


def pace_sockets(emulated: Emulated | None) -> int:
    """Pace this process's connections at the emulated link's rate, if there is one; their number.

    In a ring each rank sends through one connection, so its rate is that of the rank's link.
    """
    if emulated is None or emulated.link is None or emulated.way != "pacing":
        return 0
    # Older kernels take 32 bits; a higher rate does not limit anything in practice.
    rate = min(int(emulated.link.bytes_per_s), 2**32 - 2)
    # gloo does not expose its sockets, so they are found among the open files.
    paced = 0
    for one in psutil.Process().net_connections("tcp"):
        if not one.raddr:  # it only listens
            continue
        # A duplicate, because closing this object must not close gloo's connection.
        with suppress(OSError), socket.socket(fileno=os.dup(one.fd)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
            paced += 1
    return paced


@dataclass(frozen=True)
class ClockOffset:
    """A clock's distance from rank 0's at one moment, in s: rank 0 reads `here` + `offset`."""

    here: float
    offset: float


def read_clock_offset(*, now: Callable[[], float] = time.perf_counter) -> ClockOffset:
    """This rank's distance from rank 0; all ranks must call it.

    The first rank of each host exchanges messages with rank 0 through the group's store, which
    every back end has. The exchange with the shortest round trip counts; its answer is assumed to
    be given half-way (as in NTP, RFC 5905, section 8).
    """
    if not dist.is_initialized():
        return ClockOffset(now(), 0.0)
    # Ranks on one host share one clock, as `perf_counter` counts from the host's boot.
    host = socket.gethostname()
    hosts = all_gather_object(host)
    leaders = sorted({hosts.index(name) for name in hosts} - {0})
    if not leaders:
        return ClockOffset(now(), 0.0)
    store = PrefixStore(f"clock {next(_readings)}", default_store())
    offset = ClockOffset(now(), 0.0)
    # One host after the other, so that rank 0 answers at once.
    for leader in leaders:
        if dist.get_rank() == 0:
            for number in range(EXCHANGES):
                store.get(f"{leader} asks {number}")  # waits until it does
                store.set(f"{leader} hears {number}", repr(now()))
        elif dist.get_rank() == leader:
            offset = _ask_rank_0(store, leader, now)
    return all_gather_object(offset)[hosts.index(host)]


def _ask_rank_0(store: Store, leader: int, now: Callable[[], float]) -> ClockOffset:
    exchanges = []
    for number in range(EXCHANGES):
        begin = now()
        store.set(f"{leader} asks {number}", "")
        answer = float(store.get(f"{leader} hears {number}"))
        end = now()
        middle = (begin + end) / 2
        exchanges.append((end - begin, ClockOffset(middle, answer - middle)))
    # The fastest one spent the least time in queues, whose delays may differ by direction.
    return min(exchanges, key=lambda exchange: exchange[0])[1]


def on_clock_of_rank_0(times: FloatArray, offsets: Sequence[ClockOffset]) -> FloatArray:
    """This rank's times on rank 0's clock, by offsets before and after; drift taken as uniform."""
    first, last = offsets
    elapsed = last.here - first.here
    drift = (last.offset - first.offset) / elapsed if elapsed > 0 else 0.0
    return times + first.offset + drift * (np.asarray(times) - first.here)
