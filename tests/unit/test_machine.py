"""Processes are told apart by id and beginning, whatever happens to the clock."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from lab.machine import age, began, is_running


def test_a_process_is_known_again_and_one_that_has_its_id_is_not() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    since = began(process.pid)
    assert is_running(process.pid, since) and not is_running(process.pid, since - 1.0)
    assert since >= began(os.getpid())
    process.kill()
    deadline = time.monotonic() + 30
    while is_running(process.pid, since):  # a zombie from the moment it ends
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.wait()
    with pytest.raises(psutil.NoSuchProcess):
        began(process.pid)


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="other systems tell only the time of day at which a process began",
)
def test_setting_the_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before, since = age(), began(os.getpid())
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(psutil, "boot_time", lambda: 0.0)
    assert before <= age() < before + 30 and began(os.getpid()) == since
