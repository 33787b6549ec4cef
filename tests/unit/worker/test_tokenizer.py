from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lab.config.run import Run
from lab.errors import InputError, LabError
from lab.worker import data
from lab.worker.data import corpora
from lab.worker.data.cache import CachedArrays, in_cache
from lab.worker.data.corpora import tokenize

DOCUMENTS = [
    "The quick brown fox jumps over the lazy dog.\n" * 40,
    "Grüße, 世界! " * 30,
    "x = 1\n    y = 2\n" * 50,
] * 5


def quiet(*progress: object) -> None:
    pass


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def build(documents: list[str] = DOCUMENTS, vocab_size: int = 320) -> CachedArrays:
    return tokenize(documents, vocab_size=vocab_size, progress=quiet)


def folder(cache: Path) -> Path:
    return next(
        path
        for path in (cache / "tokens").iterdir()
        if path.is_dir() and not path.name.startswith(".")
    )


def test_tokens_spell_the_text(cache: Path) -> None:
    built = build()
    tokenizer = Tokenizer.from_file(str(folder(cache) / "tokenizer.json"))
    everything = np.concatenate([built.arrays["train"], built.arrays["held_out"]]).tolist()
    assert tokenizer.decode(everything, skip_special_tokens=False) == "".join(
        text + "<|endoftext|>" for text in DOCUMENTS
    )
    assert max(everything) < 320
    assert built.arrays["train"].dtype == np.uint16


def test_documents_longer_than_a_piece_stay_whole(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.worker.data.corpora.PIECE", 100)
    built = build()
    tokenizer = Tokenizer.from_file(str(folder(cache) / "tokenizer.json"))
    everything = np.concatenate([built.arrays["train"], built.arrays["held_out"]]).tolist()
    assert tokenizer.decode(everything, skip_special_tokens=False) == "".join(
        text + "<|endoftext|>" for text in DOCUMENTS
    )


def test_a_large_vocabulary_gets_wide_tokens() -> None:
    assert build(vocab_size=70_000).arrays["train"].dtype == np.uint32


def test_a_tenth_is_held_out_at_the_end_of_a_document(cache: Path) -> None:
    built = build([f"document {number} with some words\n" * 10 for number in range(50)])
    end_of_text = Tokenizer.from_file(str(folder(cache) / "tokenizer.json")).token_to_id(
        "<|endoftext|>"
    )
    assert built.arrays["train"][-1] == end_of_text
    share = len(built.arrays["held_out"]) / (
        len(built.arrays["train"]) + len(built.arrays["held_out"])
    )
    assert share == pytest.approx(0.1, abs=0.02)


def test_one_document_is_split_where_it_must_be() -> None:
    built = build(["all of it in one text, " * 200])
    assert len(built.arrays["held_out"]) / (
        len(built.arrays["train"]) + len(built.arrays["held_out"])
    ) == pytest.approx(0.1, abs=0.001)


def test_the_hash_is_that_of_the_content() -> None:
    first, again, changed, smaller = (
        build(),
        build(),
        build([*DOCUMENTS[:-1], "x"]),
        build(vocab_size=300),
    )
    assert first.sha256 == again.sha256
    assert len({first.sha256, changed.sha256, smaller.sha256}) == 3


def test_the_cache_is_private_and_used_again(cache: Path) -> None:
    build()
    for path in (cache, cache / "tokens", folder(cache)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    before = (folder(cache) / "train.npy").stat().st_mtime_ns
    build()
    assert (folder(cache) / "train.npy").stat().st_mtime_ns == before


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"shapes": []}', b"cut off"])
@pytest.mark.parametrize("file", ["train.npy", "meta.json", "tokenizer.json"])
def test_what_is_torn_in_the_cache_is_built_again(
    cache: Path, file: str, content: bytes | None
) -> None:
    whole = build()
    train = whole.arrays["train"].copy()  # a view of the file that is torn now
    path = folder(cache) / file
    earlier = path.read_bytes()
    path.write_bytes(earlier[:-20] if content == b"cut off" else content or b"")
    if content is None:
        path.unlink()
    again = build()
    assert again.sha256 == whole.sha256
    assert np.array_equal(again.arrays["train"], train)
    assert path.read_bytes() == earlier


def test_a_full_disk_names_the_cache(cache: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (100, 10_000):  # bytes: less than the tokenizer takes, less than the arrays take
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
        try:
            with pytest.raises(LabError, match=r"cache/tokens/\w+: .*: is the disk full\?"):
                build(DOCUMENTS * 20)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(build(DOCUMENTS * 20).arrays["train"])


def test_arrays_of_earlier_versions_are_used(cache: Path) -> None:
    build()
    path = folder(cache) / "meta.json"
    meta = json.loads(path.read_text())
    del meta["bytes"]
    path.write_text(json.dumps(meta))
    build()
    assert json.loads(path.read_text()) == meta


def test_what_a_killed_build_left_is_removed(cache: Path) -> None:
    build()
    leftover = folder(cache).with_name(f".{folder(cache).name}.killed")
    leftover.mkdir()
    (folder(cache) / "meta.json").unlink()
    build()
    assert not leftover.exists()
    assert json.loads((folder(cache) / "meta.json").read_text())["format"] == 2


def test_the_cache_lies_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_cache("tokens", "x") == tmp_path / "cache" / "tokens" / "x"
    monkeypatch.delenv("LAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert in_cache("tokens", "x") == tmp_path / "xdg" / "scaling-lab" / "tokens" / "x"


def test_a_cache_that_cannot_be_written_says_which_variable_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("LAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(LabError, match="cannot be made: Not a directory; set LAB_CACHE to"):
        in_cache("tokens", "x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "read-only"))
    (tmp_path / "read-only" / "scaling-lab" / "tokens").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK and Path(path).exists())
    with pytest.raises(LabError, match="tokens: cannot be written; set LAB_CACHE to"):
        in_cache("tokens", "x")


def test_a_shared_cache_is_only_read_and_what_it_lacks_is_made_in_the_own_one(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    shared = build()
    before = sorted(cache.rglob("*"))
    allowed = os.access

    def access(path: Path, mode: int) -> bool:  # as root may write everywhere
        return allowed(path, mode) and not (mode & os.W_OK and path.is_relative_to(cache))

    monkeypatch.setattr(os, "access", access)
    assert build().folder == shared.folder
    own = build(DOCUMENTS[:3])
    assert own.folder.parent == tmp_path / "xdg" / "scaling-lab" / "tokens"
    assert sorted(cache.rglob("*")) == before


@given(st.text(max_size=300), st.integers(1, 50))
def test_pieces_make_up_the_text(text: str, size: int) -> None:
    pieces = corpora.split_pieces(text, size)
    assert "".join(pieces) == text
    assert all(len(piece) <= 2 * size for piece in pieces)


def test_the_standard_library_is_real_text_without_tests() -> None:
    corpus = corpora.read_stdlib(None, Path(), quiet)
    assert 2e6 < sum(map(len, corpus.documents)) < 2e7
    assert not any("class TestCase_" in document for document in corpus.documents)
    assert corpus.description.startswith(
        f"{len(corpus.documents)} files of the standard library of Python 3."
    )


def test_a_text_is_described_with_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(DOCUMENTS))
    run = Run(global_batch_size=1, data={"kind": "text", "path": "text.txt", "vocab_size": 300})
    dataset = data.prepare(run, data_root=tmp_path, progress=quiet)
    tokens = len(dataset.train) + len(dataset.held_out) + 2 * run.architecture.block_size
    count = f"{tokens / 1e6:.3g}M tokens"
    assert dataset.description == f"1 text file of text.txt, {count}, vocabulary 300"


def test_too_little_text_is_a_problem_of_the_input(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    run = Run(global_batch_size=1, data={"kind": "text", "path": "short.txt", "vocab_size": 300})
    with pytest.raises(InputError, match=r"a sample of this model needs 129.*more text"):
        data.prepare(run, data_root=tmp_path, progress=quiet)
