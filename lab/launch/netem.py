"""Emulated links: each rank on one machine behind a chosen bandwidth and latency, without root.

There are three ways; the best one that the machine permits is used. Namespaces: a bridge joins one
network namespace per rank, a token bucket (tc-tbf) limits the bandwidth, and netem adds delay.
Switch: as above, but a user-space switch adds the delay. Pacing: the kernel paces each rank's
sockets (`lab.worker.distributed`), without latency.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.config.emulation import SO_MAX_PACING_RATE, WAYS, Emulated, Link, Way
from lab.errors import LabError
from lab.files import OWN_MODE, write_atomically
from lab.worker.context import RankContext, from_rank_0

# Runs a command as root of a namespace of users, without a network.
UNSHARE = ("unshare", "--user", "--map-root-user", "--net")
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_SWITCH = Path(__file__).with_name("switch.py")
_HOLDERS: list[subprocess.Popen[bytes]] = []  # processes whose pipes must stay open


def ways(link: Link) -> dict[Way, str]:
    """The ways to emulate a link, best first, each with its obstacle here, or empty if it works."""
    spaces = _spaces_obstacle()
    delayed = link.latency_ms > 0 and not _has_netem()
    return {
        "namespaces": spaces or ("the kernel lacks netem, which delays packets" if delayed else ""),
        "switch": spaces or ("" if delayed else "the kernel can delay the packets itself"),
        "pacing": _pacing_obstacle() or ("paced sockets add no latency" if link.latency_ms else ""),
    }


def way_for(link: Link) -> Way | None:
    """The best way that works here; None if there is none."""
    return next((way for way, obstacle in ways(link).items() if not obstacle), None)


def obstacle(link: Link) -> str:
    """Why no way of emulating a link works here; empty if one does."""
    return "" if way_for(link) else "; ".join(dict.fromkeys(filter(None, ways(link).values())))


def advice(link: Link) -> str:
    """What to do if a link cannot be emulated: the next best that works here."""
    plain = way_for(Link(bandwidth_gbit=link.bandwidth_gbit))
    if plain is not None:
        works = f"{link.bandwidth_gbit:g} Gbit/s without it works here, through {WAYS[plain]}"
        return f"leave out latency_ms: {works}"
    return (
        "use a Linux machine, leave out link and emulate only compute, "
        "or use lesson 6's published tables of slow links"
    )


def join(context: RankContext, link: Link, meeting: Path) -> RankContext:
    """Put this process behind its link, in the network that rank 0 creates; returns its context.

    Must be called before the process starts threads, as a multithreaded one cannot enter a
    namespace. The network lasts as long as rank 0. Raises LabError if it cannot be created or is
    not announced.
    """
    if context.rank == 0:
        way = way_for(link)
        assert way is not None, "such a profile is refused before anything is submitted"
        pid = None if way == "pacing" else _create_network(link, context.world_size, way)
        write_atomically(meeting, json.dumps({"way": way, "pid": pid}).encode(), mode=OWN_MODE)
    network = json.loads(from_rank_0(meeting, "the network", context.start_timeout_s))
    changes = {"link": link, "way": network["way"]}
    emulated = (context.emulated or Emulated()).model_copy(update=changes)
    if network["pid"] is None:
        return replace(context, emulated=emulated)
    _enter(network["pid"], context.rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    return replace(context, emulated=emulated, host=address(0))


def address(rank: int) -> str:
    """A rank's address in the network of namespaces."""
    return f"10.77.{(rank + 1) // 256}.{(rank + 1) % 256}"


def script(link: Link, world_size: int, way: Way) -> str:
    """Shell commands that create the network, as root of a namespace of users, network, mounts."""
    # The burst allowed after a pause: half a millisecond of the link, within bounds.
    burst = int(min(max(link.bytes_per_s * 0.5e-3, 2**14), 2**18))
    packet = min(max(burst // 2, 2**14), 2**16)
    commands = ["set -e", "mount -t tmpfs none /run", "ip link set lo up"]
    if way == "namespaces":
        commands += ["ip link add hub type bridge", "ip link set hub up"]
    rate = f"{link.bandwidth_gbit * 1e9:.0f}bit burst {burst} latency 50ms"
    for rank in range(world_size):
        inside, port = f"-n rank{rank}", f"port{rank}"
        commands += [
            f"ip netns add rank{rank}",
            f"ip link add {port} type veth peer name eth0 netns rank{rank}",
            f"ip link set {port} {'master hub ' if way == 'namespaces' else ''}up",
            f"ip {inside} link set lo up",
            f"ip {inside} link set eth0 gso_max_size {packet} up",
            f"ip {inside} address add {address(rank)}/16 dev eth0",
            f"tc {inside} qdisc add dev eth0 root tbf rate {rate}",
        ]
        if way == "namespaces" and link.latency_ms:
            delay = f"{link.latency_ms * 1e3:.0f}us limit 100000"
            commands.append(f"tc qdisc add dev {port} root netem delay {delay}")
    return "\n".join(commands)


def _create_network(link: Link, world_size: int, way: Way) -> int:
    """Create the network in a process that holds it until this one ends; returns its process id."""
    # Its standard input closes when this process ends, however it does, and ends the network.
    holder = subprocess.Popen(
        _in_namespaces(f"{script(link, world_size, way)}\n{_holder(link, world_size, way)}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert holder.stdout is not None and holder.stderr is not None
    if holder.stdout.readline().strip() != b"ready":
        holder.kill()
        errors = holder.stderr.read().decode(errors="replace").strip()[-500:]
        raise LabError(f"the emulated link could not be created: {errors}")
    _HOLDERS.append(holder)
    return holder.pid


def _holder(link: Link, world_size: int, way: Way) -> str:
    """The shell command of the process that holds the network, and switches it where it must."""
    if way != "switch":
        return "echo ready; exec cat"
    switch = [sys.executable, "-I", str(_SWITCH), str(world_size), str(link.latency_ms / 1e3)]
    return f"exec {shlex.join(switch)}"


def _enter(pid: int, rank: int) -> None:
    """Join the holder's user namespace, then the rank's network namespace (setns(2))."""
    # A library that has started threads, such as OpenBLAS, ends them before a fork.
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    network = f"/proc/{pid}/root/run/netns/rank{rank}"
    for kind, path in ((_NEW_USER, f"/proc/{pid}/ns/user"), (_NEW_NET, network)):
        namespace = os.open(path, os.O_RDONLY)
        if libc.setns(namespace, kind):
            raise LabError(f"rank {rank} cannot enter {path}: {os.strerror(ctypes.get_errno())}")
        os.close(namespace)


def _in_namespaces(commands: str) -> list[str]:
    return [*UNSHARE, "--mount", "sh", "-c", commands]


@functools.cache
def _spaces_obstacle() -> str:
    """Why no network of namespaces can be created here; empty if a trial succeeded."""
    if sys.platform != "linux":
        return "network namespaces exist only on Linux"
    missing = [name for name in ("unshare", "ip", "tc") if shutil.which(name) is None]
    if missing:
        programs = ", ".join(missing)
        return f"namespaces need the programs {programs} (`apt install iproute2 util-linux`)"
    return trial_failure(_in_namespaces(script(Link(bandwidth_gbit=1.0), 1, "namespaces")))


@functools.cache
def _has_netem() -> bool:
    trial = "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"
    return not _spaces_obstacle() and not trial_failure(_in_namespaces(trial))


def trial_failure(command: Sequence[str]) -> str:
    """Why a command cannot be run in namespaces; empty if it can."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"namespaces failed: {error}"
    reason = (process.stderr.strip() or "no reason given").splitlines()[0]
    return f"namespaces are not permitted ({reason})" if process.returncode else ""


@functools.cache
def _pacing_obstacle() -> str:
    option = (socket.SOL_SOCKET, SO_MAX_PACING_RATE)
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(*option, 10**6)
        if sys.platform == "linux" and probe.getsockopt(*option) == 10**6:
            return ""
    return "the kernel does not pace sockets"
