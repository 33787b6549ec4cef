"""The settings of DDP as fields of a run."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lab.study import Run

BASE: dict[str, Any] = {"global_batch_size": 8, "world_size": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"bucket_cap_mb": 4.0},
        {"gradient_as_bucket_view": False},
        {"static_graph": True},
        {"compression": "bf16"},
        {"compression": "powersgd", "powersgd_rank": 2},
    ],
    ids=lambda change: " ".join(change),
)
def test_a_setting_makes_another_run_and_its_default_does_not(change: dict[str, Any]) -> None:
    assert Run.model_validate(BASE | change).id != Run.model_validate(BASE).id
    defaults = {name: Run.model_fields[name].default for name in change}
    assert Run.model_validate(BASE | defaults).id == Run.model_validate(BASE).id


def test_ids_are_those_from_before_there_were_settings() -> None:
    assert Run(global_batch_size=8).id == "4415a1f836"  # type: ignore[call-arg]


CONFLICTS: dict[str, tuple[dict[str, Any], str]] = {
    "single": ({"world_size": 1, "strategy": "single", "compression": "bf16"}, "compression is a setting of DDP"),
    "single buckets": ({"world_size": 1, "strategy": "single", "bucket_cap_mb": 1.0}, "bucket_cap_mb is a setting of DDP"),
    "rank alone": ({"powersgd_rank": 4}, "powersgd_rank 4 without PowerSGD"),
    "begins late": ({"compression": "powersgd", "warmup_steps": 1}, "PowerSGD compresses from step 2 on, warmup_steps is 1"),
    "static accumulation": ({"static_graph": True, "grad_accum": 2}, "static_graph with grad_accum 2"),
    "no bucket": ({"bucket_cap_mb": 0}, "greater than 0"),
    "unknown": ({"compression": "zip"}, "'none', 'bf16', 'fp16' or 'powersgd'"),
}


@pytest.mark.parametrize(("change", "message"), CONFLICTS.values(), ids=CONFLICTS.keys())
def test_settings_that_do_not_go_together_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Run.model_validate(BASE | change)
