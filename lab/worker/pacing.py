"""A link emulated by pacing: the kernel sends from each socket no faster than it is told to, SO_MAX_PACING_RATE of socket(7)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from lab.emulation.network import SO_MAX_PACING_RATE
from lab.emulation.profile import Emulated


def pace_sockets(emulated: Emulated | None) -> int:
    """Pace the connections that this process has by now, where its link is emulated in this way; says how many.

    In a ring each rank sends through one connection, so that the rate of a connection is that of the rank's link.
    """
    if emulated is None or emulated.link is None or emulated.way != "pacing":
        return 0
    return sum(_pace(int(entry.name), emulated.link.bytes_per_s) for entry in Path("/proc/self/fd").iterdir())


def _pace(descriptor: int, bytes_per_s: float) -> bool:
    try:
        if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:"):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family not in {socket.AF_INET, socket.AF_INET6}:
                return False
            connection.getpeername()
            # 32 bits on older kernels: more than that is no limit anyway.
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, min(int(bytes_per_s), 2**32 - 2))
            return True
    except OSError:
        return False
