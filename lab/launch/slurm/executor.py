"""A study's jobs on Slurm, and what Slurm would reject, by `sbatch --test-only`.

Jobs are arrays of one shape each, all submitted before any is awaited.
"""

from __future__ import annotations

import getpass
import itertools
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.config.cluster import Cluster
from lab.errors import InputError, LabError, Problem, nearest
from lab.formatting import count
from lab.launch.attempt import Attempt, RankError
from lab.launch.executor import Handle, JobSpec, JobStatus, SlurmJob, prepare, write_job
from lab.launch.slurm import controller
from lab.launch.slurm.array import Array, RefusedError, sbatch, script
from lab.launch.slurm.controller import (
    ASSOCIATIONS,
    QOS,
    Controller,
    JobState,
    SlurmCommandError,
    ask,
)
from lab.launch.slurm.options import interpreter, submitit_parameters
from lab.records.schema import Allocation

# A part of Slurm's complaint, the profile's key, and what to do; the first that matches counts.
COMPLAINTS = {
    "submitjob": (
        "submit_limit",
        f"lower it to what your account or qos allows; {ASSOCIATIONS} and {QOS} list it "
        "as MaxSubmit",
    ),
    "job array": ("submit_limit", "`scontrol show config` gives the largest array: MaxArraySize"),
    "wallduration": ("time_limit_min", f"{QOS} lists the limits of each: MaxWall"),
    "timelimit": ("time_limit_min", "`sinfo -o '%P %l'` lists the partitions' limits"),
    # Also where an account or a QOS is required and missing.
    "accounting/qos policy": (
        "account",
        "set account, and qos where your site has any; if they are set, one of their limits is "
        f"exceeded: {ASSOCIATIONS} and {QOS} list them",
    ),
    "invalid partition": ("partition", "`sinfo -s` lists the partitions"),
    "no partition": ("partition", "`sinfo -s` lists the partitions"),
    "permitted to use this partition": ("partition", "`sinfo -s` lists the partitions"),
    "invalid account": ("account", f"{ASSOCIATIONS} lists your accounts"),
    "invalid qos": ("qos", f"{QOS} lists them"),
    "invalid feature": ("constraint", "`sinfo -o '%N %f'` lists the nodes' features"),
    "reservation": ("reservation", "`scontrol show reservation` lists them"),
    "invalid license": ("extra.licenses", "`scontrol show licenses` lists them"),
    "generic resource": (
        "gpu_flag",
        "`sinfo -o %G` lists the nodes' resources: gpu:TYPE:N, and others for extra.gres; "
        "gpu_flag: none asks for no GPUs",
    ),
    "invalid node name": ("extra", "`sinfo -N` lists the nodes"),
    "mutually exclusive": ("extra", "leave one of these options out"),
    "unrecognized option": ("extra", "`sbatch --help` lists the options"),
    "invalid option": ("extra", "`sbatch --help` lists the options"),
    "time limit": ("time_limit_min", "`sinfo -o '%P %l'` lists the partitions' limits"),
}
# How Slurm lists the values that some keys may have, one on a line or several between commas.
CHOICES = {
    "partition": ("sinfo", "--noheader", "--format=%R"),
    "account": ("sacctmgr", "--noheader", "--parsable2", "show", "associations", "format=account"),
    "qos": ("sacctmgr", "--noheader", "--parsable2", "show", "associations", "format=qos"),
}
MANY = 20  # choices that nobody wants to read


class SlurmExecutor:
    """Slurm gives each run an allocation of its own, so all may be submitted at once."""

    persistent = True

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self._cluster, self._home = cluster, home
        self._ahead: list[str] = []  # ids of the arrays that the next one must wait for

    def choose(self, waiting: Sequence[JobSpec], running: Sequence[Handle]) -> Sequence[JobSpec]:
        """All that the site's queue takes: Slurm decides how many of them run at once."""
        # Jobs of another executor are adopted too if a study moves from there.
        queued = [job for job in running if isinstance(job, SlurmHandle)]
        self._ahead = sorted({job.array_id for job in queued})
        limit = self._cluster.submit_limit
        return waiting if limit is None else waiting[: max(limit - len(queued), 0)]

    def submit(self, specs: Sequence[JobSpec]) -> list[SlurmHandle]:
        """Submit arrays; raises InputError if Slurm rejects one, LabError without an answer.

        Slurm limits the jobs of an array, not those of a study, so where the profile has a limit
        each array waits for the one before it.
        """
        # One job at a time needs no array of many, and repeats stay interleaved.
        limit = self._cluster.array_limit
        ordered = specs if limit == 1 else sorted(specs, key=_shape)
        handles: dict[Path, SlurmHandle] = {}
        for shape, alike in itertools.groupby(ordered, _shape):
            submitted = self._submit(list(alike), *shape)
            handles |= {handle.folder: handle for handle in submitted}
            self._ahead = [submitted[0].array_id]
        return [handles[spec.folder] for spec in specs]

    def _submit(self, specs: Sequence[JobSpec], ranks: int, devices: int) -> list[SlurmHandle]:
        cluster, label = self._cluster, f"{self._home.parent.name}-x{ranks * devices}"
        array = Array.new(self._home / "arrays", label)
        for index, spec in enumerate(specs):
            prepare(spec.folder)
            # Before there is a job, so that the next driver knows which array to look for.
            path = os.path.relpath(array.folder, spec.folder)
            job = SlurmJob(
                cluster=cluster.reference,
                array=path,
                index=index,
                submitted_at=time.time(),
                task=spec.task,
            )
            write_job(spec.folder, job)
        try:
            parameters = submitit_parameters(cluster, ranks, devices=devices, jobs=len(specs))
            if cluster.array_limit and self._ahead:
                _wait_for(self._ahead, parameters["additional_parameters"])
            python = interpreter(cluster, shlex.quote(sys.executable))
            job_id = array.submit(specs, parameters, python)
        except RefusedError as error:
            raise refused(cluster, ranks * devices, error) from None
        except SlurmCommandError as error:
            message = f"{cluster.name}: {error}; nothing was submitted; try again"
            raise LabError(message) from None
        return [SlurmHandle(spec.folder, array, f"{job_id}_{i}") for i, spec in enumerate(specs)]


def _shape(spec: JobSpec) -> tuple[int, int]:
    return spec.world_size, spec.devices


def _wait_for(arrays: Sequence[str], options: dict[str, Any]) -> None:
    """Let a job wait for the ends of arrays, besides what the profile already lets it wait for."""
    dependency = options.get("dependency")
    ends = ":".join(["afterany", *arrays])
    options["dependency"] = f"{dependency},{ends}" if dependency else ends


@dataclass(frozen=True)
class SlurmHandle:
    """One job of an array; all handles of a process ask the same controller, together."""

    folder: Path
    array: Array
    job_id: str

    lag_s: ClassVar[float] = 2.0
    controller: ClassVar[Controller] = Controller()

    @classmethod
    def of(cls, folder: Path, job: SlurmJob) -> SlurmHandle | None:
        """The job named in a folder's job.json; None if it never reached Slurm.

        Raises LabError if Slurm must be asked and does not answer.
        """
        array = Array((folder / job.array).resolve())
        try:
            job_id = array.job_id()
        except SlurmCommandError as error:
            message = f"Slurm does not answer, so the state of {array.name} is unknown: {error}"
            raise LabError(f"{message}; try again") from None
        return None if job_id is None else cls(folder, array, f"{job_id}_{job.index}")

    @property
    def array_id(self) -> str:
        """The id of its array in Slurm."""
        return self.job_id.partition("_")[0]

    @property
    def attempt(self) -> Attempt:
        """The files of the job's current start; Slurm may have started it before."""
        restarts = self._job.restarts if self._job else 0
        return Attempt.latest(self.folder, self.job_id, self.array.folder, at_least=restarts)

    def status(self) -> JobStatus:
        """The status that Slurm gave at the last poll."""
        job = self._job
        if job is None:
            if self.controller.forgotten(self.job_id):
                return JobStatus("ended")
            return JobStatus("pending", self.controller.silence)
        if job.ended:
            return JobStatus("ended", job.state)
        if job.pending:
            return JobStatus("pending", job.reason, job.advice)
        return JobStatus("running", job.nodes)

    def exit_reason(self) -> RankError:
        """How the job ended, according to Slurm and the log."""
        return controller.exit_reason(self._job, self.attempt)

    def allocation(self) -> Allocation:
        """What Slurm allocated to the job."""
        nodes = controller.expand(self._job.nodes) if self._job else []
        return Allocation(job_id=self.job_id, nodes=nodes, requeues=self.attempt.restarts)

    @classmethod
    def poll(cls, handles: Sequence[SlurmHandle]) -> float:
        """Query all jobs at once; returns the seconds until the next query."""
        return cls.controller.poll({handle.job_id: handle.array.name for handle in handles})

    @classmethod
    def terminate(cls, handles: Sequence[SlurmHandle]) -> None:
        """Cancel jobs and wait until they are gone; raises LabError if Slurm does not answer."""
        try:
            controller.ask("scancel", *(handle.job_id for handle in handles))
        except SlurmCommandError as error:
            message = f"Slurm does not answer, so its jobs keep running: {error}; try again"
            raise LabError(message) from None
        answered = time.monotonic()
        while any(handle.status().state != "ended" for handle in handles):
            time.sleep(cls.poll(handles))
            if not (silence := cls.controller.silence):
                answered = time.monotonic()
            elif time.monotonic() - answered > controller.TIMEOUT_S:
                message = "Slurm was asked to cancel jobs, but does not say whether they ended"
                raise LabError(f"{message}: {silence}; see `lab status`")

    @property
    def _job(self) -> JobState | None:
        return self.controller.job(self.job_id)


def refusals(cluster: Cluster, shapes: Sequence[tuple[int, int]]) -> list[Problem]:
    """Problems of jobs with these (ranks, devices); raises LabError without an answer."""
    problems: dict[str, Problem] = {}
    try:
        for ranks, devices in shapes:
            if problem := _refusal(cluster, ranks, devices):
                problems.setdefault(problem.where, problem)
    except SlurmCommandError as error:
        message = f"{cluster.name}: {error}; can jobs be submitted from this machine?"
        raise LabError(message) from None
    return list(problems.values())


def _refusal(cluster: Cluster, ranks: int, devices: int) -> Problem | None:
    parameters = submitit_parameters(cluster, ranks, devices=devices)
    try:
        sbatch(["--test-only"], script(Path(tempfile.gettempdir()), parameters, "true"))
    except RefusedError as error:
        return complaint(cluster, ranks * devices, str(error))
    return None


def refused(cluster: Cluster, world_size: int, error: RefusedError) -> LabError:
    """The error for a job that Slurm rejected."""
    with suppress(SlurmCommandError):
        if problem := complaint(cluster, world_size, str(error)):
            return InputError(cluster.name, [problem])
    return LabError(f"{cluster.name}: sbatch: {error}")


def complaint(cluster: Cluster, world_size: int, answer: str) -> Problem | None:
    """Slurm's complaint; None if it is due to the cluster's current state, which may pass.

    Raises SlurmCommandError if its nodes must be known and Slurm does not answer.
    """
    plain = re.sub(r"sbatch: error:|allocation failure:", "", answer)
    text = "; ".join(" ".join(line.split()) for line in plain.splitlines() if line.strip())
    what = f"Slurm refuses a job of {count(world_size, 'rank')}: {text}"
    for part, (key, advice) in COMPLAINTS.items():
        if part in answer.lower():
            return Problem(key, what, _nearest(cluster, key, advice))
    # Slurm gives the same message for nodes that are too small and for drained nodes.
    return _oversized(cluster, world_size, what)


def _nearest(cluster: Cluster, key: str, advice: str) -> str:
    """The nearest valid value of a key with a wrong one; `advice` if that is not known.

    A partition or account may also be valid, but not for this user or in this combination.
    """
    value = getattr(cluster, key, None)
    if not isinstance(value, str) or key not in CHOICES:
        return advice
    own = [f"user={getpass.getuser()}"] if key != "partition" else []
    try:
        answer = ask(*CHOICES[key], *own)
    except SlurmCommandError:
        return advice
    choices = {word for word in re.split(r"[,\s]+", answer) if word}
    is_certain = 0 < len(choices) <= MANY and not choices & set(value.split(","))
    return nearest(value, choices) if is_certain else advice


def _oversized(cluster: Cluster, world_size: int, what: str) -> Problem | None:
    """The key that requests more than any node has, whatever state the nodes are in."""
    partition = [f"--partition={cluster.partition}"] if cluster.partition else []
    answer = ask("sinfo", "--noheader", "--Node", *partition, "--format=%N|%c|%m|%G")
    nodes = set(map(tuple, controller.rows(answer, 4)))
    layout = cluster.layout(world_size)
    ranks = layout.ranks_per_node
    cpus = "cpus_per_gpu" if cluster.gpus_per_node else "cores_per_node"
    gpus = ranks if cluster.gpus_per_node and cluster.gpu_flag != "none" else 0
    needs = {
        "gpus_per_node": (gpus, [_gpus(n[3]) for n in nodes], "GPUs"),
        cpus: (ranks * cluster.cpus_per_rank, [_number(n[1]) for n in nodes], "CPUs"),
        "mem_gb": (cluster.memory_mb(ranks) or 0, [_number(n[2]) for n in nodes], "MiB"),
    }
    available = len({name for name, *_ in nodes})
    advice = "lower it; `sinfo -N -l` lists the nodes"
    types = {kind for node in nodes for kind in re.findall(r"gpu:([^:,(\d][^:,(]*):\d", node[3])}
    if (gpu_type := cluster.gpu_type) and gpu_type not in types:
        here = "in the partition" if cluster.partition else "here"
        what = f"{what}: it requests GPUs of type {gpu_type!r}, and no node {here} has any"
        return Problem("gpu_type", what, nearest(gpu_type, types) if types else "leave it out")
    if layout.nodes > available:
        size = f"it requests {layout.nodes} nodes, but the partition has {available} in all"
        return Problem("nodes", f"{what}: {size}", advice)
    for key, (requested, sizes, unit) in needs.items():
        if requested > (largest := max(sizes, default=0)):
            size = f"it requests {requested} {unit}, but the partition's largest node has {largest}"
            return Problem(key, f"{what}: {size}", advice)
    return None


def _number(text: str) -> int:
    return int(text.rstrip("+"))  # sinfo marks the smallest of unequal values with a plus


def _gpus(resources: str) -> int:
    """The GPUs in `gpu:4`, `gpu:h100:4(S:0-1),gpu:a30:2` or `(null)`."""
    return sum(int(count) for count in re.findall(r"gpu:(?:[^:,(]+:)?(\d+)", resources))
