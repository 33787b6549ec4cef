"""lab calibrate: measure a cluster's links and devices, one job per world size, and keep what is measured."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lab.config.cluster import Cluster
from lab.errors import InputError, LabError, Problem
from lab.files import read_json, write_atomically
from lab.launch import job
from lab.launch.attempt import Attempt, claim
from lab.launch.driver import Driver, executor_for, terminate
from lab.launch.executor import Handle, JobSpec
from lab.launch.outcome import rank_error
from lab.launch.preflight import usable
from lab.launch.watchdog import Watchdog
from lab.perfmodel.calibration import (
    Calibration,
    Part,
    calibration_path,
    read_calibration,
    write_calibration,
)
from lab.worker.context import RankContext

KEPT_FOR = timedelta(days=1)


class InterruptedCalibrationError(LabError):
    """The user stopped the calibration; the world sizes that are measured are kept."""


def calibrate(
    cluster: str | Path = "local",
    *,
    world_sizes: Sequence[int] | None = None,
    quick: bool = False,
    fresh: bool = False,
    progress: bool = True,
) -> Calibration:
    """Measure collectives by size and world size, matrix products by dtype and memory bandwidth on a cluster profile.

    World sizes are 1, 2, 4 and so on up to the cluster's capacity, where none are given. Each is stored when it is
    measured, and not measured again on the same day with the same profile, host and torch, unless `fresh`. `quick`
    takes fewer sizes and less time. No study's run is timed meanwhile. Raises InputError for an unknown profile or
    world sizes that it cannot run, InterruptedCalibrationError on Ctrl-C, LabError where a job fails.
    """
    profile = usable(cluster)
    path = calibration_path(cluster)
    wanted = tuple(sorted(set(world_sizes or _doubling(profile.capacity))))
    if wrong := [size for size in wanted if not 1 <= size <= profile.capacity]:
        raise InputError(
            profile.name,
            [
                Problem("world_sizes", f"{size} ranks; {profile.description}", "leave it out")
                for size in wrong
            ],
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=0):
            return _calibrate(profile, path, wanted, quick=quick, fresh=fresh, progress=progress)
    except Timeout:
        raise LabError(
            f"another calibration of {profile.name} is under way: wait until it has ended"
        ) from None
    except OSError as error:
        raise LabError(
            f"{error.filename or path}: {error.strerror}; free or unlock it, then calibrate again"
        ) from None


def _doubling(capacity: int) -> list[int]:
    return [size for power in range(capacity.bit_length()) if (size := 2**power) <= capacity]


def _calibrate(
    profile: Cluster,
    path: Path,
    wanted: tuple[int, ...],
    *,
    quick: bool,
    fresh: bool,
    progress: bool,
) -> Calibration:
    stored = read_calibration(path)
    # What was measured elsewhere or with something else says nothing of this cluster; what is merely old stays until it is replaced.
    parts = [part for part in stored.parts if _same_conditions(part, profile)] if stored else []
    calibration = Calibration(cluster=profile.name, wanted=wanted, parts=tuple(parts))
    due = [
        size
        for size in wanted
        if fresh or not any(_reusable(part, size, quick=quick) for part in parts)
    ]
    with _Display(enabled=progress) as display:
        for size in wanted:
            if size not in due:
                display.say(f"{_ranks(size)}: measured today already")
        for done, size in enumerate(due):
            try:
                part = _measure(
                    profile, size, path.with_suffix("") / f"x{size}", quick=quick, display=display
                )
            except KeyboardInterrupt:
                kept = len(wanted) - len(due) + done
                raise InterruptedCalibrationError(
                    f"interrupted: {kept} of {len(wanted)} world sizes are kept; the same command goes on from there"
                ) from None
            calibration = calibration.with_part(part)
            write_calibration(calibration, path)
    if calibration != stored:
        write_calibration(calibration, path)
    shutil.rmtree(path.with_suffix(""), ignore_errors=True)  # logs of jobs that went well
    return calibration


def _same_conditions(part: Part, profile: Cluster) -> bool:
    version = part.environment.versions.get("torch", "").split("+")[0]
    here = profile.executor != "local" or set(part.environment.hosts) == {socket.gethostname()}
    return here and part.profile == profile and version == metadata.version("torch").split("+")[0]


def _reusable(part: Part, world_size: int, *, quick: bool) -> bool:
    recent = datetime.now(UTC) - part.measured_at < KEPT_FOR
    return part.world_size == world_size and recent and (quick or not part.quick)


def _measure(
    profile: Cluster, world_size: int, folder: Path, *, quick: bool, display: _Display
) -> Part:
    """Run one job to its end and read its part; ends the job where this call is interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "progress.json").unlink(missing_ok=True)
    began = time.monotonic()
    work = JobSpec(
        folder, world_size, execute, (world_size, quick, profile.model_dump_json(), str(folder))
    )
    ended: list[Handle] = []
    driver = Driver(
        executor_for(profile, folder),
        ended=lambda _, handle: ended.append(handle),
        seen=lambda _: False,
    )

    def show(wait_s: float) -> bool:
        told = read_json(folder / "progress.json")
        phase = told["phase"] if told else "waiting for the machine"
        display.show(
            f"{_ranks(world_size)}: {phase}", told["step"] / max(told["steps"], 1) if told else 0.0
        )
        time.sleep(wait_s)
        return False

    try:
        driver.drive([work], adopted={}, stopped=show)
    except BaseException:
        terminate(driver.alive.values())
        raise
    (handle,) = ended
    try:
        part = Part.model_validate_json(handle.attempt.path("part.json").read_bytes())
    except (OSError, ValidationError):
        raise LabError(_cause(handle, world_size)) from None
    display.say(
        f"{_ranks(world_size)}: measured in {time.monotonic() - began:.0f} s{_disturbance(part)}"
    )
    return part


def _disturbance(part: Part) -> str:
    if not part.disturbed:
        return ""
    return f"; other processes took {part.environment.foreign_cpu:.1f} cores meanwhile: calibrate again with --fresh when they are done"


def _cause(handle: Handle, world_size: int) -> str:
    where = f"calibration on {_ranks(world_size)}"
    for error in handle.attempt.errors():
        return f"{where}: rank {error.rank} ended with {error.type}: {error.message}; its log is in {handle.attempt.log}"
    return f"{where}: {handle.last_words().message}; its log is in {handle.attempt.log}"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count != 1 else ''}"


class _Display:
    """A bar in a terminal or a notebook; lines for what is done anywhere else."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._console = Console()
        live = enabled and (self._console.is_terminal or self._console.is_jupyter)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not live)
        self._task = self._bar.add_task("calibrating", total=1.0)

    def __enter__(self) -> _Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, text: str, share: float) -> None:
        """What goes on, and how much of it is done."""
        self._bar.update(self._task, description=text, completed=share)

    def say(self, text: str) -> None:
        """What is done."""
        if self._enabled:
            self._console.print(text, highlight=False, soft_wrap=True)


def execute(world_size: int, quick: bool, cluster_json: str, folder: str) -> None:
    """Measure one world size on this rank; submitit calls this on every rank, and rank 0 writes the part."""
    cluster = Cluster.model_validate_json(cluster_json)
    place, attempt = job.sign_on(world_size, cluster, Path(folder))
    if place.rank != 0:
        attempt.await_decision()
        _measure_here(place, cluster, attempt, quick=quick)
        return
    with claim(attempt.folder, attempt, devices=cluster.executor == "local"):
        attempt.decide("run")
        _measure_here(place, cluster, attempt, quick=quick)


def _measure_here(place: RankContext, cluster: Cluster, attempt: Attempt, *, quick: bool) -> None:
    watchdog = Watchdog(place, attempt, steps=1, given_up=lambda: None)
    try:
        place = job.setup_rank(place, cluster, attempt)
        watchdog.start()
        from lab.worker.calibrate import measure

        part = measure(place, cluster, quick=quick, progress=watchdog.progress)
        watchdog.stop()
    except Exception as error:
        watchdog.stop()
        attempt.write_error(rank_error(place.rank, error, phase=watchdog.phase))
        raise
    if part is not None:
        write_atomically(attempt.path("part.json"), part.model_dump_json().encode())
