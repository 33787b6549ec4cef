"""Scaling Lab: how does training scale here, and why?

import lab
study = lab.Study.load("reports/quickstart")
jobs = lab.launch(study, cluster="local")  # returns at once; finished runs are reused
records = jobs.wait()
lab.table(records)
lab.figures.speedup(records)
lab.report(study)
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab import figures as figures
    from lab.analysis.audit import audit as audit
    from lab.analysis.comparison import compare as compare
    from lab.analysis.explain_layouts import explain_layouts as explain_layouts
    from lab.analysis.layout_table import fit_layouts as fit_layouts
    from lab.analysis.reported import records_from as records_from
    from lab.config.cluster import Cluster as Cluster
    from lab.config.new_study import new_study as new_study
    from lab.config.new_study import script_study as script_study
    from lab.config.run import Run as Run
    from lab.config.study import Study as Study
    from lab.course.budget import class_budget as class_budget
    from lab.course.catalogue import update_catalogue as update_catalogue
    from lab.course.check import check as check
    from lab.course.grade import class_results as class_results
    from lab.course.grade import grade as grade
    from lab.course.ranks import check_ranks as check_ranks
    from lab.course.release import collect as collect
    from lab.course.release import copy_lessons as copy_lessons
    from lab.course.slides import lesson_slides as lesson_slides
    from lab.dashboard import dashboard as dashboard
    from lab.errors import InputError as InputError
    from lab.errors import LabError as LabError
    from lab.errors import Problem as Problem
    from lab.launch import bench as benchmarks  # noqa: F401
    from lab.launch.bench import equal_losses as equal_losses
    from lab.launch.calibrate import calibrate as calibrate
    from lab.launch.clean import clean as clean
    from lab.launch.doctor import doctor as doctor
    from lab.launch.fetch import fetch as fetch
    from lab.launch.launcher import InterruptedStudyError as InterruptedStudyError
    from lab.launch.launcher import Jobs as Jobs
    from lab.launch.launcher import detach as detach
    from lab.launch.launcher import launch as launch
    from lab.launch.plan import plan as plan
    from lab.launch.slurm.options import write_scripts as write_scripts
    from lab.launch.status import cancel as cancel
    from lab.launch.status import status as status
    from lab.perfmodel import calibration as calibration
    from lab.perfmodel.planner import best_plans as best_plans
    from lab.perfmodel.predict import predict as predict
    from lab.perfmodel.step_law import fit as fit
    from lab.perfmodel.step_law import predict_step as predict_step
    from lab.records.store import Record as Record
    from lab.records.store import load_records as load_records
    from lab.records.table import table as table
    from lab.report.build import report as report
    from lab.report.build import report_table as report_table
    from lab.worker.inference.generate import generate as generate
    from lab.worker.script.meter import instrument as instrument

__version__ = "0.2.0"
# Users' existing job scripts call `python -m lab.rank`, which is found there.
__path__.append(f"{__path__[0]}/launch/compat")

# The public names by module; a module is imported when one of its names is first used.
_NAMES = {
    "lab.analysis.audit": ("audit",),
    "lab.analysis.comparison": ("compare",),
    "lab.analysis.explain_layouts": ("explain_layouts",),
    "lab.analysis.layout_table": ("fit_layouts",),
    "lab.analysis.reported": ("records_from",),
    "lab.config.cluster": ("Cluster",),
    "lab.config.new_study": ("new_study", "script_study"),
    "lab.config.run": ("Run",),
    "lab.config.study": ("Study",),
    "lab.course.budget": ("class_budget",),
    "lab.course.catalogue": ("update_catalogue",),
    "lab.course.check": ("check",),
    "lab.course.grade": ("class_results", "grade"),
    "lab.course.ranks": ("check_ranks",),
    "lab.course.release": ("collect", "copy_lessons"),
    "lab.course.slides": ("lesson_slides",),
    "lab.dashboard": ("dashboard",),
    "lab.errors": ("InputError", "LabError", "Problem"),
    "lab.figures": ("figures",),
    "lab.launch.bench": ("benchmarks", "equal_losses"),
    "lab.launch.calibrate": ("calibrate",),
    "lab.launch.clean": ("clean",),
    "lab.launch.doctor": ("doctor",),
    "lab.launch.fetch": ("fetch",),
    "lab.launch.launcher": ("InterruptedStudyError", "Jobs", "detach", "launch"),
    "lab.launch.plan": ("plan",),
    "lab.launch.slurm.options": ("write_scripts",),
    "lab.launch.status": ("cancel", "status"),
    "lab.perfmodel.calibration": ("calibration",),
    "lab.perfmodel.planner": ("best_plans",),
    "lab.perfmodel.predict": ("predict",),
    "lab.perfmodel.step_law": ("fit", "predict_step"),
    "lab.records.store": ("Record", "load_records"),
    "lab.records.table": ("table",),
    "lab.report.build": ("report", "report_table"),
    "lab.worker.inference.generate": ("generate",),
    "lab.worker.script.meter": ("instrument",),
}
_PUBLIC = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {"benchmarks", "calibration", "figures"}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'lab' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    value = globals()[name] = module if name in _MODULES else getattr(module, name)
    return value


class _Package(ModuleType):
    """Keeps `lab.launch`, `lab.report` and `lab.dashboard` functions beside their packages."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system binds each imported subpackage as an attribute of its parent.
        if not (name in _PUBLIC and name not in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        # Completion shows the public names before they are imported, and nothing else.
        return [*__all__, *(name for name in vars(self) if name.startswith("__"))]


sys.modules[__name__].__class__ = _Package
