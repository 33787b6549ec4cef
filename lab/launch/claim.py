"""Locks by which no two jobs measure the same task or are timed on the same device."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lab.files import private_folder
from lab.launch.attempt import Attempt

POLL_S = 0.05


@contextmanager
def claim(folder: Path, attempt: Attempt, *, devices: bool) -> Iterator[None]:
    """Lock a task and then, if no scheduler allocates them, all of this machine's `devices`.

    The kernel releases all locks of this module when the process ends, however it ends.
    """
    with _locked(folder / "lock", attempt):
        if not devices:
            yield
            return
        # The order is the same in every job, so two jobs cannot deadlock: only who is first in the
        # queue waits for devices, and whoever holds devices waits for nothing.
        with _locked(_queue(), attempt), contextlib.ExitStack() as stack:
            for path in sorted(_private_folder().glob("device-*.lock")):
                stack.enter_context(_locked(path, attempt))
            yield


@contextmanager
def claim_some(
    folder: Path, attempt: Attempt, *, names: Sequence[str], count: int
) -> Iterator[tuple[int, ...]]:
    """Lock a task and then `count` of the devices with these names; yields their indices in order.

    Jobs wait for devices in a queue, so those that need few cannot starve one that needs many.
    """
    locks = [
        FileLock(_private_folder() / f"device-{name.replace('/', '-')}.lock") for name in names
    ]
    with _locked(folder / "lock", attempt), contextlib.ExitStack() as stack:
        with _locked(_queue(), attempt):
            while sum(lock.is_locked for lock in locks) < count:
                attempt.heartbeat()
                for lock in locks:
                    if not lock.is_locked and _acquire(lock, timeout=0):
                        stack.callback(lock.release)
                        break
                else:
                    time.sleep(POLL_S)
        yield tuple(index for index, lock in enumerate(locks) if lock.is_locked)


@contextmanager
def _locked(path: Path, attempt: Attempt) -> Iterator[None]:
    lock = FileLock(path)
    while not lock.is_locked:
        attempt.heartbeat()
        _acquire(lock, timeout=2)
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, *, timeout: float) -> bool:
    with contextlib.suppress(Timeout):
        lock.acquire(timeout=timeout, poll_interval=POLL_S)
    return lock.is_locked


def _queue() -> Path:
    return _private_folder() / "devices.lock"


def _private_folder() -> Path:
    """A folder private to this user, the same for every study on this machine."""
    return private_folder(Path(tempfile.gettempdir()) / f"scaling-lab-{os.getuid()}")
