"""The law of a training step by its layout, and its fit to a few measured rows.

A step is the sum of its terms, each times a non-negative coefficient. The coefficients have prior
expectations by GPU and framework, which measured rows update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from lab.perfmodel.frameworks import ANY, Framework
from lab.perfmodel.layout_terms import HOPPER, Case, Floats, parts, quantities
from lab.perfmodel.step_law import DIFFERENCE, bounded, slopes

# Half of the rows are closer than this to the law that was fitted to their table.
ROW_ERROR = 0.04  # relative
SCALES = (0.1, 0.25, 0.5, 1.0)  # of the expectations' spreads; measured rows show which are likely
# What the terms omit, relative, which counts as much as LEFT_ROWS rows. With these, 95 % intervals
# of ten fitted rows hold 95 to 97 % of the other rows of the three tables that they were chosen on.
LEFT_ERROR, LEFT_ROWS = 0.08, 20


@dataclass(frozen=True)
class Coefficient:
    """A coefficient's prior expectation, and the deviation of its logarithm.

    Without a unit it multiplies the time by vendor figures.
    """

    expected: float
    spread: float
    meaning: str


# Expectations of A100s: a fit to Megatron-DeepSpeed's layouts on one node (vTrain's 1440, 2024) and
# FSDP's on up to 16 (llm-foundry's 78), which counts both tables alike; `replicas`, `crossing` and
# `stall` to nanotron's (Ultra-Scale Playbook 2025).
COEFFICIENTS = {
    "flops": Coefficient(1.5, 0.15, "products, over the peak: its inverse is the share reached"),
    "attention": Coefficient(1.2, 0.4, "attention's FLOPs, over those of as long a product"),
    "recompute": Coefficient(0.65, 0.3, "recomputed forward passes, over a third of the others"),
    "scores": Coefficient(0.1, 2.0, "attention's scores, over memory's rate; little if fused"),
    "launch": Coefficient(7.6e-4, 0.5, "s to launch a layer's pass, which products hide"),
    "memory": Coefficient(2.4, 0.6, "reads and writes of a layer's values, over memory's rate"),
    "head": Coefficient(1.4, 0.5, "head and loss, over products and memory"),
    "tensor_bytes": Coefficient(0.8, 0.5, "tensor parallelism's all-reduces, over links' rate"),
    "tensor_messages": Coefficient(3.5, 0.7, "messages of these, over the links' latency"),
    "data": Coefficient(2.7, 0.6, "gradients, over the links' rate"),
    "gathers": Coefficient(1.2, 0.6, "FSDP's gathers and scatters, over the links' rate"),
    "data_messages": Coefficient(0.6, 0.7, "messages of these, over the links' latency"),
    "replicas": Coefficient(5e-3, 1.0, "s for each replica of a pipeline that DDP sums, where a "
                            "framework waits for them"),
    "stage": Coefficient(4e-4, 1.0, "s to hand a micro-batch on to the next stage"),
    "stage_bytes": Coefficient(1.0, 0.7, "what stages hand on, over the links' rate"),
    "stall": Coefficient(0.27, 0.5, "s of a delayed transfer, beyond the framework's reach"),
    "crossing": Coefficient(2e-5, 2.0, "s that tensor parallel ranks lose per layer's pass where "
                            "their pipeline crosses nodes"),
    "optimizer": Coefficient(1.0, 0.5, "state that the optimizer reads and writes"),
    "nodes": Coefficient(2e-3, 1.5, "s of a step per further node"),
    "constant": Coefficient(3e-3, 1.0, "s of a step"),
}  # fmt: skip
NAMES = tuple(COEFFICIENTS)
_SPREADS = np.array([coefficient.spread for coefficient in COEFFICIENTS.values()])
# Inverse shares of peak by generation. H100s reach a smaller share: MLPerf and the playbook. Dense
# models in 16 bits reach 0.43 to 0.59 on Blackwell as a whole (Megatron-LM and its Bridge), and
# large products alone half of the peak on MI300X and MI350X, as against 0.73 on H100.
FLOPS_BY_GPU = {
    **dict.fromkeys(HOPPER, 2.0),
    **dict.fromkeys(("b200", "b300", "gb200", "gb300"), 1.8),
    **dict.fromkeys(("mi300x", "mi325x", "mi350x", "mi355x"), 2.5),
}


@dataclass(frozen=True)
class LayoutLaw:
    """Coefficients by name, the number of rows they were fitted to, and their uncertainty.

    `covariance` is that of the logarithms, `error` the relative deviation of a row.
    """

    coefficients: dict[str, float]
    rows: int = 0
    error: float = LEFT_ERROR
    covariance: Floats = field(repr=False, default_factory=lambda: np.diag(_SPREADS**2))

    def parts(self, case: Case) -> dict[str, float]:
        """Seconds of a step by cause."""
        every = parts(quantities([case]), self.coefficients)
        return {name: float(seconds[0]) for name, seconds in every.items()}

    def predict(self, cases: Sequence[Case]) -> Floats:
        """Seconds of a step for each case."""
        return _steps(quantities(cases), self.coefficients)

    def delayed(self, cases: Sequence[Case]) -> Floats:
        """Seconds of a step for each case, if all transfers are delayed that may be."""
        return _steps(_delayed(quantities(cases)), self.coefficients)

    def intervals(self, cases: Sequence[Case]) -> tuple[Floats, Floats]:
        """The ends of the 95 % interval in s; the later one allows for transfers' delays."""
        q = quantities(cases)
        (low, high), (_, later) = self._ends(q), self._ends(_delayed(q))
        return low, np.maximum(high, later)

    def _ends(self, q: Mapping[str, Floats]) -> tuple[Floats, Floats]:
        from scipy.stats import t

        at = np.log([self.coefficients[name] for name in NAMES])
        steps = np.exp(_log_steps(q, at))
        slope = slopes(partial(_log_steps, q), at, np.full(len(NAMES), 1e-4))
        variance = self.error**2 + np.einsum("ri,ij,rj->r", slope, self.covariance, slope)
        factor = np.exp(t.ppf(0.975, max(self.rows - 1, 3)) * np.sqrt(variance))
        return steps / factor, steps * factor


def _steps(q: Mapping[str, Floats], coefficients: Mapping[str, Any]) -> Floats:
    return np.asarray(sum(parts(q, coefficients).values()))


def _delayed(q: Mapping[str, Floats]) -> dict[str, Floats]:
    return {**q, "stall": q["may_stall"]}


def _log_steps(q: Mapping[str, Floats], logarithms: Floats) -> Floats:
    """Logarithms of the steps; a line for each line of the coefficients' `logarithms`."""
    return np.log(_steps(q, dict(zip(NAMES, np.exp(logarithms).T[..., None], strict=True))))


def expected(gpu: str = "", framework: Framework = ANY) -> LayoutLaw:
    """The prior law, for a GPU by its name in the table and for a framework."""
    values = {name: (one.expected, one.spread) for name, one in COEFFICIENTS.items()}
    family = next((name for name in FLOPS_BY_GPU if gpu.startswith(name)), "")
    if family:
        values["flops"] = FLOPS_BY_GPU[family], values["flops"][1]
    values |= framework.coefficients
    spreads = np.array([values[name][1] for name in NAMES])
    return LayoutLaw({name: values[name][0] for name in NAMES}, covariance=np.diag(spreads**2))


def fit(cases: Sequence[Case], step_s: Sequence[float]) -> LayoutLaw:
    """Fit the coefficients to measured steps (s), weighing the rows against prior expectations.

    Logarithms of ratios are compared, so that short and long steps count equally; outliers, such as
    rows disturbed by a crashed neighbour, weigh less the further they lie from the other rows. How
    far off the expectations are is estimated as well: laws with several SCALES of the prior's
    spreads are averaged by their evidence, so that rows that agree with what is expected leave it.
    """
    if not cases:
        return expected()
    gpus = [case.machine.gpu.name for case in cases]
    most = max(dict.fromkeys(gpus), key=gpus.count)  # of as many, the first
    prior = expected(most, cases[0].framework)
    spreads = np.sqrt(np.diag(prior.covariance))
    centre = np.log([prior.coefficients[name] for name in NAMES])
    q, measured = quantities(cases), np.log(np.asarray(step_s, dtype=float))
    fits: list[tuple[Floats, Floats, float, float]] = []
    for scale in SCALES:
        starts = [centre, *(at for at, *_ in fits[-1:])]
        fits.append(_most_likely(q, measured, centre, scale * spreads, starts))
    ats, covariances, errors, evidence = (np.array(each) for each in zip(*fits, strict=True))
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    at, rows = weights @ ats, len(cases)
    left = (weights @ errors) ** 2
    error = math.sqrt((rows * left + LEFT_ROWS * LEFT_ERROR**2) / (rows + LEFT_ROWS))
    apart = np.einsum("si,sj->sij", ats - at, ats - at)
    # Rows that differ by more than was assumed say less of the coefficients.
    covariance = max(error / ROW_ERROR, 1) ** 2 * np.tensordot(weights, covariances + apart, 1)
    coefficients = dict(zip(NAMES, np.exp(at).tolist(), strict=True))
    return LayoutLaw(coefficients, rows, error, covariance)


def _most_likely(
    q: Mapping[str, Floats],
    measured: Floats,
    centre: Floats,
    spreads: Floats,
    starts: Sequence[Floats],
) -> tuple[Floats, Floats, float, float]:
    """The logarithms and their covariance, a row's error, and the evidence for these spreads."""
    from scipy.optimize import least_squares

    def costs(logarithms: Floats) -> Floats:
        errors = (_log_steps(q, logarithms) - measured) / ROW_ERROR
        return np.concatenate([bounded(errors), (logarithms - centre) / spreads], axis=-1)

    def slopes_of_costs(logarithms: Floats) -> Floats:
        steps = np.copysign(np.maximum(1.0, np.abs(logarithms)), logarithms)
        return slopes(costs, logarithms, DIFFERENCE * steps)

    # The loss that bounds the influence of outliers has several minima.
    options: dict[str, Any] = {"jac": slopes_of_costs, "max_nfev": 100}
    solutions = [least_squares(costs, start, **options) for start in starts]
    solution = min(solutions, key=lambda one: float(one.cost))
    precision = solution.jac.T @ solution.jac
    covariance = np.linalg.inv(precision)
    # Laplace's approximation of the integral over the coefficients.
    _, determinant = np.linalg.slogdet(precision * np.outer(spreads, spreads))
    error = _error(solution, covariance, _log_steps(q, solution.x) - measured)
    return solution.x, covariance, error, -float(solution.cost) - float(determinant) / 2


def _error(solution: Any, covariance: Floats, left: Floats) -> float:
    """The deviation of a row that the fit did not see: each row's, had it been left out.

    Few rows pull the law to themselves, by their leverage (Allen 1974).
    """
    slopes = solution.jac[: len(left)]
    leverage = np.einsum("ri,ij,rj->r", slopes, covariance, slopes)
    unseen = np.abs(left) / np.maximum(1 - leverage, 0.1)
    return 1.4826 * float(np.median(unseen))
