"""The course in a made-up language, into which every message is translated."""

from __future__ import annotations

from pathlib import Path

import pytest
from babel.messages.pofile import write_po
from language import widened

from lab.course.catalogue import update_catalogue
from lab.course.language import read_catalogue


@pytest.fixture(scope="session")
def wide_catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The course's whole catalogue, translated."""
    path = tmp_path_factory.mktemp("language") / "wide.po"
    update_catalogue(path)
    catalogue = read_catalogue(path)
    for message in catalogue:
        if message.id:
            message.string = widened(str(message.id))
    with path.open("wb") as stream:
        write_po(stream, catalogue)
    return path


@pytest.fixture
def wide(wide_catalogue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The course answers in the made-up language."""
    monkeypatch.setenv("LAB_CATALOGUE", str(wide_catalogue))
