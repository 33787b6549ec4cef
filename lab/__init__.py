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

from lab.cluster import Cluster
from lab.dashboard import dashboard
from lab.doctor import doctor
from lab.errors import InputError, LabError, Problem
from lab.generating import generate
from lab.jobs.cancelling import cancel
from lab.jobs.states import states as status
from lab.launch import InterruptedStudyError, Jobs, detach, launch
from lab.plan import plan
from lab.records import Record, load_records, table
from lab.report import report
from lab.sbatch import write_scripts
from lab.study import Run, Study

if TYPE_CHECKING:
    from lab import benchmarks, calibration, figures
    from lab.ahead.planning import best_plans
    from lab.ahead.predicting import predict
    from lab.analysis.step_law import fit, predict_step
    from lab.auditing import audit
    from lab.calibrating import calibrate
    from lab.comparing import compare
    from lab.course.checking import check
    from lab.equal_losses import equal_losses

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
    "best_plans",
    "calibrate",
    "calibration",
    "cancel",
    "check",
    "compare",
    "dashboard",
    "detach",
    "doctor",
    "equal_losses",
    "figures",
    "fit",
    "generate",
    "launch",
    "load_records",
    "plan",
    "predict",
    "predict_step",
    "report",
    "status",
    "table",
    "write_scripts",
]


# What brings matplotlib, pandas or numpy along is loaded when it is first used: module, or module and name.
_LATER = {
    "audit": ("lab.auditing", "audit"),
    "benchmarks": ("lab.benchmarks", ""),
    "best_plans": ("lab.ahead.planning", "best_plans"),
    "calibrate": ("lab.calibrating", "calibrate"),
    "calibration": ("lab.calibration", ""),
    "check": ("lab.course.checking", "check"),
    "compare": ("lab.comparing", "compare"),
    "equal_losses": ("lab.equal_losses", "equal_losses"),
    "figures": ("lab.figures", ""),
    "fit": ("lab.analysis.step_law", "fit"),
    "predict": ("lab.ahead.predicting", "predict"),
    "predict_step": ("lab.analysis.step_law", "predict_step"),
}


def __getattr__(name: str) -> Any:
    """Load what was left for later."""
    if name not in _LATER:
        raise AttributeError(f"module 'lab' has no attribute {name!r}")
    module, attribute = _LATER[name]
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
