"""Why a measured layout is faster or slower than expected: the input that would explain the gap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from lab.analysis.layout_row import LayoutRow
from lab.analysis.layout_table import read_layouts
from lab.analysis.layout_values import ROUGH
from lab.formatting import count, format_seconds, model_size
from lab.perfmodel import layout_law
from lab.perfmodel.layout_law import LayoutLaw
from lab.perfmodel.layout_terms import Case

SIZE_OFF = 1.5  # ratio of the name's parameters to those of the sizes, either way
MFU_OFF = 0.05  # relative
LITTLE = 0.01  # of the step: a smaller part is not worth a word
WORTH_SAYING = 0.05  # of the step, of what another layout could avoid
SPARSE, SPARSE_OFF = 2.0, 0.15  # vendors double the peak for sparsity; FLOP counts are rough
CLOSE = 0.02
SLOWEST = 1e-3  # of a link's rate
LINKS: dict[str, Literal["inner", "outer"]] = {
    "between nodes": "outer",
    "within the node": "inner",
}


@dataclass(frozen=True)
class Explanation:
    """A row's measured and expected step in s, the interval's ends, and sentences on the gap.

    `row` counts from 1.
    """

    row: int
    measured_s: float
    expected_s: float
    low_s: float
    high_s: float
    mfu: float
    reasons: tuple[str, ...]

    def table_row(self) -> dict[str, str]:
        """Formatted for display."""
        return {
            "row": str(self.row),
            "measured": format_seconds(self.measured_s),
            "expected": format_seconds(self.expected_s, self.low_s, self.high_s),
            "MFU": f"{100 * self.mfu:.1f} %",
            "explained by": "; ".join(self.reasons),
        }


class Explanations(list[Explanation]):
    """Explanations of rows; `notes` say what was assumed and why other rows are left out."""

    def __init__(self, rows: Iterable[Explanation], notes: Iterable[str]) -> None:
        super().__init__(rows)
        self.notes = list(notes)


def explain_layouts(
    rows: str | Path | pd.DataFrame,
    *,
    assume: Mapping[str, Any] | None = None,
    number: int | None = None,
) -> Explanations:
    """For each measured row of a layout table: the expected step, and what explains the gap.

    This compares the parameters implied by the name and by the sizes, and the quoted MFU with the
    table's own. If a step is outside its interval, it names the link, recomputation or cost that
    would account for the difference. Of several tables in a text, the longest is read, or the one
    of this `number`. Raises InputError as `lab.fit_layouts` does.
    """
    table = read_layouts(rows, assume=assume, number=number).with_measured()
    return Explanations(map(_explained, table.measured), table.notes)


def _explained(row: LayoutRow) -> Explanation:
    case, measured = row.case, float(row.step_s or 0)
    law = layout_law.expected(case.machine.gpu.name, case.framework)
    low, high = (float(end[0]) for end in law.intervals([case]))
    step, late = (float(law_of([case])[0]) for law_of in (law.predict, law.delayed))
    tokens = case.candidate.global_batch * case.sequence
    peak = case.machine.gpu.fastest(case.candidate.precision)
    gpus = case.candidate.layout.world_size
    mfu, masked = (
        tokens * case.model.flops_per_token(case.sequence, masked=half) / measured / gpus / peak
        for half in (False, True)
    )
    reasons = [*_size(row), *_quoted_mfu(row, mfu, masked, peak), *_quoted_flops(row, mfu * peak)]
    if mfu > 1:
        gpu = case.machine.gpu.name.upper()
        meant = "another GPU, model, batch or precision must be meant"
        reasons.insert(0, f"no {gpu} computes this fast: {meant}")
    elif measured > high:
        reasons += _slower(case, law, measured)
    elif measured < low:
        reasons.append(
            f"faster than {format_seconds(low)}: fewer FLOPs, fewer tokens or a faster GPU than "
            "the table gives"
        )
    elif late > step and measured**2 > step * late:
        reasons.append(f"delayed transfers would explain it: they make it {format_seconds(late)}")
    if not reasons:
        parts = law.parts(case)
        wait = max((name for name in parts if name != "compute"), key=lambda name: parts[name])
        share = parts[wait] / step
        most = f"; besides compute, most goes to {_part(wait, case)} ({100 * share:.0f} %)"
        within = "inside the interval" + (most if share > LITTLE else "")
        reasons = [within, *_avoidable(case, law, step)]
    return Explanation(row.place + 1, measured, step, low, high, mfu, tuple(reasons))


def _avoidable(case: Case, law: LayoutLaw, step: float) -> list[str]:
    """What recomputation that the table states, and the pipeline's idle time, take of a step."""
    layout = case.candidate.layout
    without = replace(case.candidate, layout=replace(layout, schedule="zb-h2"))
    others = {
        "the pipeline's idle time": replace(case, candidate=without),
        "recomputation": case if case.recomputed is not None else replace(case, recomputed=0.0),
    }
    shares = {name: 1 - float(law.predict([other])[0]) / step for name, other in others.items()}
    return [
        f"{name} takes {100 * share:.0f} %"
        for name, share in shares.items()
        if share > WORTH_SAYING
    ]


def _part(name: str, case: Case) -> str:
    """A part of the step; that of tensor parallelism has the exchanges of other kinds, too."""
    layout = case.candidate.layout
    if name != "tensor parallelism" or layout.tensor > 1:
        return name
    return "expert parallelism" if layout.expert > 1 else "context parallelism"


def _size(row: LayoutRow) -> list[str]:
    model, quoted = row.case.model, row.quoted_parameters
    if not quoted or 1 / SIZE_OFF < quoted / model.parameters < SIZE_OFF:
        return []
    return [
        f"width {model.width} and {count(model.layers, 'layer')} make "
        f"{model_size(model.parameters)} parameters, but the table says {model_size(quoted)}"
    ]


def _quoted_mfu(row: LayoutRow, mfu: float, masked: float, peak: float) -> list[str]:
    """A quoted MFU that the row's own rate contradicts, whether or not a mask halves attention."""
    quoted = row.quoted_mfu
    if not quoted or any(abs(quoted / own - 1) < MFU_OFF for own in (mfu, masked)):
        return []
    own = f"by the row's own rate the MFU is {100 * mfu:.1f} %, not {100 * quoted:.1f} %"
    if abs(quoted / mfu * SPARSE - 1) < SPARSE_OFF:
        return [
            f"{own}: the quoted one is relative to the peak with sparsity, "
            f"{SPARSE * peak / 1e12:.0f} TFLOP/s"
        ]
    return [f"{own}, relative to {peak / 1e12:g} TFLOP/s dense"]


def _quoted_flops(row: LayoutRow, flops: float) -> list[str]:
    """FLOP/s that no way of counting them reconciles with the row's own rate and model."""
    if not row.quoted_flops:
        return []
    gpus = row.case.candidate.layout.world_size
    ratios = (row.quoted_flops / flops, row.quoted_flops / flops / gpus)  # of each, or of all
    if any(1 / ROUGH < ratio < ROUGH for ratio in ratios):
        return []
    return [
        f"by the row's own rate and this model each GPU reaches {flops / 1e12:.4g} TFLOP/s, not "
        f"{row.quoted_flops / 1e12:.4g}: one of the three is wrong"
    ]


def _slower(case: Case, law: LayoutLaw, measured: float) -> list[str]:
    """The one change that makes the step as slow as measured; else the largest part."""
    if case.passes < 4:
        full = replace(case, recomputed=1.0)
        if abs(float(law.predict([full])[0]) / measured - 1) < 0.1:
            return ["recomputing all activations would explain it"]
    for where, name in LINKS.items():
        if share := _share_of_link(name, case, law, measured):
            nominal = getattr(case.machine, name).bytes_per_s / 1e9
            rate = share * nominal
            return [f"a link of {rate:.2g} GB/s {where}, not {nominal:.3g} GB/s, would explain it"]
    parts = law.parts(case)
    slow = max(parts, key=lambda name: parts[name])
    longer = 1 + (measured - sum(parts.values())) / parts[slow]
    return [
        f"no link explains it; {_part(slow, case)} would have to take {longer:.1f} times as long"
    ]


def _share_of_link(
    name: Literal["inner", "outer"], case: Case, law: LayoutLaw, measured: float
) -> float | None:
    """The share of this link's rate at which the step takes as long as measured; None if none."""
    link = getattr(case.machine, name)

    def seconds(share: float) -> float:
        slow = replace(link, bytes_per_s=share * link.bytes_per_s)
        machine = replace(case.machine, **{name: slow})
        return float(law.predict([replace(case, machine=machine)])[0])

    if seconds(SLOWEST) < measured:
        return None
    least, most = SLOWEST, 1.0
    while most / least > 1 + CLOSE:
        middle = (least * most) ** 0.5
        least, most = (middle, most) if seconds(middle) > measured else (least, middle)
    return least
