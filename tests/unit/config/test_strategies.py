"""The table of strategies: whoever adds one decides every fact of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

from lab.config.run import Run
from lab.config.strategies import SETTINGS, STRATEGIES, StrategyFacts

BASE: dict[str, Any] = {"global_batch_size": 8, "world_size": 2}
FACTS = {field.name: getattr(STRATEGIES["ddp"], field.name) for field in fields(StrategyFacts)}
# A change of ddp's facts, and what it forbids to a run.
FORBIDDEN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"partial_gradients": True}, {"precision": "fp16"}, "precision fp16 needs all gradients"),
    ({"compiles": False}, {"compile": True}, "compile does not work with strategy 'zero9'"),
    ({"settings": ()}, {"compression": "bf16"}, "compression is a setting of DDP"),
    ({"splits": "layers"}, {"keep_model": True}, "no rank of zero9 has the whole model"),
    ({"splits": "nothing"}, {}, "strategy 'zero9' has one rank, but world_size is 2"),
]


@pytest.mark.parametrize("fact", FACTS)
def test_a_missing_fact_is_a_type_error(fact: str) -> None:
    with pytest.raises(TypeError, match=fact):
        StrategyFacts(**{name: value for name, value in FACTS.items() if name != fact})


@pytest.mark.parametrize(("facts", "change", "message"), FORBIDDEN)
def test_a_new_strategy_follows_its_facts(
    facts: dict[str, Any], change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = BASE | {"strategy": "zero9"} | change
    with pytest.raises(ValidationError, match=r"unknown strategy 'zero9'.*did you mean 'zero1'\?"):
        Run.model_validate(run)
    allowing = FACTS | {"settings": ()}
    monkeypatch.setitem(STRATEGIES, "zero9", StrategyFacts(**allowing))
    if "settings" not in facts:
        assert Run.model_validate(run).strategy == "zero9"
    monkeypatch.setitem(STRATEGIES, "zero9", StrategyFacts(**(allowing | facts)))
    with pytest.raises(ValidationError, match=message):
        Run.model_validate(run)


def test_settings_are_fields_of_a_run_and_belong_to_one_strategy() -> None:
    settings = [setting for facts in STRATEGIES.values() for setting in facts.settings]
    assert set(settings) <= set(Run.model_fields)
    assert sorted([*settings, "own_strategy"]) == sorted(SETTINGS)


def test_processes_and_shares_follow_the_table() -> None:
    for name, facts in STRATEGIES.items():
        ranks = 1 if facts.splits == "nothing" else 2
        run = Run.model_validate(BASE | {"strategy": name, "world_size": ranks})
        assert run.processes == (1 if facts.single_process else ranks)
        assert run.data_parallel_size == (1 if facts.splits in {"tensors", "layers"} else ranks)
        assert (run.device_needed == "cuda") == facts.gpus_only
