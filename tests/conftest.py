"""Fixtures of all tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml
from hypothesis import settings
from studies import CORPUS, SMALL_STUDY, StudyMaker


@pytest.fixture
def make_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyMaker:
    """Writes a study folder; keyword arguments replace keys of SMALL_STUDY, None removes one."""
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))

    def make(name: str = "small", **changes: object) -> Path:
        folder = tmp_path / "reports" / name
        folder.mkdir(parents=True)
        content = {key: value for key, value in (SMALL_STUDY | changes).items() if value is not None}
        (folder / "study.yaml").write_text(yaml.safe_dump(content))
        (folder / "corpus.txt").write_text(CORPUS)
        return folder

    return make


# Where the tests run in the background of a script, Ctrl-C is ignored, and every process that they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Enough for a bug to show in the end, few enough for the whole suite to stay under a minute.
settings.register_profile("fast", max_examples=15, deadline=None)
settings.load_profile("fast")
