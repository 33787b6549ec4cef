"""calibrate(): measure a cluster's links and devices, one job per world size."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from numbers import Integral
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError
from rich.text import Text

from lab.config.cluster import Cluster
from lab.errors import INTERRUPTED, InputError, LabError, Problem, items
from lab.files import write_atomically
from lab.formatting import count
from lab.launch import job
from lab.launch.attempt import read_progress
from lab.launch.driver import Driver, OneInterrupt, executor_for, terminate
from lab.launch.driver import handles as handles_of
from lab.launch.executor import Handle, JobSpec
from lab.launch.outcome import first_cause
from lab.launch.preflight import usable
from lab.launch.status import Display, bars, clock
from lab.machine import loading
from lab.perfmodel.calibration import (
    PLAIN,
    Calibration,
    Part,
    calibration_path,
    read_calibration,
    write_calibration,
)

# A part older than this is measured again.
MAX_AGE = timedelta(days=1)
Watch = Callable[[str, float], bool]  # called with a text and a share; True ends it


class InterruptedCalibrationError(LabError):
    """The user stopped the calibration; world sizes already measured are kept."""

    exit_status = INTERRUPTED


def calibrate(
    cluster: str | Path | Cluster = "local",
    *,
    world_sizes: Sequence[int] | None = None,
    strategies: Sequence[str] | None = None,
    quick: bool = False,
    fresh: bool = False,
    progress: bool = True,
    watch: Watch = lambda text, share: False,
) -> Calibration:
    """Measure collectives by size, matrix products by dtype, and memory bandwidth on a cluster.

    If no world sizes are given, they are 1, 2, 4 and so on up to the cluster's capacity. Each is
    stored once measured, and not measured again on the same day with the same profile, host and
    torch, unless `fresh`. Training steps are measured with these `strategies` (default: all),
    with DDP and without a strategy; a world size that lacks one of them is measured again. If the
    profile repeats disturbed measurements, a world size disturbed by other processes gets a second
    attempt, and the quieter one is kept until the next call measures it again. `quick` uses fewer
    sizes, less time and no second attempt; but times that do not grow with the size always bring
    one. No study's run is timed meanwhile. `watch` is called all the time with what is being
    measured and how much of it is done (0 to 1), and ends the calibration by returning True. Raises
    InputError for an unknown or replayed profile or world sizes that it cannot run,
    InterruptedCalibrationError on Ctrl-C or if `watch` ends it, and LabError if a job fails.
    """
    profile = usable(cluster)
    if profile.executor == "replay":
        what = "replays a published table: nothing can be measured on it"
        raise InputError.of(profile.name, "executor", what, "name a profile of a machine")
    path = calibration_path(cluster)
    sizes = world_sizes or _doubling(profile.capacity)
    sizes = sorted(set(items(sizes, Integral, "world_sizes", "whole numbers, such as [1, 2]")))
    if wrong := [size for size in sizes if not 1 <= size <= profile.capacity]:
        ranks = (f"cannot run {count(n, 'rank')}; {profile.description}" for n in wrong)
        advice = "choose 1" if profile.capacity == 1 else f"choose from 1 to {profile.capacity}"
        raise InputError(profile.name, [Problem("world_sizes", what, advice) for what in ranks])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            OneInterrupt(),
            FileLock(path.with_suffix(".lock"), timeout=0),
            Display(enabled=progress) as display,
        ):
            measuring = _Measuring(profile, path, quick, display, watch)
            return measuring.calibrate(tuple(sizes), strategies, fresh=fresh)
    except Timeout:
        message = f"another calibration of {profile.name} is running; wait until it ends"
        raise LabError(message) from None
    except OSError as error:
        raise LabError(
            f"{error.filename or path}: {error.strerror}; free or unlock it, then calibrate again"
        ) from None


@dataclass(frozen=True)
class _Measuring:
    """One call of `calibrate`, while it holds the lock."""

    profile: Cluster
    path: Path
    quick: bool
    display: Display
    watch: Watch

    def calibrate(
        self, world_sizes: tuple[int, ...], strategies: Sequence[str] | None, *, fresh: bool
    ) -> Calibration:
        profile, quick = self.profile, self.quick
        if strategies is not None:
            strategies = sorted({*PLAIN, *strategies})
        stored = read_calibration(self.path)
        # Parts measured elsewhere or with other software are dropped; old ones stay until replaced.
        parts = [part for part in stored.parts if _same_conditions(part, profile)] if stored else []
        calibration = Calibration(cluster=profile.name, wanted=world_sizes, parts=tuple(parts))
        reusable = [part for part in parts if _reusable(part, quick=quick) and not fresh]
        by_size = {part.world_size: part for part in reusable}
        due = [n for n in world_sizes if n not in by_size or not by_size[n].covers(strategies)]
        for size in world_sizes:
            if size not in due:
                self.display.print(f"{count(size, 'rank')}: already measured today")
        for number, size in enumerate(due):
            earlier = by_size[size].strategies if size in by_size else ()
            names = None if strategies is None else sorted({*strategies, *(earlier or ())})
            try:
                part = self.measure(size, names)
                noisy = part.disturbed and profile.repeat_disturbed and not quick
                if noisy or not part.fitted:
                    part = min(part, self.measure(size, names), key=_noise)
            except KeyboardInterrupt:
                done = len(world_sizes) - len(due) + number
                raise InterruptedCalibrationError(
                    f"interrupted: {done} of {len(world_sizes)} world sizes are kept; "
                    "start it again to go on from there"
                ) from None
            calibration = calibration.with_part(part)
            write_calibration(calibration, self.path)
        if calibration != stored:
            write_calibration(calibration, self.path)
        shutil.rmtree(self.path.with_suffix(""), ignore_errors=True)  # logs of successful jobs
        return calibration

    def measure(self, world_size: int, strategies: Sequence[str] | None) -> Part:
        """Run one job to its end and read its part; end the job if this call is interrupted."""
        profile, ranks = self.profile, count(world_size, "rank")
        folder = self.path.with_suffix("") / f"x{world_size}"
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        cluster_json = profile.settled.model_dump_json()
        arguments = (world_size, strategies, self.quick, cluster_json, str(folder))
        handles: list[Handle] = []
        driver = Driver(
            executor_for(profile, folder),
            on_end=lambda _, handle: handles.append(handle),
            has_result=lambda _: False,
        )

        def wait(seconds: float) -> bool:
            progress = read_progress(folder)
            text = f"{ranks}: {progress.phase}, {clock(time.monotonic() - began)}"
            steps = max(progress.steps, 1)
            self.display.show(bars([(Text(text), progress.step, steps)]))
            if self.watch(text, progress.step / steps):
                raise KeyboardInterrupt
            time.sleep(seconds)
            return False

        try:
            driver.drive([JobSpec(folder, world_size, execute, arguments)], adopted={}, wait=wait)
        except BaseException:
            # Also one that was being submitted, and is known by its file alone.
            terminate(handles_of([folder]).values())
            raise
        (handle,) = handles
        try:
            part = Part.model_validate_json(handle.attempt.path("part.json").read_bytes())
            part = part.model_copy(update={"profile": profile})  # as it will be looked up
        except (OSError, ValidationError):
            attempt = handle.attempt
            cause = first_cause(world_size, attempt, handle.exit_reason())
            message = f"calibration on {ranks}: {cause}; the log is in {attempt.log}"
            raise LabError(message) from None
        line = f"{ranks}: measured in {time.monotonic() - began:.0f} s"
        if part.disturbed:
            # Not at the top: pandas starts threads, with which no rank can enter an emulated link.
            from lab.analysis.noise import disturbances

            disturbed = disturbances([part.environment])
            line += f"; {disturbed}: calibrate again when the machine is quiet"
        self.display.print(line)
        return part


def _noise(part: Part) -> tuple[bool, float]:
    return not part.fitted, part.environment.foreign_cpu or 0.0


def _doubling(capacity: int) -> list[int]:
    return [2**power for power in range(capacity.bit_length())]


def _reusable(part: Part, *, quick: bool) -> bool:
    recent = datetime.now(UTC) - part.measured_at < MAX_AGE
    believed = not (part.disturbed and part.profile.repeat_disturbed)
    return recent and believed and (quick or not part.quick)


def _same_conditions(part: Part, profile: Cluster) -> bool:
    version = part.environment.versions.get("torch", "").split("+")[0]
    here = profile.executor != "local" or set(part.environment.hosts) == {socket.gethostname()}
    return here and part.profile == profile and version == metadata.version("torch").split("+")[0]


def execute(
    world_size: int, strategies: Sequence[str] | None, quick: bool, cluster_json: str, folder: str
) -> None:
    """Measure one world size as this rank; rank 0 writes the part."""
    cluster = Cluster.model_validate_json(cluster_json)
    context, attempt = job.register(world_size, cluster, Path(folder))
    with (
        job.claimed(context, cluster, attempt),
        job.watched(context, cluster, attempt) as (context, watchdog),
    ):
        with loading():
            from lab.worker.calibrate import measure

        part = measure(context, cluster, strategies, quick=quick, progress=watchdog.progress)
        watchdog.stop()
        if part is not None:
            write_atomically(attempt.path("part.json"), part.model_dump_json().encode())
        watchdog.limit_exit()
