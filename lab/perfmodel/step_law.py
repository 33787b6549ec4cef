"""The law of a data-parallel step on plain numbers: prediction, and fit to rows of a table.

A step on several ranks is one device's step, a fixed overhead, and a ring all-reduce of the
gradients, part of which hides behind the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lab.errors import InputError, Problem, require_type
from lab.perfmodel.collectives import BACKWARD_SHARE, fit_link, interpolate, ring_time

if TYPE_CHECKING:
    import pandas as pd

FloatArray = npt.NDArray[np.float64]
REQUIRED = ("one_device_step_s", "gradient_bytes", "world_size", "step_s")
OPTIONAL = ("backward_s", "messages", "step_std_s", "ranks_per_node")
MAY_BE_ZERO = {
    "gradient_bytes",
    "fixed_overhead_s",
    "alpha_s",
    "backward_s",
    "step_std_s",
    "overlap",
}

# Prior expectations of the unknowns, each with its spread; rows that determine the unknowns
# overrule them. The fixed share is that of a distributed step's added time: wrapper, launches and
# skew do not grow with the bytes. An overlap or a long latency is claimed only if the rows need
# one; but whoever overlaps at all often does so in full, and a message between busy processes takes
# milliseconds, so that much is hardly less expected than some.
FIXED_SHARE, FIXED_SPREAD = 0.2, 0.15
OVERLAP_SPREAD = 0.1  # around none
TAIL = 2.0  # deviations beyond which the influence of a residual fades
ALPHA_SPREAD_S = 1e-4  # around none
OUTER_SPREAD = 3.0  # of the logarithm of the rate between nodes, around the rate within them
ROW_ERROR = 0.005  # relative, of a published time, if there are too few rows to estimate it
LARGEST_ERROR = 0.02  # of rows that belong together: those further off are outliers
_TINY = 1e-5
DIFFERENCE = float(np.finfo(np.float64).eps) ** 0.5  # to the place where a slope is measured
_LARGEST = np.array([1e9, 1e9, 0.999, 1e9, 1e9])
_FIRST_CALLS = 100  # of each start, in which most end; rows that a law explains exactly creep on
# A link may take many times as long as its communication adds if most of that is hidden.
_STARTS = (
    [0.1, 1.0, 0.01, 0.1, 1.0],
    [0.1, 2.0, 0.5, 0.1, 2.0],
    [0.1, 4.0, 0.95, 0.3, 4.0],
    [0.1, 32.0, 0.95, 0.3, 32.0],
)


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
    """Seconds of a data-parallel step: one device's, the fixed overhead, the exposed all-reduce.

    The link is `alpha_s` (s per message, 0 by default) and `bytes_per_s` of a ring, or `allreduce`:
    the same two numbers as a pair, or a table of the whole all-reduce on these ranks: pairs of
    bytes and seconds, a mapping of bytes to seconds, or a DataFrame with columns `bytes` and
    `seconds`. The share `overlap` of the communication is hidden, as far as `backward_s` reaches
    (by default two thirds of the one-device step). On one rank the step is that of one device.
    Raises InputError for impossible values.
    """
    quantities = {
        "one_device_step_s": one_device_step_s,
        "gradient_bytes": gradient_bytes,
        "world_size": world_size,
        "fixed_overhead_s": fixed_overhead_s,
        "overlap": overlap,
    }
    problems = _problems(
        quantities if backward_s is None else {**quantities, "backward_s": backward_s}
    )
    if problems:
        raise InputError("predict_step", problems)
    whole = _all_reduce_seconds(gradient_bytes, world_size, alpha_s, bytes_per_s, allreduce)
    cover = BACKWARD_SHARE * one_device_step_s if backward_s is None else backward_s
    return float(_step(one_device_step_s, whole, world_size, overlap, fixed_overhead_s, cover))


def _all_reduce_seconds(
    size: float, world_size: int, alpha_s: float | None, bytes_per_s: float | None, allreduce: Any
) -> float:
    """Seconds of an all-reduce by a ring or a table, as `predict_step` takes them; InputError."""
    if (allreduce is None) == (bytes_per_s is None):
        advice = "such as allreduce=(20e-6, 6e9)"
        raise _refused("allreduce", "give either it or bytes_per_s", advice)
    if allreduce is not None and alpha_s is not None:
        raise _refused("alpha_s", "allreduce holds it already", "leave it out")
    if allreduce is not None and not _is_pair(allreduce):
        sizes, seconds = _table(allreduce)
        if world_size == 1 or size == 0:
            return 0.0
        if len(sizes) == 1:
            return seconds[0] * size / sizes[0]
        try:
            return interpolate(size, sizes, seconds, fit_link(sizes, seconds))
        except ValueError as error:
            raise _refused("allreduce", str(error), "pairs of bytes and seconds") from None
    alpha, rate = (alpha_s or 0.0, bytes_per_s or 0.0) if allreduce is None else allreduce
    if problems := _problems({"alpha_s": alpha, "bytes_per_s": rate}):
        raise InputError("predict_step", problems)
    return ring_time("all_reduce", size, world_size, float(alpha), float(rate))


@dataclass(frozen=True)
class StepLaw:
    """The fitted unknowns: s per message, bytes/s of a link, hidden share, overhead in s.

    `largest_relative_error` is over the rows of the fit. `undetermined` names the unknowns that
    those rows cannot separate from others; their values are the simplest that explain the rows.
    `outer_bytes_per_s` is the rate from node to node, None if no row needs one.
    """

    alpha_s: float
    bytes_per_s: float
    overlap: float
    fixed_overhead_s: float
    rows: int = 0
    largest_relative_error: float = math.nan
    undetermined: tuple[str, ...] = field(default=())
    outer_bytes_per_s: float | None = None

    def predict(self, rows: pd.DataFrame) -> FloatArray:
        """Seconds of a step for each row; columns as in `fit`, without `step_s`. InputError.

        Without a rate between nodes, all ranks share the fitted link.
        """
        columns = _columns(rows, needed=REQUIRED[:-1])
        if self.outer_bytes_per_s is None:
            columns["ranks_per_node"] = columns["world_size"]
        outer = 1 / (self.outer_bytes_per_s or self.bytes_per_s)
        unknowns = (self.alpha_s, 1 / self.bytes_per_s, self.overlap, self.fixed_overhead_s, outer)
        return _law(columns)(unknowns)


def fit(rows: pd.DataFrame) -> StepLaw:
    """Fit alpha, bandwidth, overlap and fixed overhead to the steps of two or more rows.

    Needed columns: `one_device_step_s`, `gradient_bytes`, `world_size`, `step_s`. Optional ones
    refine it: `backward_s` (s of one device's backward pass, behind which communication hides),
    `messages` (all-reduces of a step, 1 by default), `step_std_s` (the uncertainty of each time),
    `ranks_per_node` (beyond this many, gradients are summed within each node and then between
    nodes, at a separate rate). Relative errors are squared and summed, with the expectations above
    as priors for what the rows leave open (a maximum a posteriori estimate). Raises InputError for
    a missing column, impossible values, and tables without a row on several ranks.
    """
    columns = _columns(rows, needed=REQUIRED)
    several = columns["world_size"] > 1
    if not several.any():
        advice = "nothing is sent on one"
        raise InputError.of("fit", "world_size", "no row has more than one rank", advice)
    columns = {name: values[several] for name, values in columns.items()}
    solve = _solver(columns)
    scaled = solve(ROW_ERROR)
    spare = len(columns["step_s"]) - 3
    if spare > 0:  # these rows determine their own uncertainty
        closest = solve(_TINY, scaled)
        residuals = np.log(_law(columns)(closest * _units(columns)) / columns["step_s"])
        error = float(np.sqrt(np.sum(residuals**2) / spare))
        scaled = solve(min(max(error, _TINY), LARGEST_ERROR), closest, outliers=True)
    alpha, per_byte, overlap, fixed, outer = unknowns = (scaled * _units(columns)).tolist()
    explained = _law(columns)(unknowns)
    return StepLaw(
        alpha_s=alpha,
        bytes_per_s=1 / per_byte,
        overlap=overlap,
        fixed_overhead_s=fixed,
        rows=len(explained),
        largest_relative_error=float(np.abs(explained / columns["step_s"] - 1).max()),
        undetermined=_undetermined(columns),
        outer_bytes_per_s=1 / outer if _traffic(columns)[2].any() else None,
    )


def _solver(columns: Mapping[str, FloatArray]) -> Callable[..., FloatArray]:
    """A function of the rows' error that gives scaled alpha, time per byte within nodes, overlap,
    fixed overhead and time per byte between nodes: the best of a few starts and of any other. It
    can allow for outliers, whose influence fades.
    """
    from scipy.optimize import least_squares

    bounds = ([0.0, 1e-4, 0.0, 0.0, 1e-4], [np.inf, np.inf, 1.0, np.inf, np.inf])
    units, law = _units(columns), _law(columns)

    def residuals(scaled: FloatArray, spread: FloatArray, outliers: bool) -> FloatArray:
        """Those of the rows, then those of the priors; a line for each line of `scaled`."""
        alpha, per_byte, overlap, fixed, outer = scaled.T[..., None]
        rows = np.log(law((scaled * units).T[..., None]) / columns["step_s"]) / spread
        rows = bounded(rows) if outliers else rows
        fading = bounded(np.concatenate([alpha, overlap / OVERLAP_SPREAD], axis=-1))
        fixed, outer = (fixed - FIXED_SHARE) / FIXED_SPREAD, np.log(outer / per_byte) / OUTER_SPREAD
        return np.concatenate([rows, fading, fixed, outer], axis=-1)

    def slopes_of_residuals(scaled: FloatArray, *args: Any) -> FloatArray:
        steps = DIFFERENCE * np.maximum(1.0, scaled)
        steps = np.where(scaled + steps > bounds[1], -steps, steps)
        return slopes(lambda places: residuals(places, *args), scaled, steps)

    @cache  # rows that a law explains exactly are solved twice for the least error
    def solved(error: float, outliers: bool, start: tuple[float, ...], calls: int | None) -> Any:
        options = {"jac": slopes_of_residuals, "bounds": bounds, "max_nfev": calls}
        args = np.maximum(columns["relative_std"], error), outliers
        return least_squares(residuals, start, args=args, **options)

    def solve(error: float, *starts: FloatArray, outliers: bool = False) -> FloatArray:
        clipped = np.clip([*_STARTS, *starts], 1e-3, _LARGEST).tolist()
        solutions = [solved(error, outliers, tuple(start), _FIRST_CALLS) for start in clipped]
        best = min(solutions, key=lambda solution: float(solution.cost))
        if not best.success:  # only the best goes on to its end
            best = solved(error, outliers, tuple(best.x.tolist()), None)
        solution: FloatArray = best.x
        return solution

    return solve


def slopes(
    function: Callable[[FloatArray], FloatArray], place: FloatArray, steps: FloatArray
) -> FloatArray:
    """The slopes (values, unknowns) of a function at a place (unknowns,), by finite differences.

    The function turns (places, unknowns) into (places, values). It is called once, as calls cost
    most.
    """
    places = place + np.diag(steps)
    values = function(np.vstack([place, places]))
    matrix: FloatArray = ((values[1:] - values[0]) / (np.diag(places) - place)[:, None]).T
    return matrix


def bounded(errors: FloatArray) -> FloatArray:
    """Roots of a loss whose influence fades beyond TAIL (Cauchy)."""
    return np.asarray(np.sign(errors) * TAIL * np.sqrt(np.log1p((errors / TAIL) ** 2)))


def _units(columns: Mapping[str, FloatArray]) -> FloatArray:
    """Units of the scaled unknowns in s, s/byte, a share, s and s/byte: the rows' own added time,
    per step and per byte.
    """
    steps = columns["step_s"]
    added = float(np.median(np.maximum(steps - columns["one_device_step_s"], 1e-3 * steps)))
    _, within, across = _traffic(columns)
    sent = float(np.median(within + across)) or 1.0
    return np.array([ALPHA_SPREAD_S, added / sent, 1.0, added, added / sent])


def _traffic(columns: Mapping[str, FloatArray]) -> FloatArray:
    """Messages; bytes that cross a rank's link within its node; bytes that cross a node's links.

    Between nodes, a ring moves every byte of the gradients once.
    """
    world, size = columns["world_size"], columns["gradient_bytes"]
    nodes = np.ceil(world / columns["ranks_per_node"])
    inside = world / nodes
    within, across = (2 * (parts - 1) / parts * size for parts in (inside, nodes))
    return np.array([2 * (world - 1) * columns["messages"], within, across])


def _law(columns: Mapping[str, FloatArray]) -> Callable[[Iterable[Any]], FloatArray]:
    """The step times of the rows, in s, as a function of the unknowns."""
    messages, within, across = _traffic(columns)
    one, world = columns["one_device_step_s"], columns["world_size"]

    def steps(unknowns: Iterable[Any]) -> FloatArray:
        alpha, per_byte, overlap, fixed, outer = unknowns
        whole = messages * alpha + within * per_byte + across * outer
        return _step(one, whole, world, overlap, fixed, columns["backward_s"])

    return steps


def _step(
    one: FloatArray | float,
    whole: FloatArray | float,
    world: FloatArray | float,
    overlap: FloatArray | float,
    fixed: FloatArray | float,
    cover: FloatArray | float,
) -> FloatArray:
    exposed = whole - np.minimum(overlap * np.asarray(whole), cover)
    return np.asarray(one + np.where(np.asarray(world) > 1, fixed + exposed, 0.0))


def _undetermined(columns: Mapping[str, FloatArray]) -> tuple[str, ...]:
    """Unknowns whose column is a combination of the others'; the overlap if rows are too few."""
    messages, within, across = _traffic(columns)
    fixed = np.ones_like(messages)
    unknowns = {"bytes_per_s": within, "fixed_overhead_s": fixed, "alpha_s": messages}
    if across.any():
        unknowns = {"outer_bytes_per_s": across, **unknowns}
    independent: list[FloatArray] = []
    undetermined = []
    for name, column in unknowns.items():
        scaled = column / np.abs(column).max() if column.any() else column
        matrix = np.column_stack([*independent, scaled])
        if np.linalg.matrix_rank(matrix, tol=1e-6) > len(independent):
            independent.append(scaled)
        else:
            undetermined.append(name)
    if len(columns["step_s"]) <= len(independent):
        undetermined.append("overlap")
    return tuple(undetermined)


def _columns(rows: pd.DataFrame, *, needed: Sequence[str]) -> dict[str, FloatArray]:
    """The columns as numbers, with defaults for optional ones; InputError with every fault."""
    import pandas as pd

    require_type(rows, pd.DataFrame | dict, "rows", "a DataFrame, such as `pandas.read_csv(file)`")
    try:
        rows = pd.DataFrame(rows)
    except ValueError as error:
        raise InputError.of("rows", "rows", str(error), "give columns of equal length") from None
    advice = f"needed: {', '.join(needed)}"
    problems = [
        Problem(name, "this column is missing", advice) for name in needed if name not in rows
    ]
    if not problems and not len(rows):
        problems = [Problem("rows", "there are none", "give at least one")]
    if problems:
        raise InputError("rows", problems)
    columns: dict[str, FloatArray] = {}
    for name in (*needed, *(name for name in OPTIONAL if name in rows)):
        try:
            columns[name] = np.asarray(rows[name], dtype=np.float64)
        except (TypeError, ValueError):
            problems.append(Problem(name, "not all values are numbers", "give only numbers"))
    for place, row in enumerate(
        zip(*(column.tolist() for column in columns.values()), strict=True)
    ):
        problems += _problems(dict(zip(columns, row, strict=True)), where=f"row {place}, ")
    if problems:
        raise InputError("rows", problems[:20])
    one = columns["one_device_step_s"]
    columns.setdefault("backward_s", BACKWARD_SHARE * one)
    columns.setdefault("messages", np.ones_like(one))
    columns.setdefault("ranks_per_node", columns["world_size"])
    steps = columns.get("step_s", one)
    columns["relative_std"] = columns.pop("step_std_s", np.zeros_like(one)) / steps
    return columns


def _problems(quantities: Mapping[str, Any], *, where: str = "") -> list[Problem]:
    """Faults of named quantities: not a number, not finite, out of range."""
    problems = []
    for name, value in quantities.items():
        advice = "give zero or more" if name in MAY_BE_ZERO else "give a positive number"
        try:
            number = float(+value)  # a text is none, even "5"
        except OverflowError:  # a whole number beyond all floats
            number = math.inf
        except (TypeError, ValueError):
            problems.append(Problem(where + name, f"{value!r} is not a number", advice))
            continue
        if not math.isfinite(number) or number < 0 or (number == 0 and name not in MAY_BE_ZERO):
            problems.append(Problem(where + name, f"{number:g} is impossible", advice))
        elif name in {"world_size", "ranks_per_node"} and number != round(number):
            what = f"{number:g} is not a number of ranks"
            problems.append(Problem(where + name, what, "give a whole number"))
        elif name == "overlap" and number > 1:
            advice = "give one from 0 to 1"
            problems.append(Problem(where + name, f"{number:g} is not a share", advice))
    if not problems and "backward_s" in quantities:
        backward, step = quantities["backward_s"], quantities["one_device_step_s"]
        if backward > step:
            what = f"{backward:g} is longer than the step that it is a part of, {step:g}"
            advice = "give both in s, of the same step on one device"
            problems.append(Problem(f"{where}backward_s", what, advice))
    return problems


def _refused(where: str, what: str, advice: str) -> InputError:
    return InputError.of("predict_step", where, what, advice)


def _is_pair(allreduce: Any) -> bool:
    numbers = isinstance(allreduce, Sequence) and all(np.ndim(value) == 0 for value in allreduce)
    return numbers and len(allreduce) == 2


def _table(allreduce: Any) -> tuple[list[float], list[float]]:
    """Sizes, ascending, and their seconds."""
    if hasattr(allreduce, "columns"):
        needed = "bytes and seconds"
        missing = [name for name in ("bytes", "seconds") if name not in allreduce]
        if problems := [Problem(name, "this column is missing", needed) for name in missing]:
            raise InputError("allreduce", problems)
        allreduce = zip(allreduce["bytes"], allreduce["seconds"], strict=True)
    try:
        items = allreduce.items() if isinstance(allreduce, Mapping) else allreduce
        pairs = sorted((float(size), float(seconds)) for size, seconds in items)
    except (TypeError, ValueError):
        advice = "such as [(1e6, 1e-3)]"
        raise _refused("allreduce", "not pairs of bytes and seconds", advice) from None
    if not pairs or any(
        not (math.isfinite(size * seconds) and size > 0 and seconds > 0) for size, seconds in pairs
    ):
        advice = "positive bytes and seconds"
        raise _refused("allreduce", "holds no or impossible times", advice)
    return [size for size, _ in pairs], [seconds for _, seconds in pairs]
