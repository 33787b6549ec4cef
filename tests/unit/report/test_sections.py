from __future__ import annotations

from factories import repeats, run, study, traced

from lab.figures.data import StudyResults
from lab.records.store import DISTURBED, Store, write_record
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


def test_a_traced_step_is_drawn_and_its_file_is_named(tmp_path) -> None:
    made = study(tmp_path, [run(2)], repeats=1)
    plain = repeats(run(2), [0.1])
    assert study_sections.traced_step(StudyResults(plain), made) == []
    _, where, *figures = study_sections.traced_step(StudyResults([traced(plain[0])]), made)
    assert f"{run(2).id}/0/trace" in where.markdown.replace("\\", "")
    assert [figure.label for figure in figures] == ["fig-trace-timeline", "fig-memory-timeline"]
