"""One rank of one task, for job scripts that people write: `srun python -m lab.rank STUDY RUN REPEAT --cluster PROFILE`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lab.cluster import Cluster
from lab.errors import LabError
from lab.jobs import job
from lab.records import Store
from lab.study import Study


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one repeat of one run on this rank, as a job of `lab run` does; returns the exit status.

    Rank 0 writes the record. A repeat that is measured already is not measured again.
    """
    parser = argparse.ArgumentParser(prog="python -m lab.rank", description="One rank of one task of a study, under srun.")
    parser.add_argument("study")
    parser.add_argument("run", help="the run's id, as `lab plan` shows it")
    parser.add_argument("repeat", type=int)
    parser.add_argument("--cluster", required=True, help="the profile by which the job was submitted")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    try:
        if "SLURM_PROCID" not in os.environ:
            raise LabError("this is one rank of a job: start it by srun, or use `lab run`")
        study, cluster = Study.load(given.study, quick=given.quick), Cluster.load(given.cluster)
        task = study.task(given.run, given.repeat)
        folder = Store(study.out).folder(task)
        log = folder / "log"
        log.mkdir(mode=0o700, parents=True, exist_ok=True)
        # By these submitit knows the job that it did not submit.
        os.environ.update(SUBMITIT_EXECUTOR="slurm", SUBMITIT_FOLDER=str(log))
        print(job.execute(task.run.model_dump_json(), task.repeat, cluster.model_dump_json(), str(folder), str(study.folder)))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
