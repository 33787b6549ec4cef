"""Calibrations as tables for people: fits of the links, measured times, what one rank's device does by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lab.calibration import Calibration

if TYPE_CHECKING:
    import pandas as pd


def fits_table(calibration: Calibration) -> pd.DataFrame:
    """One row per fit, as text to read: alpha in µs, bandwidth and busbw in GB/s (1e9), largest error in %, its range."""
    from lab.analysis.rounding import percent, rounded

    rows = [
        {
            "collective": found.collective.replace("_", "-"),
            "ranks": found.world_size,
            "alpha (µs)": rounded(found.fit.alpha_s * 1e6),
            "GB/s": rounded(found.fit.bytes_per_s / 1e9),
            "busbw": rounded(found.fit.of_one_link(found.collective, found.world_size)[1] / 1e9),
            "error up to": percent(found.fit.largest_relative_error),
            "fitted over": f"{_bytes(found.fit.smallest_bytes)} to {_bytes(found.fit.largest_bytes)}",
        }
        for found in calibration.fits
    ]
    return _frame(rows)


def _bytes(size: float) -> str:
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"


def times_table(calibration: Calibration) -> pd.DataFrame:
    """One row per measured time: s with its interval, algbw and busbw in GB/s (1e9)."""
    rows = [row.model_dump() | {"algbw (GB/s)": row.algbw / 1e9, "busbw (GB/s)": row.busbw / 1e9} for row in calibration.rows]
    return _frame(rows)


def throughput_table(calibration: Calibration) -> pd.DataFrame:
    """One row per dtype and one for memory: what one rank's device does by itself, in GFLOP/s and GB/s (1e9)."""
    from lab.analysis.rounding import rounded

    rows: list[dict[str, object]] = [
        {
            "what": f"{name} matrix product",
            "rate": rounded(product.flops_per_s / 1e9),
            "unit": "GFLOP/s",
            "at": f"{product.size} x {product.size}",
        }
        for name, product in calibration.matrix_products.items()
    ]
    if calibration.memory is not None:
        copied = f"{calibration.memory.bytes / 2**20:.0f} MiB"
        rows.append({"what": "memory copy", "rate": rounded(calibration.memory.bytes_per_s / 1e9), "unit": "GB/s", "at": copied})
    return _frame(rows)


def _frame(rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows))
