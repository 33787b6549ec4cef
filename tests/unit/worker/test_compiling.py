from __future__ import annotations

from types import SimpleNamespace

import pytest
import sympy
import torch._inductor.config as inductor
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V

from lab.worker.compiling import LONGEST, _whole_rows


@pytest.mark.parametrize(
    ("length", "hint", "whole"),
    [
        (1280, ReductionHint.INNER, True),  # a layer norm of gpt2-large
        (LONGEST, ReductionHint.INNER, True),
        (LONGEST + 1, ReductionHint.INNER, False),
        (1280, ReductionHint.OUTER, False),
    ],
)
def test_rows_up_to_a_length_are_reduced_without_a_loop(
    length: int, hint: ReductionHint, whole: bool
) -> None:
    features = SimpleNamespace(
        reduction_numel=sympy.Integer(length),
        get_reduction_hint=lambda: hint,
        strict_sum_rblock=lambda: None,  # which torch 2.14 asks for
    )
    choices = _whole_rows()
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        assert choices.should_use_persistent_reduction(features, False) is whole


def test_code_compiled_so_is_kept_apart_from_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = inductor.save_config_portable()
    monkeypatch.setattr(inductor, "inductor_choices_class", _whole_rows)
    assert inductor.save_config_portable() != before
