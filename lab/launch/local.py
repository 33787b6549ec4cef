"""Jobs on this machine, one at a time, through submitit's local executor."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil

from lab.config.cluster import Cluster
from lab.launch.attempt import Attempt, RankError
from lab.launch.executor import JobSpec, JobStatus, prepare, write_job
from lab.machine import began, is_running

POLL_S = 0.1
# How long a job may take to end once it is interrupted, in s; then it is killed.
INTERRUPT_S = 5.0


class LocalHandle:
    """A job on this machine, started by this driver or adopted from an earlier one."""

    lag_s: ClassVar[float] = 0.0

    def __init__(self, attempt: Attempt, pid: int, since: float, submitted: Any = None) -> None:
        self.attempt = attempt
        self._pid, self._since = pid, since
        # submitit's job, which reaps the process; None where the job is adopted.
        self._submitted = submitted

    @classmethod
    def of(cls, folder: Path, content: Mapping[str, Any]) -> LocalHandle:
        """The job that a folder's job.json names."""
        return cls(Attempt(folder, content["job_id"]), content["pid"], content["began"])

    def status(self) -> JobStatus:
        """The job runs for as long as its controller or one of its ranks does."""
        return JobStatus("running" if self._is_running() else "ended")

    def exit_reason(self) -> RankError:
        """Why the job ended, for a record that it did not write itself."""
        process = getattr(self._submitted, "_process", None)
        code = None if process is None else process.poll()
        cause = f", its controller with exit code {code}" if code else ": killed from outside?"
        return RankError(0, "JobLost", f"the job ended without a record{cause}", 0.0)

    def allocation(self) -> None:
        """There is no scheduler."""
        return

    @classmethod
    def poll(cls, handles: Sequence[LocalHandle]) -> float:
        """Nothing to do: `status` looks at the processes themselves."""
        return POLL_S

    @classmethod
    def terminate(cls, handles: Sequence[LocalHandle]) -> None:
        """Interrupt jobs in turn, then kill; returns when no process of them is left."""
        for handle in handles:
            handle._terminate()

    def _terminate(self) -> None:
        self._signal([self._pid], signal.SIGINT)
        deadline = time.monotonic() + INTERRUPT_S
        while self._is_running() and time.monotonic() < deadline:
            time.sleep(0.05)
        while self._is_running():
            self._signal([self._pid, *self.attempt.running_ranks()], signal.SIGKILL)
            time.sleep(0.05)

    def _is_running(self) -> bool:
        if self._submitted is not None:
            self._submitted.done()
        return is_running(self._pid, self._since) or bool(self.attempt.running_ranks())

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            if pid != self._pid or is_running(pid, self._since):
                with contextlib.suppress(psutil.Error):
                    psutil.Process(pid).send_signal(number)


class LocalExecutor:
    """One job at a time: runs share no core and no GPU while they are timed."""

    persistent = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def free_slots(self, running: int) -> int:
        """One job at a time."""
        return 1 - running

    def submit(self, specs: Sequence[JobSpec]) -> list[LocalHandle]:
        """Start jobs on this machine."""
        return [self._start(spec) for spec in specs]

    def _start(self, spec: JobSpec) -> LocalHandle:
        prepare(spec.folder)
        executor = _submitit_executor(spec.folder / "log", spec.variables)
        gpus = spec.world_size * spec.devices if self._cluster.device_kind == "cuda" else 0
        executor.update_parameters(
            tasks_per_node=spec.world_size,
            gpus_per_node=gpus,
            timeout_min=self._cluster.time_limit_min,
        )
        submitted = executor.submit(spec.function, *spec.arguments)
        pid = int(submitted.job_id)
        try:
            since = began(pid)
        except psutil.Error:
            since = 0.0  # it has ended already
        name, job_id = self._cluster.name, submitted.job_id
        write_job(spec.folder, executor="local", cluster=name, job_id=job_id, pid=pid, began=since)
        return LocalHandle(Attempt(spec.folder, job_id), pid, since, submitted)


def _submitit_executor(log: Path, variables: Mapping[str, str]) -> Any:
    """submitit's local executor, with a controller out of reach of the terminal's Ctrl-C.

    The driver alone ends jobs: a rank that is interrupted by itself would look like a failure.
    """
    import submitit
    from submitit.local.local import LocalJob

    class Executor(submitit.LocalExecutor):
        def _submit_command(self, command: str) -> Any:
            ranks, gpus = self.parameters["tasks_per_node"], self.parameters["gpus_per_node"]
            devices = ",".join(map(str, range(gpus)))
            environment = {
                **os.environ,
                **variables,
                "SUBMITIT_EXECUTOR": "local",
                "SUBMITIT_LOCAL_COMMAND": command,
                "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
                "SUBMITIT_LOCAL_NODEID": "0",
                "SUBMITIT_LOCAL_NTASKS": str(ranks),
                "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "30",
                "SUBMITIT_LOCAL_TIMEOUT_S": str(int(60 * self.parameters["timeout_min"])),
                "SUBMITIT_LOCAL_WITH_SHELL": "",
                "SUBMITIT_STDERR_TO_STDOUT": "1",
                "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", devices)
                if gpus
                else "",
            }
            with (log / "controller.log").open("ab") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "submitit.local._local", str(self.folder)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            return LocalJob(
                folder=self.folder, job_id=str(process.pid), process=process, tasks=range(ranks)
            )

    return Executor(folder=log)
