"""Faults for jobs that run: what a test writes for a rank, the rank does at its next step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.config.study import Study, Task
from lab.launch.status import TaskState, status
from lab.records.store import Record, Store

# Python loads this at the start of each rank. Steps are slow, so that many jobs can wait for their fault on two cores.
SITE = """
import os, sys, pathlib
folder = pathlib.Path({folder!r})
job, rank = os.environ.get("SLURM_ARRAY_TASK_ID"), os.environ.get("SLURM_PROCID")
name = os.environ.get("SLURM_JOB_NAME", "")
if "SUBMITIT_LOCAL_JOB_ID" in os.environ:
    job, rank, name = os.environ["SUBMITIT_LOCAL_JOB_ID"], os.environ["SUBMITIT_LOCAL_GLOBALID"], "local"
if (folder / "no-torch").exists() and job is not None:
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "torch":
                raise ImportError("libtorch.so: cannot open shared object file")
    sys.meta_path.insert(0, Broken())
elif job is not None and "submitit.core._submit" in sys.orig_argv:
    import threading
    def patch():
        import importlib.abc, importlib.util
        class Late(importlib.abc.MetaPathFinder):
            def find_spec(self, fullname, path=None, target=None):
                if fullname != "lab.worker.train":
                    return None
                sys.meta_path.remove(self)
                import time, torch
                plain = torch.optim.AdamW.step
                def step(self, *args, **kwargs):
                    order = folder / f"{{name}}.{{job}}.{{rank}}"
                    if order.exists():
                        text = order.read_text()
                        order.unlink()
                        exec(text, {{}})
                    time.sleep({pace})
                    return plain(self, *args, **kwargs)
                torch.optim.AdamW.step = step
                return None
        sys.meta_path.insert(0, Late())
    patch()
"""


@dataclass(frozen=True)
class Faults:
    """Orders for ranks lie in `folder`."""

    folder: Path

    @classmethod
    def planted(cls, folder: Path, monkeypatch: pytest.MonkeyPatch, *, pace: float = 0.05) -> Faults:
        """Make every rank that is started from now on obey."""
        site = folder / "site"
        site.mkdir(parents=True)
        (site / "sitecustomize.py").write_text(SITE.format(folder=str(folder), pace=pace))
        monkeypatch.setenv("PYTHONPATH", f"{site}:{Path(__file__).parent.parent}")
        return cls(folder)

    def order(self, study: Study, task: Task, code: str, *, rank: int = 0) -> None:
        """Let a rank run some code within its next step."""
        import json
        import os

        folder = Store(study.out).folder(task)
        content = json.loads((folder / "job.json").read_text())
        name, number = "local", content.get("job_id")
        if content["executor"] == "slurm":
            name, number = Path(os.path.normpath(folder / content["array"])).name, content["index"]
        path = self.folder / f"{name}.{number}.{rank}"
        path.with_suffix(".new").write_text(code)
        path.with_suffix(".new").rename(path)


def state_of(study: Study, task: Task) -> TaskState:
    (state,) = status(study, [task])
    return state


def await_state(study: Study, task: Task, ready: Callable[[TaskState], bool], *, patience_s: float = 120.0) -> TaskState:
    deadline = time.monotonic() + patience_s
    while not ready(state := state_of(study, task)):
        assert time.monotonic() < deadline, f"{task.label} is {state}"
        time.sleep(0.2)
    return state


def await_steps(study: Study, task: Task) -> TaskState:
    return await_state(study, task, lambda state: state.state == "running" and state.phase == "measuring" and state.step > 2)


def await_record(study: Study, task: Task, *, patience_s: float = 120.0) -> Record:
    """The record of a task that has ended; the study's driver writes what the job itself did not."""
    deadline = time.monotonic() + patience_s
    while (record := Store(study.out).read(task)) is None:
        assert time.monotonic() < deadline, f"{task.label} is {state_of(study, task)}"
        time.sleep(0.2)
    return record
