"""A seccomp filter for processes that run a learner's code, on x86-64 Linux.

Such a process may compute, start threads, read files, and communicate over existing connections.
It may not start a process, write to a file that is not already open, open a socket, or signal
another process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterator

# seccomp(2), prctl(2), and the instructions of classic BPF from linux/filter.h.
_NO_NEW_PRIVILEGES, _SECCOMP, _SET_FILTER, _ALL_THREADS = 38, 317, 1, 1
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_X86_64, _OTHER_ABI = 0xC000003E, 0x40000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_THREAD = 0x00010000  # CLONE_THREAD
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SET_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX
_SET_OWNER_OF_SOCKET = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP

# Numbers of system calls, from asm/unistd_64.h.
_PROCESSES = (57, 58, 59, 322)  # fork, vfork, execve, execveat
_SIGNALS = (62, 200, 129, 297, 424)  # kill, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send
_MEMORY_OF_OTHERS = (101, 310, 311, 438)  # ptrace, process_vm_readv and writev, pidfd_getfd
_FILES = (
    *(85, 87, 263, 82, 264, 316),  # creat, unlink, unlinkat, rename, renameat, renameat2
    *(83, 258, 84, 76),  # mkdir, mkdirat, rmdir, truncate
    *(90, 91, 268, 452, 92, 93, 94, 260),  # chmod, fchmod, fchmodat, fchmodat2, and of chown
    *(86, 265, 88, 266, 133, 259, 132, 235, 261, 280),  # link, symlink, mknod, times
    *(188, 189, 190, 197, 198, 199, 463, 466),  # setxattr and removexattr: access control lists
    304,  # open_by_handle_at
)
# mount, umount2, setns, unshare, chroot, pivot_root, io_uring_setup, bpf, socket, socketpair,
# setrlimit
_SYSTEM = (165, 166, 308, 272, 161, 155, 425, 321, 41, 53, 160)
_ABSENT = (435, 437)  # clone3 and openat2, whose flags a filter cannot see; libraries fall back


def obstacle() -> str:
    """Why this machine cannot confine a process this way; empty if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "learners' code can be confined only on x86-64 Linux"
    return ""


def confine() -> None:
    """Permanently confine this process with all its threads; raises OSError if that fails."""
    if obstacle():
        raise OSError(errno.ENOSYS, obstacle())
    libc = ctypes.CDLL(None, use_errno=True)
    program = _program(os.getpid())
    code = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    failed = libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(
        _SECCOMP, _SET_FILTER, _ALL_THREADS, header
    )
    if failed:
        raise OSError(ctypes.get_errno(), "seccomp cannot confine this process")


def _program(pid: int) -> bytes:
    refuse, absent = _FAIL | errno.EPERM, _FAIL | errno.ENOSYS
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _OTHER_ABI),
        (_RETURN, 0, 0, _KILL),
    ]
    for number in (*_PROCESSES, *_SIGNALS, *_MEMORY_OF_OTHERS, *_FILES, *_SYSTEM):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    for number in _ABSENT:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, absent)]
    for number, refused, tests in _calls(pid):
        met, otherwise = (refuse, _ALLOW) if refused else (_ALLOW, refuse)
        rest = 2 * len(tests)  # lines of tests to come
        lines.append((_EQUAL, 0, rest + 2, number))
        for offset, test, value in tests:
            lines += [(_LOAD, 0, 0, offset), (test, rest - 1, 0, value)]
            rest -= 2
        lines += [(_RETURN, 0, 0, otherwise), (_RETURN, 0, 0, met)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _calls(pid: int) -> Iterator[tuple[int, bool, list[tuple[int, int, int]]]]:
    """Calls by number, and whether they are refused, or else allowed, if any of the tests is met.

    A test is the offset of what is compared, the comparison, and the value.
    """
    yield 2, True, [(_argument(1), _ANY_BIT, _WRITING)]  # open
    yield 257, True, [(_argument(2), _ANY_BIT, _WRITING)]  # openat
    yield 56, False, [(_argument(0), _ANY_BIT, _THREAD)]  # clone
    yield 234, False, [(_argument(0), _EQUAL, pid)]  # tgkill, which abort() uses
    # prlimit64 only reads limits if the pointer to new ones is zero.
    yield 302, True, [(_argument(2) + half, _ANY_BIT, 2**32 - 1) for half in (0, 4)]
    # By fcntl and ioctl a file signals the process that is set as its owner.
    yield 72, True, [(_argument(1), _EQUAL, command) for command in _SET_OWNER]
    yield 16, True, [(_argument(1), _EQUAL, request) for request in _SET_OWNER_OF_SOCKET]


def _argument(number: int) -> int:
    """The offset of the lower half of an argument."""
    return _ARGUMENTS + 8 * number
