"""The audit of a study, of records, or of a table that anybody wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.errors import InputError, Problem
from lab.records import Record, load_records
from lab.study import Study
from lab.tables import read_table

if TYPE_CHECKING:
    import pandas as pd

    from lab.analysis.audit import Audit
    from lab.analysis.observations import Observations

TABLE_SUFFIXES = {".csv", ".tsv", ".txt", ".dat", ".tab"}


def audit(
    source: Study | Sequence[Record] | pd.DataFrame | str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    calibration: float | Mapping[int, float] | None = None,
) -> Audit:
    """What in a study, in records or in a table cannot be trusted.

    `source` is a study or its name or folder, records, a DataFrame, or the path of a CSV file; `columns` says which
    column of a table is what, as {canonical name: column}, and the rest is guessed; `calibration` is the bus bandwidth
    of the links in bytes/s, alone or by world size.

    Raises InputError for a source that cannot be read and for a mapping that does not fit.
    """
    from lab.analysis.audit import audit as apply_rules

    seen = _observed(source, columns)
    if calibration is None and isinstance(source, Study):
        calibration = _calibrated(source)
    if calibration:
        by_size = dict(calibration) if isinstance(calibration, Mapping) else {0: float(calibration)}
        seen = replace(seen, calibrated=by_size)
    return apply_rules(seen)


def _observed(source: Any, columns: Mapping[str, str] | None) -> Observations:
    import pandas as pd

    from lab.analysis.recorded import from_records
    from lab.analysis.tabular import from_table

    if isinstance(source, pd.DataFrame):
        return from_table(source, columns=columns)
    if isinstance(source, str | Path) and _is_table(Path(source)):
        return from_table(read_table(source, columns), columns=columns, source=str(source))
    if columns:
        raise InputError("columns", [Problem("columns", "a mapping is for tables", "records name their own columns")])
    study = Study.load(source) if isinstance(source, str | Path) else source
    if isinstance(study, Study):
        return from_records(load_records(study), scaling=study.scaling, baseline=study.baseline)
    records = list(study)
    wrong = next((item for item in records if not isinstance(item, Record)), None)
    if wrong is not None:
        raise InputError(
            "source", [Problem("source", f"a {type(wrong).__name__} is no record", "give records, a study or a table")]
        )
    return from_records(records)


def _calibrated(study: Study) -> dict[int, float]:
    """Bus bandwidth in bytes/s of all-reduce by world size, where the study's one cluster is calibrated."""
    from lab.calibration import load_calibration

    clusters = {record.environment.cluster for record in load_records(study) if record.environment}
    if len(clusters) != 1:
        return {}
    try:
        found = load_calibration(clusters.pop())
    except InputError:
        return {}
    best: dict[int, float] = {}
    for row in found.rows if found else ():
        if row.collective == "all_reduce":
            best[row.world_size] = max(best.get(row.world_size, 0.0), row.busbw)
    return best


def _is_table(path: Path) -> bool:
    return not path.is_dir() and (path.is_file() or path.suffix.lower() in TABLE_SUFFIXES)
