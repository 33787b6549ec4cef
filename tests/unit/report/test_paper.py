"""Abstract, discussion, threats to validity and references of a report."""

from __future__ import annotations

import re

from factories import record, repeats, run, study

from lab.analysis.results import StudyResults
from lab.records.schema import Observed
from lab.records.store import Store, write_record
from lab.report import paper, references, study_sections
from lab.report.blocks import Markdown, Table


def results_of(tmp_path, times, communication=None) -> StudyResults:
    made = study(tmp_path, [run(size) for size in times], repeats=len(next(iter(times.values()))))
    for size, steps in times.items():
        for one in repeats(run(size), steps, communication=communication if size > 1 else None):
            write_record(one, Store(made.out).folder(one.task))
    return StudyResults(made)


def text_of(blocks) -> str:
    return "\n".join(
        one.markdown.replace("\\", "") if isinstance(one, Markdown) else one.frame.to_string()
        for one in blocks
    )


def test_a_question_without_a_mark_does_not_run_into_its_answer(tmp_path) -> None:
    results = results_of(tmp_path, TIMES)
    for question, shown in (("What stops it", "What stops it."), ("Why?", "Why?")):
        asked = StudyResults(results.study.model_copy(update={"question": question}))
        assert text_of([paper.abstract(asked)]).startswith(f"**Abstract.** {shown} **")


TIMES = {1: [0.2, 0.201, 0.202], 2: [0.15, 0.151, 0.152]}


def test_the_discussion_says_what_is_left_without_the_largest_loss(tmp_path) -> None:
    results = results_of(tmp_path, TIMES)
    [fall] = [fall for fall in results.waterfalls if fall.compared]
    assert fall.supported
    said = text_of(paper.discussion(results))
    left = fall.step.value - fall.losses[fall.largest].value
    efficiency = fall.row["efficiency"] * fall.step.value / left
    assert f"efficiency would be {100 * efficiency:.1f} % instead of" in said
    assert "fig-waterfall" in said and "tbl-waterfall" in said


def test_no_loss_is_said_to_keep_ranks_from_more_than_they_can_give(tmp_path) -> None:
    results = results_of(
        tmp_path, {1: [0.2, 0.201, 0.202], 2: [0.104, 0.1041, 0.1042]}, (0.03, 0.02)
    )
    [fall] = [fall for fall in results.waterfalls if fall.compared]
    assert fall.supported and fall.step.value - fall.losses[fall.largest].value < fall.ideal.value
    assert "would be" not in text_of(paper.discussion(results))


def test_nothing_is_said_of_a_loss_that_repeats_do_not_tell(tmp_path) -> None:
    said = text_of(paper.discussion(results_of(tmp_path, {1: [0.2], 2: [0.15]})))
    assert "would be" not in said and "fig-waterfall" not in said


def test_threats_name_configurations_and_no_ids(tmp_path) -> None:
    results = results_of(tmp_path, {1: [0.2], 2: [0.15]})
    blocks = paper.threats(results)
    assert any(isinstance(one, Table) and one.label == "tbl-audit" for one in blocks)
    said = text_of(blocks)
    assert results.audit.findings and "x2" in said and "one host" in said
    assert not re.search("|".join(r.run_id for r in results.records), said)


def test_the_date_is_that_of_the_measurements(tmp_path) -> None:
    made = study(tmp_path, [run(1)], repeats=2)
    for repeat, moment in enumerate(("2026-01-30T10:00:00Z", "2026-02-02T10:00:00Z")):
        one = record(run(1), repeat).model_copy(update={"finished_at": moment})
        write_record(one, Store(made.out).folder(one.task))
    said = paper.date(StudyResults(made)).markdown.replace("\\", "")
    assert said == "Measured 30 January 2026 to 2 February 2026."


def test_the_setup_names_and_cites_what_was_run(tmp_path) -> None:
    said = paper.setup(results_of(tmp_path, TIMES)).markdown.replace("\\", "")
    assert "world sizes 1 and 2" in said and "DDP" in said and "#ref-ddp" in said


def test_the_setup_gives_settings_in_brackets(tmp_path) -> None:
    data = {"kind": "synthetic", "samples": 40}
    one = run(
        2, model={"kind": "gpt", "layers": 1, "heads": 2, "width": 8, "block_size": 8}, data=data
    )
    said = paper.setup(StudyResults(study(tmp_path, [one]))).markdown.replace("\\", "")
    assert "trains gpt 1x8 (2 heads, 8 tokens)" in said and "on synthetic data (samples 40)" in said


def test_the_setup_of_a_replay_names_only_data_that_the_source_states(tmp_path) -> None:
    for data, named in (("stdlib", True), ({"kind": "synthetic"}, False)):
        made = study(tmp_path / str(named), [run(1, data=data)], repeats=1)
        one = record(made.runs[0], replay="a paper")
        write_record(one, Store(made.out).folder(one.task))
        said = paper.setup(StudyResults(made)).markdown.replace("\\", "")
        assert ("on stdlib with DDP" in said) == named and "synthetic" not in said


def test_the_setup_gives_the_command_of_a_script_as_it_is_typed(tmp_path) -> None:
    command = ["train.py", "--batch={micro_batch_size}"]
    one = run(1, 8, model={"kind": "script", "command": command}, data={"kind": "script"})
    said = paper.setup(StudyResults(study(tmp_path, [one]))).markdown
    assert "The study runs `` train.py --batch={micro_batch_size} ``, at" in said


def test_the_discussion_cites_the_figures_that_show_its_numbers(tmp_path) -> None:
    said = paper.discussion(results_of(tmp_path, TIMES))[0].markdown
    assert said.count("#fig-overview") == said.count("#tbl-speedup") == 1
    assert said.count("#fig-waterfall") == 1
    ratio = Markdown.of("R = T_compute / T_communication is 8.5").markdown
    assert "#fig-overlap-band" in references.shown(ratio)
    alike = references.shown("a step takes 9 ms where the baseline takes 7.5 ms; the repeats")
    assert '7.5 ms<span class="cite"><a href="#fig-waterfall">' in alike
    assert "#fig-waterfall" not in references.shown("the scaled speedup is 1.1, where 3 is ideal")


def test_a_script_seen_to_send_nothing_may_train_alone_and_its_steps_hold_everything(
    tmp_path,
) -> None:
    runs = [
        run(size, model={"kind": "script", "command": ["train.py"]}, data={"kind": "script"})
        for size in (1, 2)
    ]
    silent = [record(one) for one in runs]
    made = study(tmp_path, runs, repeats=1)
    for one in silent:
        write_record(one, Store(made.out).folder(one.task))
    results = StudyResults(made)
    assert "No communication was seen on 2 ranks" in text_of(paper.threats(results))
    assert "median step" not in text_of(paper.threats(results))
    assert "DDP synchronises" not in text_of(paper.threats(results))
    assert "compilation" not in text_of([study_sections.method(results)])
    environment = dict(study_sections.environment_rows(silent[0]))
    assert environment["script"].startswith("train.py; SHA-256") and "code" not in environment
    assert environment["code of the lab"].startswith("commit")
    plain = results_of(tmp_path / "plain", TIMES)
    assert "No communication was seen" not in text_of(paper.threats(plain))
    assert "neither compilation nor evaluation" in text_of([study_sections.method(plain)])


def test_a_script_with_a_few_long_steps_is_told_that_a_training_takes_the_mean(tmp_path) -> None:
    scripts = {"model": {"kind": "script", "command": ["train.py"]}, "data": {"kind": "script"}}
    for fields, said in ((scripts, "the mean is 1.50 times the median (x2)"), ({}, "")):
        runs = [run(size, **fields) for size in (1, 2)]
        made = study(tmp_path / said[:8], runs, repeats=1)
        for one in map(record, runs):
            assert one.timing is not None
            longer = one.timing.train_time * (1.5 if one.run.world_size == 2 else 1)
            timing = one.timing.model_copy(update={"train_time": longer})
            longer_one = one.model_copy(update={"timing": timing})
            write_record(longer_one, Store(made.out).folder(one.task))
        text = text_of(paper.threats(StudyResults(made)))
        assert said in text and ("median step" in text) == bool(said)


def test_a_script_that_ended_before_its_last_step_is_named_with_its_steps(tmp_path) -> None:
    script = {"model": {"kind": "script", "command": ["train.py"]}, "data": {"kind": "script"}}
    runs = [run(size, steps=20, **script) for size in (1, 2)]
    made = study(tmp_path, runs, repeats=1)
    for one, steps in zip(map(record, runs), (20, 8), strict=True):
        ended = "by the lab" if steps == 20 else "by itself"
        seen = Observed(steps=steps, ended=ended, optimizer="SGD", optimizers=1)
        write_record(one.model_copy(update={"script": seen}), Store(made.out).folder(one.task))
    text = text_of(paper.threats(StudyResults(made)))
    assert "In 1 of 2 repeats the script ended by itself" in text and "after 8 of 20" in text
