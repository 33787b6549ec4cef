"""Core- and GPU-hours: spent by records, planned for what is missing, and kept within a budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import record, run, study

from lab.config.cluster import Cluster
from lab.config.study import Study
from lab.errors import InputError
from lab.launch.plan import charged, check_budget, hours_sentence, plan, planned, spent
from lab.records.schema import Allocation
from lab.records.store import Store, write_record


def profile(folder: Path, text: str = "") -> Cluster:
    path = folder / "here.yaml"
    path.write_text(f"executor: slurm\ncores_per_node: 4\ncores_per_rank: 2\n{text}")
    return Cluster.load(path)


def on_gpus(folder: Path, text: str = "") -> Cluster:
    path = folder / "gpus.yaml"
    path.write_text(f"executor: slurm\ngpus_per_node: 4\ncpus_per_gpu: 8\n{text}")
    return Cluster.load(path)


def measured(folder: Path, **fields: object) -> Study:
    """The first of two repeats on one and on two ranks, a minute each."""
    made = study(folder, [run(1), run(2)], repeats=2)
    for task in made.tasks[:2]:
        write_record(record(task.run, task.repeat, **fields), Store(made.out).folder(task))  # type: ignore[arg-type]
    return made


def test_spent_are_the_cores_of_all_ranks_times_the_time_of_their_job(tmp_path: Path) -> None:
    hours = spent(measured(tmp_path))
    assert hours.core == pytest.approx((1 + 2) / 60) and hours.gpu == 0 and hours.jobs == 2


def test_gpus_count_beside_cores(tmp_path: Path) -> None:
    hours = spent(measured(tmp_path, device="cuda"))
    assert hours.gpu == pytest.approx(3 / 60) and "0.0500 GPU-hours and" in str(hours)


def test_failures_and_attempts_that_were_set_aside_count_too(tmp_path: Path) -> None:
    made = measured(tmp_path)
    task = made.tasks[0]
    folder = Store(made.out).folder(task)
    write_record(record(task.run), folder / "disturbed")
    (folder / "log").mkdir()
    write_record(record(task.run, status="failed"), folder / "log" / "earlier")
    assert spent(made).jobs == 4


def test_a_job_that_failed_before_it_said_where_it_ran_counts_as_allocated(tmp_path: Path) -> None:
    made = measured(tmp_path)
    task = made.tasks[2]
    failed = record(task.run, task.repeat, status="failed").model_copy(
        update={
            "environment": None,
            "allocation": Allocation(job_id="7_0", nodes=["a", "b"], gpus=["0"], cpus=8),
        }
    )
    before = spent(made)
    write_record(failed, Store(made.out).folder(task))
    after = spent(made)
    assert after.jobs == before.jobs + 1 and not after.unknown
    assert after.core - before.core == pytest.approx(8 / 60)
    assert after.gpu - before.gpu == pytest.approx(2 / 60)


def test_a_local_job_that_failed_early_counts_with_a_core_for_each_process(tmp_path: Path) -> None:
    made = measured(tmp_path)
    task = made.tasks[2]
    failed = record(task.run, task.repeat, status="failed").model_copy(update={"environment": None})
    before = spent(made)
    write_record(failed, Store(made.out).folder(task))
    assert spent(made).core - before.core == pytest.approx(task.run.processes / 60)


def test_planned_is_what_earlier_repeats_took_on_the_cores_of_the_cluster(tmp_path: Path) -> None:
    made = measured(tmp_path)
    hours = planned(made, profile(tmp_path))
    assert hours.jobs == 2 and hours.core == pytest.approx((2 + 4) / 60)
    gpus = planned(made, on_gpus(tmp_path))
    assert gpus.gpu == pytest.approx(3 / 60) and gpus.core == pytest.approx(24 / 60)
    rows = plan(made, profile(tmp_path))
    assert [row["core_hours"] for row in rows] == pytest.approx([2 / 60, 4 / 60], abs=1e-4)


@pytest.mark.parametrize("text", ["extra: {exclusive: true}", "gpu_flag: none"])
def test_a_job_that_has_its_nodes_to_itself_takes_all_their_gpus(tmp_path: Path, text: str) -> None:
    hours = planned(measured(tmp_path), on_gpus(tmp_path, text))  # of one and of two ranks
    assert hours.gpu == pytest.approx(8 / 60) and hours.core == pytest.approx(64 / 60)


def test_ranks_on_the_cpus_of_nodes_with_gpus_take_these_too(tmp_path: Path) -> None:
    hours = planned(measured(tmp_path), on_gpus(tmp_path, "device: cpu"))
    assert hours.gpu == pytest.approx(3 / 60)


def test_gpus_that_a_job_was_given_and_did_not_use_are_spent(tmp_path: Path) -> None:
    made = study(tmp_path, [run(1)], repeats=1)
    whole = Allocation(job_id="7_0", nodes=["a"], gpus=["0", "1", "2", "3"], cpus=64)
    alone = record(made.runs[0], device="cuda").model_copy(update={"allocation": whole})
    write_record(alone, Store(made.out).folder(made.tasks[0]))
    assert spent(made).gpu == pytest.approx(4 / 60)


def test_hours_are_planned_for_runs_that_can_run(tmp_path: Path) -> None:
    made, cluster = study(tmp_path, [run(1), run(2), run(4)], repeats=2), profile(tmp_path)
    said = "planned: 4 jobs of unknown length, without 1 run that cannot run"
    assert said in hours_sentence(made, cluster, plan(made, cluster))


def test_what_nobody_knows_is_said_to_be_unknown(tmp_path: Path) -> None:
    made = study(tmp_path, [run(1)], repeats=2)
    cluster = profile(tmp_path, "time_limit_min: 30")
    hours = planned(made, cluster)
    assert hours.unknown == 2 and hours.jobs == 0 and hours.core == 0
    assert "planned: 2 jobs of unknown length" in hours_sentence(made, cluster, plan(made, cluster))
    assert planned(made, cluster, at_most=True).core == pytest.approx(2 * 2 * 0.5)


def test_a_budget_refuses_with_the_numbers(tmp_path: Path) -> None:
    made = measured(tmp_path)
    missing = made.tasks[2:]
    check_budget(made, profile(tmp_path, "budget: {core_hours: 0.16}"), missing)
    with pytest.raises(InputError) as refusal:
        check_budget(made, profile(tmp_path, "budget: {core_hours: 0.14}"), missing)
    text = str(refusal.value)
    assert "0.140 core-hours, of which 0.0500 are spent" in text and "0.100 more" in text
    check_budget(made, profile(tmp_path, "budget: {core_hours: 0.14}"), [])


def test_jobs_of_unknown_length_count_with_their_time_limit(tmp_path: Path) -> None:
    made = study(tmp_path, [run(2)], repeats=1)
    limits = "time_limit_min: 60\nbudget: {gpu_hours: %s}"
    check_budget(made, on_gpus(tmp_path, limits % 2), made.tasks)
    with pytest.raises(InputError, match="1 job of unknown length up to time_limit_min"):
        check_budget(made, on_gpus(tmp_path, limits % 1.9), made.tasks)


def test_a_budget_is_checked_as_every_key(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gpu_hours"):
        profile(tmp_path, "budget: {gpu_hours: -1}")
    with pytest.raises(InputError, match="gpu_hour"):
        profile(tmp_path, "budget: {gpu_hour: 1}")


def test_a_budget_may_hold_for_all_studies_of_a_learner(tmp_path: Path) -> None:
    made = measured(tmp_path / "one")
    measured(tmp_path / "two")
    for name in ("one", "two"):
        (tmp_path / name / "study.yaml").touch()
    own = profile(tmp_path, "budget: {core_hours: 0.17}")
    shared = profile(tmp_path, "budget: {core_hours: 0.17, per: folder}")
    assert charged(made, own) == spent(made)
    assert charged(made, shared).core == pytest.approx(2 * spent(made).core)
    check_budget(made, own, made.tasks[2:])
    assert "all studies in the same folder, of which" in hours_sentence(
        made, shared, plan(made, shared)
    )
    with pytest.raises(InputError, match=r"0\.170 core-hours, of which 0\.100 are spent"):
        check_budget(made, shared, made.tasks[2:])


def test_what_lab_run_would_refuse_cannot_run(tmp_path: Path) -> None:
    runs = [run(1), run(1, data={"kind": "text", "path": "corpus"})]
    fits, missing = plan(study(tmp_path, runs), "cpu")
    assert fits["cannot run"] == "" and "'corpus': no such file" in missing["cannot run"]
    (other,) = plan(study(tmp_path, [run(2, strategy="fsdp")]), "local-8gpus")
    assert other["cannot run"].startswith("its compute cannot be emulated, as local-8gpus would; ")
