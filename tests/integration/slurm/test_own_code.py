"""A model trained by a strategy, and a script, of one's own on two nodes of a real Slurm, both at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml
from daemons import Slurm

import lab

REPORTS = Path(__file__).parents[3] / "reports"
PROFILE = {
    "executor": "slurm",
    "device": "cpu",
    "nodes": 2,
    "gpus_per_node": 1,
    "mem_gb": 2,
    "network_interface": "lo",
}


def test_own_code_runs_on_several_nodes(tmp_path: Path, slurm_cluster: Slurm) -> None:
    profile = tmp_path / "cluster.yaml"
    profile.write_text(yaml.safe_dump(PROFILE))
    jobs = []
    for name in ("own-model", "own-script"):
        folder = tmp_path / name
        shutil.copytree(REPORTS / name, folder, ignore=shutil.ignore_patterns("out"))
        content = yaml.safe_load((folder / "study.yaml").read_text())
        content |= {"grid": {"world_size": [2]}, "baseline": {"world_size": 2}}
        if name == "own-model":
            shutil.copy(REPORTS / "own-strategy" / "mine.py", folder)
            content["grid"]["strategy"] = ["mine:LocalSGD"]
        (folder / "study.yaml").write_text(yaml.safe_dump(content))
        jobs.append(lab.launch(lab.Study.load(folder, quick=True), str(profile)))
    (own,), (script,) = (job.wait(progress=False) for job in jobs)
    for record in (own, script):
        assert record.completed, record.error
        assert record.allocation and len(record.allocation.nodes) == 2
        assert record.environment and record.environment.backend == "gloo"
        assert record.communication and record.communication.exposed
    # Parameters are averaged in every fourth step, in one all-reduce.
    assert own.run.own_strategy and own.communication
    assert set(own.communication.operations) == {"all_reduce"}
    assert own.checks
    assert own.quality and own.quality.loss[-1] < own.quality.loss[0]
    assert script.communication and script.communication.buckets and script.script
    assert (script.script.steps, script.script.ended) == (20, "by the lab")
