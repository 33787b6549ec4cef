"""Each rank of one machine behind a link of chosen bandwidth and latency, without root; the way depends on the machine.

Namespaces: a bridge joins one network namespace per rank, and a token bucket (tc-tbf) lets out what the link carries.
Latency is netem's where the kernel has it, else that of a switch in user space. Pacing: see `lab.worker.distributed`.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.config.emulation import SO_MAX_PACING_RATE, WAYS, Emulated, Link, Way
from lab.errors import LabError
from lab.files import read_json, write_atomically
from lab.worker.context import RankContext

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_SWITCH = Path(__file__).with_name("switch.py")


def ways(link: Link) -> dict[Way, str]:
    """The ways to emulate a link, best first, each with what stands against it here: nothing where it works."""
    spaces = _spaces_obstacle()
    delayed = link.latency_ms > 0 and not _has_netem()
    return {
        "namespaces": spaces or ("the kernel has no netem to delay packets" if delayed else ""),
        "switch": spaces or ("" if delayed else "there is nothing to delay that the kernel cannot"),
        "pacing": _pacing_obstacle() or ("paced sockets add no latency" if link.latency_ms else ""),
    }


def way_for(link: Link) -> Way | None:
    """The best way that works here; None where there is none."""
    return next((way for way, obstacle in ways(link).items() if not obstacle), None)


def obstacle(link: Link) -> str:
    """What stands against a link here, by every way; nothing where one works."""
    return "" if way_for(link) else "; ".join(dict.fromkeys(filter(None, ways(link).values())))


def advice(link: Link) -> str:
    """What to do where a link cannot be emulated: the next best that works here."""
    plain = way_for(Link(bandwidth_gbit=link.bandwidth_gbit))
    if plain is not None:
        return f"leave out latency_ms: {link.bandwidth_gbit:g} Gbit/s without it works here, by {WAYS[plain]}"
    return "use a Linux machine, leave out link and emulate compute alone, or take lesson 6's published tables of slow links"


def join(place: RankContext, link: Link, meeting: Path) -> RankContext:
    """Put this process behind its link and say where it is then; rank 0 lays the network and tells of it in `meeting`.

    Must be called before the process starts threads, as one that has them cannot enter a namespace. The network lasts as
    long as rank 0. Raises LabError where the machine permits no way or rank 0 gives no sign.
    """
    if place.rank == 0:
        way = way_for(link)
        if way is None:
            raise LabError(
                f"a link of {link.label} cannot be emulated here: {obstacle(link)}; {advice(link)}"
            )
        pid = None if way == "pacing" else _lay(link, place.world_size, way)
        write_atomically(meeting, json.dumps({"way": way, "pid": pid}).encode())
    told = _await(meeting, place.start_timeout_s)
    emulated = replace_link(place.emulated, link, told["way"])
    if told["pid"] is None:
        return replace(place, emulated=emulated)
    _enter(told["pid"], place.rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    return replace(place, emulated=emulated, host=address(0))


def replace_link(emulated: Emulated | None, link: Link, way: Way) -> Emulated:
    """What is emulated, with this link."""
    return (emulated or Emulated()).model_copy(update={"link": link, "way": way})


def address(rank: int) -> str:
    """A rank's address in the network of namespaces."""
    return f"10.77.{(rank + 1) // 256}.{(rank + 1) % 256}"


def script(link: Link, world_size: int, way: Way) -> str:
    """Shell commands that lay the network, to be run as root of a user namespace with its own network and mounts.

    A bucket lets that much pass at once after a pause, so it holds half a millisecond of the link, within what packets need.
    """
    burst = int(min(max(link.bytes_per_s * 0.5e-3, 2**14), 2**18))
    packet = min(max(burst // 2, 2**14), 2**16)
    commands = ["set -e", "mount -t tmpfs none /run", "ip link set lo up"]
    if way == "namespaces":
        commands += ["ip link add hub type bridge", "ip link set hub up"]
    for rank in range(world_size):
        inside, port = f"-n rank{rank}", f"port{rank}"
        commands += [
            f"ip netns add rank{rank}",
            f"ip link add {port} type veth peer name eth0 netns rank{rank}",
            f"ip link set {port} {'master hub ' if way == 'namespaces' else ''}up",
            f"ip {inside} link set lo up",
            f"ip {inside} link set eth0 gso_max_size {packet} up",
            f"ip {inside} address add {address(rank)}/16 dev eth0",
            f"tc {inside} qdisc add dev eth0 root tbf rate {link.bandwidth_gbit * 1e9:.0f}bit burst {burst} latency 50ms",
        ]
        if way == "namespaces" and link.latency_ms:
            commands.append(
                f"tc qdisc add dev {port} root netem delay {link.latency_ms * 1e3:.0f}us limit 100000"
            )
    return "\n".join(commands)


def _lay(link: Link, world_size: int, way: Way) -> int:
    """Lay the network in a process that keeps it until this one ends; its process id."""
    if way == "switch":
        keep = f"exec {sys.executable} -I {_SWITCH} {world_size} {link.latency_ms / 1e3}"
    else:
        keep = "echo ready; exec cat"
    command = _in_namespaces(f"{script(link, world_size, way)}\n{keep}")
    # The pipe to its standard input ends with this process, however it ends, and the network with it.
    keeper = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert keeper.stdout is not None and keeper.stderr is not None
    if keeper.stdout.readline().strip() != b"ready":
        keeper.kill()
        raise LabError(
            f"the emulated link could not be laid: {keeper.stderr.read().decode(errors='replace').strip()[-500:]}"
        )
    _KEPT.append(keeper)
    return keeper.pid


_KEPT: list[subprocess.Popen[bytes]] = []  # whose pipes must stay open


def _await(meeting: Path, patience_s: float) -> dict[str, Any]:
    end = time.monotonic() + patience_s
    while (told := read_json(meeting)) is None:
        if time.monotonic() > end:
            raise LabError(
                f"Timed out waiting {patience_s:.0f} s for the network of rank 0: did it start?"
            )
        time.sleep(0.02)
    return told


def _enter(pid: int, rank: int) -> None:
    """Become a member of the keeper's user namespace, then of the rank's network."""
    # Submitit loads numpy, whose OpenBLAS starts threads at once; before a fork it ends them, until they are needed.
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, path in (
        (_NEW_USER, f"/proc/{pid}/ns/user"),
        (_NEW_NET, f"/proc/{pid}/root/run/netns/rank{rank}"),
    ):
        handle = os.open(path, os.O_RDONLY)
        if libc.setns(handle, kind):
            raise LabError(f"rank {rank} cannot enter {path}: {os.strerror(ctypes.get_errno())}")
        os.close(handle)


def _in_namespaces(commands: str) -> list[str]:
    return ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", commands]


@functools.cache
def _spaces_obstacle() -> str:
    """Why there can be no network of namespaces here; nothing where one could be laid a moment ago."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    missing = [name for name in ("unshare", "ip", "tc") if shutil.which(name) is None]
    if missing:
        return (
            f"namespaces need the programs {', '.join(missing)} (`apt install iproute2 util-linux`)"
        )
    return _tried(script(Link(bandwidth_gbit=1.0), 1, "namespaces"))


@functools.cache
def _has_netem() -> bool:
    return not _spaces_obstacle() and not _tried(
        "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"
    )


def _tried(commands: str) -> str:
    try:
        done = subprocess.run(
            _in_namespaces(commands), capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"namespaces failed: {error}"
    told = (done.stderr.strip() or "no reason given").splitlines()[0]
    return f"namespaces are not permitted ({told})" if done.returncode else ""


@functools.cache
def _pacing_obstacle() -> str:
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 10**6)
            if (
                sys.platform == "linux"
                and probe.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) == 10**6
            ):
                return ""
    except OSError:
        pass
    return "the kernel does not pace sockets"
