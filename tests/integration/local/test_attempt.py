"""How the ranks of a job and its driver understand each other, also when some of them die."""

from __future__ import annotations

import multiprocessing
import shutil
import threading
import time
from pathlib import Path

import pytest

from lab.config.run import Run
from lab.config.study import Task
from lab.errors import LabError
from lab.launch.attempt import WAITING, Attempt, RankError, claim, read_progress
from lab.launch.outcome import failed

RUN = Run(global_batch_size=8, world_size=2)


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "log").mkdir()
    return Attempt(tmp_path, "17")


def register_and_end(attempt: Attempt, rank: int) -> None:
    attempt.register_rank(rank)


def ended_rank(attempt: Attempt, rank: int) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=register_and_end, args=(attempt, rank)
    )
    process.start()
    process.join()


def test_first_cause_comes_before_those_who_only_waited(attempt: Attempt) -> None:
    attempt.write_error(
        RankError(0, "RuntimeError", "Connection closed by peer", 1.0, waiting=True)
    )
    attempt.write_error(RankError(1, "ValueError", "bad sample", 2.0))
    record = failed(Task(RUN, 0), attempt)
    assert record.error is not None and (record.error.rank, record.error.type) == (1, "ValueError")
    assert record.status == "failed"


def test_earlier_cause_comes_first(attempt: Attempt) -> None:
    attempt.write_error(RankError(0, "ValueError", "second", 2.0))
    attempt.write_error(RankError(1, "KeyError", "first", 1.0))
    assert [error.message for error in attempt.errors()] == ["first", "second"]


def test_killed_rank_is_named(attempt: Attempt) -> None:
    attempt.register_rank(0)
    ended_rank(attempt, 1)
    attempt.write_error(
        RankError(0, "RuntimeError", "Connection closed by peer", 1.0, waiting=True)
    )
    error = failed(Task(RUN, 0), attempt).error
    assert error is not None and (error.rank, error.type) == (1, "RankLost")


def test_silent_rank_is_named_when_the_others_waited_for_it(attempt: Attempt) -> None:
    attempt.register_rank(0)
    attempt.register_rank(1)  # it lives, and says nothing
    attempt.write_error(RankError(0, "Hang", "no progress for 5 s", 1.0, waiting=True))
    record = failed(Task(RUN, 0), attempt)
    assert record.error is not None and (record.error.rank, record.error.type) == (1, "Hang")
    assert record.status == "timeout"


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("OutOfMemoryError", "oom"),
        ("MemoryError", "oom"),
        ("Hang", "timeout"),
        ("ValueError", "failed"),
    ],
)
def test_status_tells_the_ends_apart(attempt: Attempt, name: str, status: str) -> None:
    attempt.write_error(RankError(0, name, "message", 1.0))
    assert failed(Task(RUN, 0), attempt).status == status


def test_job_without_a_word_still_has_a_cause(attempt: Attempt) -> None:
    error = failed(Task(RUN, 0), attempt, reason=RankError(0, "JobLost", "killed", 0.0)).error
    assert error is not None and error.type == "JobLost" and error.message == "killed"


def test_ranks_wait_for_the_decision(attempt: Attempt) -> None:
    with pytest.raises(TimeoutError):
        attempt.wait_for_leader(patience_s=0.1)
    attempt.decide("skip")
    assert attempt.wait_for_leader() == "skip"


def test_nobody_waits_for_a_leader_that_has_ended(attempt: Attempt) -> None:
    attempt.observe_exit(1, -9, "starting")
    with pytest.raises(TimeoutError):  # another rank's end is not its own
        attempt.wait_for_leader(patience_s=0.1)
    attempt.observe_exit(0, -9, "starting")
    with pytest.raises(LabError, match="rank 0 was killed by SIGKILL"):
        attempt.wait_for_leader()


def test_a_job_whose_files_are_gone_waits_for_no_device(attempt: Attempt) -> None:
    attempt.heartbeat()
    shutil.rmtree(attempt.log)
    with pytest.raises(FileNotFoundError):
        attempt.heartbeat()
    assert not attempt.log.exists()


def test_a_job_that_waits_for_devices_says_so(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    later = Attempt(tmp_path / "later", "18")
    later.log.mkdir(parents=True)

    def wait() -> None:
        with claim(later, names=None):
            pass

    waiting = threading.Thread(target=wait, daemon=True)
    with claim(attempt, names=None):
        waiting.start()
        while read_progress(later.folder).phase != WAITING:
            time.sleep(0.01)
    waiting.join()
    assert read_progress(attempt.folder).phase == "starting"


def hold(attempt: Attempt, held: Path) -> None:
    with claim(attempt, names=None):
        held.touch()
        time.sleep(600)


def test_claim_ends_with_the_process_that_holds_it(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = multiprocessing.get_context("spawn").Process(
        target=hold, args=(attempt, tmp_path / "held")
    )
    process.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    process.kill()
    process.join()
    with claim(attempt, names=None):
        pass
