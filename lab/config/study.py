"""Study: a question and the grid of runs that answers it, read from study.yaml."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Discriminator, Field, Tag, ValidationError

from lab.config.base import Frozen, problems_of, unknown_keys
from lab.config.run import Run
from lab.errors import InputError, Problem, nearest
from lab.files import ROOT, read_yaml

MAX_RUNS = 1000
# What each kind of scaling keeps equal between world sizes.
FIXED = {"strong": ["global_batch_size"], "weak": ["micro_batch_size", "grad_accum"], "none": []}
Scaling = Literal["strong", "weak", "none"]
Grid = dict[str, list[Any]]


class Task(NamedTuple):
    """One job of a study: a run and the number of its repeat, from 0."""

    run: Run
    repeat: int

    @property
    def label(self) -> str:
        """A short name for people."""
        return f"{self.run.label}, repeat {self.repeat}"


class Study(Frozen):
    """A question, the runs that answer it, and the folder that holds them."""

    folder: Path
    kind: Literal["training", "inference"] = "training"
    title: str
    question: str
    scaling: Scaling
    runs: tuple[Run, ...]
    axes: tuple[str, ...]  # the keys of the grid
    repeats: int
    baseline: dict[str, Any]
    quick: bool = False

    @classmethod
    def load(cls, study: str | Path, *, quick: bool = False) -> Study:
        """Read a study by its name under `reports/` or by its folder.

        Raises InputError that lists every problem of the file at once.
        """
        return read_study(find_folder(study), quick=quick)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def out(self) -> Path:
        """The folder of everything that is measured and made of this study."""
        return self.folder / "out"

    @property
    def tasks(self) -> list[Task]:
        """Every repeat of every run, interleaved so that a slow drift touches all runs alike."""
        return [Task(run, repeat) for repeat in range(self.repeats) for run in self.runs]

    def task(self, run_id: str = "", repeat: int = 0) -> Task:
        """One repeat of the run with this id, by default the first run; raises InputError."""
        runs = {run.id: run for run in self.runs}
        if run_id and run_id not in runs:
            what = f"no run {run_id!r} in this study"
            raise InputError(self.name, [Problem("run_id", what, nearest(run_id, runs))])
        if not 0 <= repeat < self.repeats:
            what = f"{repeat}, and the study has repeats 0 to {self.repeats - 1}"
            raise InputError(self.name, [Problem("repeat", what)])
        return Task(runs[run_id] if run_id else self.runs[0], repeat)


class StudyFile(Frozen):
    """The keys of study.yaml, before the grid is multiplied out."""

    kind: Literal["training", "inference"] = "training"
    title: str = Field(min_length=1, max_length=200)
    question: str = Field(min_length=1, max_length=1000)
    scaling: Scaling = "none"
    base: dict[str, Any] = {}
    grid: Annotated[
        Annotated[Grid, Tag("one grid")] | Annotated[list[Grid], Tag("grids")],
        Discriminator(lambda value: "grids" if isinstance(value, list) else "one grid"),
    ] = {}
    repeats: int = Field(default=3, ge=1, le=1000)
    baseline: dict[str, Any] = {"world_size": 1}
    quick: dict[str, Any] = {}

    @property
    def grids(self) -> dict[str, Grid]:
        """The grids by their path in the file: one, or several that do not cross."""
        if isinstance(self.grid, dict):
            return {"grid": self.grid}
        return {f"grid[{i}]": grid for i, grid in enumerate(self.grid)}


def find_folder(study: str | Path) -> Path:
    """The folder of a study, by its path or its name under `reports/`; raises InputError."""
    parents = (Path("reports"), ROOT / "reports")
    for place in (Path(study), *(parent / study for parent in parents)):
        if (place / "study.yaml").is_file():
            return place.resolve()
    problem = Problem("study.yaml", "not in this folder", "a study is a folder with a study.yaml")
    if not Path(study).is_dir():
        names = {path.parent.name for parent in parents for path in parent.glob("*/study.yaml")}
        problem = Problem("STUDY", "no such study", nearest(Path(study).name, names))
    raise InputError(str(study), [problem])


def read_study(folder: Path, *, quick: bool = False) -> Study:
    """The study in a folder; raises InputError that lists every problem of its file."""
    source = str(folder / "study.yaml")
    content = read_yaml(folder / "study.yaml")
    problems = unknown_keys(content, StudyFile.model_fields)
    known = {key: value for key, value in content.items() if key in StudyFile.model_fields}
    problems += _quick_problems(known.get("quick", {}), quick)
    if quick and not problems:
        known = _with_quick(known)
    try:
        file = StudyFile.model_validate(known)
    except ValidationError as error:
        problems += [problem for _, problem in problems_of(error, StudyFile, known)]
        raise InputError(source, problems) from None
    runs, run_problems = _multiply_out(file)
    if problems := [*problems, *run_problems, *_study_problems(file, runs)]:
        raise InputError(source, problems)
    axes = dict.fromkeys(key for grid in file.grids.values() for key in grid)
    shared = file.model_dump(
        include={"kind", "title", "question", "scaling", "repeats", "baseline"}
    )
    return Study(folder=folder, runs=tuple(runs), axes=tuple(axes), quick=quick, **shared)


def is_baseline(run: Run, baseline: dict[str, Any]) -> bool:
    """Whether a run has every value that the study's baseline names."""
    return all(getattr(run, key) == value for key, value in baseline.items())


def _quick_problems(section: Any, wanted: bool) -> list[Problem]:
    if not isinstance(section, dict):
        return [Problem("quick", "must hold base, grid or repeats", "write them as keys below it")]
    if wanted and not section:
        advice = "add a `quick:` section, or leave out --quick"
        return [Problem("quick", "this study has no quick form", advice)]
    problems = unknown_keys(section, ("base", "grid", "repeats"), "quick.")
    for key, kinds in (("base", dict), ("grid", dict | list)):
        if not isinstance(section.get(key, {}), kinds):
            advice = "write `key: value` lines below it"
            problems.append(Problem(f"quick.{key}", "must be a mapping", advice))
    return problems


def _with_quick(content: dict[str, Any]) -> dict[str, Any]:
    """The study with its `quick:` section laid over base key by key, and over grid and repeats."""
    section: dict[str, Any] = content["quick"]
    own = section.get("base", {})
    base = dict(content.get("base", {})) | own
    grid = section.get("grid", content.get("grid", {}))
    if isinstance(grid, dict):
        grid = {key: values for key, values in grid.items() if key not in own}
    grids = [grid] if isinstance(grid, dict) else [one for one in grid if isinstance(one, dict)]
    varied = set.intersection(*map(set, grids)) if grids else set()
    base = {key: value for key, value in base.items() if key in own or key not in varied}
    return content | section | {"base": base, "grid": grid}


def _multiply_out(file: StudyFile) -> tuple[list[Run], list[Problem]]:
    """All runs of the grids, or all that is wrong with base and grids, each problem once."""
    problems = unknown_keys(file.base, Run.model_fields, "base.")
    if not all(file.grids.values()) or not file.grids:
        advice = "list the values of at least one key, such as world_size: [1, 2]"
        problems.append(Problem("grid", "empty", advice))
    for path, grid in file.grids.items():
        problems += unknown_keys(grid, Run.model_fields, f"{path}.")
        for key, values in grid.items():
            if not values:
                problems.append(Problem(f"{path}.{key}", "no values", "list at least one"))
            if key in file.base:
                advice = "leave it in one of them"
                problems.append(Problem(f"{path}.{key}", "also stands in base", advice))
    if sum(math.prod(map(len, grid.values())) for grid in file.grids.values()) > MAX_RUNS:
        problems.append(Problem("grid", f"more than {MAX_RUNS} runs", "vary less at a time"))
        return [], problems
    base = {key: value for key, value in file.base.items() if key in Run.model_fields}
    runs: dict[str, Run] = {}
    for path, grid in file.grids.items():
        axes = {key: values for key, values in grid.items() if key in Run.model_fields and values}
        for indices in itertools.product(*(range(len(values)) for values in axes.values())):
            chosen = dict(zip(axes, indices, strict=True))
            point = {key: axes[key][index] for key, index in chosen.items()}
            run, run_problems = _validate(base | point, chosen, path)
            if run is not None and run.id in runs:
                what = f"the same run twice: {run.label}"
                run_problems = [Problem(path, what, "remove one of the equal values")]
            elif run is not None:
                runs[run.id] = run
            problems += [problem for problem in run_problems if problem not in problems]
    return list(runs.values()), problems


def _validate(
    content: dict[str, Any], chosen: dict[str, int], path: str
) -> tuple[Run | None, list[Problem]]:
    """One run of the grid at `path`, or its problems; `chosen` is the index of each grid value.

    Fields with a wrong value are set aside and the rest is checked again, so that one fault does
    not hide another.
    """
    try:
        return Run.model_validate(content), []
    except ValidationError as error:
        field_problems = problems_of(error, Run, content)
    point = ", ".join(f"{key}={content[key]!r}" for key in chosen)
    located = []
    for field, problem in field_problems:
        if not field:
            where = f"{path} ({point})" if point else "base"
        elif field in chosen:
            where = problem.where.replace(field, f"{path}.{field}[{chosen[field]}]", 1)
        else:
            where = f"base.{problem.where}"
        located.append(Problem(where, problem.what, problem.advice))
    faulty = {field for field, _ in field_problems if field in content}
    if faulty:
        rest = {key: value for key, value in content.items() if key not in faulty}
        indices = {key: index for key, index in chosen.items() if key not in faulty}
        located += _validate(rest, indices, path)[1]
    # Either size of a batch is enough: where both are missing, that is one problem.
    sizes = ("global_batch_size", "micro_batch_size")
    missing = {Problem(f"base.{size}", "missing", "give it a value") for size in sizes}
    problems = [problem for problem in located if problem not in missing]
    elsewhere = faulty & set(sizes) or any(problem.where == "base" for problem in problems)
    if len(problems) < len(located) and not elsewhere:
        what = f"neither {sizes[0]} nor {sizes[1]}"
        problems.append(Problem("base", what, "give one of them"))
    return None, list(dict.fromkeys(problems))


def _study_problems(file: StudyFile, runs: list[Run]) -> Iterator[Problem]:
    baseline_problems = unknown_keys(file.baseline, Run.model_fields, "baseline.")
    yield from baseline_problems
    if file.kind == "training" and any(run.task == "inference" for run in runs):
        what = "'training', and there are runs of inference"
        yield Problem("kind", what, "write `kind: inference`")
    if runs and not baseline_problems and not any(is_baseline(run, file.baseline) for run in runs):
        wanted = ", ".join(f"{key} {value}" for key, value in file.baseline.items())
        advice = "add it to the grid, or name a baseline that is in it"
        yield Problem("baseline", f"no run has {wanted}", advice)
    for setting in FIXED[file.scaling]:
        by_world: dict[int, set[int]] = {}
        for run in runs:
            by_world.setdefault(run.world_size, set()).add(getattr(run, setting))
        if len({frozenset(values) for values in by_world.values()}) > 1:
            what = (
                f"{file.scaling} scaling holds {setting} fixed, here it differs between world sizes"
            )
            yield Problem("scaling", what, "correct the grid")
