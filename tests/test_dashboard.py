"""The bench without a browser: the form judges, Run and Cancel act, results are those of the records on disk."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import factories
import pytest
from filelock import FileLock

import lab
from lab.dashboard import results
from lab.dashboard.bench import Bench
from lab.dashboard.board import Dashboard
from lab.jobs.lifetime import began
from lab.records import Failure, Record, Store, write_record
from lab.study import Study

PROFILE = "executor: local\ndevice: cpu\ndevices: {devices}\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a folder of reports and two profiles: `two` and `one`, after their devices."""
    monkeypatch.setattr("lab.machine.cores", lambda: (0, 1))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports").mkdir()
    (tmp_path / "slurm").mkdir()
    for name, devices in {"one": 1, "two": 2}.items():
        (tmp_path / "slurm" / f"{name}.yaml").write_text(PROFILE.format(devices=devices))
    return tmp_path


@pytest.fixture
def shown(place: Path) -> Dashboard:
    """The bench of that project with the profile `two`."""
    made = lab.dashboard()
    made.fields["cluster"].value = "two"
    return made


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a job's controller: it runs until it is asked to end."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def choose(dashboard: Dashboard, **values: object) -> Study:
    """Set controls; returns the study of the configuration that is then in the form."""
    for name, value in values.items():
        dashboard.fields[name].value = value
    return dashboard.bench.study(dashboard.asked(), dashboard.fields["cluster"].value)


def keep(dashboard: Dashboard, made: Callable[..., Record] = factories.record, **changes: object) -> Study:
    """Put a record of the configuration in the form where a run would leave it."""
    study = choose(dashboard)
    dashboard.bench.keep(study)
    write_record(made(study.runs[0], **changes), Store(study.out).folder(study.task()))
    return study


def running(study: Study, process: subprocess.Popen[bytes], *, step: int = 5) -> None:
    """Leave the traces of a job that a driver has submitted."""
    folder = Store(study.out).folder(study.task())
    folder.mkdir(parents=True)
    job = {"job_id": "1", "pid": process.pid, "began": began(process.pid), "submitted_at": time.time()}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "progress.json").write_text(json.dumps({"phase": "measuring", "step": step, "steps": study.runs[0].steps}))


def text(widget: object) -> str:
    return re.sub(r"<[^>]+>", " ", widget.value).strip()  # type: ignore[attr-defined]


def content(dashboard: Dashboard) -> str:
    """All results as plain text."""
    return "\n".join(output["data"].get("text/markdown", output["data"]["text/plain"]) for output in dashboard.results.outputs)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def test_first_configuration_can_run_and_shows_its_cost(shown: Dashboard) -> None:
    assert not shown.run_button.disabled and shown.cancel_button.disabled
    # (4096 + 128) 128 + 4 (12 128^2 + 13 128) + 2 128 parameters, 16 bytes of state for each.
    assert "1.33 million parameters; 21.3 MB of weights" in text(shown.verdict)
    assert "Not measured yet" in text(shown.verdict)
    assert "Nothing has been measured" in content(shown)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"steps": 4}, "warmup_steps 4 leaves nothing of steps 4"),
        ({"global_batch_size": 7, "world_size": 2}, "nearest that divides: 6 or 8"),
        ({"global_batch_size": 0}, "Global batch size: input should be greater than or equal to 1, found 0"),
        ({"world_size": 2, "strategy": "single"}, "use 'ddp' or world_size 1"),
        ({"world_size": 3, "global_batch_size": 6}, "needs 3 ranks, two has 2"),
        ({"world_size": 2, "cluster": "one"}, "needs 2 ranks, one has 1"),
    ],
)
def test_impossible_configuration_is_told_at_once_and_mended(shown: Dashboard, values: dict[str, object], words: str) -> None:
    before = {name: shown.fields[name].value for name in values}
    for name, value in values.items():
        shown.fields[name].value = value
    told = text(shown.verdict).replace("&#x27;", "'")
    assert told.startswith("Cannot run:") and words in told and "missing" not in told
    assert shown.run_button.disabled
    for name, value in before.items():
        shown.fields[name].value = value
    assert not shown.run_button.disabled


def test_unusable_profile_is_told(place: Path) -> None:
    (place / "slurm" / "bad.yaml").write_text("executor: nowhere\n")
    shown = lab.dashboard()
    shown.fields["cluster"].value = "bad"
    assert "Cannot run:" in text(shown.verdict) and "nowhere" in text(shown.verdict) and shown.run_button.disabled


def test_network_that_is_not_here_says_why_and_can_still_be_sent(shown: Dashboard) -> None:
    shown.fields["cluster"].value = "replay-a100"
    assert "Cannot run: replay-a100 cannot be served from here: it replays a table" in text(shown.verdict).replace("  ", " ")
    assert shown.run_button.disabled and not shown.send_button.disabled
    shown.fields["cluster"].value = "two"
    assert not shown.run_button.disabled


def test_configuration_is_sent_to_a_study_beside_the_bench(shown: Dashboard, place: Path) -> None:
    choose(shown, world_size=2)
    assert shown.name.placeholder == "gpt-nano-ddp-x2-batch-8-fp32"
    shown.send_button.click()
    assert "lab run gpt-nano-ddp-x2-batch-8-fp32 --cluster two" in text(shown.sent)
    study = Study.load("gpt-nano-ddp-x2-batch-8-fp32")
    assert study.folder.parent == place / "reports" and study.runs[-1] == shown.asked() and len(study.tasks) == 6
    shown.send_button.click()
    assert "Not sent:" in text(shown.sent) and "there already" in text(shown.sent)
    shown.fields["steps"].value = 4
    assert shown.send_button.disabled, "4 steps of warm-up leave nothing"


def test_choices_start_no_job_and_move_nothing(shown: Dashboard) -> None:
    heights = [widget.layout.height for widget in (shown.verdict, shown.status, shown.sent)]
    assert all(heights)
    keep(shown)
    for name, value in {"world_size": 2, "strategy": "fsdp", "cluster": "one", "steps": 1}.items():
        shown.fields[name].value = value
    assert not list(shown.bench.folder.rglob("job.json")) and len(shown.bench.studies()) == 1
    assert heights == [widget.layout.height for widget in (shown.verdict, shown.status, shown.sent)]


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
    (table,) = (part for part in results.results(shown.bench) if isinstance(part, lab.page.Table))
    speedups = dict(zip(table.frame["configuration"], table.frame["speedup"], strict=True))
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
    assert re.search(r"A step takes 300 ", content(shown))
    (line,) = (line for line in content(shown).splitlines() if "▶  " in line)
    assert "x1" in line
    choose(shown, world_size=2)
    shown.run_button.click()
    assert re.search(r"A step takes 200 ", content(shown))
    assert f"bench/two/{second.folder.name}" in content(shown)


def test_failed_run_is_told_in_words_and_may_be_repeated(shown: Dashboard) -> None:
    error = Failure(type="OutOfMemoryError", message="no room for 3 GB", rank=1)
    keep(shown, status="oom", error=error)
    again = lab.dashboard()
    again.fields["cluster"].value = "two"
    assert "This run did not complete" in content(again) and "no room for 3 GB" in content(again).replace("\\", "")
    assert "did not complete (oom): Run measures it again" in text(again.verdict) and not again.run_button.disabled
    assert not [output for output in again.results.outputs if "<img" in output["data"].get("text/html", "")]


def test_figures_have_a_text_and_leave_the_kernels_backend_alone(shown: Dashboard) -> None:
    import matplotlib as mpl

    before = mpl.get_backend()
    keep(shown, step_time=0.3)
    images = [html for output in lab.dashboard().results.outputs if "<img" in (html := output["data"].get("text/html", ""))]
    assert len(images) == 3 and all('alt="' in image for image in images)
    assert "300 ms" in images[1].split("src=")[0]
    assert mpl.get_backend() == before


def test_study_file_that_cannot_be_read_hides_no_other_and_stops_its_own_run(shown: Dashboard) -> None:
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
    assert "written by a newer lab" in content(again).replace("\\", "") and "written by a newer lab" in text(again.verdict)


def test_job_without_driver_is_adopted_and_can_be_cancelled(shown: Dashboard, child: subprocess.Popen[bytes]) -> None:
    study = choose(shown, world_size=2)
    shown.bench.keep(study)
    running(study, child)
    again = lab.dashboard()
    again.fields["cluster"].value = "two"
    until(lambda: "step 5 of 12" in text(again.status))
    assert again.run_button.disabled and not again.cancel_button.disabled
    once_more = lab.dashboard()
    once_more.fields["cluster"].value = "two"
    assert not once_more.cancel_button.disabled, "the same process still drives it"
    once_more.cancel_button.click()
    until(lambda: "cancelled; nothing of it is kept" in text(once_more.status) and not once_more.run_button.disabled)
    assert child.wait(timeout=30) != 0
    assert lab.load_records(study) == []


def test_job_of_another_program_is_watched_to_its_end(shown: Dashboard, child: subprocess.Popen[bytes]) -> None:
    study = choose(shown)
    shown.bench.keep(study)
    running(study, child)
    with FileLock(study.out / "driver.lock"):
        again = lab.dashboard()
        until(lambda: "another program drives it" in text(again.status))
        assert again.run_button.disabled and again.cancel_button.disabled
        write_record(factories.record(study.runs[0], step_time=0.25), Store(study.out).folder(study.task()))
        until(lambda: "Done" in text(again.status) and "A step takes 250" in content(again))
    again.fields["cluster"].value = "two"
    until(lambda: not again.run_button.disabled)


def test_job_that_dies_leaves_its_failure_on_the_bench(shown: Dashboard, child: subprocess.Popen[bytes]) -> None:
    study = choose(shown)
    shown.bench.keep(study)
    running(study, child)
    again = lab.dashboard()
    until(lambda: "measuring" in text(again.status))
    child.kill()
    until(lambda: "failed" in text(again.status) and "JobLost" in content(again))
