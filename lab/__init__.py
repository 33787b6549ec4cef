"""Scaling Lab: how does training scale here, and why?

import lab
study = lab.Study.load("reports/quickstart")
jobs = lab.launch(study, cluster="local")  # returns at once; finished runs are reused
records = jobs.wait()
lab.table(records)
lab.figures.speedup(records)
lab.report(study)
"""

import importlib
from typing import TYPE_CHECKING, Any

from lab import benchmarks, calibration
from lab.auditing import audit
from lab.calibrate import calibrate
from lab.cluster import Cluster
from lab.dashboard import dashboard
from lab.doctor import doctor
from lab.errors import InputError, LabError, Problem
from lab.launch import InterruptedStudyError, Jobs, detach, launch
from lab.launch import states as status
from lab.plan import plan
from lab.records import Record, load_records, table
from lab.report import report
from lab.study import Run, Study

if TYPE_CHECKING:
    from lab import figures

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "InputError",
    "InterruptedStudyError",
    "Jobs",
    "LabError",
    "Problem",
    "Record",
    "Run",
    "Study",
    "audit",
    "benchmarks",
    "calibrate",
    "calibration",
    "dashboard",
    "detach",
    "doctor",
    "figures",
    "launch",
    "load_records",
    "plan",
    "report",
    "status",
    "table",
]


def __getattr__(name: str) -> Any:
    """Load `figures`, and matplotlib with it, when it is first used."""
    if name == "figures":
        return importlib.import_module("lab.figures")
    raise AttributeError(f"module 'lab' has no attribute {name!r}")
