"""One path from laptop to Slurm: the same study gives the same report on this machine and on two layouts of nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from daemons import Slurm
from studies import StudyMaker

import lab
from lab.config.study import Study

LOCAL = {"executor": "local", "device": "cpu", "devices": 2}
SLURM = {"executor": "slurm", "device": "cpu", "mem_gb": 4, "network_interface": "lo"}
PROFILES = {
    "here": LOCAL,
    "two nodes": SLURM | {"nodes": 2, "gpus_per_node": 1},
    "one node": SLURM | {"nodes": 1, "gpus_per_node": 2},
}


def test_slurm_gives_the_report_of_this_machine(
    make_study: StudyMaker, tmp_path: Path, slurm_cluster: Slurm
) -> None:
    outlines, curves = {}, {}
    for name, keys in PROFILES.items():
        profile = tmp_path / f"{name.replace(' ', '-')}.yaml"
        profile.write_text(yaml.safe_dump(keys))
        study = Study.load(make_study(name=name))
        records = lab.launch(study, str(profile)).wait(progress=False)
        assert all(record.completed for record in records), [record.error for record in records]
        if name != "here":
            allocations = [record.allocation for record in records]
            assert [(len(got.nodes), len(got.gpus)) for got in allocations if got] == [
                (1, 1),
                (2, 1) if name == "two nodes" else (1, 2),
            ]
        curves[name] = [record.quality.loss for record in records if record.quality]
        made = lab.report(study)
        assert made.pdf.read_bytes().startswith(b"%PDF")
        outlines[name] = re.findall(
            r"<h[23][^>]*>(.*?)</h[23]>", made.html.read_text(), flags=re.DOTALL
        )
    for name in ("two nodes", "one node"):
        assert curves[name] == [pytest.approx(curve, rel=1e-6) for curve in curves["here"]]
        assert outlines[name] == outlines["here"]
