from __future__ import annotations

from types import SimpleNamespace

import pytest

from lab.worker.optim import LONGEST, _whole_rows

# What compiles is imported within the tests: it takes seconds, in each process that collects this file.


@pytest.mark.parametrize(
    ("length", "hint", "whole"),
    [
        (1280, "INNER", True),  # a layer norm of gpt2-large
        (LONGEST, "INNER", True),
        (LONGEST + 1, "INNER", False),
        (1280, "OUTER", False),
    ],
)
def test_rows_up_to_a_length_are_reduced_without_a_loop(
    length: int, hint: str, whole: bool
) -> None:
    import sympy
    from torch._inductor.runtime.hints import ReductionHint
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V

    features = SimpleNamespace(
        reduction_numel=sympy.Integer(length),
        get_reduction_hint=lambda: ReductionHint[hint],
        strict_sum_rblock=lambda: None,  # which torch 2.14 asks for
    )
    choices = _whole_rows()
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        assert choices.should_use_persistent_reduction(features, False) is whole


def test_code_compiled_so_is_kept_apart_from_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as inductor

    before = inductor.save_config_portable()
    monkeypatch.setattr(inductor, "inductor_choices_class", _whole_rows)
    assert inductor.save_config_portable() != before
