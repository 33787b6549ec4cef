"""The work of a job's ranks: a JSON file, trusted only with the digest in their command.

`python -m lab.launch.work FILE SHA256` runs on each rank. The file is not a pickle like submitit's:
a pickle put in its place by another user would run with the reader's rights.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.files import OWN_MODE, write_atomically
from lab.launch.watchdog import supervise
from lab.machine import exit_with

if TYPE_CHECKING:
    from lab.launch.executor import JobSpec

WORK = "work.json"  # what the ranks of a job or a job array have to do


def write_work(specs: Sequence[JobSpec], folder: Path) -> list[str]:
    """Write the work of a job array; returns the options with which Python runs it."""
    calls = [
        {
            "folder": str(spec.folder),
            "function": [spec.function.__module__, spec.function.__qualname__],
            "arguments": spec.arguments,
        }
        for spec in specs
    ]
    content = json.dumps(calls).encode()
    path = folder / WORK
    write_atomically(path, content, mode=OWN_MODE)
    return ["-m", "lab.launch.work", str(path), hashlib.sha256(content).hexdigest()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do this rank's part of its job; returns the exit status."""
    import submitit

    path, digest = sys.argv[1:] if arguments is None else arguments
    try:
        content = Path(path).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise LabError(f"{path} is not what was submitted: somebody changed it")
        os.environ["SUBMITIT_FOLDER"] = str(Path(path).parent)
        call = json.loads(content)[int(submitit.JobEnvironment().array_task_id or 0)]
        supervise(Path(call["folder"]))
        module, name = call["function"]
        getattr(importlib.import_module(module), name)(*call["arguments"])
    except LabError as error:
        sys.stderr.write(f"lab: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    exit_with(main)
