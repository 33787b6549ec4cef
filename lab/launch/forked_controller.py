"""A job on this machine's CPUs whose controller and ranks start with torch loaded.

Each job's controller, which comes from submitit, is a fork of the driver's fork server, and each
rank is a fork of the controller.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.launch import fork_server

# What every training on CPUs imports; constructing an optimizer or DDP imports torch._dynamo.
LOADED = (
    *("submitit.local.local", "torch", "torch._dynamo", "lab.launch.job", "lab.worker.main"),
    __name__,
)
LOG = "controller.log"  # output of the controller, in the job's folder


def start(log: Path, environment: Mapping[str, str]) -> fork_server.Process | None:
    """Start the controller of a job whose files lie in `log`; None if it cannot be a fork.

    Code in PYTHONPATH may run when Python starts, but not in a fork. A job with such a path is not
    forked, nor is any job with LAB_PRELOAD=0.
    """
    if environment.get("LAB_PRELOAD") == "0" or environment.get("PYTHONPATH"):
        return None
    return fork_server.start(control, {"log": str(log)}, environment, modules=LOADED)


def control(log: str) -> int:
    """Run as the controller of a job."""
    fork_server.redirect(Path(log) / LOG)
    _controller()(Path(log)).run()
    return 0


def _controller() -> type[Any]:
    """submitit's controller with forks as its tasks."""
    from submitit.core.utils import JobPaths
    from submitit.local.local import Controller

    from lab.launch import work

    class Forking(Controller):
        def start_tasks(self) -> None:
            for rank in range(self.ntasks):
                variables = {
                    "SUBMITIT_LOCAL_LOCALID": str(rank),
                    "SUBMITIT_LOCAL_GLOBALID": str(rank),
                    "SUBMITIT_LOCAL_JOB_ID": self.pid,
                }
                output = JobPaths(self.folder, self.pid, rank).stdout
                child: Any = fork_server.Child(self._be_rank, variables, output)
                self.tasks.append(child)

        def _be_rank(self, variables: dict[str, str], output: Path) -> int:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.update(variables)
            fork_server.redirect(output)
            return work.main(self.command[-2:])

    return Forking
