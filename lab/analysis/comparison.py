"""Machines side by side: what each takes for the same configuration, and how much faster one is than another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lab.analysis.lines import FREE, ranks
from lab.analysis.rounding import format_seconds, percent, rounded, unit_for
from lab.analysis.scaling import ratio

NOT_THERE = "not run"


def machine_tables(summary: pd.DataFrame, table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Captions and tables of text: a row per configuration that several machines ran, a column per machine.

    `summary` and `table` have a column `machine`. Step time, how many times the throughput of the first machine each
    has, speedup and efficiency over the machine's own baseline.
    """
    machines = list(dict.fromkeys(summary["machine"]))
    shared = [run for run, rows in summary.groupby("run_id", sort=False) if len(rows) > 1]
    unit = unit_for(summary["step_time"])
    cells = {(row["machine"], row["run_id"]): row for row in summary.to_dict("records")}
    labels = _labels(summary, shared)

    def column(machine: str, text: Any) -> dict[str, str]:
        return {labels[run]: text(cells[machine, run]) if (machine, run) in cells else NOT_THERE for run in shared}

    def interval(name: str, text: Any, **options: Any) -> Any:
        return lambda row: str(text(row[name], row[f"{name}_low"], row[f"{name}_high"], **options))

    quantities = {
        "Step time": interval("step_time", format_seconds, unit=unit),
        f"Throughput, times that of {machines[0]}": lambda row: _against(table, row, machines[0]),
        "Speedup over the same machine's baseline": interval("speedup", rounded),
        "Efficiency": interval("efficiency", percent),
    }
    over = "median over repeats [95 % interval]"
    return [
        (f"{name}, {over}", pd.DataFrame({machine: column(machine, text) for machine in machines}))
        for name, text in quantities.items()
    ]


def _against(table: pd.DataFrame, row: dict[Any, Any], first: str) -> str:
    if row["machine"] == first:
        return "1"
    rows = table[(table["run_id"] == row["run_id"]) & (table["status"] == "completed")]
    there, here = (rows[rows["machine"] == machine]["samples_per_second"] for machine in (first, row["machine"]))
    return rounded(*ratio(here.to_numpy(float), there.to_numpy(float))) if len(there) else NOT_THERE


def _labels(summary: pd.DataFrame, shared: Sequence[Any]) -> dict[Any, str]:
    """World size, batch and what else differs between the shared configurations."""
    rows = summary[summary["run_id"].isin(shared)].drop_duplicates("run_id")
    weak = bool(len(rows)) and rows["scaling"].iloc[0] == "weak"
    batch = "micro_batch_size" if weak else "global_batch_size"
    said = {"world_size", batch, *FREE["weak" if weak else "strong"]}
    varied = [
        name for name in ("model", "data", "strategy", "precision", "compile") if rows[name].nunique() > 1 and name not in said
    ]
    return {
        row["run_id"]: ", ".join(
            [
                ranks(None, row["world_size"]),
                f"batch {row[batch]}{' per rank' if weak else ''}",
                *(str(row[name]) for name in varied),
            ]
        )
        for row in rows.to_dict("records")
    }
