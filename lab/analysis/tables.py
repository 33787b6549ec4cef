"""Tables of text: step time, speedup and efficiency of a scaling study; a calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from lab.analysis.scaling_curves import (
    Row,
    baseline_name,
    common_ranks,
    compares,
    curves,
    device_of,
    named_rows,
    over_repeats,
    ranks,
    ranks_vary,
    rows_of,
    time_units,
)
from lab.formatting import MIB, NOT_MEASURED, Unit, message_size, percent, rounded
from lab.perfmodel.calibration import Calibration

MOST_COLUMNS = 4  # more curves than this become rows, because a page is taller than it is wide
PARTS = ("compute", "communication", "exposed communication", "data", "optimizer", "other")


def classical_tables(summary: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The tables that a scaling study is expected to show, as captions and DataFrames of text.

    Step time, speedup and efficiency have a row per world size and a column per curve (turned where
    curves are many), compute and communication a row per configuration. Cells read
    `1.841 [1.800, 1.900]`, or say why there is no number. If no curve has two world sizes, one
    table has a row per configuration. Ranks that all have in common are in the caption only.
    """
    lines = curves(summary)
    if not lines:
        return []
    device = device_of(summary)
    over = over_repeats(summary["repeats"])
    units = time_units(summary)
    cells: dict[str, Callable[[Row], str]] = {"Step time": lambda row: row.text("step_time", units)}
    if compares(summary):
        cells[f"Speedup over {baseline_name(summary)}"] = lambda row: _ratio(row, "speedup")
        if ranks_vary(summary):
            cells["Efficiency"] = lambda row: _ratio(row, "efficiency")
    sizes = pd.Index(sorted(set(summary["world_size"])), name=ranks(device))
    unmeasured = summary["exposed_communication_time"][summary["world_size"] > 1].isna().any()
    note = "; where communication was not measured, compute includes the wait for it"
    shared = common_ranks(summary)
    rows, common = list(named_rows(summary, shared)), f". All: {shared}" if shared else ""
    caption = f"Compute and communication of a step, {over}{note if unmeasured else ''}{common}"
    parts = [(caption, frame)] if len((frame := _parts_of_step(rows, units)).columns) else []
    if all(len(points) < 2 for _, points in lines):
        # Categories rather than curves have a row each.
        turned = {name[:1].lower() + name[1:]: cell for name, cell in cells.items()}
        texts = {name: {key: text(row) for key, text in turned.items()} for name, row in rows}
        return [(f"Configurations, {over}{common}", _by_configuration(texts)), *parts]
    tables = []
    for caption, cell in cells.items():
        columns = {
            label: {row["world_size"]: cell(row) for row in rows_of(points)}
            for label, points in lines
        }
        frame = pd.DataFrame(columns).reindex(sizes).fillna(NOT_MEASURED)
        if len(lines) > MOST_COLUMNS:
            frame = frame.T.rename_axis("configuration")
            frame = frame.rename(columns=lambda size: ranks(device, size)).rename_axis(columns=None)
        tables.append((f"{caption}, {over}", frame))
    return [*tables, *parts]


def _by_configuration(texts: dict[str, dict[str, str]]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(texts, orient="index").rename_axis("configuration")


def _ratio(row: Row, name: str) -> str:
    if row.is_baseline:
        return "1 (baseline)" if name == "speedup" else "100 % (baseline)"
    return row.text(name) if pd.notna(row[name]) else "no baseline"


def _parts_of_step(rows: Sequence[tuple[str, Row]], units: Mapping[str, Unit]) -> pd.DataFrame:
    texts = {}
    for name, row in rows:
        texts[name] = {part: row.text(f"{part.replace(' ', '_')}_time", units) for part in PARTS}
        if row["world_size"] == 1:
            texts[name] |= dict.fromkeys(("communication", "exposed communication"), "none")
    frame = _by_configuration(texts)
    # What was never measured, such as some phases of a script, has no column.
    return frame[[part for part in frame if set(frame[part]) - {NOT_MEASURED, "none"}]]


def fits_table(calibration: Calibration) -> pd.DataFrame:
    """A row of text per fit: alpha in µs, bandwidth and busbw in GB/s (1e9), error, range."""
    rows = [
        {
            "collective": name.replace("_", "-"),
            "ranks": ranks,
            "alpha (µs)": rounded(fit.alpha_s * 1e6),
            "bandwidth (GB/s)": rounded(fit.bytes_per_s / 1e9),
            "busbw (GB/s)": rounded(fit.of_one_link(name, ranks)[1] / 1e9),
            "error up to": percent(fit.largest_relative_error),
            "fitted over": " to ".join(map(message_size, (fit.smallest_bytes, fit.largest_bytes))),
        }
        for (name, ranks), fit in calibration.fits.items()
    ]
    return pd.DataFrame(rows)


def times_table(calibration: Calibration) -> pd.DataFrame:
    """One row per measured time: s with its interval, algbw and busbw in GB/s (1e9)."""
    rows = [
        row.model_dump() | {"algbw (GB/s)": row.algbw / 1e9, "busbw (GB/s)": row.busbw / 1e9}
        for row in calibration.rows
    ]
    return pd.DataFrame(rows)


def throughput_table(calibration: Calibration) -> pd.DataFrame:
    """A row per dtype and one for memory: what a rank's device does, in GFLOP/s and GB/s (1e9)."""
    products, memory = calibration.matrix_products, calibration.memory
    rows = [
        (f"{name} matrix product", one.flops_per_s, "GFLOP/s", f"{one.size} x {one.size}")
        for name, one in products.items()
    ]
    if memory is not None:
        rows.append(("memory copy", memory.bytes_per_s, "GB/s", f"{memory.bytes / MIB:.0f} MiB"))
    cells = [(what, rounded(rate / 1e9), unit, at) for what, rate, unit, at in rows]
    return pd.DataFrame(cells, columns=["what", "rate", "unit", "at"])
