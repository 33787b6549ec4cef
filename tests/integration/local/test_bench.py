"""What is measured on the bench: kept as studies, shown as they lie on the disk, never measured twice."""

from __future__ import annotations

import re
from pathlib import Path

import factories
from benches import choose, content, keep, text

import lab
from lab.config.study import Study
from lab.dashboard.board import Dashboard
from lab.dashboard.results import results
from lab.dashboard.store import Bench
from lab.records.schema import Failure
from lab.records.store import Store
from lab.report import blocks


def test_world_sizes_of_one_configuration_are_one_study(shown: Dashboard) -> None:
    first, second = (choose(shown, world_size=size) for size in (1, 2))
    other = choose(shown, global_batch_size=16)
    assert first.folder == second.folder != other.folder
    shown.bench.keep(second)
    loaded = Study.load(second.folder)
    assert loaded.runs == (*first.runs, *second.runs), "the baseline is part of it"
    path = second.folder / "study.yaml"
    path.write_text(path.read_text().replace("Tried on the bench", "Edited by hand"))
    shown.bench.keep(first)
    assert Study.load(second.folder).title.startswith("Edited by hand")


def test_kept_study_grows_by_a_larger_world_size(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for size in (2, 4):
        study = bench.study(factories.run(size), "cluster")
        bench.keep(study)
    assert [run.world_size for run in Study.load(study.folder).runs] == [1, 2, 4]
    assert study.runs[0] in Study.load(study.folder).runs
    assert [kept.folder for kept in bench.studies()] == [study.folder]


def test_speedup_is_over_the_equal_run_on_one_rank(shown: Dashboard) -> None:
    keep(shown, step_time=0.3)
    choose(shown, world_size=2)
    keep(shown, step_time=0.2)
    choose(shown, global_batch_size=16)
    keep(shown, step_time=0.4)
    (table,) = (part for part in results(shown.bench) if isinstance(part, blocks.Table))
    configurations = [name.rpartition(", ")[0] for name in table.frame["configuration"]]
    speedups = dict(zip(configurations, table.frame["speedup"], strict=True))
    assert speedups == {
        "gpt-nano ddp x1, batch 8, fp32": "1",
        "gpt-nano ddp x2, batch 8, fp32": "1.5",
        "gpt-nano ddp x2, batch 16, fp32": "1 rank not measured",
    }
    assert list(table.frame["step time"]) == ["300 ms", "200 ms", "400 ms"]


def test_run_that_is_measured_is_shown_and_not_measured_again(shown: Dashboard) -> None:
    keep(shown, step_time=0.3)
    choose(shown, world_size=2)
    second = keep(shown, step_time=0.2)
    assert "Measured already" not in text(shown.verdict)
    choose(shown, world_size=1)
    assert "Measured already, in 1 min 00 s" in text(shown.verdict)
    shown.run_button.click()
    assert "Measured before" in text(shown.status)
    assert not list(shown.bench.folder.rglob("job.json"))
    assert re.search(r"A step takes 300\\\.0 ", content(shown))
    (line,) = (line for line in content(shown).splitlines() if "▶  " in line)
    assert "x1" in line
    choose(shown, world_size=2)
    shown.run_button.click()
    assert re.search(r"A step takes 200\\\.0 ", content(shown))
    assert f"bench/two/{second.folder.name}" in content(shown)


def test_failed_run_is_told_in_words_and_may_be_repeated(shown: Dashboard) -> None:
    error = Failure(type="OutOfMemoryError", message="no room for 3 GB", rank=1)
    keep(shown, status="oom", error=error)
    again = lab.dashboard()
    again.fields["cluster"].value = "two"
    assert "This run did not complete" in content(again) and "no room for 3 GB" in content(
        again
    ).replace("\\", "")
    assert (
        "did not complete (oom): Run measures it again" in text(again.verdict)
        and not again.run_button.disabled
    )
    assert not [
        output for output in again.results.outputs if "<img" in output["data"].get("text/html", "")
    ]


def test_figures_have_a_text_and_leave_the_kernels_backend_alone(shown: Dashboard) -> None:
    import matplotlib as mpl

    before = mpl.get_backend()
    keep(shown, step_time=0.3)
    images = [
        html
        for output in lab.dashboard().results.outputs
        if "<img" in (html := output["data"].get("text/html", ""))
    ]
    assert len(images) == 3 and all('alt="' in image for image in images)
    assert "300 ms" in images[1].split("src=")[0]
    assert mpl.get_backend() == before


def test_study_file_that_cannot_be_read_hides_no_other_and_stops_its_own_run(
    shown: Dashboard,
) -> None:
    keep(shown)
    study = choose(shown, global_batch_size=16)
    study.folder.mkdir(parents=True)
    (study.folder / "study.yaml").write_text("title: [")
    shown.run_button.click()
    assert "Not started:" in text(shown.status) and "line 1" in text(shown.status)
    assert "batch 8" in content(lab.dashboard())


def test_record_of_a_newer_version_is_told(shown: Dashboard) -> None:
    study = keep(shown)
    (Store(study.out).folder(study.task()) / "record.json").write_text('{"schema_version": 99}')
    again = lab.dashboard()
    again.fields["cluster"].value = "two"
    assert "written by a newer lab" in content(again).replace(
        "\\", ""
    ) and "written by a newer lab" in text(again.verdict)
