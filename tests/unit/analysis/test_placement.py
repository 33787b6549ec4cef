"""Slow ranks and hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from factories import record, repeats, run, stat

from lab.analysis.placement import slow_ranks
from lab.analysis.scaling import summary
from lab.records.schema import Communication
from lab.records.store import Record
from lab.records.table import table


def waiting(
    size: int, waits: Sequence[float], hosts: Sequence[str], repeat: int, **fields: Any
) -> Record:
    """A repeat of steps of 100 ms, whose ranks wait so long for others."""
    made = record(run(size, 96), repeat, step_time=0.1, hosts=list(hosts), **fields)
    most = stat(max(waits))
    sent = Communication(total=most, exposed=most, straggler=most, per_rank={"straggler": waits})
    return made.model_copy(update={"communication": sent})


def said(records: Sequence[Record]) -> list[str]:
    frame = summary(table(records), baseline={"world_size": 1}, scaling="strong")
    return list(slow_ranks(frame, records))


def test_a_rank_that_is_slow_in_every_repeat_is_named():
    waits, hosts = [0.02, 0.02, 0.0, 0.02], ["a"] * 4
    (text,) = said([waiting(4, waits, hosts, repeat) for repeat in range(3)])
    assert text == (
        "On 4 CPU processes at batch 96, rank 2 works 1.25 times as long in a step as the other "
        "ranks, which wait for it, in all 3 repeats."
    )
    assert not said([waiting(4, waits, hosts, repeat) for repeat in range(2)])


def test_a_slow_host_is_named_wherever_its_ranks_are():
    slow_last, slow_first = [0.02] * 4 + [0.0] * 2, [0.0] * 2 + [0.02] * 4
    hosts = ["a", "a", "b", "b", "bad", "bad"]
    records = [
        waiting(6, slow_last, hosts, 0),
        waiting(6, slow_first, ["bad", "bad", "a", "a", "b", "b"], 1),
        waiting(6, slow_last, hosts, 2),
    ]
    (text,) = said(records)
    assert "the ranks on bad work 1.25 times as long" in text and "wait for them" in text


def test_ranks_that_are_slow_by_turns_are_not_named():
    turns = [[0.0, 0.02, 0.02, 0.02], [0.02, 0.0, 0.02, 0.02], [0.02, 0.02, 0.0, 0.02]]
    assert not said([waiting(4, waits, ["a"] * 4, nth) for nth, waits in enumerate(turns)])
    even = [[0.001, 0.0, 0.002, 0.0]] * 3
    assert not said([waiting(4, waits, ["a"] * 4, nth) for nth, waits in enumerate(even)])
    assert not said(repeats(run(4), [0.1] * 3))  # no waits were measured
