from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.worker.data import corpora

TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "input.txt").write_text(TEXT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www")))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/input.txt"
    published = replace(
        corpora.SHAKESPEARE,
        url=url,
        size=len(TEXT),
        sha256=hashlib.sha256(TEXT.encode()).hexdigest(),
    )
    monkeypatch.setattr(corpora, "SHAKESPEARE", published)
    yield server
    server.shutdown()
    server.server_close()


def read() -> list[str]:
    return list(corpora.read_shakespeare(None, Path(), lambda *_: None).documents)


def test_it_is_downloaded_once(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read() == [TEXT]
    monkeypatch.setattr(
        corpora, "SHAKESPEARE", replace(corpora.SHAKESPEARE, url="http://127.0.0.1:9/gone")
    )
    assert read() == [TEXT]


def test_another_text_under_its_name_is_refused(
    server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    (tmp_path / "www" / "input.txt").write_text("something else")
    with pytest.raises(LabError, match="not Tiny Shakespeare as published"):
        read()
    assert [path.name for path in (tmp_path / "cache" / "downloads").iterdir()] == [
        "tinyshakespeare.txt.lock"
    ]


def test_without_a_network_it_says_where_to_put_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        corpora, "SHAKESPEARE", replace(corpora.SHAKESPEARE, url="http://127.0.0.1:9/input.txt")
    )
    with pytest.raises(
        LabError, match=r"cannot be downloaded.*downloads/tinyshakespeare\.txt.*data: stdlib"
    ):
        read()


def test_a_file_that_somebody_put_there_is_used_and_checked(
    server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    place = tmp_path / "cache" / "downloads" / "tinyshakespeare.txt"
    place.parent.mkdir(parents=True)
    place.write_text(TEXT)
    assert read() == [TEXT]
    place.write_text("something else")
    with pytest.raises(LabError, match="Remove it"):
        read()
