"""Study: a question and the grid of runs that answers it, read from study.yaml."""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Discriminator, Field, Tag, ValidationError

from lab.config.base import Frozen, Words, problems_of, unknown_keys
from lab.config.run import Run
from lab.errors import InputError, Problem, nearest, require_type
from lab.files import PACKAGE, SHARED, read_yaml
from lab.formatting import count

# In a study's folder: the file, and its results.
STUDY_FILE, OUT = "study.yaml", "out"
MAX_RUNS = 10_000
# What a study says of its runs; the one field besides is made from `strategy`.
RUN_KEYS = tuple(name for name in Run.model_fields if name != "own_strategy")
SIZES = ("global_batch_size", "micro_batch_size")  # of which a run needs one
Grid = dict[str, list[Any]]
Located = list[tuple[str, Problem]]  # problems with the fields that they concern


class Point(NamedTuple):
    """A point of the grid: its values in the file, and the resulting run.

    Keys that are `faulty` have their defaults in the run, which is None if keys contradict each
    other.
    """

    content: dict[str, Any]
    run: Run | None
    faulty: frozenset[str]

    def value(self, key: str) -> Any:
        """The value of a key here, None if unknown."""
        if key in self.faulty or self.run is None:
            return self.content.get(key)
        return getattr(self.run, key)

    def may_have(self, values: dict[str, Any]) -> bool:
        """Whether it has these values, or may have them because it is faulty."""
        if self.run is not None and not self.faulty & set(values):
            return all(getattr(self.run, key) == value for key, value in values.items())
        stated = {key: self.content[key] for key in values if key in self.content}
        return all(str(value) == str(values[key]) for key, value in stated.items())


# What each kind of scaling keeps equal between world sizes.
FIXED = {"strong": ["global_batch_size"], "weak": ["micro_batch_size", "grad_accum"], "none": []}
Scaling = Literal["strong", "weak", "none"]
Kind = Literal["training", "inference", "prediction"]
# A smaller form asks what it can answer, so it may have its own title and question.
QUICK_KEYS = ("title", "question", "base", "grid", "repeats")


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
    kind: Kind = "training"
    title: str
    question: str
    authors: tuple[str, ...] = ()
    scaling: Scaling
    runs: tuple[Run, ...]
    axes: tuple[str, ...]  # the keys of the grid
    repeats: int
    baseline: dict[str, Any]
    quick: bool = False
    has_quick_form: bool = False

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """What a notebook shows of a study: all of its runs would fill pages."""
        yield from {"title": self.title, "folder": str(self.folder)}.items()
        yield from {"runs": len(self.runs), "repeats": self.repeats, "quick": self.quick}.items()

    @classmethod
    def load(cls, study: str | Path, *, quick: bool = False) -> Study:
        """Read a study by its name under `reports/` or by its folder.

        Raises InputError that lists every problem of the file at once, or says that results cannot
        be stored where they belong.
        """
        require_type(quick, bool, "quick", "True or False")
        loaded = read_study(find_folder(study), quick=quick)
        if (loaded.out.exists() or loaded.out.is_symlink()) and not loaded.out.is_dir():
            what = "is not a folder, but the results of the study go into it"
            raise InputError.of(loaded.out, OUT, what, "rename or remove it")
        return loaded

    @classmethod
    def of(cls, study: Study | str | Path, *, quick: bool = False) -> Study:
        """`study` itself if it is loaded, otherwise what `load` reads."""
        return study if isinstance(study, Study) else cls.load(study, quick=quick)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def out(self) -> Path:
        """The folder of all measurements and outputs of this study."""
        return self.folder / OUT

    @property
    def tasks(self) -> list[Task]:
        """Every repeat of every run, interleaved so that a slow drift affects all runs equally."""
        return [Task(run, repeat) for repeat in range(self.repeats) for run in self.runs]

    def command(self, verb: str, clusters: Iterable[str] = (), *, public: bool = False) -> str:
        """The command to type here for a verb on this study, on its cluster if it has only one.

        A `public` one, for reports, has the study's name where it would have a path of the machine.
        """
        outside = os.path.relpath(self.folder).startswith("..")
        short = outside and (public or leads_to(self.name, self.folder))
        words = ["lab", verb, shlex.quote(self.name if short else _typed(str(self.folder)))]
        others = sorted({_typed(name) for name in clusters} - {"local"})
        words += ["--cluster", shlex.quote(others[0])] if len(others) == 1 else []
        return " ".join([*words, *["--quick"] * self.quick])

    def task(self, run_id: str = "", repeat: int = 0) -> Task:
        """One repeat of the run with this id, by default the first run; raises InputError."""
        require_type(run_id, str, "run_id", "the id of a run, as text")
        require_type(repeat, int, "repeat", "a number, counted from 0")
        runs = {run.id: run for run in self.runs}
        if run_id and run_id not in runs:
            what = f"no run {run_id!r} in this study"
            raise InputError.of(self.name, "run_id", what, nearest(run_id, runs))
        if not 0 <= repeat < self.repeats:
            what = f"{repeat}, but the study has {count(self.repeats, 'repeat')}, counted from 0"
            raise InputError.of(self.name, "repeat", what)
        return Task(runs[run_id] if run_id else self.runs[0], repeat)


Author = Annotated[Words, Field(max_length=200)]


class StudyFile(Frozen):
    """The keys of study.yaml, before the grid is multiplied out."""

    kind: Kind = "training"
    title: Words = Field(max_length=200)
    question: Words = Field(max_length=1000)
    authors: list[Author] = []  # each with an affiliation, where there is one: "Name, Place"
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
    """The folder of a study, by its path, its file's or its name under `reports/`.

    Raises InputError.
    """
    parents = (Path("reports"), SHARED / "reports")
    require_type(study, str | Path, "study", "a Study, its name or its folder")
    require_printable(study)
    if Path(study).name == STUDY_FILE and Path(study).is_file():
        study = Path(study).parent
    for place in (Path(study), *(parent / study for parent in parents)):
        if (place / STUDY_FILE).is_file():
            if place.is_relative_to(PACKAGE):
                # Measurements do not belong among the files of an installed package.
                what = "is an example of the package: measure it in a folder of your own"
                advice = f"`lab init {study} --like {study}`, then the same command"
                raise InputError.of(study, "STUDY", what, advice)
            folder = place.resolve()
            require_printable(folder)
            return folder
    problem = Problem(STUDY_FILE, "not in this folder", "a study is a folder with a study.yaml")
    if Path(study).is_file():
        what, advice = "is a file, not a study", "name a folder that holds a study.yaml"
        problem = Problem("STUDY", what, advice)
    elif not Path(study).is_dir():
        word = Path(study).name
        names = {path.parent.name for parent in parents for path in parent.glob(f"*/{STUDY_FILE}")}
        beside = {str(path.parent) for path in Path(study).parent.glob(f"*/{STUDY_FILE}")}
        if beside and len(Path(study).parts) > 1:
            word, names = str(Path(study)), set()
        problem = Problem("STUDY", "no such study", nearest(word, names | beside))
    raise InputError(str(study) or ".", [problem])


def leads_to(name: str, folder: Path) -> bool:
    """Whether a study of this name is found from here, and is the one in this folder."""
    try:
        return find_folder(name) == folder.resolve()
    except InputError:
        return False


def require_printable(path: str | Path, where: str = "STUDY") -> None:
    """Raise InputError for a path that a page, a table or a log could not hold."""
    if (name := os.fsdecode(path)).isprintable():
        return
    what, advice = "its path has characters that cannot be printed", "rename the folder"
    if os.fsencode(name).decode("utf-8", "surrogateescape").isprintable():
        what = f"its path is in UTF-8, which the locale here ({sys.getfilesystemencoding()}) is not"
        advice = "set PYTHONUTF8=1, or rename the folder"
    raise InputError.of(ascii(name), where, what, advice)


def read_study(folder: Path, *, quick: bool = False) -> Study:
    """The study in a folder; raises InputError that lists every problem of its file."""
    path = _typed(str(folder / STUDY_FILE))
    content = read_yaml(Path(path))
    study, problems = _form(folder, content, quick=quick)
    if content.get("quick") and not problems:
        # So that its author finds the faults of the other form before its users do.
        _, others = _form(folder, content, quick=not quick)
        problems = [one if quick else replace(one, where=f"quick ({one.where})") for one in others]
    if study is None or problems:
        raise InputError(path, problems)
    return study


def _form(
    folder: Path, content: dict[str, Any], *, quick: bool
) -> tuple[Study | None, list[Problem]]:
    """The study that a file describes, in full or its quick form, and the file's problems."""
    problems = _unknown_keys(content, StudyFile.model_fields)
    fields = {key: value for key, value in content.items() if key in StudyFile.model_fields}
    quick_problems = _quick_problems(fields.get("quick", {}), quick)
    if quick and not quick_problems:
        fields = _with_quick(fields)
    file, file_problems, faulty = _read_file(fields)
    points, grid_problems = multiply_out(
        file.base, file.grids, folder=folder, complete=not faulty & {"base", "grid"}
    )
    problems += [*quick_problems, *file_problems, *grid_problems]
    problems += _study_problems(file, points, faulty)
    if problems:
        return None, problems
    axes = dict.fromkeys(key for grid in file.grids.values() for key in grid)
    shared = file.model_dump(
        include={"kind", "title", "question", "scaling", "repeats", "baseline"}
    )
    shared |= {"authors": tuple(file.authors), "has_quick_form": bool(content.get("quick"))}
    runs = tuple(point.run for point in points if point.run)
    return Study(folder=folder, runs=runs, axes=tuple(axes), quick=quick, **shared), []


def _read_file(content: dict[str, Any]) -> tuple[StudyFile, list[Problem], set[str]]:
    """The keys of a file, its problems, and the keys that have any.

    Faulty keys have their defaults, so that one fault does not hide another; single values in a
    grid count as lists of one.
    """
    try:
        return StudyFile.model_validate(content), [], set()
    except ValidationError as error:
        located = problems_of(error, StudyFile, content)
    problems, faulty = [problem for _, problem in located], {field for field, _ in located}
    rest = {key: value for key, value in content.items() if key not in faulty}
    grid = content.get("grid", {})
    grids = [grid] if isinstance(grid, dict) else grid
    if "grid" in faulty and isinstance(grids, list) and all(isinstance(one, dict) for one in grids):
        rest["grid"] = [
            {str(key): axis if isinstance(axis, list) else [axis] for key, axis in one.items()}
            for one in grids
        ]
        if isinstance(grid, dict):
            rest["grid"] = rest["grid"][0]
        faulty.discard("grid")
    stand_ins = {key: "missing" for key in ("title", "question") if key in faulty}
    return StudyFile.model_validate(rest | stand_ins), problems, faulty


def _unknown_keys(
    content: Mapping[str, Any], allowed: Iterable[str], where: str = ""
) -> list[Problem]:
    """One problem for each key that is not allowed; advice says where a run's setting belongs."""
    advice = "a run's setting belongs below base, or its values below grid"
    return [
        replace(one, advice=advice) if one.where.removeprefix(where) in RUN_KEYS else one
        for one in unknown_keys(content, allowed, where)
    ]


def _quick_problems(section: Any, quick: bool) -> list[Problem]:
    if not isinstance(section, dict):
        return [Problem("quick", "must hold base, grid or repeats", "write them as keys below it")]
    if quick and not section:
        advice = "add a `quick:` section, or leave out --quick"
        return [Problem("quick", "this study has no quick form", advice)]
    problems = _unknown_keys(section, QUICK_KEYS, "quick.")
    for key, kinds in (("base", dict), ("grid", dict | list)):
        if not isinstance(section.get(key, {}), kinds):
            advice = "write `key: value` lines below it"
            problems.append(Problem(f"quick.{key}", "must be a mapping", advice))
    grid = section.get("grid")
    parts = {"quick.base.": section.get("base"), "quick.grid.": grid}
    if isinstance(grid, list):
        parts |= {f"quick.grid[{number}].": one for number, one in enumerate(grid)}
    for where, part in parts.items():
        if isinstance(part, dict):
            problems += unknown_keys(part, RUN_KEYS, where)
    return problems


def _with_quick(content: dict[str, Any]) -> dict[str, Any]:
    """The study with its `quick:` section merged into base by key, and replacing the rest whole."""
    section: dict[str, Any] = content["quick"]
    own, base = section.get("base", {}), content.get("base", {})
    if not isinstance(base, dict):
        return content  # which is reported as a separate problem
    base = base | own
    grid = section.get("grid", content.get("grid", {}))
    if isinstance(grid, dict):
        grid = {key: values for key, values in grid.items() if key not in own}
    several = grid if isinstance(grid, list) else [grid]
    grids = [one for one in several if isinstance(one, dict)]
    varied = set.intersection(*map(set, grids)) if grids else set()
    base = {key: value for key, value in base.items() if key in own or key not in varied}
    return content | section | {"base": base, "grid": grid}


def _study_problems(file: StudyFile, points: list[Point], faulty: set[str]) -> Iterator[Problem]:
    """Conflicts between the keys of a file, except for those that are `faulty`."""
    baseline_problems = unknown_keys(file.baseline, RUN_KEYS, "baseline.")
    yield from baseline_problems
    if faulty & {"base", "grid"}:
        return
    inference = any(point.value("task") == "inference" for point in points)
    if file.kind != "inference" and "kind" not in faulty and inference:
        what = f"{file.kind!r}, but there are inference runs"
        yield Problem("kind", what, "write `kind: inference`")
    if file.kind == "inference" and points and not inference:
        what = "'inference', but all runs are trainings"
        yield Problem("kind", what, "write `task: inference` below base, or leave out kind")
    judged = points and not baseline_problems and "baseline" not in faulty
    if judged and not any(point.may_have(file.baseline) for point in points):
        settings = ", ".join(f"{key} {value}" for key, value in file.baseline.items())
        advice = "add it to the grid, or name a baseline that is in it"
        yield Problem("baseline", f"no run has {settings}", advice)
    for setting in FIXED[file.scaling]:
        by_world: dict[int, set[int]] = {}
        for point in points:
            value = point.value(setting)
            if value is not None and not point.faulty & {setting, "world_size"}:
                by_world.setdefault(point.value("world_size"), set()).add(value)
        if len({frozenset(values) for values in by_world.values()}) > 1:
            what = (
                f"{file.scaling} scaling holds {setting} fixed, but it differs between world sizes"
            )
            yield Problem("scaling", what, "correct the grid, or change scaling")


def _typed(name: str) -> str:
    """A path, from here if it is below this directory; any other name as it is."""
    path = os.path.relpath(name) if Path(name).is_absolute() else name
    return name if path.startswith("..") else path


def multiply_out(
    base: Mapping[str, Any], grids: Mapping[str, Grid], *, folder: Path, complete: bool = True
) -> tuple[list[Point], list[Problem]]:
    """All points of grids by their path, and each problem of base and grids once.

    Own code is searched for in the study's `folder`. Unless both are `complete`, missing or
    conflicting values are not reported as problems.
    """
    problems = list(_grid_problems(base, grids, complete=complete))
    if sum(math.prod(map(len, grid.values())) for grid in grids.values()) > MAX_RUNS:
        problems.append(Problem("grid", f"more than {MAX_RUNS:,} runs", "vary less at a time"))
        return [], problems
    base = {key: value for key, value in base.items() if key in RUN_KEYS}
    # Used to find the sources of own code, which are read once for all points.
    context: dict[str, Any] = {"folder": folder, "digests": {}}
    points: list[Point] = []
    ids: set[str] = set()
    for path, grid in grids.items():
        axes = {key: values for key, values in grid.items() if key in RUN_KEYS and values}
        for indices in itertools.product(*(range(len(values)) for values in axes.values())):
            chosen = dict(zip(axes, indices, strict=True))
            content = base | {key: axes[key][index] for key, index in chosen.items()}
            point, point_problems = _validate(content, chosen, path, context, complete=complete)
            if point.run is not None and not point.faulty:
                if point.run.id in ids:
                    what = f"the same run twice: {point.run.label}"
                    point_problems.append(Problem(path, what, "remove one of the equal values"))
                ids.add(point.run.id)
            points.append(point)
            # A conflict that many points share is reported for the first.
            reported = {
                problem.what for problem in problems if problem.where.startswith(f"{path} (")
            }
            problems += [
                problem
                for problem in point_problems
                if problem not in problems and problem.what not in reported
            ]
    return points, problems


def _grid_problems(
    base: Mapping[str, Any], grids: Mapping[str, Grid], *, complete: bool
) -> Iterator[Problem]:
    """Faults of the keys of base and grids, whatever their values."""
    yield from unknown_keys(base, RUN_KEYS, "base.")
    if complete and (not all(grids.values()) or not grids):
        advice = "list the values of at least one key, such as world_size: [1, 2]"
        yield Problem("grid", "empty", advice)
    for path, grid in grids.items():
        yield from unknown_keys(grid, RUN_KEYS, f"{path}.")
        for key, values in grid.items():
            if not values:
                yield Problem(f"{path}.{key}", "no values", "list at least one")
            if key in base:
                yield Problem(f"{path}.{key}", "is also in base", "keep it in one of them")


def _validate(
    content: dict[str, Any],
    chosen: dict[str, int],
    path: str,
    context: dict[str, Any],
    *,
    complete: bool,
) -> tuple[Point, list[Problem]]:
    """One point of the grid at `path` and its problems; `chosen` is the index of each grid value.

    Fields with a wrong value are set aside and the rest is checked again, so that one fault does
    not hide another.
    """
    rest, faulty = dict(content), frozenset[str]()
    problems: list[Problem] = []
    while True:
        try:
            return Point(content, Run.model_validate(rest, context=context), faulty), problems
        except ValidationError as error:
            fields = rest | {"own_strategy": rest.get("strategy")}
            located = [_as_written(*one) for one in problems_of(error, Run, fields)]
        wrong = {field for field, _ in located if field in rest}
        missing = {field for field, _ in located} - wrong - {""}
        if wrong:
            problems += _wrong_values(located, wrong, chosen, path)
            faulty |= wrong
            rest = {key: value for key, value in rest.items() if key not in wrong}
        elif missing:
            # Either batch size is enough, so if both are missing, that is one problem.
            # A script decides them itself.
            model = content.get("model")
            script = isinstance(model, dict) and model.get("kind") == "script"
            if complete and not script and not faulty & set(SIZES):
                what = f"neither {SIZES[0]} nor {SIZES[1]}"
                problems.append(Problem("base", what, "give one of them"))
            faulty |= missing
            rest[SIZES[1]] = 1
        else:
            values = ", ".join(f"{key}={content[key]!r}" for key in chosen if key not in faulty)
            conflicts = _conflicts(located, faulty, f"{path} ({values})" if values else "base")
            return Point(content, None, faulty), [*problems, *(conflicts if complete else ())]


def _as_written(field: str, problem: Problem) -> tuple[str, Problem]:
    """The problem of a field, under the key of the file from which the field was made."""
    if field != "own_strategy":
        return field, problem
    return "strategy", replace(problem, where=problem.where.replace(field, "strategy", 1))


def _wrong_values(
    located: Located, wrong: set[str], chosen: Mapping[str, int], path: str
) -> Iterator[Problem]:
    for field, problem in located:
        if field in wrong:  # others may be missing because these are wrong
            axis = f"{path}.{field}[{chosen[field]}]" if field in chosen else f"base.{field}"
            yield replace(problem, where=problem.where.replace(field, axis, 1))


def _conflicts(located: Located, faulty: frozenset[str], where: str) -> Iterator[Problem]:
    """Conflicts between values, except for those with a default in place of a faulty value."""
    # Whether data fit a model is said in words that name one of them.
    names = faulty | ({"model", "data"} if faulty & {"model", "data"} else set())
    stand_in = re.compile(rf"\b({'|'.join(map(re.escape, names)) or '(?!)'})\b")
    for _, problem in located:
        if not stand_in.search(problem.what):
            yield replace(problem, where=where)
