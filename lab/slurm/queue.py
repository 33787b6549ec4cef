"""A study's jobs in Slurm's queue: one array for each shape, all submitted before the first is waited for."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.atomic import write_atomically
from lab.cluster import Cluster
from lab.errors import LabError
from lab.jobs.queues import Work, prepare
from lab.slurm.array import Array, RefusedError
from lab.slurm.controller import SlurmSilentError
from lab.slurm.handle import SlurmHandle
from lab.slurm.parameters import interpreter, parameters
from lab.slurm.refusals import refused


class SlurmQueue:
    """Slurm keeps runs apart, each in an allocation of its own, so that all may be submitted at once."""

    keeps = True

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self._cluster, self._home = cluster, home

    def room(self, running: int) -> int:
        """Room for all: how many run at once is Slurm's business, within the profile's limit."""
        return sys.maxsize

    def submit(self, works: Sequence[Work]) -> list[SlurmHandle]:
        """Submit works as arrays; raises InputError where Slurm refuses one, LabError where it does not answer."""
        handles: dict[Path, SlurmHandle] = {}
        for shape in dict.fromkeys((work.world_size, work.devices) for work in works):
            alike = [work for work in works if (work.world_size, work.devices) == shape]
            handles |= {handle.folder: handle for handle in self._submit(alike, *shape)}
        return [handles[work.folder] for work in works]

    def _submit(self, works: Sequence[Work], world_size: int, devices: int) -> list[SlurmHandle]:
        array = Array.new(self._home / "arrays", f"{self._home.parent.name}-x{world_size * devices}")
        for index, work in enumerate(works):
            prepare(work.folder)
            self._intend(work, array, index)
        try:
            asked = parameters(self._cluster, world_size, array.folder, devices=devices)
            job_id = array.submit(works, asked, python=interpreter(self._cluster))
        except RefusedError as error:
            raise refused(self._cluster, world_size * devices, error) from None
        except SlurmSilentError as error:
            raise LabError(f"{self._cluster.name}: {error}; nothing was submitted, try again") from None
        return [SlurmHandle(work.folder, array, f"{job_id}_{index}") for index, work in enumerate(works)]

    def _intend(self, work: Work, array: Array, index: int) -> None:
        """Write down of what array the work is to be a job, before there is one."""
        content = {
            "executor": "slurm",
            "cluster": self._cluster.name,
            "array": os.path.relpath(array.folder, work.folder),
            "index": index,
            "submitted_at": time.time(),
        }
        write_atomically(work.folder / "job.json", json.dumps(content).encode())
