"""Kernels: where they keep their sockets, whose paths may not be long."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from lab.report.execute import kernel_settings


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="x") as folder:
        yield Path(folder)


@pytest.mark.parametrize("length", [1, 120])
def test_a_kernel_has_sockets_however_long_the_path_of_tmpdir_is(
    short: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    folder = short / ("x" * length)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with kernel_settings() as config, zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        address = config["KernelManager"]["ip"]
        socket.bind(f"ipc://{address}-1234")
        assert address.startswith(str(folder)) == (length == 1)
