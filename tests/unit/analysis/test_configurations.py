"""Strategies, causes and networks side by side: known answers from records with known numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from factories import record, run, stat, study

from lab.analysis.configurations import (
    epoch_means,
    epoch_sentences,
    epochs_to_low_loss,
    image_cells,
    learning_sentences,
    loader_sentences,
    strategy_cells,
    strategy_sentences,
    table_rows,
)
from lab.analysis.scaling import summary
from lab.figures import StudyResults
from lab.records.schema import Communication, Memory, Quality
from lab.records.store import Record, Store, write_record
from lab.records.table import table
from lab.report import study_sections

SINGLE = {"strategy": "single", "world_size": 1}
CNN = {"kind": "cnn", "network": "resnet18", "image_size": 16}


def changed(record: Record, **parts: Any) -> Record:
    return record.model_copy(update=parts)


def of(records: list[Record]) -> pd.DataFrame:
    return summary(table(records), baseline=SINGLE, scaling="none")


def strategies() -> dict[str, Record]:
    single = record(run(strategy="single"), step_time=0.2)
    sent = Communication(
        total=stat(0.02), exposed=stat(0.01), bytes=8_000_000, bytes_moved=8_000_000, calls=9
    )
    small = Memory(
        kind="resident", peak=[2 * 10**8, 3 * 10**8], parameters=10**6, optimizer=2 * 10**6
    )
    fsdp = changed(record(run(2, strategy="fsdp"), step_time=0.1), communication=sent, memory=small)
    whole = Memory(kind="resident", peak=[4 * 10**8], parameters=2 * 10**6, optimizer=4 * 10**6)
    return {"single": changed(single, memory=whole), "fsdp": fsdp}


def test_strategies_side_by_side() -> None:
    records = list(strategies().values())
    runs = [*(one.run for one in records), run(2, strategy="ddp")]
    one, two, missing = table_rows(runs, records, of(records), strategy_cells)
    assert (
        one["configuration"] == "single x1" and one["sent (MB)"] == "-" and one["step"] == "200 ms"
    )
    assert two == {
        "configuration": "fsdp x2",
        "step": "100 ms",
        "samples/s": "640",
        "peak (MB)": "300",
        "weights (MB)": "1.00",
        "optimizer (MB)": "2.00",
        "sent (MB)": "8.00",
        "last loss": f"{records[1].quality.loss[-1]:.4f}",  # type: ignore[union-attr]
    }
    assert missing == {"configuration": "ddp x2", "step": "not run"}


def test_the_fastest_the_smallest_and_how_far_the_losses_are() -> None:
    records = strategies()
    curve = records["single"].quality.loss  # type: ignore[union-attr]
    records["fsdp"] = changed(
        records["fsdp"], quality=Quality(loss=[*curve[:-1], 1.01 * curve[-1]])
    )
    frame = of(list(records.values()))
    fastest, gain, smallest, apart = strategy_sentences(
        [one.run for one in records.values()], list(records.values()), frame, baseline=SINGLE
    )
    assert "100 ms, is that of fsdp x2; one repeat is too few to rank strategies" in fastest
    assert "2.00 times as fast as that of single x1, but one repeat is too few" in gain
    assert smallest == (
        "Weights and optimizer state on a rank take from 3.00 MB (fsdp x2) to 6.00 MB (single x1)."
    )
    assert "within 1.00 % of the baseline's" in apart


def text_run(world_size: int = 1, batch: int = 8, **fields: Any) -> Any:
    return run(world_size, batch, model="agnews-small", data="topics", **fields)


def loaded(*, data: float = 0.0005, **fields: Any) -> Record:
    phases = {"data": data, "forward": 0.05, "backward": 0.0495, "optimizer": 0.0, "other": 0.0}
    return record(text_run(1, 8, **fields), step_time=sum(phases.values()), phases=phases)


def test_what_a_loader_costs_is_told() -> None:
    records = [loaded(), loaded(data=0.0685, loader="classic", loader_workers=3)]
    fast, classic, slowed = loader_sentences([one.run for one in records], records)
    assert "fast loader, a step waits for data for at most 0.500 %" in fast
    assert "at most 40.8 %" in classic
    assert "classic loader, 3 workers, a step takes 1.68 times" in slowed


def test_epochs_are_whole() -> None:
    assert epoch_means([4.0, 2.0, 1.0, 1.0, 7.0], samples=8, batch=4) == [3.0, 1.0]
    assert epoch_means([4.0, 2.0, 1.0], samples=6, batch=4) == [
        3.0,
        1.0,
    ]  # the second step ends the first epoch
    assert epoch_means([4.0], samples=8, batch=4) == []
    assert epoch_means([4.0, 2.0], samples=2, batch=4) == [4.0, 4.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("losses", "text"),
    [
        ([2.0, 1.0, 0.03, 0.04], "2"),
        ([2.0, 1.0, 0.5, 0.4], "not reached (0.45)"),
        ([2.0], "not reached (0.5 epochs)"),
    ],
)
def test_epochs_until_the_loss_is_low(losses: list[float], text: str) -> None:
    made = record(run(1, 4, model=CNN, data="digits"), loss=losses, train_samples=8)
    assert epochs_to_low_loss(made) == text


def test_epochs_are_told_of_networks_that_reached_a_low_loss() -> None:
    def told(*curves: list[float]) -> list[str]:
        trained = {
            run(1, 4, model=CNN, data="digits", seed=seed): losses
            for seed, losses in enumerate(curves)
        }
        done = {one: [record(one, loss=losses, train_samples=8)] for one, losses in trained.items()}
        return list(epoch_sentences(done))

    high, low = [2.0, 1.0, 0.5, 0.4], [2.0, 1.0, 0.03, 0.04]
    fell = "The mean loss of an epoch fell below 0.04 in"
    (some,) = told(high, low, [0.01] * 4)
    assert some.startswith(f"{fell} 2 of 3 configurations, first in epoch 1 (")
    assert some.endswith("and last in epoch 2 (seed 1).")
    (one,) = told(high, low)
    assert one == f"{fell} 1 of 2 configurations, in epoch 2 (seed 1)."
    assert told(low, low) == [f"{fell} 2 of 2 configurations, always in epoch 2."]
    assert told(high) == [f"{fell} 0 of 1 configuration."]
    assert list(epoch_sentences({run(): [record(run())]})) == []


def test_a_text_without_epochs_has_none() -> None:
    assert epochs_to_low_loss(record(run())) is None


def test_networks_side_by_side() -> None:
    frozen = CNN | {"trainable": "head"}
    runs = [run(size, 4, model=model, data="digits") for model in (CNN, frozen) for size in (1, 2)]
    sent = Communication(
        total=stat(0.03),
        exposed=stat(0.02),
        exposed_in={"backward": 0.02},
        bytes_moved=5_000_000,
        bytes=5_000_000,
    )
    made = [record(one, loss=[0.01] * 4, train_samples=8) for one in runs[:3]]
    made[1] = changed(made[1], communication=sent)
    rows = table_rows(runs, made, of(made), image_cells)
    assert rows[0]["communication"] == "none" and rows[0]["epochs to loss < 0.04"] == "1"
    assert (
        rows[1]["compute"] == "65.0 ms"
        and rows[1]["exposed"] == "20.0 ms"
        and rows[1]["sent (MB)"] == "5.00"
    )
    assert rows[3]["step"] == "not run" and "head only" in rows[3]["configuration"]


def test_sections_are_there_where_the_study_asks(tmp_path: Path) -> None:
    plain = study(tmp_path / "plain", [run(1), run(2)])
    assert study_sections.comparisons(StudyResults(plain)) == []
    records = list(strategies().values())
    made = study(tmp_path / "ways", [one.run for one in records], baseline=SINGLE)
    for one in records:
        write_record(one, Store(made.out).folder(one.task))
    heading, sentences, shown, _ = study_sections.comparisons(StudyResults(made))
    assert (
        "Strategies" in str(heading)
        and "fsdp" in str(sentences)
        and "All: gpt-nano, batch 64, fp32" in str(shown)
    )
    loaders = study(tmp_path / "loaders", [text_run(), text_run(loader="classic")])
    assert "classic loader tokenizes" in "".join(
        map(str, study_sections.comparisons(StudyResults(loaders)))
    )


def test_nothing_is_said_of_losses_that_nobody_recorded(tmp_path: Path) -> None:
    batch = {"global_batch_size": None, "micro_batch_size": 32}
    records = [record(run(size, **batch)) for size in (1, 2)]
    made = study(tmp_path, [one.run for one in records], scaling="weak")
    assert "losses by step cannot be compared" in " ".join(learning_sentences(made, records))
    assert learning_sentences(made, [changed(one, quality=None) for one in records]) == []
