"""Functions of torch and of Python's library, replaced by ones that call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any


def around(
    function: Callable[..., Any], replacement: Callable[..., Any], *more: Any
) -> Callable[..., Any]:
    """What stands in for a function or method: `replacement(function, *more, ...)`."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return replacement(function, *more, *arguments, **options)

    return call


@contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes, each given as its owner, its name and its new value."""
    with ExitStack() as stack:
        for owner, name, value in replacements:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
