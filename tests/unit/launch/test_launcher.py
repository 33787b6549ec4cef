"""A launch beside another driver of the same study, without any job."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from factories import record, run, study
from filelock import FileLock, Timeout

import lab
from lab.launch import launcher
from lab.records.store import Store, write_record


def test_a_second_driver_says_that_another_one_works_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path, [run()], repeats=1)
    made.out.mkdir()
    lines: list[str] = []
    with FileLock(made.out / "driver.lock") as first:

        def end_the_first(_: object, line: str) -> None:
            lines.append(line)
            write_record(record(run()), Store(made.out).folder(made.tasks[0]))
            first.release()

        monkeypatch.setattr(launcher.StudyDisplay, "print", end_the_first)
        (measured,) = lab.launch(made).wait()
    assert measured.completed
    assert launcher.ELSEWHERE in lines[0]
    assert not any(launcher.ELSEWHERE in line for line in lines[1:])


def test_a_detached_driver_can_be_cancelled_from_the_moment_it_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path, [run()], repeats=1)
    lock = FileLock(made.out / "driver.lock")
    states = iter([None, None])

    def poll() -> None:
        if next(states, "late") == "late":
            lock.acquire()  # as the driver does once it has started

    monkeypatch.setattr(
        launcher.subprocess, "Popen", lambda *_, **__: SimpleNamespace(pid=7, poll=poll)
    )
    monkeypatch.setattr(launcher, "START_POLL_S", 0.0)
    assert launcher.detach(made) == 7
    assert lock.is_locked
    lock.release()


class Endless:
    """A job that runs until it is cancelled, and what could be done meanwhile."""

    attempt = SimpleNamespace(errors=list)
    meanwhile: ClassVar[list[Callable[[], bool]]]
    possible: ClassVar[list[bool]]

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(state="running")

    @classmethod
    def poll(cls, _: object) -> float:
        return 0.01

    @classmethod
    def terminate(cls, jobs: list[object]) -> None:
        if jobs:
            cls.possible = [attempted() for attempted in cls.meanwhile]


def test_no_other_driver_adopts_a_job_that_is_being_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path, [run()], repeats=1)
    executor = SimpleNamespace(
        persistent=False, choose=lambda specs, _: specs, submit=lambda specs: [Endless()]
    )
    monkeypatch.setattr(launcher.driver, "executor_for", lambda *_: executor)
    jobs = lab.launch(made)

    def drives() -> bool:
        try:
            with FileLock(made.out / "driver.lock", timeout=0):
                return True
        except Timeout:
            return False

    Endless.meanwhile = [drives, lambda: jobs.done]
    while not jobs._driver.alive:
        time.sleep(0.01)
    jobs.cancel()
    assert Endless.possible == [False, False] and drives() and jobs.done
