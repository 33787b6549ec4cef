"""A user-space switch that delays each frame, to add latency if the kernel has no netem.

Run inside the ports' namespace: `switch.py PORTS SECONDS`. It ends when its standard input does.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

_SOL_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23  # packet(7)
_EVERY_PROTOCOL = 3
_HEADER = 10  # of struct virtio_net_hdr, which describes unfinished work of the kernel on a frame
_LARGEST = 2**17
_BUFFER = 2**24


def open_port(name: str) -> socket.socket:
    """A raw socket on one port for the kernel's frames, unsegmented and without checksums."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL))
    opened.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    opened.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    opened.bind((name, 0))
    return opened


def carry(ports: list[socket.socket], delay: float, stop: int) -> None:
    """Forward frames by learned addresses, each after `delay` s, until `stop` is readable."""
    descriptors = {port.fileno(): port for port in ports}
    ports_by_address: dict[bytes, socket.socket] = {}
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        timeout = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        ready = select.select([*descriptors, stop], [], [], timeout)[0]
        if stop in ready:
            return
        now = time.monotonic()
        for source in (descriptors[descriptor] for descriptor in ready):
            frame = source.recv(_LARGEST)
            ports_by_address[frame[_HEADER + 6 : _HEADER + 12]] = source
            waiting.append((now + delay, source, frame))
        while waiting and waiting[0][0] <= now:
            _, source, frame = waiting.popleft()
            target_port = ports_by_address.get(frame[_HEADER : _HEADER + 6])
            for target in (
                [target_port] if target_port else [other for other in ports if other is not source]
            ):
                target.send(frame)


if __name__ == "__main__":
    opened = [open_port(f"port{number}") for number in range(int(sys.argv[1]))]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry(opened, float(sys.argv[2]), sys.stdin.fileno())
