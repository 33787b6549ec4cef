"""Conversion by pandoc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lab.errors import LabError
from lab.report.math import run_pandoc


def test_ctrl_c_reaches_pandoc_only_through_the_lab(tmp_path: Path) -> None:
    """A terminal sends it to its foreground group, where a pandoc would first report a failure."""
    slow = tmp_path / "pandoc"
    slow.write_text("#!/bin/sh\ntouch started\nexec sleep 60\n")
    slow.chmod(0o700)
    code = f"""
import pypandoc
from lab.report.math import run_pandoc
pypandoc.get_pandoc_path = lambda: {str(slow)!r}
run_pandoc("", {{}}, to="html", options=[])
"""
    converting = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "started").exists():
        assert converting.poll() is None
        time.sleep(0.02)
    (pandoc,) = psutil.Process(converting.pid).children()
    assert os.getpgid(pandoc.pid) != os.getpgid(converting.pid)
    os.killpg(converting.pid, signal.SIGINT)
    _, errors = converting.communicate(timeout=60)
    assert errors.endswith("KeyboardInterrupt\n") and not pandoc.is_running()


def test_a_missing_pandoc_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise OSError("No pandoc was found")

    monkeypatch.setattr("pypandoc.get_pandoc_path", missing)
    with pytest.raises(LabError, match=r"need pandoc, which is missing; try: pip install"):
        run_pandoc("<p>a</p>", {}, to="html", options=[])
