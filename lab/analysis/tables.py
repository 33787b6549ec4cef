"""The tables that a scaling study is expected to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from lab.analysis.scaling_curves import (
    Curve,
    baseline_name,
    curves,
    device_of,
    epochs,
    link,
    median,
    phase,
    ranks,
    step,
    trained,
)
from lab.config.labels import distinct_labels
from lab.config.run import Run
from lab.formatting import NOT_MEASURED, format_seconds, percent, rounded, unit_for
from lab.perfmodel.calibration import Calibration
from lab.records.store import Record

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
        f"Step time, {over}": lambda row: format_seconds(
            row.step_time, row.step_time_low, row.step_time_high, unit=unit
        ),
        f"Speedup over {baseline_name(summary)}, {over}": lambda row: _ratio_cell(
            row, "speedup", rounded
        ),
        f"Efficiency, {over}": lambda row: _ratio_cell(row, "efficiency", percent),
    }
    sizes = pd.Index(sorted(set(summary["world_size"])), name=ranks(device_of(summary)))
    tables = []
    for caption, cell in cells.items():
        columns = {
            label: {row.world_size: cell(row) for row in points.itertuples()}
            for label, points in lines
        }
        table = pd.DataFrame(columns).reindex(sizes).fillna(NOT_MEASURED)
        tables.append(
            (caption, table if len(lines) <= MOST_COLUMNS else _turned(table, device_of(summary)))
        )
    return [*tables, _compute_and_communication(lines, over)]


def _turned(table: pd.DataFrame, device: str | None) -> pd.DataFrame:
    """A row per line and a column per world size."""
    turned = table.T.rename_axis("configuration")
    return turned.rename(columns=lambda size: ranks(device, size)).rename_axis(columns=None)


def _repeats(summary: pd.DataFrame) -> str:
    fewest, most = summary["repeats"].min(), summary["repeats"].max()
    return (
        f"{most} repeat{'s' if most > 1 else ''}"
        if fewest == most
        else f"{fewest} to {most} repeats"
    )


def _ratio_cell(row: Any, name: str, text: Any) -> str:
    if row.baseline_run_id == row.run_id:
        return "1 (baseline)" if name == "speedup" else "100 % (baseline)"
    value = getattr(row, name)
    return (
        str(text(value, getattr(row, f"{name}_low"), getattr(row, f"{name}_high")))
        if pd.notna(value)
        else "no baseline"
    )


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
                numbers = {
                    part: [row[column + end] for end in ("", "_low", "_high")]
                    for part, column in parts.items()
                }
                cells = {part: format_seconds(*value, unit=unit) for part, value in numbers.items()}
                alone = {
                    part: "none"
                    for part in parts
                    if "communication" in part and row["world_size"] == 1
                }
                yield {"configuration": name} | cells | alone

    unmeasured = any(
        line.points.query("world_size > 1")["exposed_communication_time"].isna().any()
        for line in lines
    )
    note = (
        "; where communication was not measured, compute holds the wait for it"
        if unmeasured
        else ""
    )
    return f"Compute and communication of a step, {over}{note}", pd.DataFrame(rows()).set_index(
        "configuration"
    )


NOT_RUN = "not run"
NONE = "-"
LEAST = 1e-5  # what differs by less is not told more exactly


def strategy_rows(runs: Sequence[Run], records: Sequence[Record]) -> list[dict[str, str]]:
    """One row of text per training run: step, throughput, memory by rank, what a rank sends for a step, last loss."""
    labels, _ = distinct_labels(runs)
    return [
        {"configuration": labels[run]} | (_cells(done) if done else {"step": NOT_RUN})
        for run, done in trained(runs, records).items()
    ]


def _cells(done: Sequence[Record]) -> dict[str, str]:
    return {
        "step": format_seconds(median(done, step)),
        "samples/s": rounded(
            median(done, lambda record: record.timing.samples_per_second if record.timing else None)
        ),
        "peak (MB)": _megabytes(
            median(done, lambda record: max(record.memory.peak) if record.memory else None)
        ),
        "weights (MB)": _megabytes(
            median(done, lambda record: record.memory.parameters if record.memory else None)
        ),
        "optimizer (MB)": _megabytes(
            median(done, lambda record: record.memory.optimizer if record.memory else None)
        ),
        "sent (MB)": _megabytes(median(done, link("bytes_moved"))),
        "last loss": f"{loss:.4f}" if (loss := median(done, last_loss)) is not None else NONE,
    }


def last_loss(record: Record) -> float | None:
    """The training loss of the last step."""
    return record.quality.loss[-1] if record.quality and record.quality.loss else None


def _megabytes(size: float | None) -> str:
    return rounded(size / 1e6) if size else NONE


def strategy_sentences(
    runs: Sequence[Run], records: Sequence[Record], *, baseline: Mapping[str, Any]
) -> list[str]:
    """The fastest and the one that keeps least, of each model; and how far any loss is from the baseline's."""
    done = {run: found for run, found in trained(runs, records).items() if found}
    models = list(dict.fromkeys(run.model for run in done))
    labels, _ = distinct_labels(list(done))
    return [
        *(
            sentence
            for model in models
            for sentence in _extremes(
                {run: done[run] for run in done if run.model == model}, labels
            )
        ),
        *_losses(done, baseline, labels),
    ]


def _extremes(done: Mapping[Run, list[Record]], labels: Mapping[Run, str]) -> Iterator[str]:
    if len({run.strategy for run in done}) < 2:
        return
    steps = {run: median(found, step) or 0.0 for run, found in done.items()}
    fastest = min(steps, key=lambda run: steps[run])
    yield f"The shortest step, {format_seconds(steps[fastest])}, is that of {labels[fastest]}."
    kept = {run: median(found, _kept) for run, found in done.items()}
    known = {run: size for run, size in kept.items() if size}
    if known and min(known.values()) < 0.99 * max(known.values()):
        least = min(known, key=lambda run: known[run])
        yield (
            f"The least weights and optimizer state on a rank, {rounded(known[least] / 1e6)} MB, are those of {labels[least]}; "
            f"the most are {rounded(max(known.values()) / 1e6)} MB."
        )


def _kept(record: Record) -> float | None:
    return (
        record.memory.parameters + record.memory.optimizer
        if record.memory and record.memory.optimizer is not None
        else None
    )


def _losses(
    done: Mapping[Run, list[Record]], baseline: Mapping[str, Any], labels: Mapping[Run, str]
) -> Iterator[str]:
    """How far the curves lie from those of the baseline with equal samples and arithmetic, at the most."""
    apart: dict[Run, float] = {}
    for base, reference in done.items():
        if any(getattr(base, key) != value for key, value in baseline.items()):
            continue
        for run, found in done.items():
            if run != base and _comparable(run, base):
                apart[run] = max(_distance(found[0], reference[0]), apart.get(run, 0.0))
    if apart:
        widest = max(apart, key=lambda run: apart[run])
        yield (
            f"At equal batch, seed and precision the losses of {len(apart)} configurations stay within {percent(max(apart[widest], LEAST))} "
            f"of the baseline's over the whole training; the farthest is {labels[widest]}."
        )


def _comparable(run: Run, base: Run) -> bool:
    fields = ("model", "data", "global_batch_size", "seed", "precision", "steps", "learning_rate")
    return not run.architecture.depends_on_split and all(
        getattr(run, field) == getattr(base, field) for field in fields
    )


def _distance(record: Record, reference: Record) -> float:
    if record.quality is None or reference.quality is None:
        return 0.0
    return max(
        abs(value - known) / abs(known)
        for value, known in zip(record.quality.loss, reference.quality.loss, strict=False)
        if known
    )


def image_rows(runs: Sequence[Run], records: Sequence[Record]) -> list[dict[str, str]]:
    """One row of text per run of a convolutional network: a step, its compute and communication, bytes, epochs until the loss is low."""
    labels, _ = distinct_labels(runs)
    return [
        {"configuration": labels[run]} | (_image_cells(run, done) if done else {"step": NOT_RUN})
        for run, done in trained(runs, records).items()
        if run.architecture.kind == "cnn"
    ]


def _image_cells(run: Run, done: Sequence[Record]) -> dict[str, str]:
    alone = run.world_size == 1
    moved, parameters = median(done, link("bytes_moved")), median(done, _parameters)
    found = [one for record in done if (one := epochs(record)) is not None]
    return {
        "trained": f"{parameters / 1e6:.3g} M" if parameters else NONE,
        "step": format_seconds(median(done, step)),
        "compute": format_seconds(median(done, _compute)),
        "communication": "none" if alone else format_seconds(median(done, link("total"))),
        "exposed": "none" if alone else format_seconds(median(done, link("exposed"))),
        "sent (MB)": "none"
        if alone
        else rounded(moved / 1e6)
        if moved is not None
        else NOT_MEASURED,
        "epochs to loss < 0.04": found[0].said if found else NOT_MEASURED,
    }


def _parameters(record: Record) -> float | None:
    return record.environment.parameters if record.environment else None


def _compute(record: Record) -> float | None:
    """Forward and backward, less what they do nothing but wait."""
    times = [phase(name)(record) or 0.0 for name in ("forward", "backward")]
    waits = record.communication.exposed_in if record.communication else {}
    return sum(times) - sum(waits.get(name, 0.0) for name in ("forward", "backward"))


def fits_table(calibration: Calibration) -> pd.DataFrame:
    """One row per fit, as text to read: alpha in µs, bandwidth and busbw in GB/s (1e9), largest error in %, its range."""
    from lab.formatting import percent, rounded

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
    rows = [
        row.model_dump() | {"algbw (GB/s)": row.algbw / 1e9, "busbw (GB/s)": row.busbw / 1e9}
        for row in calibration.rows
    ]
    return _frame(rows)


def throughput_table(calibration: Calibration) -> pd.DataFrame:
    """One row per dtype and one for memory: what one rank's device does by itself, in GFLOP/s and GB/s (1e9)."""
    from lab.formatting import rounded

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
        rows.append(
            {
                "what": "memory copy",
                "rate": rounded(calibration.memory.bytes_per_s / 1e9),
                "unit": "GB/s",
                "at": copied,
            }
        )
    return _frame(rows)


def _frame(rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows))
