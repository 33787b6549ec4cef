"""Where jobs are handed over: submitit's local executor, one job at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from lab import job
from lab.atomic import read_json, write_atomically
from lab.attempt import Attempt, is_running
from lab.cluster import Cluster
from lab.records import Store
from lab.study import Task


class Handle:
    """A submitted job, started by this driver or adopted from an earlier one."""

    def __init__(self, attempt: Attempt, pid: int, created: float, submitted: Any = None) -> None:
        self.attempt = attempt
        self._pid, self._created = pid, created
        self._submitted = submitted  # submitit's job, which reaps the process; None where the job is adopted

    @classmethod
    def of(cls, folder: Path, content: dict[str, Any]) -> Handle:
        """The job that a folder's job.json speaks of."""
        return cls(Attempt(folder, content["job_id"]), content["pid"], content["created"])

    def running(self) -> bool:
        """Whether the job's controller or one of its ranks still lives."""
        if self._submitted is not None:
            self._submitted.done()
        return is_running(self._pid, self._created) or bool(self._ranks())

    def end(self) -> None:
        """End the job: ask, then kill; returns when no process of it is left."""
        self._signal([self._pid], signal.SIGINT)
        deadline = time.monotonic() + 5.0
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        while self.running():
            self._signal([self._pid, *self._ranks()], signal.SIGKILL)
            time.sleep(0.05)

    def last_words(self) -> str:
        """How the job ended, for a record that it did not write itself."""
        process = getattr(self._submitted, "_process", None)
        code = None if process is None else process.poll()
        return "the job ended without a record" + (
            f", its controller with exit code {code}" if code else ": killed from outside?"
        )

    def _ranks(self) -> list[int]:
        found = [read_json(path) for path in self.attempt.log.glob(f"{self.attempt.job_id}.rank*.pid")]
        return [entry["pid"] for entry in found if entry is not None and is_running(entry["pid"], entry["created"])]

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            if pid != self._pid or is_running(pid, self._created):
                try:
                    psutil.Process(pid).send_signal(number)
                except psutil.Error:
                    continue


def _executor(log: Path) -> Any:
    """submitit's local executor, with a controller that the terminal's Ctrl-C does not reach and that talks to the log.

    The driver alone ends jobs, and in order: a rank that is interrupted on its own would look like a failure.
    """
    import submitit
    from submitit.local.local import LocalJob

    class Executor(submitit.LocalExecutor):
        def _submit_command(self, command: str) -> Any:
            given = self.parameters
            gpus = ",".join(map(str, range(given["gpus_per_node"])))
            environment = os.environ | {
                "SUBMITIT_EXECUTOR": "local",
                "SUBMITIT_LOCAL_COMMAND": command,
                "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
                "SUBMITIT_LOCAL_NODEID": "0",
                "SUBMITIT_LOCAL_NTASKS": str(given["tasks_per_node"]),
                "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "30",
                "SUBMITIT_LOCAL_TIMEOUT_S": str(int(60 * given["timeout_min"])),
                "SUBMITIT_LOCAL_WITH_SHELL": "",
                "SUBMITIT_STDERR_TO_STDOUT": "1",
                "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", gpus) if gpus else "",
            }
            controller = [sys.executable, "-m", "submitit.local._local", str(self.folder)]
            with (log / "controller.log").open("ab") as words:
                process = subprocess.Popen(
                    controller, env=environment, stdin=subprocess.DEVNULL, stdout=words, stderr=words, start_new_session=True
                )
            return LocalJob(folder=self.folder, job_id=str(process.pid), process=process, tasks=range(given["tasks_per_node"]))

    return Executor(folder=log)


def submit(
    folder: Path, cluster: Cluster, world_size: int, function: Callable[..., Any], *arguments: Any, devices: int = 1
) -> Handle:
    """Hand a function to the ranks of one job, of so many devices each; its log, and job.json that speaks of it, lie under `folder`."""
    log = folder / "log"
    log.mkdir(mode=0o700, parents=True, exist_ok=True)
    executor = _executor(log)
    executor.update_parameters(
        tasks_per_node=world_size,
        gpus_per_node=world_size * devices if cluster.device_kind == "cuda" else 0,
        timeout_min=cluster.time_limit_min,
    )
    submitted = executor.submit(function, *arguments)
    pid = int(submitted.job_id)
    try:
        created = psutil.Process(pid).create_time()
    except psutil.Error:
        created = time.time()
    content = {
        "job_id": submitted.job_id,
        "pid": pid,
        "created": created,
        "cluster": cluster.name,
        "submitted_at": time.time(),
    }
    write_atomically(folder / "job.json", json.dumps(content).encode())
    return Handle(Attempt(folder, submitted.job_id), pid, created, submitted)


class LocalQueue:
    """This machine through submitit's local executor; the driver starts a job when the one before has ended."""

    def __init__(self, cluster: Cluster, store: Store, data_root: Path) -> None:
        self._cluster, self._store, self._data_root = cluster, store, data_root

    def start(self, task: Task) -> Handle:
        """Submit one task."""
        folder = self._store.folder(task)
        log = folder / "log"
        log.mkdir(mode=0o700, parents=True, exist_ok=True)
        for stale in (folder / "progress.json", *log.glob("*.error.json"), *log.glob("*.pid"), *log.glob("*.start")):
            stale.unlink(missing_ok=True)
        arguments = task.run.model_dump_json(), task.repeat, self._cluster.model_dump_json(), str(folder), str(self._data_root)
        run = task.run
        return submit(folder, self._cluster, run.processes, job.execute, *arguments, devices=run.world_size // run.processes)

    def adopt(self, task: Task) -> Handle | None:
        """The job of an earlier driver that still runs; None where there is none."""
        folder = self._store.folder(task)
        content = read_json(folder / "job.json")
        if content is None:
            return None
        handle = Handle.of(folder, content)
        return handle if handle.running() else None
