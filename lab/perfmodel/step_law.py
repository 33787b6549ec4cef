"""The law of a data-parallel step on bare numbers: what it predicts, and how its unknowns follow
from rows of any table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lab.errors import InputError, Problem
from lab.perfmodel.collectives import BACKWARD_SHARE, fit_link, interpolate, ring_time

if TYPE_CHECKING:
    import pandas as pd

FloatArray = npt.NDArray[np.float64]
REQUIRED = ("one_device_step_s", "gradient_bytes", "world_size", "step_s")
OPTIONAL = ("backward_s", "messages", "step_std_s")

# What is expected of the unknowns before a row is seen, each with its spread; rows that tell them
# apart overrule it.
FIXED_SHARE, FIXED_SPREAD = (
    0.2,
    0.15,
)  # of what a distributed step adds: wrapper, launches and skew do not grow with the bytes
OVERLAP_SPREAD = 0.1  # around none: an overlap is claimed only where the rows need one
ALPHA_SPREAD_S = 1e-4  # around none
ROW_ERROR = 0.005  # relative, of a published time; fewer rows than unknowns cannot tell it
_TINY = 1e-5
_LARGEST = np.array([1e9, 1e9, 0.999, 1e9])
_STARTS = ([0.1, 1.0, 0.01, 0.1], [0.1, 2.0, 0.5, 0.1], [0.1, 4.0, 0.95, 0.3])


def predict_step(
    *,
    one_device_step_s: float,
    gradient_bytes: float,
    world_size: int,
    alpha_s: float | None = None,
    bytes_per_s: float | None = None,
    allreduce: Any = None,
    overlap: float = 0.0,
    fixed_overhead_s: float = 0.0,
    backward_s: float | None = None,
) -> float:
    """Seconds of a data-parallel step: one device's step, the fixed overhead, and the all-reduce
    that does not hide.

    The link is `alpha_s` (s per message, 0 where it is not given) and `bytes_per_s` of a ring, or
    `allreduce`: the same two numbers as a pair, or a table of the whole all-reduce on these ranks:
    pairs of bytes and seconds, a mapping of bytes to seconds, or a DataFrame with columns `bytes`
    and `seconds`. Of the communication the share `overlap` hides, as far as `backward_s` reaches
    (two thirds of the one-device step where it is not given). On one rank nothing is sent and the
    step is that of one device. Raises InputError for values that no step can have.
    """
    problems = _problems(
        one_device_step_s=one_device_step_s,
        gradient_bytes=gradient_bytes,
        world_size=world_size,
        fixed_overhead_s=fixed_overhead_s,
    )
    problems += (
        []
        if 0 <= overlap <= 1
        else [Problem("overlap", f"{overlap} is no share", "between 0 and 1")]
    )
    if backward_s is not None:
        problems += _problems(backward_s=backward_s)
    if problems:
        raise InputError("predict_step", problems)
    whole = all_reduce_seconds(
        gradient_bytes, world_size, alpha_s=alpha_s, bytes_per_s=bytes_per_s, allreduce=allreduce
    )
    cover = BACKWARD_SHARE * one_device_step_s if backward_s is None else backward_s
    return float(
        _step(
            np.array(one_device_step_s),
            np.array(whole),
            np.array(world_size),
            overlap,
            fixed_overhead_s,
            np.array(cover),
        )
    )


def all_reduce_seconds(
    size: float,
    world_size: int,
    *,
    alpha_s: float | None = None,
    bytes_per_s: float | None = None,
    allreduce: Any = None,
) -> float:
    """Seconds of an all-reduce by a ring of alpha and beta or by a table, as `predict_step` takes
    them; raises InputError.
    """
    if (allreduce is None) == (bytes_per_s is None):
        raise InputError(
            "predict_step",
            [
                Problem(
                    "allreduce", "give either it or bytes_per_s", "such as allreduce=(20e-6, 6e9)"
                )
            ],
        )
    if allreduce is not None and alpha_s is not None:
        raise InputError(
            "predict_step", [Problem("alpha_s", "allreduce holds it already", "leave it out")]
        )
    if allreduce is not None and not _is_pair(allreduce):
        sizes, seconds = _table(allreduce)
        if world_size == 1 or size == 0:
            return 0.0
        if len(sizes) == 1:
            return seconds[0] * size / sizes[0]
        try:
            return interpolate(size, sizes, seconds, fit_link(sizes, seconds))
        except ValueError as error:
            raise InputError(
                "predict_step", [Problem("allreduce", str(error), "pairs of bytes and seconds")]
            ) from None
    alpha, rate = (alpha_s or 0.0, bytes_per_s or 0.0) if allreduce is None else allreduce
    if problems := _problems(alpha_s=alpha, bytes_per_s=rate):
        raise InputError("predict_step", problems)
    return ring_time("all_reduce", size, world_size, float(alpha), float(rate))


@dataclass(frozen=True)
class StepLaw:
    """The unknowns of a table's steps: seconds per message, bytes/s of one link, share that hides,
    s that each step adds.

    `largest_relative_error` is that over the rows of the fit. `undetermined` names the unknowns
    that those rows cannot tell from others; their values are the simplest that explain the rows.
    """

    alpha_s: float
    bytes_per_s: float
    overlap: float
    fixed_overhead_s: float
    rows: int = 0
    largest_relative_error: float = math.nan
    undetermined: tuple[str, ...] = field(default=())

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        """Seconds of a step for each row, in order; columns as in `fit`, without `step_s`. Raises
        InputError.
        """
        columns = _columns(rows, needed=REQUIRED[:-1])
        return _law(
            columns, self.alpha_s, 1 / self.bytes_per_s, self.overlap, self.fixed_overhead_s
        )


def fit(rows: pd.DataFrame) -> StepLaw:
    """Find alpha, bandwidth, overlap and fixed overhead that explain the steps of a table; two rows
    are enough to start.

    Needed columns: `one_device_step_s`, `gradient_bytes`, `world_size`, `step_s`. Optional ones
    refine it: `backward_s` (s of one device's backward pass, behind which communication hides),
    `messages` (all-reduces of a step, 1 where it is not given), `step_std_s` (how far each time is
    to be believed). Relative errors are squared and summed, with the expectations above for what
    the rows leave open (a maximum of the posterior). Raises InputError for a missing column, values
    that no step can have, and tables without a row on several ranks.
    """
    columns = _columns(rows, needed=REQUIRED)
    several = columns["world_size"] > 1
    if not several.any():
        raise InputError(
            "fit",
            [Problem("world_size", "no row has more than one rank", "nothing is sent on one")],
        )
    columns = {name: values[several] for name, values in columns.items()}
    scaled = _solve(columns, error=ROW_ERROR)
    spare = len(columns["step_s"]) - 3
    if spare > 0:  # these rows tell by themselves how far they are to be believed
        closest = _solve(columns, error=_TINY, start=scaled)
        residuals = np.log(_law(columns, *_natural(closest, columns)) / columns["step_s"])
        scaled = _solve(
            columns, error=max(float(np.sqrt(np.sum(residuals**2) / spare)), _TINY), start=closest
        )
    alpha, per_byte, overlap, fixed = _natural(scaled, columns)
    found = _law(columns, alpha, per_byte, overlap, fixed)
    return StepLaw(
        alpha_s=alpha,
        bytes_per_s=1 / per_byte,
        overlap=overlap,
        fixed_overhead_s=fixed,
        rows=len(found),
        largest_relative_error=float(np.abs(found / columns["step_s"] - 1).max()),
        undetermined=_undetermined(columns),
    )


def _solve(
    columns: Mapping[str, FloatArray], *, error: float, start: FloatArray | None = None
) -> FloatArray:
    """Scaled alpha, time per byte, overlap and fixed overhead: the best of a few starts."""
    from scipy.optimize import least_squares

    spread = np.maximum(columns["relative_std"], error)

    def residuals(scaled: FloatArray) -> FloatArray:
        rows = np.log(_law(columns, *_natural(scaled, columns)) / columns["step_s"]) / spread
        expected = [scaled[0], scaled[2] / OVERLAP_SPREAD, (scaled[3] - FIXED_SHARE) / FIXED_SPREAD]
        return np.concatenate([rows, expected])

    starts = [*_STARTS, *([] if start is None else [start])]
    bounds = ([0.0, 1e-4, 0.0, 0.0], [np.inf, np.inf, 1.0, np.inf])
    found = [
        least_squares(residuals, np.clip(np.asarray(each), 1e-3, _LARGEST), bounds=bounds)
        for each in starts
    ]
    best: FloatArray = min(found, key=lambda result: float(result.cost)).x
    return best


def _natural(
    scaled: FloatArray, columns: Mapping[str, FloatArray]
) -> tuple[float, float, float, float]:
    """From units of what the rows themselves add per step and byte to s, s/byte, a share and s."""
    added = np.median(
        np.maximum(columns["step_s"] - columns["one_device_step_s"], 1e-3 * columns["step_s"])
    )
    sent = np.median(_sent(columns)) or 1.0
    alpha, per_byte, overlap, fixed = (float(value) for value in scaled)
    return alpha * ALPHA_SPREAD_S, per_byte * float(added / sent), overlap, fixed * float(added)


def _sent(columns: Mapping[str, FloatArray]) -> FloatArray:
    world = columns["world_size"]
    return np.asarray(2 * (world - 1) / world * columns["gradient_bytes"])


def _law(
    columns: Mapping[str, FloatArray], alpha: float, per_byte: float, overlap: float, fixed: float
) -> FloatArray:
    whole = (
        2 * (columns["world_size"] - 1) * columns["messages"] * alpha + _sent(columns) * per_byte
    )
    return _step(
        columns["one_device_step_s"],
        whole,
        columns["world_size"],
        overlap,
        fixed,
        columns["backward_s"],
    )


def _step(
    one: FloatArray,
    whole: FloatArray,
    world: FloatArray,
    overlap: float,
    fixed: float,
    cover: FloatArray,
) -> FloatArray:
    return np.asarray(
        one + np.where(world > 1, fixed + whole - np.minimum(overlap * whole, cover), 0.0)
    )


def _undetermined(columns: Mapping[str, FloatArray]) -> tuple[str, ...]:
    """By the rank of the rows' own equations; overlap shows only where rows differ in what they can
    hide behind.
    """
    messages = 2 * (columns["world_size"] - 1) * columns["messages"]
    names = {
        "bytes_per_s": _sent(columns),
        "fixed_overhead_s": np.ones_like(messages),
        "alpha_s": messages,
    }
    kept: list[FloatArray] = []
    open_ones = []
    for name, column in names.items():
        scaled = column / np.abs(column).max() if column.any() else column
        if np.linalg.matrix_rank(np.column_stack([*kept, scaled]), tol=1e-6) > len(kept):
            kept.append(scaled)
        else:
            open_ones.append(name)
    if len(columns["step_s"]) <= len(kept):
        open_ones.append("overlap")
    return tuple(open_ones)


def _columns(rows: pd.DataFrame, *, needed: Sequence[str]) -> dict[str, FloatArray]:
    """The columns as numbers with defaults for optional ones; raises InputError with all that is
    wrong.
    """
    missing = [name for name in needed if name not in rows]
    if missing:
        raise InputError(
            "rows",
            [
                Problem(name, "this column is missing", f"needed: {', '.join(needed)}")
                for name in missing
            ],
        )
    if not len(rows):
        raise InputError("rows", [Problem("rows", "there are none", "give at least one")])
    found: dict[str, FloatArray] = {}
    problems: list[Problem] = []
    for name in (*needed, *(name for name in OPTIONAL if name in rows)):
        try:
            found[name] = np.asarray(rows[name], dtype=np.float64)
        except (TypeError, ValueError):
            problems.append(Problem(name, "holds what is no number", "numbers only"))
            continue
        for place, value in enumerate(found[name].tolist()):
            problems += [
                Problem(f"row {place}, {found_.where}", found_.what, found_.advice)
                for found_ in _problems(**{name: value})
            ]
    if problems:
        raise InputError("rows", problems[:20])
    one = found["one_device_step_s"]
    found.setdefault("backward_s", BACKWARD_SHARE * one)
    found.setdefault("messages", np.ones_like(one))
    steps = found.get("step_s", one)
    found["relative_std"] = found.pop("step_std_s", np.zeros_like(one)) / steps
    return found


def _problems(**values: Any) -> list[Problem]:
    """What is wrong with quantities by their names: no number, not finite, out of range."""
    zero_allowed = {"gradient_bytes", "fixed_overhead_s", "alpha_s", "backward_s", "step_std_s"}
    found = []
    for name, value in values.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            found.append(Problem(name, f"{value!r} is no number", "a positive number"))
            continue
        if not math.isfinite(number) or number < 0 or (number == 0 and name not in zero_allowed):
            found.append(
                Problem(
                    name,
                    f"{number:g} cannot be",
                    "zero or more" if name in zero_allowed else "a positive number",
                )
            )
        elif name == "world_size" and number != round(number):
            found.append(Problem(name, f"{number:g} is no number of ranks", "a whole number"))
    return found


def _is_pair(given: Any) -> bool:
    return (
        isinstance(given, Sequence)
        and len(given) == 2
        and all(np.ndim(value) == 0 for value in given)
    )


def _table(given: Any) -> tuple[list[float], list[float]]:
    """Sizes, ascending, and their seconds."""
    if hasattr(given, "columns"):
        if missing := [name for name in ("bytes", "seconds") if name not in given]:
            raise InputError(
                "allreduce",
                [Problem(name, "this column is missing", "bytes and seconds") for name in missing],
            )
        pairs = list(zip(given["bytes"], given["seconds"], strict=True))
    else:
        pairs = list(given.items()) if isinstance(given, Mapping) else list(given)
    try:
        pairs = sorted((float(size), float(seconds)) for size, seconds in pairs)
    except (TypeError, ValueError):
        raise InputError(
            "allreduce",
            [Problem("allreduce", "not pairs of bytes and seconds", "such as [(1e6, 1e-3)]")],
        ) from None
    if not pairs or any(
        not (math.isfinite(size * seconds) and size > 0 and seconds > 0) for size, seconds in pairs
    ):
        raise InputError(
            "allreduce",
            [Problem("allreduce", "holds no or impossible times", "positive bytes and seconds")],
        )
    return [size for size, _ in pairs], [seconds for _, seconds in pairs]
