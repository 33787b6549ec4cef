"""The forecast of a configuration: from runs on one rank and the calibration."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import factories
import pytest

from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study
from lab.dashboard import results
from lab.dashboard.panels import Outlook, outlook, panel
from lab.dashboard.store import Bench
from lab.launch import netem
from lab.perfmodel.calibration import write_calibration
from lab.perfmodel.frozen import freeze, scores
from lab.records.store import Record, Store, write_record
from lab.report.blocks import Figure, Markdown, Table

PROFILES = {
    "two": "executor: local\ndevice: cpu\ndevices: 2\n",
    "slow": "executor: local\ndevice: cpu\ndevices: 2\nlink: {bandwidth_gbit: 1}\n",
    "asleep": "executor: local\ndevice: cpu\ndevices: 8\ncompute: {emulated: measured}\n",
}
PAIR = factories.run(2, 16)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """An empty bench on a machine of two cores that can emulate links."""
    monkeypatch.setattr("lab.machine.cores", lambda: (0, 1))
    monkeypatch.setattr(netem, "way_for", lambda link: "pacing")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm").mkdir()
    for name, text in PROFILES.items():
        (tmp_path / "slurm" / f"{name}.yaml").write_text(text)
    return Bench(tmp_path / "reports" / "bench")


def calibrate(name: str) -> None:
    write_calibration(factories.calibration(2), Path("slurm") / "calibration" / f"{name}.json")


def measure(bench: Bench, record: Record, cluster: str = "two") -> Study:
    """Leave a record where a run of the bench leaves it."""
    study = bench.study(record.run, cluster)
    bench.keep(study)
    write_record(record, Store(study.out).folder(study.task()))
    return study


def here(run: Run, **changes: object) -> Record:
    """A profile that was measured on this machine."""
    return factories.profile(run, hosts=[socket.gethostname()], **changes)  # type: ignore[arg-type]


def look(bench: Bench, run: Run, name: str = "two") -> Outlook:
    cluster = Cluster.load(name)
    return outlook(run, bench.basis(cluster), cluster=cluster)


def test_without_a_basis_it_says_what_would_give_one(bench: Bench) -> None:
    assert "Measure it on one rank first" in look(bench, PAIR).advice
    assert look(bench, factories.run(1, 16)).advice.startswith("Run measures it on one rank")
    measure(bench, here(factories.run(1, 16)))
    assert "`lab calibrate --cluster two`" in look(bench, PAIR).advice
    calibrate("two")
    assert look(bench, PAIR).advice == "" and look(bench, PAIR).forecast.prediction is not None
    assert (
        "with Strategy ddp"
        in look(bench, factories.run(2, 16, strategy="pipeline_parallel", precision="bf16")).advice
    )
    assert (
        "does not know strategy"
        in look(bench, factories.run(2, 16, strategy="vanilla_data_parallel")).advice
    )


def test_two_ranks_are_predicted_from_one(bench: Bench) -> None:
    calibrate("two")
    measure(bench, here(factories.run(1, 16), step_time=0.2))
    pair_outlook = look(bench, PAIR)
    assert (
        pair_outlook.forecast.prediction is not None
        and pair_outlook.forecast.memory_bytes is not None
    )
    # Half the batch halves forward and backward; 6 MB of gradients wait 60 ms for the link.
    assert pair_outlook.forecast.prediction.step_s == pytest.approx(
        0.2 - 0.172 / 2 + 0.061, rel=0.05
    )
    assert pair_outlook.speedup == pytest.approx(0.2 / pair_outlook.forecast.prediction.step_s)
    html = panel(pair_outlook, cluster=Cluster.load("two"), history="Not measured yet.")
    assert (
        "Predicted step" in html
        and "Speedup over 1 rank <b>1.1" in html
        and html.endswith("Not measured yet.")
    )
    assert "Limited by <b>communication during which nothing is computed, 3" in html
    assert "beyond what was measured: micro-batch 8 inferred from 16" in html


def test_an_interval_that_says_next_to_nothing_is_told_as_such(bench: Bench) -> None:
    calibrate("two")
    measure(bench, here(factories.run(1, 16), step_time=0.2))
    pair_outlook = look(bench, PAIR)
    assert pair_outlook.forecast.prediction is not None
    wide = dataclasses.replace(pair_outlook.forecast.prediction, step_s=0.3, low_s=0.0, high_s=0.6)
    forecast = dataclasses.replace(pair_outlook.forecast, prediction=wide)
    unsure = dataclasses.replace(pair_outlook, forecast=forecast)
    html = panel(unsure, cluster=Cluster.load("two"), history="Not measured yet.")
    assert "Predicted step <b>cannot tell [0, 600] ms</b>" in html
    assert "Speedup over 1 rank <b>cannot tell" in html
    assert "Limited by <b>cannot tell" in html and "300" not in html


def test_a_run_on_one_rank_counts_for_every_network_of_this_machine(bench: Bench) -> None:
    calibrate("slow")
    measure(bench, here(factories.run(1, 16)))
    assert look(bench, PAIR, "slow").forecast.prediction is not None
    assert "one rank first" in look(bench, PAIR, "asleep").advice, (
        "ranks that sleep are no profile of ranks that compute"
    )


def test_a_run_of_another_machine_does_not_count(bench: Bench) -> None:
    calibrate("slow")
    measure(bench, factories.profile(factories.run(1, 16), hosts=["elsewhere"]))
    assert "one rank first" in look(bench, PAIR, "slow").advice
    measure(bench, here(factories.run(1, 16), threads_per_rank=2), "slow")
    assert "one rank first" in look(bench, PAIR, "slow").advice, "more threads than a rank has"


def test_a_result_stands_beside_its_prediction(bench: Bench) -> None:
    calibrate("two")
    measure(bench, here(factories.run(1, 16), step_time=0.2))
    study, cluster = bench.study(PAIR, "two"), Cluster.load("two")
    bench.keep(study)
    (frozen,) = freeze(study, cluster, basis=bench.basis(cluster))
    done = factories.record(PAIR, step_time=frozen.step_s / 1.25)
    measure(
        bench,
        done.model_copy(update={"started_at": None, "finished_at": "2999-01-01T00:00:00+00:00"}),
    )
    (score,) = scores(study)
    assert results.beside(score).startswith(
        "Predicted before the run: 1"
    ) and "off by +25.0 %" in results.beside(score)
    assert "not predicted" in results.beside(None)
    parts = results.results(bench, study)
    assert any(isinstance(part, Markdown) and "off by" in part.markdown for part in parts)
    (table,) = (part for part in parts if isinstance(part, Table))
    alone, pair = table.frame["predicted"]
    assert alone == "-" and pair.endswith("ms")
    rates, steps, loss = (part for part in parts if isinstance(part, Figure))
    assert (
        "Predicted beforehand: gpt-nano ddp x2" in rates.alt and "Predicted beforehand" in steps.alt
    )
    assert "loss" in loss.alt.lower()
    assert bench.basis(cluster).model_error == pytest.approx(0.25)
    unsure = frozen.model_copy(update={"step_s": 0.3, "low_s": 0.0, "high_s": 0.6})
    vague = results.beside(score.model_copy(update={"frozen": unsure}))
    assert "cannot tell [0, 600] ms. Measured: " in vague
    assert "limited" not in vague and "off by" not in vague


def test_one_rank_is_predicted_from_another_batch(bench: Bench) -> None:
    measure(bench, here(factories.run(1, 16)))
    cluster, study = Cluster.load("two"), bench.study(factories.run(1, 32), "two")
    assert freeze(study, cluster) == []
    (frozen,) = freeze(study, cluster, basis=bench.basis(cluster))
    assert frozen.step_s > 0.17 and frozen.extrapolated
