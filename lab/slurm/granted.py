"""What Slurm gave to a job, read inside it."""

from __future__ import annotations

import os
import re

import psutil

from lab.atomic import read_json
from lab.jobs.attempt import Attempt
from lab.records import Granted


def granted(attempt: Attempt) -> Granted:
    """The allocation of this process's job, from the variables that Slurm sets."""
    given = os.environ
    submitted = read_json(attempt.folder / "job.json") or {}
    gpus = given.get("SLURM_JOB_GPUS") or given.get("SLURM_STEP_GPUS") or ""
    started = float(given.get("SLURM_JOB_START_TIME") or psutil.Process().create_time())
    return Granted(
        job_id=attempt.job_id,
        nodes=expand(given.get("SLURM_JOB_NODELIST", "")),
        gpus=gpus.split(",") if gpus else [],
        cpus=_total(given.get("SLURM_JOB_CPUS_PER_NODE", "")),
        queue_time=max(started - submitted["submitted_at"], 0.0) if "submitted_at" in submitted else None,
        requeues=attempt.restarts,
    )


def expand(nodes: str) -> list[str]:
    """The names that Slurm's short form of a list of nodes stands for: `a[01-03],b` is a01, a02, a03, b."""
    found = []
    for prefix, ranges, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", nodes):
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            numbers = [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)] if last else [part]
            found += [f"{prefix}{number}{suffix}" for number in numbers]
    return found


def _total(cpus_per_node: str) -> int | None:
    """The sum of Slurm's short form: `4(x2),3` is 11."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", cpus_per_node)
    return sum(int(cpus) * int(times or 1) for cpus, times in found) or None
