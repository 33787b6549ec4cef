"""What a set of runs learns, all of them made by the same ranks in one job."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch import distributed as dist
from torch import multiprocessing as mp

from lab.config.run import Run
from lab.errors import InputError
from lab.worker import calibrate
from lab.worker.context import Measurement, RankContext
from lab.worker.distributed import leave_group
from lab.worker.main import measure


def measure_all(
    rank: int, runs: dict[str, Run], *, device: str, root: Path
) -> dict[str, Measurement | InputError | None]:
    """Take part as one rank in each of the runs that has one of this number; an InputError is an answer too."""
    found: dict[str, Measurement | InputError | None] = {}
    for name, run in runs.items():
        if rank >= run.processes:
            continue
        folder = root / name
        folder.mkdir(exist_ok=True)
        place = RankContext(
            rank,
            run.processes,
            rank,
            device,
            (rank,),
            1,
            "local",
            folder / "address",
            timeout_s=120.0,
        )
        try:
            found[name] = measure(
                run, place, data_root=root, folder=folder, progress=lambda *_: None
            )
        except InputError as error:
            found[name] = error
            if dist.is_initialized():
                leave_group()
    return found


def _answer(found: Measurement | InputError | None) -> dict[str, Any]:
    if not isinstance(found, Measurement) or found.quality is None:
        return {"reason": str(found)}
    return {"loss": found.quality.loss, "validation_loss": found.quality.validation_loss}


def _rank(rank: int, device: str, runs_json: str, root: str) -> None:
    calibrate.PEAK_BUDGET_S = 0.02  # rates are not asked for
    runs = {name: Run.model_validate(changes) for name, changes in json.loads(runs_json).items()}
    found = measure_all(rank, runs, device=device, root=Path(root))
    if rank == 0:
        (Path(root) / "losses.json").write_text(
            json.dumps({name: _answer(one) for name, one in found.items()})
        )


def main() -> None:
    """Make the runs that are given as JSON in the second argument, on devices of the kind in the first; prints JSON."""
    device, runs_json = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = "1"
    ranks = max(Run.model_validate(changes).processes for changes in json.loads(runs_json).values())
    with tempfile.TemporaryDirectory() as root:
        mp.spawn(_rank, (device, runs_json, root), nprocs=ranks)  # type: ignore[attr-defined, no-untyped-call]
        sys.stdout.write((Path(root) / "losses.json").read_text())


if __name__ == "__main__":
    main()
