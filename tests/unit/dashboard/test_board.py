"""The bench without a browser: it judges, sends, shows progress, and starts nothing by itself."""

from __future__ import annotations

from pathlib import Path

import factories
import pytest
import yaml
from benches import choose, content, keep, text

import lab
from lab.config.study import Study, Task
from lab.dashboard.board import Dashboard, Pace, done, progress_line
from lab.launch.status import TaskState

TASK = Task(factories.run(2, 16), 0)


def test_first_configuration_can_run_and_shows_its_cost(shown: Dashboard) -> None:
    assert not shown.run_button.disabled and shown.cancel_button.disabled
    # (4096 + 128) 128 + 4 (12 128^2 + 13 128) + 2 128 parameters, 16 bytes of state for each.
    assert "1.33 million parameters; 21.3 MB of weights" in text(shown.verdict)
    assert "Not measured yet" in text(shown.verdict)
    assert "Nothing has been measured" in content(shown)


def test_large_models_are_counted_without_an_exponent(shown: Dashboard) -> None:
    choose(shown, model="gpt2-small")
    assert "124 million parameters; 1.99 GB of weights" in text(shown.verdict)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"steps": 4}, "warmup_steps 4 leaves none of 4 steps to measure"),
        ({"global_batch_size": 7, "world_size": 2}, "nearest that fits: 6 or 8"),
        (
            {"global_batch_size": 0},
            "Global batch size: input should be greater than or equal to 1, found 0",
        ),
        ({"world_size": 2, "strategy": "single"}, "use 'ddp' or world_size 1"),
        ({"world_size": 3, "global_batch_size": 6}, "needs 3 ranks, but two has 2"),
        ({"world_size": 2, "cluster": "one"}, "needs 2 ranks, but one has 1"),
    ],
)
def test_impossible_configuration_is_told_at_once_and_mended(
    shown: Dashboard, values: dict[str, object], words: str
) -> None:
    before = {name: shown.fields[name].value for name in values}
    for name, value in values.items():
        shown.fields[name].value = value
    verdict = text(shown.verdict).replace("&#x27;", "'")
    assert verdict.startswith("Cannot run:") and words in verdict and "missing" not in verdict
    assert shown.run_button.disabled
    for name, value in before.items():
        shown.fields[name].value = value
    assert not shown.run_button.disabled


def test_unusable_profile_is_told(place: Path) -> None:
    (place / "slurm" / "bad.yaml").write_text("executor: nowhere\n")
    shown = lab.dashboard()
    shown.fields["cluster"].value = "bad"
    assert (
        "Cannot run:" in text(shown.verdict)
        and "nowhere" in text(shown.verdict)
        and shown.run_button.disabled
    )


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("3", "grid: input should be a valid mapping, found 3"),
        ("{world_size: 1}", "grid.world_size: input should be a valid list, found 1"),
        ("[{world_size: [1]}]", "add world_size 2 to it"),
    ],
)
def test_a_study_file_that_was_spoilt_by_hand_is_told_and_kept(
    grid: str, words: str, shown: Dashboard
) -> None:
    study = choose(shown, world_size=2)
    shown.bench.keep(study)
    path = study.folder / "study.yaml"
    content = yaml.safe_load(path.read_text()) | {"grid": yaml.safe_load(grid)}
    path.write_text(yaml.safe_dump(content))
    shown.run_button.click()
    assert text(shown.status).startswith("Not started:") and words in text(shown.status)
    assert yaml.safe_load(path.read_text()) == content


def test_network_that_is_not_here_says_why_and_can_still_be_sent(shown: Dashboard) -> None:
    shown.fields["cluster"].value = "replay-a100"
    assert "Cannot run: replay-a100 cannot be served from here: it replays a table" in text(
        shown.verdict
    ).replace("  ", " ")
    assert shown.run_button.disabled and not shown.send_button.disabled
    shown.fields["cluster"].value = "two"
    assert not shown.run_button.disabled


def test_configuration_is_sent_to_a_study_beside_the_bench(shown: Dashboard, place: Path) -> None:
    choose(shown, world_size=2)
    assert shown.name.value == "gpt-nano-ddp-x2-batch-8-fp32"
    shown.send_button.click()
    assert "lab run reports/gpt-nano-ddp-x2-batch-8-fp32 --cluster two" in text(shown.sent)
    assert float(shown.sent.layout.height.removesuffix("em")) >= 3 * 1.4, "three lines are seen"
    study = Study.load("gpt-nano-ddp-x2-batch-8-fp32")
    assert (
        study.folder.parent == place / "reports"
        and study.runs[-1] == shown.configuration()
        and len(study.tasks) == 6
    )
    shown.send_button.click()
    assert "Not sent:" in text(shown.sent) and "already exists" in text(shown.sent)
    shown.fields["steps"].value = 4
    assert shown.send_button.disabled, "4 steps of warm-up leave nothing"


def test_name_follows_the_choice_until_it_is_edited(shown: Dashboard) -> None:
    choose(shown, world_size=2)
    choose(shown, precision="bf16")
    assert shown.name.value == "gpt-nano-ddp-x2-batch-8-bf16"
    shown.name.value = "mine"
    choose(shown, world_size=1)
    assert shown.name.value == "mine"
    shown.name.value = ""
    choose(shown, precision="fp32")
    assert shown.name.value == "gpt-nano-ddp-x1-batch-8-fp32"


def test_data_that_fits_the_model_is_offered(shown: Dashboard) -> None:
    data = shown.fields["data"]
    for model, value in {
        "resnet18": "digits",
        "agnews-small": "topics",
        "gpt-mini": "stdlib",
    }.items():
        choose(shown, model=model)
        assert data.value == value and "synthetic" in data.options
        for fitting in data.options:
            choose(shown, data=fitting)
            assert "Cannot run" not in text(shown.verdict)
    choose(shown, data="synthetic")
    choose(shown, model="vgg16")
    assert data.value == "synthetic" and "stdlib" not in data.options


def test_choices_start_no_job_and_move_nothing(shown: Dashboard) -> None:
    heights = [widget.layout.height for widget in (shown.verdict, shown.status, shown.sent)]
    assert all(heights)
    keep(shown)
    for name, value in {"world_size": 2, "strategy": "fsdp", "cluster": "one", "steps": 1}.items():
        shown.fields[name].value = value
    assert not list(shown.bench.folder.rglob("job.json")) and len(shown.bench.studies()) == 1
    assert heights == [widget.layout.height for widget in (shown.verdict, shown.status, shown.sent)]


TASK = Task(factories.run(2, 16), 0)


def test_pace_is_that_of_the_steps_seen() -> None:
    pace = Pace()
    assert pace.left(3, 10, now=100.0) is None
    assert pace.left(3, 10, now=101.0) is None
    assert pace.left(5, 10, now=104.0) == pytest.approx(5 * 2.0)
    assert pace.left(5, 10, now=105.0) == pytest.approx(9.0)
    assert pace.left(5, 10, now=999.0) == 0.0


def test_a_step_is_told_with_its_loss() -> None:
    pace = Pace()
    pace.left(3, 30, now=0.0)
    state = TaskState(TASK, "running", "measuring", 5, loss=3.4159)
    line = progress_line(state, pace, now=4.0, ours=True)
    assert line.endswith("measuring, step 5 of 30, about 50 s of steps left, loss 3.416")
    assert done(state) == 5


@pytest.mark.parametrize(
    ("state", "words"),
    [(TaskState(TASK, "pending"), "pending"), (TaskState(TASK, "running", "data"), "data")],
)
def test_without_steps_neither_step_nor_loss_is_told(state: TaskState, words: str) -> None:
    line = progress_line(state, Pace(), now=0.0, ours=False)
    assert line == f"{TASK.run.label}: {words}, another program drives it and can cancel it"
    assert done(state) == 0
