"""The bench of notebooks/explore.ipynb: choose a configuration, see its forecast, measure it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lab.files import PACKAGE, SHARED

if TYPE_CHECKING:
    from lab.dashboard.board import Dashboard


def dashboard(*, folder: str | Path | None = None) -> Dashboard:
    """The bench as widgets; its runs become studies in `folder`, by default `reports/bench`."""
    # Widgets and predictions load numpy, which `import lab` does without.
    from lab.dashboard.board import Dashboard
    from lab.dashboard.store import Bench

    there = Path() if SHARED.is_relative_to(PACKAGE) else SHARED
    here = Path("reports") if Path("reports").is_dir() else there / "reports"
    return Dashboard(Bench(Path(folder) if folder is not None else here / "bench"))
