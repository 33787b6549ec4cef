"""The measured speed of a cluster's links, devices and reference steps, stored beside its profile.

Reference steps are short trainings of small fixed GPTs. Collectives and products give the cost of a
step's parts; only whole steps show how far the sum of these parts is from a measured step, and how
much a step varies from process to process.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lab.config.cluster import Cluster, Published, find_profile
from lab.config.models import GPT
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.errors import InputError, LabError
from lab.files import PACKAGE, USER, read_yaml, write_atomically
from lab.formatting import KIB
from lab.perfmodel.collectives import COLLECTIVES, Collective, LinkFit, busbw, fit_link, interpolate
from lab.perfmodel.simulate import NORMAL_95
from lab.records.schema import Environment, Gradient
from lab.records.store import versioned
from lab.records.table import grouped

STEPS, WARMUP_STEPS = 8, 2
# Every calibration measures these: the cost of another strategy is computed from them.
PLAIN = ("single", "ddp")
# Gradient buckets are larger. Below it, costs other than alpha and beta dominate, so times there
# are interpolated.
FIT_FROM_BYTES = 64 * KIB


@dataclass(frozen=True)
class Reference:
    """What reference steps train: a model, samples per step, and the vocabulary of the tokens."""

    model: GPT
    samples: int
    vocabulary: int = 512


def _gpt(layers: int, width: int, block_size: int) -> GPT:
    return GPT(layers=layers, heads=4, width=width, block_size=block_size)


# The first two need little memory, one deep and one wide, so that the cost of a call and that of a
# byte can be separated; the others fill caches as real steps do, and show what grows with samples.
REFERENCES = (
    Reference(_gpt(4, 128, 64), samples=4),
    Reference(_gpt(2, 256, 64), samples=4),
    Reference(_gpt(5, 128, 64), samples=8, vocabulary=4096),
    Reference(_gpt(3, 160, 96), samples=8, vocabulary=4096),
)


class Stored(BaseModel):
    """What is written beside a profile or a study; rejects NaN and infinities."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ReferenceStep(Stored):
    """Medians in s of a reference run's step, one per fresh process, or per round of one.

    `spread` is the relative standard deviation of a process's steps; `phases` and `gradients` are
    those of a record on one rank.
    """

    run: Run
    seconds: tuple[float, ...] = Field(min_length=1)
    spread: float = Field(default=0.0, ge=0)
    phases: dict[str, float] = {}
    gradients: tuple[Gradient, ...] = ()

    @property
    def median(self) -> float:
        """The median over all processes or rounds."""
        return statistics.median(self.seconds)


def reference_runs(world_size: int) -> list[Run]:
    """Each model with each strategy that has a process per rank, and alone on one rank.

    Models with too few layers or heads for this many ranks are left out.
    """
    names = [name for name, facts in STRATEGIES.items() if not facts.single_process]
    settings = {"steps": STEPS, "warmup_steps": WARMUP_STEPS, "lr_warmup_steps": 0}
    runs = []
    for reference in REFERENCES:
        trained = {
            "model": reference.model.model_dump(),
            "data": {"kind": "synthetic", "vocab_size": reference.vocabulary},
            "micro_batch_size": reference.samples,
        }
        for name in ("single", *names):
            own = {"strategy": name, "world_size": 1 if name == "single" else world_size}
            with suppress(ValidationError):
                runs.append(Run.model_validate(settings | own | trained))
    return runs


def pooled(steps: Sequence[ReferenceStep]) -> ReferenceStep:
    """Merge one run's processes, with median phases and the first one's gradients."""
    phases = {
        name: statistics.median(step.phases[name] for step in steps) for name in steps[0].phases
    }
    seconds = tuple(second for step in steps for second in step.seconds)
    spread = statistics.median(step.spread for step in steps)
    return steps[0].model_copy(update={"seconds": seconds, "phases": phases, "spread": spread})


class CollectiveTime(Stored):
    """Time in s of a collective by the slowest rank, with its 95 % interval.

    It is the mean of the middle 90 % of `calls`; older calibrations hold medians.
    """

    collective: Collective
    world_size: int = Field(ge=2)
    bytes: int = Field(gt=0, description="of the whole tensor")
    seconds: float = Field(gt=0)
    low: float | None = None
    high: float | None = None
    calls: int = Field(ge=1)

    @property
    def algbw(self) -> float:
        """Bytes/s of the tensor."""
        return self.bytes / self.seconds

    @property
    def busbw(self) -> float:
        """Bytes/s on the busiest link of a ring."""
        return busbw(self.collective, self.world_size, self.bytes, self.seconds)


class MatrixProduct(Stored):
    """FLOP/s of the fastest square matrix product of one dtype on one rank, and its size."""

    dtype: str
    flops_per_s: float = Field(gt=0)
    size: int


class MemoryBandwidth(Stored):
    """Bytes/s, read and written, of the fastest copy of a tensor of `bytes` on one rank."""

    bytes_per_s: float = Field(gt=0)
    bytes: int


class ContentionTime(Stored):
    """The slowdown of concurrent matrix products and all-reduces of `bytes`.

    `neighbours` is the slowdown of training on a rank while the other ranks train too.
    """

    device: float = Field(ge=1)
    link: float = Field(ge=1)
    neighbours: float = Field(default=1.0, ge=1)
    bytes: int
    rounds: int


class Part(Stored):
    """What was measured at one world size: collectives from 2 ranks on, the device alone on one."""

    world_size: int = Field(ge=1)
    quick: bool
    measured_at: datetime
    profile: Cluster
    environment: Environment
    times: tuple[CollectiveTime, ...] = ()
    matrix_products: tuple[MatrixProduct, ...] = ()
    memory: MemoryBandwidth | None = None
    contention: ContentionTime | None = None
    steps: tuple[ReferenceStep, ...] = ()
    strategies: tuple[str, ...] | None = Field(
        default=None, description="whose reference steps were requested; None: all"
    )
    missing: dict[str, str] = Field(
        default={}, description="collectives and dtypes that are not there, and why"
    )

    @property
    def disturbed(self) -> bool:
        """Whether other processes took a noticeable share of the ranks' cores during it."""
        return self.environment.disturbed

    @property
    def fitted(self) -> bool:
        """Whether the times of all of its collectives grow with the size."""
        return {row.collective for row in self.times} == self.fits.keys()

    def covers(self, strategies: Collection[str] | None) -> bool:
        """Whether reference steps of these strategies (None: of all) were requested from it."""
        if self.strategies is None or strategies is None:
            return self.strategies is None
        return set(strategies) <= set(self.strategies)

    @cached_property
    def fits(self) -> dict[Collective, LinkFit]:
        """One per collective whose times grow over two or more sizes from FIT_FROM_BYTES on."""
        fits = {}
        for name in COLLECTIVES:
            rows = [row for row in self.times if row.collective == name]
            rows = [row for row in rows if row.bytes >= FIT_FROM_BYTES]
            with suppress(ValueError):
                fits[name] = fit_link([row.bytes for row in rows], [row.seconds for row in rows])
        return fits


class Calibration(Stored):
    """A cluster's calibration: one part per world size."""

    schema_version: Literal[1] = 1
    cluster: str
    wanted: tuple[int, ...] = Field(description="the world sizes that were asked for")
    parts: tuple[Part, ...] = ()

    @property
    def rows(self) -> tuple[CollectiveTime, ...]:
        """Times of all collectives, world sizes and bytes."""
        return tuple(row for part in self.parts for row in part.times)

    @property
    def fits(self) -> dict[tuple[Collective, int], LinkFit]:
        """Fits by collective and world size."""
        return {
            (name, part.world_size): fit for part in self.parts for name, fit in part.fits.items()
        }

    @property
    def matrix_products(self) -> dict[str, MatrixProduct]:
        """The fastest matrix products by dtype."""
        return {product.dtype: product for part in self.parts for product in part.matrix_products}

    @property
    def memory(self) -> MemoryBandwidth | None:
        """The memory bandwidth of one rank."""
        return next((part.memory for part in self.parts if part.memory), None)

    @property
    def environment(self) -> Environment | None:
        """Where the largest world size was measured."""
        return max(self.parts, key=lambda part: part.world_size).environment if self.parts else None

    def contention(self, world_size: int) -> ContentionTime | None:
        """The contention at a world size, else at the nearest measured one; None if none was."""
        nearest = _nearest([part for part in self.parts if part.contention], world_size)
        return nearest.contention if nearest else None

    def with_steps(self, world_size: int) -> Part | None:
        """The multi-rank part with reference steps nearest to a world size."""
        return _nearest([p for p in self.parts if p.steps and p.world_size > 1], world_size)

    @property
    def processes(self) -> list[tuple[float, ...]]:
        """Seconds of each reference step on one rank, per fresh process."""
        return [step.seconds for part in self.parts if part.world_size == 1 for step in part.steps]

    def alone(self, run: Run, strategy: str) -> ReferenceStep | None:
        """The reference step of a run's model on one rank, with a strategy or else without one."""
        steps = {
            step.run.strategy: step
            for part in self.parts
            for step in part.steps
            if part.world_size == 1 and step.run.model == run.model
        }
        with_gradients = {name: step for name, step in steps.items() if step.gradients}
        return with_gradients.get(strategy, with_gradients.get("single"))

    def fit(self, collective: Collective, world_size: int) -> LinkFit:
        """The fit of a collective; LabError if it was not measured or cannot be fitted."""
        if fit := self.fits.get((collective, world_size)):
            return fit
        fitted = "it has no fit"
        if sizes := sorted(size for name, size in self.fits if name == collective):
            fitted = f"it is fitted for {', '.join(map(str, sizes))} ranks"
        missing = f"no {collective} on {world_size} ranks"
        raise LabError(f"calibration of {self.cluster}: {missing} ({fitted})")

    def time(self, collective: Collective, world_size: int, size: float) -> float:
        """Seconds of a collective on `size` bytes: interpolated, beyond by the fit; 0 on one rank.

        Raises LabError for a collective or world size that was not measured, ValueError if `size`
        is not positive.
        """
        if world_size == 1:
            return 0.0
        fit = self.fit(collective, world_size)
        times = {
            row.bytes: row.seconds
            for row in sorted(self.rows, key=lambda row: row.bytes)
            if (row.collective, row.world_size) == (collective, world_size)
        }
        return interpolate(size, list(times), list(times.values()), fit)

    def time_error(self, world_size: int) -> float | None:
        """Relative standard deviation of collective times, the median over all of them.

        Times between measured sizes are interpolated, so the error is not that of the fit. None
        if no interval is known, as in published tables.
        """
        deviations = [
            (row.high - row.low) / (2 * NORMAL_95) / row.seconds
            for row in self.rows
            if row.world_size == world_size and row.low is not None and row.high is not None
        ]
        return statistics.median(deviations) if deviations else None

    def with_part(self, part: Part) -> Calibration:
        """The same with one part added, replacing an earlier one of its world size."""
        parts = {one.world_size: one for one in (*self.parts, part)}
        return self.model_copy(update={"parts": tuple(parts[size] for size in sorted(parts))})


def _nearest(parts: Sequence[Part], world_size: int) -> Part | None:
    return min(parts, key=lambda part: abs(part.world_size - world_size), default=None)


def calibration_path(cluster: str | Path | Cluster = "local") -> Path:
    """`calibration/<profile>.json` beside the profile's file; InputError for an unknown profile.

    For a profile of the installed package it is in the user's configuration.
    """
    profile = _profile(cluster)
    folder = USER / "slurm" if profile.is_relative_to(PACKAGE) else profile.parent
    return folder / "calibration" / f"{profile.stem}.json"


def _profile(cluster: str | Path | Cluster) -> Path:
    return find_profile(cluster.reference if isinstance(cluster, Cluster) else cluster)


def load_calibration(cluster: str | Path | Cluster = "local") -> Calibration | None:
    """The calibration of a profile (its name, path or itself); None if no readable one exists.

    Raises InputError for an unknown profile, LabError for a calibration by a newer lab version.
    """
    if isinstance(cluster, Cluster) and cluster.published is not None:
        return published_calibration(cluster)
    try:
        path, profile = calibration_path(cluster), _profile(cluster)
        if read_yaml(profile).get("executor") == "replay":
            return published_calibration(Cluster.load(profile))
    except InputError:
        if isinstance(cluster, Cluster):  # one that was made without a file
            return None
        raise
    return read_calibration(path)


def find_calibration(cluster: str) -> Calibration | None:
    """The same for a profile that may be missing here, where only its records came."""
    try:
        return load_calibration(cluster)
    except InputError:
        return None


def read_calibration(path: Path) -> Calibration | None:
    """Read one file; None if missing or incomplete. Raises LabError for a newer schema."""
    try:
        return versioned(Calibration, path)
    except OSError:
        return None


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration atomically."""
    write_atomically(path, calibration.model_dump_json(indent=1).encode())


def published_calibration(cluster: Cluster) -> Calibration | None:
    """The published all-reduces as a calibration; None if the table holds none."""
    assert cluster.published is not None
    times = grouped(
        (row.world_size, CollectiveTime(collective="all_reduce", **row.model_dump(), calls=1))
        for row in cluster.published.all_reduce
    )
    if not times:
        return None
    parts = tuple(
        Part(
            world_size=size,
            quick=False,
            measured_at=datetime.now(UTC),
            profile=cluster,
            environment=published_environment(cluster, cluster.published, size),
            times=tuple(times[size]),
        )
        for size in sorted(times)
    )
    return Calibration(cluster=cluster.name, wanted=tuple(sorted(times)), parts=parts)


def published_environment(cluster: Cluster, published: Published, ranks: int) -> Environment:
    """The environment of published numbers: what their source states, not this machine's."""
    gpus = cluster.device_kind == "cuda"
    return Environment(
        cluster=cluster.name,
        hosts=["unknown"],
        device=cluster.device_kind,
        backend=None,
        cpu="unknown",
        cpu_count=0,
        cpus_granted=[[]] * ranks,
        threads_per_rank=0,
        gpu=published.gpu if gpus else None,
        gpu_count=ranks if gpus else 0,
        versions={},
        replay=f"{published.source}{'. ' + published.note if published.note else ''}",
    )
