"""The generated scripts on a real Slurm: sbatch takes them, and the records that they leave are the lab's."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from daemons import Slurm
from studies import StudyMaker

from lab.config.study import Study
from lab.files import ROOT
from lab.launch.slurm import options
from lab.records.store import load_records

PROFILE = """executor: slurm
device: cpu
partition: debug
nodes: 2
gpus_per_node: 1
cpus_per_gpu: 2
gpu_flag: gres
mem_gb: 3
time_limit_min: 5
network_interface: lo
python: {python}
setup: [". {ready}"]
environment: {{GREETING: "it's here", LAB_CACHE: $ROOM/cache, XDG_CACHE_HOME: $ROOM}}
extra: {{comment: "a test's own"}}
"""


def test_study_runs_from_its_scripts(
    slurm_cluster: Slurm, make_study: StudyMaker, tmp_path: Path
) -> None:
    ready, profile = tmp_path / "ready.sh", tmp_path / "site.yaml"
    ready.write_text(f"export PYTHONPATH={ROOT} READY=yes ROOM={tmp_path}/room\n")
    profile.write_text(PROFILE.format(python=sys.executable, ready=ready))
    study = Study.load(make_study())
    written = {path.name: path for path in options.write_scripts(study, profile, tmp_path / "jobs")}
    # Of two nodes with one rank each, as a study's array.
    job = slurm_cluster.ask(
        "sbatch", "--parsable", f"--chdir={tmp_path}", str(written["x2.sbatch"])
    ).strip()
    deadline = time.monotonic() + 300
    while (
        state := slurm_cluster.ask("squeue", "-h", "--states=all", "-o", "%T %N", "-j", job).strip()
    ).split()[0] in {
        "PENDING",
        "RUNNING",
        "COMPLETING",
    }:
        assert time.monotonic() < deadline, state
        time.sleep(0.2)
    (log,) = tmp_path.glob("*.log")
    assert state.startswith("COMPLETED 127.0.0.["), log.read_text()
    (record,) = load_records(study)
    assert record.completed and record.run.world_size == 2
    assert record.environment is not None and record.environment.slurm_job_id is not None
    # What the profile says of the cache was expanded on the node.
    assert (tmp_path / "room" / "cache" / "tokens").is_dir()
    job_description = slurm_cluster.ask("scontrol", "show", "job", job)
    assert (
        "NumNodes=2" in job_description
        and "Comment=a test's own" in job_description
        and re.search(r"TresPerNode=(gres[:/])?gpu:1\b", job_description)  # by Slurm's version
    )
    assert "done" in log.read_text()
