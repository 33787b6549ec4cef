from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from lab.launch.driver import OneInterrupt


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """pytest's own, or none, is back after each test."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def test_only_the_first_interrupt_is_raised() -> None:
    interrupt, steps = OneInterrupt(), []
    with interrupt:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert not interrupt.again
        for step in range(3):
            signal.raise_signal(signal.SIGINT)
            steps.append(step)
        assert interrupt.again and steps == [0, 1, 2]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_next_use_starts_anew() -> None:
    interrupt = OneInterrupt()
    for _ in range(2):
        with interrupt, pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert not interrupt.again


def test_an_error_puts_the_handler_back() -> None:
    with pytest.raises(ValueError, match="planted"), OneInterrupt():
        raise ValueError("planted")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with OneInterrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert not interrupt.again
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_thread_that_receives_no_signals_changes_no_handler() -> None:
    handlers = []

    def enter() -> None:
        with OneInterrupt():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
