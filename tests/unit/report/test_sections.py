from __future__ import annotations

from datetime import UTC, datetime

import factories
import pytest
from bs4 import BeautifulSoup
from factories import frozen, repeats, run, stat, study, traced, write_prediction
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from lab.analysis.results import StudyResults
from lab.launch.executor import LocalJob, prepare, write_job
from lab.records.schema import Communication, Failure
from lab.records.store import DISTURBED, Record, Store, write_record
from lab.report import sections, study_sections


def test_both_attempts_at_a_repeat_are_shown_and_one_counts(tmp_path) -> None:
    quiet = repeats(run(2), [0.118, 0.120], foreign_cpu=0.02)
    loud = repeats(run(2), [0.165], foreign_cpu=0.76)[0]
    made = study(tmp_path, [run(2)], repeats=2)
    store = Store(made.out)
    quiet[0] = quiet[0].model_copy(update={"disturbed": 0.76})
    for record in quiet:
        write_record(record, store.folder(record.task))
    write_record(loud, store.folder(loud.task) / DISTURBED)
    results = StudyResults(made)
    assert results.records == quiet and results.summary["repeats"].tolist() == [2]
    table = sections.every_repeat(results)
    rows = table.frame[["repeat", "status", "step (ms)", "foreign CPU (%)"]]
    assert rows.to_numpy().tolist() == [
        [0, "completed", "118.00", "1.0"],
        [0, "set aside", "165.00", "38.0"],
        [1, "completed", "120.00", "1.0"],
    ]
    assert "noisier of two attempts" in table.caption
    assert "attempts" not in sections.every_repeat(StudyResults(quiet)).caption


def test_where_no_record_names_a_cluster_that_of_the_last_jobs_runs_the_study_again(
    tmp_path,
) -> None:
    made = study(tmp_path, [run()], repeats=1)
    folder = Store(made.out).folder(made.tasks[0])
    job = LocalJob(cluster="hpc", job_id="1234567", pid=1234567, began=0.0, submitted_at=0.0)
    prepare(folder)
    write_job(folder, job)
    for section in (sections.next_step, sections.reproduce):
        assert "--cluster hpc" in section(StudyResults(made)).markdown


def test_the_table_of_repeats_says_what_its_phases_include_and_in_which_unit() -> None:
    steps = {"forward": 0.04, "backward": 0.05, "optimizer": 0.01}
    sent = Communication(exposed=stat(0.01), total=stat(0.02))
    table = sections.every_repeat(StudyResults(repeats(run(1), [0.1], phases=steps)))
    assert "exposed" not in table.caption and table.frame["step (ms)"].tolist() == ["100.00"]
    (waiting,) = repeats(run(2), [0.1], phases=steps)
    waiting = waiting.model_copy(update={"communication": sent})
    table = sections.every_repeat(StudyResults([waiting]))
    assert "its phases, which include the exposed communication" in table.caption
    table = sections.every_repeat(StudyResults(repeats(run(2), [2233.5])))
    assert table.frame["step (s)"].tolist() == ["2233.50"]


def test_the_interval_of_a_single_run_is_said_to_be_over_its_steps() -> None:
    text = sections.outcome(StudyResults(repeats(run(), [0.1]))).markdown
    assert "steps with its interval over them, after" in text


@pytest.mark.parametrize("rule", ["~~~", "~~~~", "~" * 40, "```"])
def test_a_log_is_shown_as_it_is_whatever_rules_it_draws(rule: str) -> None:
    log = f"epoch 1\n{rule}\n# [loss](http://example.org)"
    error = Failure(type="ValueError", message="wrong", log=log)
    failed = StudyResults([factories.record(run(), status="failed", error=error)])
    markdown = sections.outcome(failed).markdown
    page = BeautifulSoup(
        MarkdownWithMath(renderer=IPythonRenderer()).render(markdown), "html.parser"
    )
    (code,) = page.select("pre")
    assert code.get_text().strip() == log and not page.select("a")


def test_hours_that_this_machine_cannot_plan_are_left_out(tmp_path) -> None:
    gpu = {"needs_device": "cuda"}
    made = study(tmp_path, [run(1, **gpu), run(1, 32, **gpu)], repeats=1)
    (measured,) = repeats(run(1, **gpu), [0.1], device="cuda")
    write_record(measured, Store(made.out).folder(measured.task))
    names = study_sections.environment(StudyResults(made)).frame["what"].tolist()
    assert "spent" in names and "planned" not in names


def test_hosts_and_gpus_of_many_configurations_are_told_once(tmp_path) -> None:
    made = study(tmp_path, [run(1), run(2), run(4)], repeats=1)
    for one in made.runs:
        hosts = [f"node{rank}" for rank in range(one.world_size)]
        (measured,) = repeats(one, [0.1], device="cuda", hosts=hosts)
        write_record(measured, Store(made.out).folder(measured.task))
    cells = study_sections.environment(StudyResults(made)).frame.set_index("what")["value"]
    assert cells["hosts"] == "node0; node1; node2; node3"
    assert cells["GPU"] == "1, 2 or 4 x Model GPU, driver None"


def test_the_peaks_behind_mfu_are_stated_once_with_their_range() -> None:
    def peak(repeat: int, rate: float, source: str) -> Record:
        (one,) = repeats(run(1), [0.1])
        known = {"peak_flops_per_second": rate, "peak_source": source}
        timing = one.timing.model_copy(update=known)
        return one.model_copy(update={"repeat": repeat, "timing": timing})

    def stated(*records: Record) -> str:
        frame = study_sections.environment(StudyResults(list(records))).frame
        return str(frame.set_index("what")["value"]["peak of a rank"])

    best = "measured: the best product ({} x {}) of a rank"
    several = [peak(n, rate, best.format(n, n)) for n, rate in ((128, 80e9), (256, 92.54e9))]
    assert stated(*several) == "fp32: 80.0 to 92.5 GFLOP/s, measured: the best product of a rank"
    assert stated(peak(0, 989.5e12, "a datasheet: 989.5 TFLOP/s")).count("FLOP/s") == 1


def test_short_times_have_units_of_their_own() -> None:
    records = repeats(run(1), [3.1]) + repeats(run(2), [1.6], communication=(0.002, 0.001))
    records += repeats(run(4), [0.9], communication=(0.002, 0.001))
    table = sections.communication(StudyResults(records))
    assert table.frame["exposed"].tolist() == ["1.00 ms", "1.00 ms"]
    assert "alternating rounds" not in table.caption  # as that cost was not measured
    (waterfall,) = sections.waterfall(StudyResults(records))
    assert "in ms" in waterfall.caption


def test_caveats_about_a_prediction_are_no_part_of_its_basis(tmp_path) -> None:
    made = study(tmp_path, [run(2)], repeats=1)
    note = "micro-batch 4, measured at 8, 16"
    early = datetime(2000, 1, 1, tzinfo=UTC)
    (measured,) = repeats(run(2), [0.1])
    write_record(measured, Store(made.out).folder(measured.task))
    write_prediction(made, frozen(run(2), 0.1, frozen_at=early, extrapolated=(note,)))
    _, how, _ = sections.predictions(StudyResults(made))
    assert f"They are based on: records. Caveats: {note}." in how.markdown.replace("\\", "")


def test_a_traced_step_is_drawn_and_its_file_is_named(tmp_path) -> None:
    made = study(tmp_path, [run(2)], repeats=1)
    plain = repeats(run(2), [0.1])
    assert study_sections.traced_step(StudyResults(plain), made) == []
    _, where, *figures = study_sections.traced_step(StudyResults([traced(plain[0])]), made)
    assert f"{run(2).id}/0/trace" in where.markdown.replace("\\", "")
    assert [figure.label for figure in figures] == ["fig-trace-timeline", "fig-memory-timeline"]


def test_the_table_of_costs_is_named_after_what_it_has() -> None:
    rows = [
        {"peak memory of a rank (MB)": "12", "samples/s": "not measured", "MFU": "not measured"},
        {"peak memory of a rank (MB)": "-", "samples/s": "80", "MFU": "not measured"},
    ]
    assert sections._costs(rows) == "Memory and throughput"
    assert sections._costs(rows[:1]) == "Memory"
    assert sections._costs(rows[1:]) == "Throughput"
