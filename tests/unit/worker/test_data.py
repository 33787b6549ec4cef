"""Data sets: published files from a local server, the offline ones, and loaders that agree."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pretrained_folders
import pytest
import torch

from lab.config.datasets import Corpora, Data, Images, LabelledTexts
from lab.config.paths import Download
from lab.config.run import Run
from lab.errors import LabError
from lab.worker import data
from lab.worker.data import images, labelled
from lab.worker.data.dataset import Batch, ClassicLoader, Dataset, FastLoader, Labelled, Windows
from lab.worker.data.labelled import Source, Texts

CLASSIFIER = {"kind": "text-classifier", "layers": 1, "heads": 2, "width": 32, "block_size": 24}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))


def quiet(*progress: object) -> None:
    pass


def prepare(model: Any, name: Any, **fields: Any) -> Dataset:
    return data.prepare(
        Run(model=model, data=name, global_batch_size=4, **fields), data_root=Path(), progress=quiet
    )


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Site:
    """Serves files under their published names and knows their checksums."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def publish(self, download: Download, content: bytes) -> Download:
        (self.folder / download.file).write_bytes(content)
        url = f"http://127.0.0.1:{self.port}/{download.file}"
        return replace(
            download, url=url, size=len(content), sha256=hashlib.sha256(content).hexdigest()
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "www").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www")))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield Site(tmp_path / "www", server.server_port)
    server.shutdown()
    server.server_close()


def _rows(count: int) -> bytes:
    stream = io.StringIO()
    words = ("war", "match", "shares", "chip")
    csv.writer(stream, quoting=csv.QUOTE_ALL).writerows(
        [
            number % 4 + 1,
            f"{words[number % 4]}, again",
            f'a "{words[number % 4]}" \\of number {number}',
        ]
        for number in range(count)
    )
    return stream.getvalue().encode()


def test_every_kind_of_data_has_a_reader() -> None:
    readers = {
        kind
        for family in ("corpora", "labelled", "images")
        for kind in importlib.import_module(f"lab.worker.data.{family}").SOURCES
    }
    kinds = {config.model_fields["kind"].default: config for config in get_args(Data)}
    del kinds["script"]  # which reads its own
    assert readers | {"synthetic", "python"} == set(kinds)
    for kind, config in kinds.items():
        module = data.module_of(config)
        assert kind in {"synthetic", "python"} or kind in module.SOURCES


def test_every_kind_of_data_is_in_the_union_of_its_family() -> None:
    families = {"corpora": Corpora, "labelled": LabelledTexts, "images": Images}
    for name, union in families.items():
        family = [kind for kind in get_args(Data) if data.module_of(kind).__name__.endswith(name)]
        assert set(family) == set(get_args(union))
        if name != "corpora":
            assert all(kind.classes >= 2 for kind in family)


def test_ag_news_as_published(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelled, "AG_NEWS_TRAIN", site.publish(labelled.AG_NEWS_TRAIN, _rows(80)))
    monkeypatch.setattr(labelled, "AG_NEWS_TEST", site.publish(labelled.AG_NEWS_TEST, _rows(12)))
    dataset = prepare(CLASSIFIER, {"kind": "ag_news", "vocab_size": 300})
    assert (
        len(dataset.train),
        len(dataset.held_out),
        dataset.classes,
        dataset.tokens_per_sample,
    ) == (
        80,
        12,
        4,
        24,
    )
    assert dataset.train.take(np.arange(8))[1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert dataset.description == "AG News, 80 texts and 12 held out, vocabulary 300"
    (site.folder / labelled.AG_NEWS_TRAIN.file).unlink()  # the network is not asked twice
    assert prepare(CLASSIFIER, {"kind": "ag_news", "vocab_size": 300}).sha256 == dataset.sha256


def test_imdb_as_published(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for part, number, sentiment in [
            ("train", 1, "pos"),
            ("train", 0, "neg"),
            ("train", 2, "unsup"),
            ("test", 0, "pos"),
        ]:
            content = f"a {sentiment} film<br /><br />number {number}".encode()
            member = tarfile.TarInfo(f"aclImdb/{part}/{sentiment}/{number}_7.txt")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        archive.addfile(tarfile.TarInfo("../../train/pos/evil.txt"))
    monkeypatch.setattr(labelled, "IMDB", site.publish(labelled.IMDB, stream.getvalue()))
    train, test = labelled.imdb(quiet).read()
    assert (list(train.texts), list(train.labels)) == (
        ["a neg film  number 0", "a pos film  number 1"],
        [0, 1],
    )
    assert (list(test.texts), list(test.labels)) == (["a pos film  number 0"], [1])


def _idx(content: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, content.ndim]) + b"".join(
        size.to_bytes(4, "big") for size in content.shape
    )
    return gzip.compress(header + content.astype(np.uint8).tobytes())


def test_mnist_as_published(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    arrays = [
        part
        for count in (30, 10)
        for part in (draw.integers(0, 256, (count, 28, 28)), draw.integers(0, 10, count))
    ]
    published = tuple(
        site.publish(file, _idx(array)) for file, array in zip(images.MNIST, arrays, strict=True)
    )
    monkeypatch.setattr(images, "MNIST", published)
    dataset = prepare("resnet18", "mnist")
    inputs, labels = dataset.train.take(np.arange(30))
    assert (
        np.array_equal(inputs[:, 0], arrays[0])
        and inputs.dtype == np.uint8
        and np.array_equal(labels, arrays[1])
    )
    assert np.array_equal(dataset.held_out.take(np.arange(10))[0][:, 0], arrays[2])
    assert (dataset.channels, dataset.classes, dataset.tokens_per_sample) == (1, 10, None)


@pytest.mark.parametrize(
    ("model", "name", "instead"),
    [
        (CLASSIFIER, "ag_news", "topics"),
        (CLASSIFIER, "imdb", "topics"),
        ("resnet18", "mnist", "digits"),
    ],
)
def test_without_a_network_nothing_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, model: Any, name: str, instead: str
) -> None:
    gone = "http://127.0.0.1:9/gone"
    monkeypatch.setattr(labelled, "AG_NEWS_TRAIN", replace(labelled.AG_NEWS_TRAIN, url=gone))
    monkeypatch.setattr(labelled, "IMDB", replace(labelled.IMDB, url=gone))
    monkeypatch.setattr(images, "MNIST", tuple(replace(file, url=gone) for file in images.MNIST))
    with pytest.raises(LabError, match=rf"cannot be downloaded.*put it at.*data: {instead}"):
        prepare(model, name)


def test_a_server_that_answers_nonsense_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(10_000)
                client.sendall(b"not HTTP at all\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/file"
        monkeypatch.setattr(labelled, "IMDB", replace(labelled.IMDB, url=url))
        with pytest.raises(LabError, match="cannot be downloaded"):
            prepare(CLASSIFIER, "imdb")


def test_topics_are_balanced_and_parts_share_no_piece() -> None:
    train, held_out = labelled.topics(quiet).read()
    for part in (train, held_out):
        assert len(set(np.bincount(part.labels))) == 1 and set(part.labels) == {0, 1, 2, 3}
    assert len(held_out.texts) / len(train.texts) == pytest.approx(1 / 9, rel=0.05)
    assert len(train.texts) > 2000 and min(map(len, train.texts)) >= labelled.PIECE
    everything = "".join(train.texts)
    assert "import asyncio" in everything and "class TestCase_" not in everything


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits  # takes long, also where tests are only collected

    dataset = prepare("resnet18", "digits")
    assert (len(dataset.train), len(dataset.held_out), dataset.channels, dataset.classes) == (
        1617,
        180,
        1,
        10,
    )
    assert isinstance(dataset.train, Labelled) and isinstance(dataset.held_out, Labelled)
    reference = load_digits()
    everything = np.concatenate([dataset.train.inputs, dataset.held_out.inputs])
    assert (
        everything.max() == 255 and everything.sum() == np.round(reference.images * 255 / 16).sum()
    )
    assert set(dataset.held_out.labels) == set(range(10))


def test_synthetic_data_follow_seed_and_sizes() -> None:
    first, again, other = (
        prepare(
            CLASSIFIER,
            {"kind": "synthetic", "samples": 50, "vocab_size": 64, "classes": 3, "seed": seed},
        )
        for seed in (0, 0, 1)
    )
    assert first.sha256 == again.sha256 != other.sha256
    assert (len(first.train), len(first.held_out)) == (45, 5)
    inputs, labels = first.train.take(np.arange(45))
    assert (
        inputs.shape == (45, 24)
        and inputs.min() > 0
        and inputs.max() < 64
        and set(labels) == {0, 1, 2}
    )
    pictures = prepare(
        "resnet18", {"kind": "synthetic", "samples": 20, "channels": 2, "image_size": 6}
    )
    assert pictures.train.take(np.arange(3))[0].shape == (3, 2, 6, 6) and pictures.channels == 2
    stream = prepare(
        {"kind": "gpt", "layers": 1, "heads": 1, "width": 8, "block_size": 16},
        {"kind": "synthetic", "samples": 20},
    )
    assert len(stream.train) > 0 and len(stream.held_out) > 0 and stream.tokens_per_sample == 16


def _source(count: int = 40) -> Source:
    rows = [f"def self the {'x ' * (number % 30)} import {number}" for number in range(count)]
    parts = Texts(rows, [number % 2 for number in range(count)]), Texts(rows[:4], [0, 1, 0, 1])
    return Source(f"rows {count}", "rows", lambda: parts)


def _tokenized(
    source: Source, *, pretrained: Path | None = None, block_size: int = 8, loader: str = "fast"
) -> Dataset:
    """What a run gets of a source of texts."""
    run = Run(
        model=CLASSIFIER | {"block_size": block_size},
        data={"kind": "topics", "vocab_size": 300},
        global_batch_size=4,
        loader=loader,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(labelled.SOURCES, "topics", lambda progress: source)
        return labelled.prepare(run, pretrained=pretrained, data_root=Path(), progress=quiet)


def test_texts_are_cut_and_padded_to_one_length(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    pretrained_folders.tokenizer(tmp_path / "encoder", close=True)
    dataset = _tokenized(_source(), pretrained=tmp_path / "encoder")
    inputs, labels = dataset.train.take(np.array([0, 29]))
    words = [[pretrained_folders.WORDS[token] for token in row] for row in inputs]
    assert words[0] == ["[CLS]", "def", "self", "the", "import", "[UNK]", "[SEP]", "[PAD]"]
    assert words[1] == ["[CLS]", "def", "self", "the", "x", "x", "x", "[SEP]"]
    assert labels.tolist() == [0, 1] and dataset.pad == 0


def test_texts_in_the_cache_are_not_read_again() -> None:
    dataset = _tokenized(_source())

    def refuse() -> Any:
        raise AssertionError("read again")

    assert _tokenized(replace(_source(), read=refuse)).sha256 == dataset.sha256
    assert _tokenized(_source(), block_size=9).sha256 != dataset.sha256


@pytest.mark.parametrize("workers", [0, 2])
def test_both_loaders_give_the_same_samples_in_the_same_order(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = _tokenized(_source(), loader="classic")
    fields = {
        "loader": "classic",
        "loader_workers": workers,
        "steps": 12,
        "grad_accum": 2,
        "world_size": 2,
    }
    run = Run(model=CLASSIFIER, data="topics", global_batch_size=8, **fields)
    for rank in range(2):
        fast, classic = (
            loader(dataset.train, run=run, rank=rank) for loader in (FastLoader, ClassicLoader)
        )
        for step in range(12):  # more than two epochs
            for micro in range(2):
                one, other = fast.micro_batch(step, micro), classic.micro_batch(step, micro)
                assert one.inputs.equal(other.inputs) and one.targets.equal(other.targets)
                assert (
                    one.inputs.dtype == other.inputs.dtype
                    and one.targets.dtype == other.targets.dtype
                )
        classic.close()
        classic.close()


def test_the_classic_loader_tokenizes_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    indices: list[int] = []
    monkeypatch.setattr(
        labelled,
        "_encode_one",
        lambda tokenizer, texts, index: indices.append(index) or np.zeros(8, dtype=np.int64),
    )
    dataset = _tokenized(_source(), loader="classic")
    run = Run(model=CLASSIFIER, data="topics", global_batch_size=4, loader="classic")
    ClassicLoader(dataset.train, run=run, rank=0).micro_batch(0, 0)
    assert len(indices) == 4
    FastLoader(dataset.train, run=run, rank=0).micro_batch(0, 0)
    assert len(indices) == 4


def test_what_is_pinned_has_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []
    # Without a GPU torch refuses to pin.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    windows = Windows(np.arange(40, dtype=np.uint16), block_size=8)
    inputs, targets = map(torch.as_tensor, windows.take(np.arange(4)))
    assert not inputs.is_contiguous()
    batch = Batch(inputs, targets).pin_memory()
    assert all(tensor.is_contiguous() for tensor in pinned) and len(pinned) == 2
    assert batch.inputs.equal(inputs) and batch.targets.equal(targets)
