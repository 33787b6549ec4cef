"""This machine as a queue: submitit's local executor, one job at a time."""

from __future__ import annotations

import json
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
from lab.files import read_json, write_atomically
from lab.launch.attempt import Attempt, RankError
from lab.launch.executor import JobSpec, JobStatus, prepare
from lab.machine import began, is_running

POLL_S = 0.1


class LocalHandle:
    """A job on this machine, started by this driver or adopted from an earlier one."""

    lag_s: ClassVar[float] = 0.0

    def __init__(self, attempt: Attempt, pid: int, since: float, submitted: Any = None) -> None:
        self.attempt = attempt
        self._pid, self._since = pid, since
        self._submitted = (
            submitted  # submitit's job, which reaps the process; None where the job is adopted
        )

    @classmethod
    def of(cls, folder: Path, content: Mapping[str, Any]) -> LocalHandle:
        """The job that a folder's job.json speaks of."""
        return cls(Attempt(folder, content["job_id"]), content["pid"], content["began"])

    def stand(self) -> JobStatus:
        """Where the job stands; it runs for as long as its controller or one of its ranks lives."""
        return JobStatus("running" if self._lives() else "ended")

    def allocation(self) -> None:
        """There is no scheduler."""
        return

    @classmethod
    def look(cls, handles: Sequence[LocalHandle]) -> float:
        """Each looks for itself when it is asked."""
        return POLL_S

    @classmethod
    def end(cls, handles: Sequence[LocalHandle]) -> None:
        """End jobs one after the other: ask, then kill; returns when no process of them is left."""
        for handle in handles:
            handle._end()

    def _end(self) -> None:
        self._signal([self._pid], signal.SIGINT)
        deadline = time.monotonic() + 5.0
        while self._lives() and time.monotonic() < deadline:
            time.sleep(0.05)
        while self._lives():
            self._signal([self._pid, *self._ranks()], signal.SIGKILL)
            time.sleep(0.05)

    def last_words(self) -> RankError:
        """How the job ended, for a record that it did not write itself."""
        process = getattr(self._submitted, "_process", None)
        code = None if process is None else process.poll()
        ended = f", its controller with exit code {code}" if code else ": killed from outside?"
        return RankError(0, "JobLost", f"the job ended without a record{ended}", 0.0)

    def _lives(self) -> bool:
        if self._submitted is not None:
            self._submitted.done()
        return is_running(self._pid, self._since) or bool(self._ranks())

    def _ranks(self) -> list[int]:
        found = [
            read_json(path) for path in self.attempt.log.glob(f"{self.attempt.name}.rank*.pid")
        ]
        return [
            entry["pid"]
            for entry in found
            if entry is not None and is_running(entry["pid"], entry["began"])
        ]

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            if pid != self._pid or is_running(pid, self._since):
                try:
                    psutil.Process(pid).send_signal(number)
                except psutil.Error:
                    continue


class LocalExecutor:
    """Runs share no core and no GPU while they are timed, so the driver starts a job when the one before has ended."""

    keeps = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def room(self, running: int) -> int:
        """Room for one job."""
        return 1 - running

    def submit(self, works: Sequence[JobSpec]) -> list[LocalHandle]:
        """Start jobs on this machine."""
        return [self._start(work) for work in works]

    def _start(self, work: JobSpec) -> LocalHandle:
        """Hand a function to the ranks of one job, and write the job.json that speaks of it."""
        prepare(work.folder)
        executor = _executor(work.folder / "log", work.variables)
        executor.update_parameters(
            tasks_per_node=work.world_size,
            gpus_per_node=work.world_size * work.devices
            if self._cluster.device_kind == "cuda"
            else 0,
            timeout_min=self._cluster.time_limit_min,
        )
        submitted = executor.submit(work.function, *work.arguments)
        pid = int(submitted.job_id)
        try:
            since = began(pid)
        except psutil.Error:
            since = 0.0  # it has ended already
        content = {
            "executor": "local",
            "cluster": self._cluster.name,
            "job_id": submitted.job_id,
            "pid": pid,
            "began": since,
            "submitted_at": time.time(),
        }
        write_atomically(work.folder / "job.json", json.dumps(content).encode())
        return LocalHandle(Attempt(work.folder, submitted.job_id), pid, since, submitted)


def _executor(log: Path, variables: Mapping[str, str]) -> Any:
    """submitit's local executor, with a controller that the terminal's Ctrl-C does not reach and that talks to the log.

    The driver alone ends jobs, and in order: a rank that is interrupted on its own would look like a failure.
    """
    import submitit
    from submitit.local.local import LocalJob

    class Executor(submitit.LocalExecutor):
        def _submit_command(self, command: str) -> Any:
            given = self.parameters
            gpus = ",".join(map(str, range(given["gpus_per_node"])))
            environment = (
                os.environ
                | variables
                | {
                    "SUBMITIT_EXECUTOR": "local",
                    "SUBMITIT_LOCAL_COMMAND": command,
                    "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
                    "SUBMITIT_LOCAL_NODEID": "0",
                    "SUBMITIT_LOCAL_NTASKS": str(given["tasks_per_node"]),
                    "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "30",
                    "SUBMITIT_LOCAL_TIMEOUT_S": str(int(60 * given["timeout_min"])),
                    "SUBMITIT_LOCAL_WITH_SHELL": "",
                    "SUBMITIT_STDERR_TO_STDOUT": "1",
                    "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", gpus)
                    if gpus
                    else "",
                }
            )
            controller = [sys.executable, "-m", "submitit.local._local", str(self.folder)]
            with (log / "controller.log").open("ab") as words:
                process = subprocess.Popen(
                    controller,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=words,
                    start_new_session=True,
                )
            return LocalJob(
                folder=self.folder,
                job_id=str(process.pid),
                process=process,
                tasks=range(given["tasks_per_node"]),
            )

    return Executor(folder=log)
