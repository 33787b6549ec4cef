"""A model trained by a strategy, and a script, of one's own on two nodes of a real Slurm, both at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
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


def test_own_model_sharded_over_nodes_learns_what_one_rank_does(
    tmp_path: Path, slurm_cluster: Slurm
) -> None:
    profile = tmp_path / "cluster.yaml"
    profile.write_text(yaml.safe_dump(PROFILE))
    folder = tmp_path / "own-model"
    shutil.copytree(REPORTS / "own-model", folder, ignore=shutil.ignore_patterns("out"))
    content = yaml.safe_load((folder / "study.yaml").read_text())
    content["grid"] = [
        {"strategy": ["single"], "world_size": [1]},
        {"strategy": ["fsdp"], "world_size": [2]},
    ]
    del content["baseline"]
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    study = lab.Study.load(folder, quick=True)
    single, sharded = lab.launch(study, str(profile)).wait(progress=False)
    for record, nodes in ((single, 1), (sharded, 2)):
        assert record.completed, record.error
        assert record.allocation and len(record.allocation.nodes) == nodes
        assert record.quality and record.memory
    # Each node holds half of the parameters: blocks are gathered, and their gradients scattered.
    assert sharded.communication
    assert {"all_gather", "reduce_scatter"} <= set(sharded.communication.operations)
    assert sharded.memory.parameters < 0.6 * single.memory.parameters
    assert sharded.quality.loss == pytest.approx(single.quality.loss, rel=2e-4)
    assert sharded.quality.validation_loss == pytest.approx(
        single.quality.validation_loss, rel=2e-4
    )
    assert single.quality.loss[-1] < single.quality.loss[0]
