from __future__ import annotations

import subprocess
import sys

import pytest

from lab.worker import confine

# New limits at an address whose lower half is zero.
LIMITS = """
import ctypes, errno, resource
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
address = libc.mmap(1 << 32, 4096, 3, 0x100022, -1, 0)
assert address == 1 << 32
before = resource.getrlimit(resource.RLIMIT_NOFILE)
(ctypes.c_uint64 * 2).from_address(address)[:] = [before[0] - 1, before[1]]
confine()
status = libc.syscall(302, 0, resource.RLIMIT_NOFILE, ctypes.c_void_p(address), None)
assert (status, ctypes.get_errno()) == (-1, errno.EPERM)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
"""


# Attributes of a file, among them who may read it; a socket that sends to any path; and files that
# signal another process.
FILES_AND_SOCKETS = """
import fcntl, os, socket, tempfile
place, (end, _) = tempfile.mkdtemp(), socket.socketpair()
owner = os.getppid()
confine()
assert fcntl.fcntl(end, fcntl.F_GETFL) >= 0
for act in (
    lambda: os.setxattr(place, "user.note", b"1"),
    socket.socketpair,
    lambda: fcntl.fcntl(end, fcntl.F_SETOWN, owner),
    lambda: fcntl.fcntl(end, 10, 9),
    lambda: fcntl.ioctl(end, 0x8901, owner.to_bytes(4, "little")),
):
    try:
        act()
    except PermissionError:
        continue
    raise SystemExit(f"line {act.__code__.co_firstlineno} is allowed")
"""


@pytest.mark.skipif(bool(confine.obstacle()), reason=confine.obstacle() or "confined here")
@pytest.mark.parametrize("program", [LIMITS, FILES_AND_SOCKETS])
def test_what_a_confined_process_may_not_do(program: str) -> None:
    program = f"from lab.worker.confine import confine\n{program}"
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
