"""Published tables as clusters: rows become records that say so, and nothing is ever run."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from factories import run, study

import lab
from lab.config.cluster import NOTICE, Cluster
from lab.config.study import Study
from lab.errors import InputError
from lab.figures import StudyResults
from lab.files import ROOT
from lab.perfmodel.calibration import load_calibration
from lab.report import paper, sections, study_sections
from lab.report.blocks import Markdown

PROFILES = sorted(path.stem for path in (ROOT / "slurm").glob("replay-*.yaml"))
TABLES = Path(__file__).parents[2] / "fixtures" / "tables"


def replayed(name: str, cluster: str, tmp_path: Path, *, quick: bool = False) -> Study:
    """A committed study in a folder of this test, with the published records in it."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "study.yaml").write_bytes((ROOT / "reports" / name / "study.yaml").read_bytes())
    committed = Study.load(folder, quick=quick)
    assert all(record.completed for record in lab.launch(committed, cluster).wait(progress=False))
    return committed


@pytest.mark.parametrize("name", PROFILES)
def test_every_replay_loads_and_names_its_source(name: str) -> None:
    cluster = Cluster.load(name)
    assert (
        cluster.published
        and cluster.published.source in cluster.description
        and "replay" in cluster.description
    )


@pytest.mark.parametrize("step_s", ["0", "-1.0", "[]", "[0.1, 0.0]", ".inf", "fast"])
def test_a_row_without_a_time_is_refused(tmp_path: Path, step_s: str) -> None:
    row = f"{{world_size: 1, steps: 1, step_s: {step_s}}}"
    path = tmp_path / "site.yaml"
    path.write_text(
        "executor: replay\ndevice: cuda\n"
        f"published: {{source: a table, gpu: a GPU, rows: [{row}]}}\n"
    )
    with pytest.raises(InputError, match=r"published\.rows\[0\]\.step_s"):
        Cluster.load(str(path))


@pytest.mark.parametrize(
    ("cluster", "column", "quick"),
    [
        ("replay-gpt2-2x3090-nvlink", "ddp_nvlink_s", False),
        ("replay-gpt2-2x3090-pcie", "ddp_no_nvlink_s", True),
    ],
)
def test_times_are_those_of_the_published_table(
    cluster: str, column: str, quick: bool, tmp_path: Path
) -> None:
    rows = lab.table(replayed("replay-gpt2", cluster, tmp_path, quick=quick))
    rows = rows[(rows["world_size"] == 2) & (rows["strategy"] == "ddp")]
    published = pd.read_csv(TABLES / "gpt2_ddp_2x3090.csv", comment="#")
    assert rows["step_time"].tolist() == pytest.approx((published[column] / 200).tolist())
    assert rows["replay"].str.contains("issue 9371").all() and rows["forward_time"].isna().all()


def test_the_slowest_rank_counts_and_everything_says_what_it_is(tmp_path: Path) -> None:
    replay = replayed("replay-gpt-strong", "replay-gpt-4gpu", tmp_path)
    results = StudyResults(replay)
    answer = sections.answer(results).markdown
    assert NOTICE in answer and "2\\.95 times as fast" in answer
    axes = lab.figures.speedup(replay)
    assert axes.get_title(loc="left") == NOTICE and NOTICE in lab.figures.alt_text(
        "speedup", replay
    )
    assert "no phases" in lab.figures.step_breakdown(replay).texts[0].get_text()
    plt.close("all")
    rows = dict(study_sections.environment(results).frame.to_numpy().tolist())
    assert "results log" in rows["replay of"] and "hosts" not in rows
    findings = {finding.rule: finding.severity for finding in lab.audit(replay).findings}
    assert findings.get("slowest-rank") != "error"
    assert "fixed-overhead" not in findings  # here a step is an epoch, at any batch


def test_every_section_of_the_report_stands_on_published_numbers(tmp_path: Path) -> None:
    results = StudyResults(replayed("replay-agnews", "replay-agnews-4gpu", tmp_path))
    labels = [table.label for table in sections.result_tables(results)]
    assert labels == ["tbl-step-time", "tbl-speedup", "tbl-efficiency"]
    assert not sections.parts_of_step(results)
    assert sections.communication(results) == Markdown("")
    assert sections.learning_compared(results) == Markdown("")  # no loss is known
    (
        sections.every_repeat(results),
        sections.reproduce(results),
    )
    # A published table tells no loss: it has no column.
    assert list(sections.learning(results).frame) == ["configuration", "samples/s"]
    assert "learned" not in sections.learning(results).caption
    assert "0\\.461, where 4 is ideal" in sections.answer(results).markdown
    assert (
        sections.findings(results).markdown
        and sections.holes(results).markdown
        and sections.predictions(results)
    )
    (link,) = study_sections.calibration(results)
    assert "gives no times of collectives" in link.markdown and "calibrate" not in link.markdown
    assert "published numbers again" in sections.reproduce(results).markdown
    assert "steps" not in paper.setup(results).markdown
    assert study_sections.environment(results).caption == "Environment, as the source states it"
    assert sections.phases(results).frame["phase"].tolist() == ["step"] * 4
    for name in lab.figures.FIGURES:
        getattr(lab.figures, name)(results)
        plt.close("all")


def test_what_the_table_does_not_hold_is_refused_and_nothing_is_run(tmp_path: Path) -> None:
    other = study(tmp_path, [run(2, 48)], repeats=2)
    with pytest.raises(InputError, match=r"not in the table.*world_size 1, global_batch_size 64"):
        lab.launch(other, "replay-gpt-4gpu")
    with pytest.raises(InputError, match="set repeats: 1"):
        lab.launch(study(tmp_path, [run(2, 64)], repeats=2), "replay-gpt-4gpu")
    with pytest.raises(InputError, match="4 ranks"):
        lab.launch(study(tmp_path, [run(8, 64)]), "replay-gpt-4gpu")
    assert not list(tmp_path.glob("out/runs/*"))
    with pytest.raises(InputError, match="nothing can be measured"):
        lab.calibrate("replay-gpt-4gpu")


def test_published_all_reduces_are_a_calibration() -> None:
    calibration = load_calibration("replay-a100")
    assert calibration and calibration.wanted == (2, 4, 8)
    assert calibration.time("all_reduce", 8, 2**30) == pytest.approx(8193.0e-6)
    assert calibration.fit("all_reduce", 8).of_one_link("all_reduce", 8)[1] == pytest.approx(
        229e9, rel=0.05
    )
    assert load_calibration("replay-gpt-4gpu") is None


def test_a_replay_without_a_table_and_a_table_without_a_replay_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("executor: replay\n")
    with pytest.raises(InputError, match="published: missing"):
        Cluster.load(path)
    path.write_text("executor: local\npublished: {source: a paper, gpu: a GPU}\n")
    with pytest.raises(InputError, match="is only for executor: replay"):
        Cluster.load(path)
    path.write_text(
        "executor: replay\n"
        "published: {source: a paper, gpu: a GPU, rows: [{world_size: 2, steps: 5}]}\n"
    )
    with pytest.raises(InputError, match="step_s"):
        Cluster.load(path)
