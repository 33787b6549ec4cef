"""The interactive bench: choose a configuration, see what is expected of it, measure it, see it beside the earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lab.files import ROOT

if TYPE_CHECKING:
    from lab.dashboard.board import Dashboard


def dashboard(*, folder: str | Path | None = None) -> Dashboard:
    """The bench as widgets; what it measures is kept as studies below `folder`, by default `reports/bench`."""
    # Widgets and predictions bring numpy along, which `import lab` does without.
    from lab.dashboard.board import Dashboard
    from lab.dashboard.store import Bench

    here = Path("reports") if Path("reports").is_dir() else ROOT / "reports"
    return Dashboard(Bench(Path(folder) if folder is not None else here / "bench"))
