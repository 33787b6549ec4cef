"""Functions that are replaced by ones that call them, and put back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lab.worker.patch import around, replaced


def test_a_replacement_gets_the_function_what_it_was_made_with_and_all_arguments() -> None:
    def function(*arguments: object, **options: object) -> object:
        """What it does."""
        return arguments, options

    stand_in = around(function, lambda own, more, *rest, **options: (own, more, rest, options), 1)
    assert stand_in(2, 3, four=4) == (function, 1, (2, 3), {"four": 4})
    assert (stand_in.__name__, stand_in.__doc__) == ("function", "What it does.")


def test_attributes_are_put_back_in_the_reverse_order_whatever_happens() -> None:
    owner = SimpleNamespace(name=0)
    with pytest.raises(KeyError), replaced((owner, "name", 1), (owner, "name", 2)):
        assert owner.name == 2
        raise KeyError
    assert owner.name == 0
