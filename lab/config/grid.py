"""The points of a study's grids: the run that each defines, and all of its problems."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from lab.config.base import problems_of, unknown_keys
from lab.config.run import Run
from lab.errors import Problem

MAX_RUNS = 10_000
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
        known = {key: self.content[key] for key in values if key in self.content}
        return all(str(value) == str(values[key]) for key, value in known.items())


def multiply_out(
    base: Mapping[str, Any], grids: Mapping[str, Grid], *, folder: Path, complete: bool = True
) -> tuple[list[Point], list[Problem]]:
    """All points of grids by their path, and each problem of base and grids once.

    Own code is searched for in the study's `folder`. Unless both are `complete`, missing or
    conflicting values are not reported as problems.
    """
    problems = unknown_keys(base, Run.model_fields, "base.")
    if complete and (not all(grids.values()) or not grids):
        advice = "list the values of at least one key, such as world_size: [1, 2]"
        problems.append(Problem("grid", "empty", advice))
    for path, grid in grids.items():
        problems += unknown_keys(grid, Run.model_fields, f"{path}.")
        for key, values in grid.items():
            if not values:
                problems.append(Problem(f"{path}.{key}", "no values", "list at least one"))
            if key in base:
                advice = "keep it in one of them"
                problems.append(Problem(f"{path}.{key}", "is also in base", advice))
    if sum(math.prod(map(len, grid.values())) for grid in grids.values()) > MAX_RUNS:
        problems.append(Problem("grid", f"more than {MAX_RUNS:,} runs", "vary less at a time"))
        return [], problems
    base = {key: value for key, value in base.items() if key in Run.model_fields}
    # Used to find the sources of own code, which are read once for all points.
    context: dict[str, Any] = {"folder": folder, "digests": {}}
    points: list[Point] = []
    ids: set[str] = set()
    for path, grid in grids.items():
        axes = {key: values for key, values in grid.items() if key in Run.model_fields and values}
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
            known = {problem.what for problem in problems if problem.where.startswith(f"{path} (")}
            problems += [
                problem
                for problem in point_problems
                if problem not in problems and problem.what not in known
            ]
    return points, problems


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
            known = rest | {"own_strategy": rest.get("strategy")}
            located = [_as_written(*one) for one in problems_of(error, Run, known)]
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
    where = problem.where.replace(field, "strategy", 1)
    return "strategy", Problem(where, problem.what, problem.advice)


def _wrong_values(
    located: Located, wrong: set[str], chosen: Mapping[str, int], path: str
) -> Iterator[Problem]:
    for field, problem in located:
        if field in wrong:  # others may be missing because these are wrong
            axis = f"{path}.{field}[{chosen[field]}]" if field in chosen else f"base.{field}"
            where = problem.where.replace(field, axis, 1)
            yield Problem(where, problem.what, problem.advice)


def _conflicts(located: Located, faulty: frozenset[str], where: str) -> Iterator[Problem]:
    """Conflicts between values, except for those with a default in place of a faulty value."""
    # Whether data fit a model is said in words that name one of them.
    names = faulty | ({"model", "data"} if faulty & {"model", "data"} else set())
    stand_in = re.compile(rf"\b({'|'.join(map(re.escape, names)) or '(?!)'})\b")
    for _, problem in located:
        if not stand_in.search(problem.what):
            yield Problem(where, problem.what, problem.advice)
