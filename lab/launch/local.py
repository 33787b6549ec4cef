"""Jobs on this machine: how many run at once, and a controller whose ranks start with torch loaded.

Each job's controller, which comes from submitit, is a fork of the driver's fork server if it can
be, and each rank is then a fork of the controller.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil

from lab import machine
from lab.config.cluster import Cluster
from lab.launch import fork_server, work
from lab.launch.attempt import Attempt, RankError, RankProcess
from lab.launch.executor import Handle, JobSpec, JobStatus, LocalJob, prepare, write_job
from lab.machine import began
from lab.records.store import LOGS

# What every rank on CPUs imports before it trains; a median imports numpy.ma.
_LOADED = "submitit.local.local", "torch", "lab.launch.job", "lab.worker.main", "numpy.ma", __name__
# Constructing an optimizer or DDP imports torch._dynamo, and most train a GPT with DDP.
LOADED = (*_LOADED, "torch._dynamo", "lab.worker.models.gpt", "lab.worker.strategies.ddp")
# A script may set variables that torch._dynamo reads when it is imported.
LOADED_FOR_SCRIPTS = (*_LOADED, "lab.worker.script.main")
LOG = "controller.log"  # output of the controller, in the job's folder
POLL_S = 0.1
# How long a job may take to end once interrupted, in s, before it is killed.
INTERRUPT_S = 5.0


def control(log: str) -> int:
    """Run as the controller of a job."""
    fork_server.redirect(Path(log) / LOG)
    _controller()(Path(log)).run()
    return 0


def _controller() -> type[Any]:
    """submitit's controller with forks as its tasks."""
    from submitit.core.utils import JobPaths
    from submitit.local.local import Controller

    class Forking(Controller):
        def start_tasks(self) -> None:
            # A rank that is not known yet could not be ended. Each lets signals arrive by itself.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            for rank in range(self.ntasks):
                variables = {
                    "SUBMITIT_LOCAL_LOCALID": str(rank),
                    "SUBMITIT_LOCAL_GLOBALID": str(rank),
                    "SUBMITIT_LOCAL_JOB_ID": self.pid,
                }
                output = JobPaths(self.folder, self.pid, rank).stdout
                child: Any = fork_server.Child(self._be_rank, variables, output)
                self.tasks.append(child)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        def _be_rank(self, variables: dict[str, str], output: Path) -> int:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.update(variables)
            fork_server.redirect(output)
            return work.main(self.command[-2:])

    return Forking


class LocalHandle:
    """A job on this machine, started by this driver or adopted from an earlier one."""

    lag_s: ClassVar[float] = 0.0

    def __init__(self, folder: Path, job: LocalJob) -> None:
        self.attempt, self.slots = Attempt(folder, job.job_id), job.slots
        self._process = RankProcess(job.host or socket.gethostname(), job.pid, job.began)

    def status(self) -> JobStatus:
        """The status of the job, which runs as long as its controller or one of its ranks does."""
        return JobStatus("running" if self._roots() else "ended")

    def exit_reason(self) -> RankError:
        """Why the job ended, for the record that it did not write itself."""
        if not self.attempt.any_registered() and (line := self.attempt.last_line()):
            return RankError(0, "JobLost", f"the job ended before any rank started: {line}")
        return RankError(0, "JobLost", "the job ended without a record: interrupted or killed?")

    def allocation(self) -> None:
        """None, as there is no scheduler."""
        return

    @classmethod
    def poll(cls, handles: Sequence[LocalHandle]) -> float:
        """Do nothing, as `status` looks at the processes themselves."""
        return POLL_S

    @classmethod
    def terminate(cls, handles: Sequence[LocalHandle]) -> None:
        """Interrupt jobs, then kill them; return once none of their processes is left."""
        patience_s, controllers = INTERRUPT_S, {handle._process.pid for handle in handles}
        # All are listed first, as a controller may kill the parents of its ranks, which would end
        # what these started; and again, as it may have started more before it was interrupted.
        while processes := [process for handle in handles for process in handle._processes()]:
            for process in processes:
                if process.pid in controllers:
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(signal.SIGINT)
            machine.end_processes(processes, patience_s=patience_s)
            patience_s = 0.0

    def _processes(self) -> list[psutil.Process]:
        """All processes of the job that run: its controller, ranks, and what these started."""
        tree = []
        for pid in self._roots():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                tree += [process, *process.children(recursive=True)]
        return tree

    def _roots(self) -> list[int]:
        """The controller and the ranks, as far as they run."""
        own = [self._process.pid] if self._process.runs_here else []
        return [*own, *self.attempt.running_ranks()]


class LocalExecutor:
    """Runs one job at a time, so that timed runs share nothing.

    A profile with `pack_jobs` lets jobs on GPUs or on emulated devices run beside each other, as
    these compute on devices and cores of their own. Jobs on CPUs never do: even on cores of their
    own they would take caches and memory bandwidth from each other, and so change their times.
    """

    persistent = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def choose(self, waiting: Sequence[JobSpec], running: Sequence[Handle]) -> list[JobSpec]:
        """Every job that fits on the devices left, the largest first; one that claims none, alone.

        A large job would never start if smaller ones took each device that becomes free. Adopted
        jobs of a scheduler take none of this machine's.
        """
        capacity = self._cluster.capacity
        here = [handle for handle in running if isinstance(handle, LocalHandle)]
        free = capacity - sum(handle.slots or capacity for handle in here)
        chosen = []
        for spec in sorted(waiting, key=lambda spec: -(spec.slots or capacity)):
            if (needed := spec.slots or capacity) <= free:
                chosen.append(spec)
                free -= needed
        return chosen

    def submit(self, specs: Sequence[JobSpec]) -> list[LocalHandle]:
        """Start jobs on this machine."""
        return [self._start(spec) for spec in specs]

    def _start(self, spec: JobSpec) -> LocalHandle:
        prepare(spec.folder)
        log = spec.folder / LOGS
        command = [sys.executable, "-P", "-u", *work.write_work([spec], log)]
        environment = self._environment(spec, shlex.join(command))
        pid = self._fork(spec, log, environment) or _start_controller(log, environment)
        try:
            since = began(pid)
        except psutil.Error:
            since = -1.0  # that of no process: it has ended already
        job = LocalJob(
            cluster=self._cluster.reference,
            job_id=str(pid),
            pid=pid,
            began=since,
            host=socket.gethostname(),
            slots=spec.slots,
            submitted_at=time.time(),
            task=spec.task,
        )
        write_job(spec.folder, job)
        return LocalHandle(spec.folder, job)

    def _fork(self, spec: JobSpec, log: Path, environment: dict[str, str]) -> int | None:
        """The id of a controller with torch loaded; None if the ranks must load it themselves.

        A profile's variables must be set before torch is loaded, a snapshot's code differs from
        what the driver would load, and CUDA fails in a fork of a process that has used it. Code in
        PYTHONPATH may run when Python starts, but not in a fork. LAB_PRELOAD=0 forbids all forks.
        """
        on_cpus = self._cluster.device_kind == "cpu" and not self._cluster.environment
        forbidden = environment.get("LAB_PRELOAD") == "0" or environment.get("PYTHONPATH")
        if spec.code or forbidden or not on_cpus:
            return None
        # Each rank sets this itself, but libraries read it when they are loaded.
        threads = {"OMP_NUM_THREADS": str(self._cluster.threads_per_rank)}
        modules = LOADED_FOR_SCRIPTS if spec.script else LOADED
        return fork_server.start(control, {"log": str(log)}, environment | threads, modules=modules)

    def _environment(self, spec: JobSpec, command: str) -> dict[str, str]:
        """The environment of submitit's controller, which it passes on to the ranks."""
        return {
            **os.environ,
            **spec.variables,
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_NTASKS": str(spec.world_size),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "30",
            "SUBMITIT_LOCAL_TIMEOUT_S": str(60 * self._cluster.time_limit_min),
            "SUBMITIT_LOCAL_WITH_SHELL": "",
            "SUBMITIT_STDERR_TO_STDOUT": "1",
            "CUDA_VISIBLE_DEVICES": self._visible_gpus(spec),
        }

    def _visible_gpus(self, spec: JobSpec) -> str:
        """The GPUs of its ranks; where jobs share the host, all from which it claims its own."""
        if self._cluster.device_kind == "cpu":
            return ""
        if spec.slots:
            return ",".join(gpu.uuid for gpu in machine.gpus()[: self._cluster.capacity])
        devices = ",".join(map(str, range(spec.world_size * spec.devices)))
        return os.environ.get("CUDA_VISIBLE_DEVICES", devices)


def _start_controller(log: Path, environment: dict[str, str]) -> int:
    with (log / LOG).open("ab") as output:
        # Out of reach of the terminal's Ctrl-C: only the driver ends jobs, as a rank interrupted
        # on its own would look like a failure.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "submitit.local._local", str(log)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # It would stay as a zombie.
    threading.Thread(target=process.wait, name="controller", daemon=True).start()
    return process.pid
