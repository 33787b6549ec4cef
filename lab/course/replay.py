"""Judge one student's lesson as data: `python -m lab.course.replay LESSON FOLDER`.

The instructor's copy of the lesson runs here, with the student's records in place of jobs and the
student's answers in place of the exercises. Nothing in the student's notebook runs. The answers,
and what is known about the records, are printed as JSON.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.config.study import OUT, STUDY_FILE, Study, Task
from lab.course.check import ANSWERS, WrongAnswerError, read_kept, verdict
from lab.course.language import tr
from lab.course.release import LESSONS, NEEDED
from lab.errors import LabError
from lab.records.store import RECORD, RUNS, STEPS, Record, Store, read_record

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 20 << 20  # bytes of a file that is read
MOST_FILES = 3000
MOST_CHARACTERS = 10_000  # of an answer
TOLERANCE = 0.005  # relative, of a record's step time against its steps
# Modules with which lessons show something, and compute no answer.
SHOWING = (
    *("lab.course.pictures", "lab.figures", "lab.report.blocks", "lab.report.sections"),
    *("lab.report.inference_sections", "lab.report.study_sections"),
)


class MachineDependentError(LabError):
    """What depends on the student's machine."""


def cells(lesson: str, *, kind: str = "code") -> Iterator[tuple[dict[str, Any], str]]:
    """A lesson's cells of a kind: nbgrader's metadata, empty if there is none, and the source."""
    content = json.loads((LESSONS / f"{lesson}.ipynb").read_text("utf-8"))
    for cell in content["cells"]:
        if cell["cell_type"] == kind:
            yield cell["metadata"].get("nbgrader", {}), "".join(cell["source"])


def without_checks(source: str) -> ast.Module:
    """The statements of a cell, except those that check something."""
    tree = ast.parse(source)
    tree.body = [statement for statement in tree.body if not any(checks(ast.unparse(statement)))]
    return tree


def checks(source: str) -> Iterator[tuple[str, str, ast.Call]]:
    """Calls of lab.check and lab.check_ranks in a cell: the function, the exercise, the call."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {
            "lab.check",
            "lab.check_ranks",
        }:
            assert isinstance(node.args[0], ast.Constant)
            yield ast.unparse(node.func), str(node.args[0].value), node


def judged(lesson: str, submitted: Path) -> dict[str, Any]:
    """Whether each exercise is right (None if undecidable here), why, and the records."""
    with tempfile.TemporaryDirectory(prefix="lab-grade-") as folder:
        work = Path(folder)
        for name in NEEDED:
            without = shutil.ignore_patterns(OUT, ".*", "*.py")
            shutil.copytree(LESSONS / name, work / name, ignore=without)
        _copy_records(submitted, work)
        os.chdir(work)
        faults, signatures = _inspect(work)
        exercises = {}
        if any((submitted / ANSWERS).glob("*.txt")):
            replace_jobs()
            _show_nothing()
            exercises = dict(_outcomes(lesson, submitted))
        os.chdir("/")
    return {"exercises": exercises, "faults": faults, "signatures": signatures}


def handed_in(submitted: Path) -> Iterator[Path]:
    """Files that a repeat left, relative to the submission, without links.

    Nothing outside the submission is read. Raises LabError if there are more than any study leaves.
    """
    count = 0
    for root, folders, files in os.walk(submitted / "studies", followlinks=False):
        folders[:] = [name for name in folders if not (Path(root) / name).is_symlink()]
        place = Path(root).relative_to(submitted)
        if OUT not in place.parts:
            continue
        for name in files:
            path = Path(root) / name
            wanted = name == RECORD or name.endswith(".parquet")
            if wanted and path.is_file() and not path.is_symlink():
                count += 1
                if count > MOST_FILES or path.stat().st_size > LARGEST:
                    raise LabError(f"{place / name}: too much to be read of a submission")
                yield place / name


def _copy_records(submitted: Path, work: Path) -> None:
    """Copy what was measured of the course's own studies."""
    for place in handed_in(submitted):
        if (work / Path(*place.parts[:2]) / STUDY_FILE).exists():
            (work / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(submitted / place, work / place)


def _inspect(work: Path) -> tuple[list[str], list[str]]:
    """Faults of the records, and signatures by which copies are recognized."""
    faults, signatures = [], []
    for path in sorted(work.glob(f"studies/*/{OUT}/{RUNS}/*/*/{RECORD}")):
        place = str(path.parent.relative_to(work / "studies"))
        record = read_record(path)
        if record is None or not record.completed or record.timing is None:
            continue
        if record.run.id != path.parent.parent.name or str(record.repeat) != path.parent.name:
            faults.append(tr("{place} holds the record of another run", place=place))
        signatures.append(f"{record.run_id} {record.repeat} {record.finished_at}")
        try:
            steps = _steps(path.with_name(STEPS))
            faults += [*_contradictions(record, steps, place)]
            signatures.append(_signature(record, steps))
        except Exception as error:  # noqa: BLE001 whatever is wrong with a student's file
            faults.append(
                tr(
                    "{place} has no steps that can be read ({error})",
                    place=place,
                    error=type(error).__name__,
                )
            )
    return faults, signatures


def _steps(path: Path) -> pd.DataFrame:
    import pandas as pd  # what was handed in may hold no record

    return pd.read_parquet(path)


def _contradictions(record: Record, steps: pd.DataFrame, place: str) -> Iterator[str]:
    """Where a record says something else than its steps."""
    assert record.timing is not None
    slowest = _measured(steps).groupby("step")["step_time"].max()
    recorded, median = record.timing.step.median, float(slowest.median())
    if not abs(median - recorded) <= TOLERANCE * median:
        yield tr(
            "{place} gives {recorded:.6g} s for a step, but its steps give {median:.6g} s",
            place=place,
            recorded=recorded,
            median=median,
        )
    losses = steps.groupby("step")["loss"].mean().to_numpy(float)
    said = np.array(record.quality.loss if record.quality else [])
    if said.shape != losses.shape or not np.allclose(said, losses, rtol=TOLERANCE):
        yield tr("{place} gives other losses than its steps", place=place)


def _signature(record: Record, steps: pd.DataFrame) -> str:
    """The same for copies of a record, even if all of its times were scaled."""
    times = _measured(steps)["step_time"].to_numpy(float)
    relative = np.round(times / times[0], 6).tobytes()
    return hashlib.sha256(record.run_id.encode() + relative).hexdigest()


def _measured(steps: pd.DataFrame) -> pd.DataFrame:
    return steps[~steps["warmup"].astype(bool)]


def replace_jobs() -> None:
    """Make the calls of a lesson read records instead of starting jobs; machine queries raise."""
    lab: Any = importlib.import_module("lab")  # as the lesson's cells see it

    def elsewhere(*_: Any, **__: Any) -> None:
        raise MachineDependentError(tr("it depends on the machine on which it was measured"))

    def stored(study: Study, *_: Any, tasks: Sequence[Task] | None = None, **__: Any) -> Any:
        return SimpleNamespace(wait=lambda **_: _records(study, tasks or study.tasks))

    for name in ("calibrate", "doctor", "plan", "predict", "report"):
        setattr(lab, name, elsewhere)
    lab.Cluster = SimpleNamespace(load=elsewhere)
    lab.launch = stored


class _Silent(ModuleType):
    """A module whose functions do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _show_nothing() -> None:
    """Silence what the cells show, whose modules would take longer to load than all else."""
    lab: Any = importlib.import_module("lab")
    for name in SHOWING:
        sys.modules[name] = _Silent(name)
    lab.figures = sys.modules["lab.figures"]


def _records(study: Study, tasks: Sequence[Task]) -> list[Any]:
    store = Store(study.out)
    missing = [task for task in tasks if not store.completed(task)]
    if missing:
        raise LabError(
            tr(
                "{missing} of {tasks} records of {study} are missing, such as that of {first}",
                missing=len(missing),
                tasks=len(tasks),
                study=study.name,
                first=missing[0].label,
            )
        )
    return store.records(tasks)


def _outcomes(lesson: str, submitted: Path) -> Iterator[tuple[str, tuple[bool | None, str]]]:
    """The verdict on each exercise, in the order of the lesson."""
    space: dict[str, Any] = {"display": lambda *_: None}
    lost: dict[str, tuple[bool | None, str]] = {}  # names that the lesson could not compute
    for mark, source in cells(lesson):
        if mark.get("solution"):
            continue
        tree = without_checks(source)
        try:
            exec(compile(tree, lesson, "exec"), space)  # noqa: S102 our own cell
        except Exception as error:  # noqa: BLE001 the exercises that need it tell why
            reason = _reason(error, lost)
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    lost[node.id] = reason
        for function, name, call in checks(source):
            if function != "lab.check":
                continue
            try:
                measured = {str(one.arg): _value(one.value, space) for one in call.keywords}
            except Exception as error:  # noqa: BLE001 what the lesson could not compute
                yield name, _reason(error, lost)
                continue
            yield name, _outcome(name, submitted, measured)


def _value(node: ast.expr, space: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "lesson", "eval"), space)  # noqa: S307 our own cell


def _reason(error: Exception, lost: dict[str, tuple[bool | None, str]]) -> tuple[bool | None, str]:
    if isinstance(error, NameError) and error.name in lost:
        return lost[error.name]
    return (None if isinstance(error, MachineDependentError) else False), str(error)


def _outcome(name: str, submitted: Path, measured: dict[str, Any]) -> tuple[bool | None, str]:
    if reason := _by_hand(name):
        return None, reason
    path = submitted / ANSWERS / f"{name}.txt"
    try:
        if path.is_symlink() or path.stat().st_size > MOST_CHARACTERS:
            return False, tr("the answer cannot be read")
        answer = read_kept(path.read_text())
    except FileNotFoundError:
        return False, tr("no answer was handed in")
    except Exception:  # noqa: BLE001 whatever is wrong with a student's file
        return False, tr("the answer cannot be read")
    try:
        return True, verdict(name, answer, **measured)
    except (WrongAnswerError, LabError) as error:
        return False, str(error)


def _by_hand(name: str) -> str | None:
    """Why a person has to judge an exercise, if so."""
    return {
        "02.ring": tr("a function of the notebook, which is not run here; ring.py is"),
        "09.quantize": tr("a function of the notebook, which is not run here"),
        "11.report": tr("look at the report itself"),
    }.get(name)


if __name__ == "__main__":
    try:
        verdicts = judged(sys.argv[1], Path(sys.argv[2]))
    except LabError as error:
        verdicts = {"exercises": {}, "faults": [str(error)], "signatures": []}
    sys.stdout.write("\n" + json.dumps(verdicts))
