"""Reading study.yaml: every problem of the file at once, each with its path and the nearest valid choice."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Discriminator, Field, Tag, ValidationError

from lab.config import datasets
from lab.config.base import Frozen
from lab.config.run import Run
from lab.errors import InputError, Problem, nearest
from lab.files import ROOT, problems_of, read_yaml, unknown_keys


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
    scaling: Literal["strong", "weak", "none"]
    runs: tuple[Run, ...]
    axes: tuple[str, ...] = Field(description="the keys of the grid")
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
        """Where everything that is measured and made of this study lies."""
        return self.folder / "out"

    @property
    def tasks(self) -> list[Task]:
        """Every repeat of every run, repeats interleaved over the grid so that a slow drift touches all runs alike."""
        return [Task(run, repeat) for repeat in range(self.repeats) for run in self.runs]

    def task(self, run_id: str = "", repeat: int = 0) -> Task:
        """One repeat of the run with this id, or of the first run where it is empty; raises InputError for another id."""
        ids = {run.id: run for run in self.runs}
        if run_id and run_id not in ids:
            raise InputError(
                self.name,
                [Problem("run_id", f"no run {run_id!r} in this study", nearest(run_id, ids))],
            )
        if not 0 <= repeat < self.repeats:
            raise InputError(
                self.name,
                [Problem("repeat", f"{repeat}, and the study has repeats 0 to {self.repeats - 1}")],
            )
        return Task(ids[run_id] if run_id else self.runs[0], repeat)


def find_folder(study: str | Path) -> Path:
    """The folder of a study named as under `reports/` or by path; raises InputError with the nearest name."""
    places = [Path(study), Path("reports") / study, ROOT / "reports" / study]
    for place in places:
        if (place / "study.yaml").is_file():
            return place.resolve()
    if Path(study).is_dir():
        raise InputError(
            str(study),
            [
                Problem(
                    "study.yaml",
                    "there is none in this folder",
                    "a study is a folder with a study.yaml",
                )
            ],
        )
    names = {
        path.parent.name
        for root in (Path("reports"), ROOT / "reports")
        for path in root.glob("*/study.yaml")
    }
    raise InputError(
        str(study), [Problem("STUDY", "no such study", nearest(Path(study).name, names))]
    )


def is_baseline(run: Run, baseline: dict[str, Any]) -> bool:
    """Whether a run has every value that the study's baseline names."""
    return all(getattr(run, key) == value for key, value in baseline.items())


MAX_RUNS = 1000
Grid = dict[str, list[Any]]


class StudyFile(Frozen):
    """The keys of study.yaml (contract 4.1), before the grid is multiplied out."""

    kind: Literal["training", "inference"] = "training"
    title: str = Field(min_length=1, max_length=200)
    question: str = Field(min_length=1, max_length=1000)
    scaling: Literal["strong", "weak", "none"] = "none"
    base: dict[str, Any] = {}
    grid: Annotated[
        Annotated[Grid, Tag("one")] | Annotated[list[Grid], Tag("several")],
        Discriminator(lambda value: "several" if isinstance(value, list) else "one"),
    ] = {}
    repeats: int = Field(default=3, ge=1, le=1000)
    baseline: dict[str, Any] = {"world_size": 1}
    quick: dict[str, Any] = {}

    @property
    def grids(self) -> dict[str, Grid]:
        """The grids whose runs make up the study, by their path in the file: one, or several that do not cross."""
        if isinstance(self.grid, dict):
            return {"grid": self.grid}
        return {f"grid[{i}]": grid for i, grid in enumerate(self.grid)}


def read_study(folder: Path, *, quick: bool = False) -> Study:
    """The study in a folder; raises InputError that lists every problem of its file."""
    source = str(folder / "study.yaml")
    content = read_yaml(folder / "study.yaml")
    problems = unknown_keys(content, StudyFile.model_fields)
    known = {key: value for key, value in content.items() if key in StudyFile.model_fields}
    problems += _quick_problems(known.get("quick", {}), quick)
    try:
        spec = StudyFile.model_validate(_with_quick(known) if quick and not problems else known)
    except ValidationError as error:
        raise InputError(
            source,
            problems
            + [
                problem
                for _, problem in problems_of(error, StudyFile, {"one": None, "several": None})
            ],
        ) from None
    runs, run_problems = _multiply_out(spec)
    problems += run_problems + _study_problems(spec, runs)
    if problems:
        raise InputError(source, problems)
    return Study(
        folder=folder,
        kind=spec.kind,
        title=spec.title,
        question=spec.question,
        scaling=spec.scaling,
        runs=tuple(runs),
        axes=tuple(dict.fromkeys(key for grid in spec.grids.values() for key in grid)),
        repeats=spec.repeats,
        baseline=spec.baseline,
        quick=quick,
    )


def _quick_problems(section: Any, wanted: bool) -> list[Problem]:
    if not isinstance(section, dict):
        return [Problem("quick", "must hold base, grid or repeats", "write them as keys below it")]
    if wanted and not section:
        return [
            Problem(
                "quick",
                "this study has no quick form",
                "add a `quick:` section, or leave out --quick",
            )
        ]
    problems = unknown_keys(section, ("base", "grid", "repeats"), "quick.")
    return problems + [
        Problem(f"quick.{key}", "must be a mapping", "write `key: value` lines below it")
        for key, kinds in (("base", dict), ("grid", dict | list))
        if not isinstance(section.get(key, {}), kinds)
    ]


def _with_quick(content: dict[str, Any]) -> dict[str, Any]:
    """The study with its `quick:` section laid over base (key by key), grid (as a whole) and repeats."""
    section = content.get("quick", {})
    base = dict(content.get("base", {})) | section.get("base", {})
    grid = section.get("grid", content.get("grid", {}))
    if isinstance(grid, dict):
        grid = {key: values for key, values in grid.items() if key not in section.get("base", {})}
    grids = [grid] if isinstance(grid, dict) else [one for one in grid if isinstance(one, dict)]
    varied = set.intersection(*map(set, grids)) if grids else set()
    base = {
        key: value
        for key, value in base.items()
        if key not in varied or key in section.get("base", {})
    }
    return content | {
        "base": base,
        "grid": grid,
        "repeats": section.get("repeats", content.get("repeats", 3)),
    }


def _multiply_out(spec: StudyFile) -> tuple[list[Run], list[Problem]]:
    """All runs of the grids, or all that is wrong with base and grids, each problem once."""
    problems = unknown_keys(spec.base, Run.model_fields, "base.")
    if not all(spec.grids.values()) or not spec.grids:
        problems.append(
            Problem(
                "grid", "empty", "list the values of at least one key, such as world_size: [1, 2]"
            )
        )
    for path, grid in spec.grids.items():
        problems += unknown_keys(grid, Run.model_fields, f"{path}.")
        problems += [
            Problem(f"{path}.{key}", "no values", "list at least one")
            for key, values in grid.items()
            if not values
        ]
        both = [key for key in grid if key in spec.base]
        problems += [
            Problem(f"{path}.{key}", "also stands in base", "leave it in one of them")
            for key in both
        ]
    if sum(math.prod(map(len, grid.values())) for grid in spec.grids.values()) > MAX_RUNS:
        problems.append(Problem("grid", f"more than {MAX_RUNS} runs", "vary less at a time"))
        return [], problems
    base = {key: value for key, value in spec.base.items() if key in Run.model_fields}
    runs: dict[str, Run] = {}
    for path, grid in spec.grids.items():
        axes = {key: values for key, values in grid.items() if key in Run.model_fields and values}
        for indices in itertools.product(*(range(len(values)) for values in axes.values())):
            chosen = dict(zip(axes, indices, strict=True))
            run, found = _validate(
                base | {key: axes[key][i] for key, i in chosen.items()}, chosen, path
            )
            if run is not None and run.id in runs:
                found.append(
                    Problem(
                        path, f"the same run twice: {run.label}", "remove one of the equal values"
                    )
                )
            elif run is not None:
                runs[run.id] = run
            problems += [problem for problem in found if problem not in problems]
    return list(runs.values()), problems


def _validate(
    content: dict[str, Any], chosen: dict[str, int], path: str
) -> tuple[Run | None, list[Problem]]:
    """One run of the grid at `path`, or its problems with their paths; `chosen` is the index of each grid value.

    Fields with a wrong value are set aside and the rest is checked again, so that one fault does not hide another.
    """
    try:
        return Run.model_validate(content), []
    except ValidationError as error:
        found = problems_of(error, Run, datasets.TAGS)
    point = ", ".join(f"{key}={content[key]!r}" for key in chosen)
    located = []
    for field, problem in found:
        if not field:
            where = f"{path} ({point})" if point else "base"
        elif field in chosen:
            where = problem.where.replace(field, f"{path}.{field}[{chosen[field]}]", 1)
        else:
            where = f"base.{problem.where}"
        located.append(Problem(where, problem.what, problem.advice))
    faulty = {field for field, _ in found if field in content}
    if faulty:
        located += _validate(
            {k: v for k, v in content.items() if k not in faulty},
            {k: i for k, i in chosen.items() if k not in faulty},
            path,
        )[1]
    missing = {"base.global_batch_size", "base.micro_batch_size"}
    kept = [
        problem for problem in located if problem.where not in missing or problem.what != "missing"
    ]
    if (
        len(kept) < len(located)
        and not faulty & {"global_batch_size", "micro_batch_size"}
        and not any(p.where == "base" for p in kept)
    ):
        kept.append(
            Problem("base", "neither global_batch_size nor micro_batch_size", "give one of them")
        )
    return None, list(dict.fromkeys(kept))


def _study_problems(spec: StudyFile, runs: list[Run]) -> list[Problem]:
    problems = unknown_keys(spec.baseline, Run.model_fields, "baseline.")
    if spec.kind == "training" and any(run.task == "inference" for run in runs):
        problems.append(
            Problem(
                "kind", "'training', and there are runs of inference", "write `kind: inference`"
            )
        )
    if runs and not problems and not any(is_baseline(run, spec.baseline) for run in runs):
        wanted = ", ".join(f"{key} {value}" for key, value in spec.baseline.items())
        problems.append(
            Problem(
                "baseline",
                f"no run has {wanted}",
                "add it to the grid, or name a baseline that is in it",
            )
        )
    for held in {"strong": ["global_batch_size"], "weak": ["micro_batch_size", "grad_accum"]}.get(
        spec.scaling, []
    ):
        by_world: dict[int, set[int]] = {}
        for run in runs:
            by_world.setdefault(run.world_size, set()).add(getattr(run, held))
        if len({frozenset(values) for values in by_world.values()}) > 1:
            problems.append(
                Problem(
                    "scaling",
                    f"{spec.scaling} scaling holds {held} fixed, here it differs between world sizes",
                    "mend the grid",
                )
            )
    return problems
