"""The tables that a scaling study is expected to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from lab.analysis.lines import Curve, baseline_name, curves, device_of, ranks
from lab.analysis.rounding import NOT_MEASURED, format_seconds, percent, rounded, unit_for

MOST_COLUMNS = 4  # more lines than these become rows: a page is higher than it is wide


def classical_tables(summary: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The tables that a scaling study is expected to show, as captions and DataFrames of text.

    Step time, speedup and efficiency have a row per world size and a column per line of `curves`, of many lines a row per
    line and a column per world size; compute and
    communication have a row per configuration. Cells read `1.84 [1.80, 1.90]`, or say why there is no number.
    """
    lines = curves(summary)
    if not lines:
        return []
    unit = unit_for(summary["step_time"])
    over = f"median over {_repeats(summary)} [95 % interval]"
    cells: dict[str, Callable[[Any], str]] = {
        f"Step time, {over}": lambda row: format_seconds(row.step_time, row.step_time_low, row.step_time_high, unit=unit),
        f"Speedup over {baseline_name(summary)}, {over}": lambda row: _ratio_cell(row, "speedup", rounded),
        f"Efficiency, {over}": lambda row: _ratio_cell(row, "efficiency", percent),
    }
    sizes = pd.Index(sorted(set(summary["world_size"])), name=ranks(device_of(summary)))
    tables = []
    for caption, cell in cells.items():
        columns = {label: {row.world_size: cell(row) for row in points.itertuples()} for label, points in lines}
        table = pd.DataFrame(columns).reindex(sizes).fillna(NOT_MEASURED)
        tables.append((caption, table if len(lines) <= MOST_COLUMNS else _turned(table, device_of(summary))))
    return [*tables, _compute_and_communication(lines, over)]


def _turned(table: pd.DataFrame, device: str | None) -> pd.DataFrame:
    """A row per line and a column per world size."""
    turned = table.T.rename_axis("configuration")
    return turned.rename(columns=lambda size: ranks(device, size)).rename_axis(columns=None)


def _repeats(summary: pd.DataFrame) -> str:
    fewest, most = summary["repeats"].min(), summary["repeats"].max()
    return f"{most} repeat{'s' if most > 1 else ''}" if fewest == most else f"{fewest} to {most} repeats"


def _ratio_cell(row: Any, name: str, text: Any) -> str:
    if row.baseline_run_id == row.run_id:
        return "1 (baseline)" if name == "speedup" else "100 % (baseline)"
    value = getattr(row, name)
    return str(text(value, getattr(row, f"{name}_low"), getattr(row, f"{name}_high"))) if pd.notna(value) else "no baseline"


def _compute_and_communication(lines: Sequence[Curve], over: str) -> tuple[str, pd.DataFrame]:
    parts = {
        "compute": "compute_time",
        "communication": "communication_time",
        "exposed communication": "exposed_communication_time",
        "data": "data_time",
        "optimizer": "optimizer_time",
        "other": "other_time",
    }
    unit = unit_for([value for line in lines for value in line.points["step_time"]])

    def rows() -> Iterator[dict[str, str]]:
        for label, points in lines:
            for row in points.to_dict("records"):
                name = f"{ranks(row['device'], row['world_size'])}, {label}"
                numbers = {part: [row[column + end] for end in ("", "_low", "_high")] for part, column in parts.items()}
                cells = {part: format_seconds(*value, unit=unit) for part, value in numbers.items()}
                alone = {part: "none" for part in parts if "communication" in part and row["world_size"] == 1}
                yield {"configuration": name} | cells | alone

    unmeasured = any(line.points.query("world_size > 1")["exposed_communication_time"].isna().any() for line in lines)
    note = "; where communication was not measured, compute holds the wait for it" if unmeasured else ""
    return f"Compute and communication of a step, {over}{note}", pd.DataFrame(rows()).set_index("configuration")
