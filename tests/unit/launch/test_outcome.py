"""Of two attempts at a repeat the quieter is its record, and a kill at any moment loses neither."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from factories import record, run

from lab.config.study import Task
from lab.launch.attempt import Attempt, RankError
from lab.launch.executor import LocalJob
from lab.launch.job import _decide
from lab.launch.local import LocalHandle
from lab.launch.outcome import (
    STATUSES,
    archive_noisy,
    failed,
    keep_completed,
    keep_quieter,
    rank_error,
)
from lab.records.schema import GpuState
from lab.records.store import DISTURBED, Record, read_record, write_record

CHANGES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.copyfile"}


def attempt(foreign_cpu: float | None, minute: int) -> Record:
    made = record(run(2), step_time=0.1 + minute / 1000, foreign_cpu=foreign_cpu)
    return made.model_copy(update={"finished_at": f"2025-01-01T00:{minute:02d}:00+00:00"})


def begin(folder: Path, first: Record) -> None:
    """The first attempt set aside, and the time series of the second where its job writes them."""
    folder.mkdir()
    (folder / "steps.parquet").write_text(first.finished_at)
    (folder / "trace.json.gz").write_text(first.finished_at)
    write_record(first, folder)
    archive_noisy(folder, replaced=folder.parent / "replaced")


def measure(folder: Path, second: Record) -> None:
    (folder / "steps.parquet").write_text(second.finished_at)
    (folder / "trace.json.gz").write_text(second.finished_at)
    keep_quieter(second, folder)


def finished(folder: Path) -> str | None:
    """When the attempt in a folder ended, if its record, its time series and its trace are there."""
    whole = read_record(folder / "record.json")
    series = [folder / "steps.parquet", folder / "trace.json.gz"]
    if whole is None or not all(path.exists() for path in series):
        return None
    written = {path.read_text() for path in series}
    return whole.finished_at if written == {whole.finished_at} else None


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (0.76, 0.14, 1),
        (0.14, 0.76, 0),
        (0.5, 0.5, 1),
        (0.5, None, 1),  # what was not judged is not called louder
    ],
)
def test_the_quieter_attempt_is_the_record(tmp_path: Path, first, second, kept) -> None:
    attempts = attempt(first, 1), attempt(second, 2)
    folder = tmp_path / "0"
    begin(folder, attempts[0])
    measure(folder, attempts[1])
    other = attempts[1 - kept]
    assert finished(folder) == attempts[kept].finished_at
    assert finished(folder / DISTURBED) == other.finished_at
    now = read_record(folder / "record.json")
    assert now is not None and other.environment is not None
    assert now.disturbed == other.environment.foreign_cpu
    assert {path.name for path in folder.iterdir()} == {
        *("record.json", "steps.parquet", "trace.json.gz", DISTURBED)
    }


def killed(moment: int, folder: Path, second: Record) -> bool:
    """Whether a process that keeps the second attempt is killed at its nth change of a file."""
    child = os.fork()
    if child == 0:
        changes = itertools.count()

        def kill(event: str, _: object) -> None:
            if event in CHANGES and next(changes) == moment:
                os._exit(1)

        sys.addaudithook(kill)
        keep_quieter(second, folder)
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folder of a repeat after a kill at each moment of its second attempt's end, and after none."""
    folders: list[Path] = []
    first, second, was_killed = attempt(0.14, 1), attempt(0.76, 2), True
    while was_killed:
        folder = tmp_path_factory.mktemp("kill") / "run" / "0"
        folder.parent.mkdir()
        begin(folder, first)
        (folder / "steps.parquet").write_text(second.finished_at)
        (folder / "trace.json.gz").write_text(second.finished_at)
        was_killed = killed(len(folders), folder, second)
        folders.append(folder)
    assert len(folders) > 10
    return folders


def test_a_kill_at_any_moment_loses_neither_attempt(kills: list[Path], tmp_path: Path) -> None:
    first, second = attempt(0.14, 1), attempt(0.76, 2)
    for moment, left in enumerate(kills):
        folder = shutil.copytree(left, tmp_path / str(moment))
        # Wherever it stopped, the first attempt is whole; the second too, once it was written.
        places = [folder, *filter(Path.is_dir, folder.iterdir())]
        whole = {finished(place) for place in places}
        assert first.finished_at in whole
        if _decide(folder) == "run":
            assert second.finished_at not in whole
            measure(folder, second)
        assert finished(folder) == first.finished_at
        assert finished(folder / DISTURBED) == second.finished_at


def test_an_exchange_that_a_kill_interrupted_is_completed_before_the_next(
    kills: list[Path], tmp_path: Path
) -> None:
    first, second = attempt(0.14, 1), attempt(0.76, 2)
    for moment, left in enumerate(kills):
        folder = shutil.copytree(left, tmp_path / "run" / str(moment))
        if finished(folder) == first.finished_at:
            archive_noisy(folder, replaced=tmp_path / str(moment))
            assert finished(tmp_path / str(moment) / "run" / folder.name) == second.finished_at
            assert finished(folder / DISTURBED) == first.finished_at
            assert _decide(folder) == "run"


def test_a_failed_second_attempt_does_not_replace_the_first(tmp_path: Path) -> None:
    first = attempt(0.9, 1)
    folder = tmp_path / "0"
    begin(folder, first)
    keep_completed(folder)
    assert read_record(folder / "record.json") is None, "the second attempt may still be running"
    write_record(record(run(2), status="failed"), folder)
    keep_completed(folder)
    assert finished(folder) == first.finished_at
    assert not (folder / DISTURBED).exists()
    assert list((folder / "log").glob("*.record.json"))


def test_what_was_set_aside_before_is_kept_too(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "0"
    folder.parent.mkdir()
    begin(folder, attempt(0.9, 1))
    measure(folder, attempt(0.5, 2))
    archive_noisy(folder, replaced=tmp_path / "replaced")
    measure(folder, attempt(0.7, 3))
    places = folder, folder / DISTURBED, tmp_path / "replaced" / "run" / "0"
    assert [finished(place) for place in places] == [
        attempt(None, minute).finished_at for minute in (2, 3, 1)
    ]


def test_a_gpu_that_was_shared_is_louder_than_busy_cores(tmp_path: Path) -> None:
    shared = GpuState(
        samples=9, sm_clock=1700, sm_clock_low=1700, sm_clock_max=1980, other_processes=1
    )
    first, second = attempt(0.7, 1), attempt(0.0, 2)
    assert second.environment is not None
    place = second.environment.model_copy(update={"gpu_states": [shared]})
    second = second.model_copy(update={"environment": place})
    begin(tmp_path / "0", first)
    measure(tmp_path / "0", second)
    assert finished(tmp_path / "0") == first.finished_at


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom"),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "oom"),
        ("NCCL error ... ncclUnhandledCudaError: Cuda failure 2 'out of memory'", "oom"),
        ("NCCL error ... Last error: Cuda failure 'out of memory'", "oom"),
        ("CUDA error: out of memory", "oom"),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", "failed"),
        ("ncclInternalError: Internal check failed. No mention of memory", "failed"),
    ],
)
def test_libraries_that_cannot_allocate_ran_out_of_memory(message: str, status: str) -> None:
    error = rank_error(0, RuntimeError(message))
    assert STATUSES.get(error.type, "failed") == status


def test_an_error_that_names_a_file_whose_name_is_no_utf_8_can_be_recorded() -> None:
    try:
        raise FileNotFoundError(os.fsdecode(b"data \xe4.csv"))
    except FileNotFoundError as error:
        told = rank_error(0, error)
    assert told.message == r"data \udce4.csv" and r"\udce4" in told.traceback
    assert (told.message + told.traceback).encode()


def test_a_local_job_that_starts_no_rank_is_told_by_the_last_line_of_its_log(
    tmp_path: Path,
) -> None:
    fields = {"cluster": "here", "job_id": "17", "pid": 17, "began": 0.0, "submitted_at": 0.0}
    handle = LocalHandle(tmp_path, LocalJob.model_validate(fields))
    handle.attempt.log.mkdir()
    assert handle.exit_reason().message.endswith("without a record: interrupted or killed?")
    cause = "ModuleNotFoundError: No module named 'pkg_resources'"
    (handle.attempt.log / "17_0_log.out").write_text(f"Traceback\n{cause}\n")
    assert handle.exit_reason().message == f"the job ended before any rank started: {cause}"
    handle.attempt.register_rank(0)
    assert handle.exit_reason().message.endswith("without a record: interrupted or killed?")


def test_a_rank_whose_peer_left_nccl_only_waited() -> None:
    assert rank_error(1, RuntimeError("ncclRemoteError: A call failed possibly ...")).waiting


def test_a_signal_without_a_name_is_told_by_its_number(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    job.observe_exit(1, -40, "training")
    assert "rank 1 was killed by signal 40 in" in str(job.errors()[0])


@pytest.mark.parametrize(
    ("code", "said"), [(3, True), (-signal.SIGABRT, True), (-signal.SIGKILL, False)]
)
def test_an_end_by_itself_is_told_with_the_last_words(
    tmp_path: Path, code: int, *, said: bool
) -> None:
    job = job_in(tmp_path)
    (job.log / "17_1_log.out").write_text("double free or corruption (out)\n\n")
    job.observe_exit(1, code, "warm-up")
    message = job.errors()[0].message
    assert ("in the phase 'warm-up'" in message) and ("double free" in message) == said


def job_in(folder: Path) -> Attempt:
    job = Attempt(folder, "17")
    job.log.mkdir()
    return job


def test_what_a_rank_reported_itself_comes_before_what_its_parent_saw(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    job.write_error(RankError(0, "ValueError", "unusable", time=1.0))
    for rank in (2, 1, 0):
        job.observe_exit(rank, -9, "measuring")
    job.write_error(RankError(3, "RuntimeError", "Connection closed by peer", 1.0, waiting=True))
    assert [(error.rank, error.type) for error in job.errors()] == [
        *((0, "ValueError"), (1, "RankLost"), (2, "RankLost"), (3, "RuntimeError"))
    ]


@pytest.mark.parametrize(
    ("reason", "type_"),
    [("JobLost", "RankLost"), ("MemoryLimit", "MemoryLimit"), ("Cancelled", "Cancelled")],
)
def test_a_scheduler_that_knows_the_cause_is_believed_before_an_observed_end(
    tmp_path: Path, reason: str, type_: str
) -> None:
    job = job_in(tmp_path)
    job.observe_exit(1, -9, "measuring")
    job.write_error(RankError(0, "RuntimeError", "Connection closed by peer", 1.0, waiting=True))
    ended = failed(Task(run(2), 0), job, reason=RankError(0, reason, "says the scheduler"))
    assert ended.error is not None and ended.error.type == type_
