"""Files beyond a study's own: what it may read, what is downloaded for it, and where caches lie."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.config.datasets import Text
from lab.config.run import Run
from lab.config.study import OUT
from lab.errors import InputError, nearest


@dataclass(frozen=True)
class Download:
    """A file as it was published."""

    name: str  # for messages
    url: str
    file: str  # its name in the cache
    size: int  # bytes
    sha256: str


SHAKESPEARE = Download(
    name="Tiny Shakespeare",
    url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    file="tinyshakespeare.txt",
    size=1_115_394,
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
_AG_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
AG_NEWS_TRAIN = Download(
    name="AG News (train)",
    url=f"{_AG_NEWS}/train.csv",
    file="ag_news_train.csv",
    size=29_470_338,
    sha256="76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
)
AG_NEWS_TEST = Download(
    name="AG News (test)",
    url=f"{_AG_NEWS}/test.csv",
    file="ag_news_test.csv",
    size=1_857_427,
    sha256="521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
)
IMDB = Download(
    name="IMDB",
    url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    file="aclImdb_v1.tar.gz",
    size=84_125_825,
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
# As mirrored for torchvision, as the site of LeCun, Cortes and Burges no longer serves them.
# torchvision.datasets.MNIST checks only MD5, and takes no lock if several ranks need the files.
_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
_MNIST_FILES = """
train-images-idx3-ubyte.gz 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
train-labels-idx1-ubyte.gz 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
t10k-images-idx3-ubyte.gz 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
t10k-labels-idx1-ubyte.gz 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
"""
MNIST = tuple(
    Download(f"MNIST ({file})", f"{_MNIST_URL}/{file}", f"mnist-{file}", int(size), sha256)
    for file, size, sha256 in map(str.split, _MNIST_FILES.split("\n")[1:-1])
)
# By the kind of data that needs them; the others need none.
DOWNLOADS = {
    "shakespeare": (SHAKESPEARE,),
    "ag_news": (AG_NEWS_TRAIN, AG_NEWS_TEST),
    "imdb": (IMDB,),
    "mnist": MNIST,
}


MAX_BYTES = 2**30


def cache_roots(variables: Mapping[str, str] = os.environ) -> list[Path]:
    """Where downloads and prepared data lie: LAB_CACHE, then the user's own cache folder."""
    user = Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scaling-lab"
    named = variables.get("LAB_CACHE")
    return [Path(named), user] if named else [user]


def text_roots(data_root: Path) -> list[Path]:
    """The folders that may hold text: the study's own, then those of LAB_DATA_PATH in order."""
    folders = os.environ.get("LAB_DATA_PATH", "").split(os.pathsep)
    return [data_root.resolve(), *(Path(folder).resolve() for folder in folders if folder)]


def resolve_text(path: str, data_root: Path) -> Path:
    """The file or folder of texts at `path`, absolute or below one of `text_roots`.

    Links are followed first, so that none leads outside. Raises InputError if it is outside,
    missing or unreadable.
    """
    return _resolve(path, data_root, source="data", key="path", noun="text")


def resolve_weights(path: str, data_root: Path) -> Path:
    """The folder of a model's weights at `path`, under the same rules."""
    return _resolve(path, data_root, source="model", key="weights", noun="folder")


def resolve_inputs(run: Run, data_root: Path) -> None:
    """Raise InputError for the first path of a run that cannot be used."""
    if isinstance(run.dataset, Text):
        resolve_text(run.dataset.path, data_root)
    weights = getattr(run.architecture, "weights", None)
    if weights is not None:
        resolve_weights(weights, data_root)


def _resolve(path: str, data_root: Path, *, source: str, key: str, noun: str) -> Path:
    roots = text_roots(data_root)
    what = f"{path!r} lies outside the study's folder"
    variable = "the environment variable LAB_DATA_PATH"
    advice = f"move the {noun} below {roots[0]}, or name its folder in {variable}"
    try:
        places = [(root / path).resolve() for root in roots]
        inside = [place for place in places if _is_inside(place, roots)]
        existing = [place for place in inside if place.exists()]
        if existing and os.access(existing[0], os.R_OK):
            return existing[0]
        if existing:
            what, advice = f"{path!r} is not readable", "change its permissions"
        elif inside:
            names = [entry.name for entry in inside[0].parent.glob("*")]
            what = f"{path!r}: no such file or folder"
            advice = nearest(inside[0].name, names)
    except (OSError, RuntimeError, ValueError) as error:
        what, advice = f"{path!r} cannot be read: {error}", "name a readable file or folder"
    raise InputError.of(source, key, what, advice)


def read_texts(path: str, data_root: Path) -> list[str]:
    """The UTF-8 texts of a file, or of all files below a folder in the order of their paths.

    Hidden entries, the study's own output, binary files, and links that lead outside the allowed
    folders are left out. Raises InputError if nothing is left, or more than MAX_BYTES.
    """
    place = resolve_text(path, data_root)
    roots = text_roots(data_root)
    files = [
        file
        for file in _files(place, out=data_root.resolve() / OUT)
        if file.is_file() and _is_inside(file.resolve(), roots)  # a loop of links is not a file
    ]
    size = sum(file.stat().st_size for file in files)
    if size > MAX_BYTES:
        what = f"{path!r} holds {size / 1e9:.1f} GB of files"
        advice = f"use at most {MAX_BYTES / 1e9:.1f} GB"
        raise InputError.of("data", "path", what, advice)
    texts = [text for text in map(_text, files) if text]
    if not texts:
        raise InputError.of(
            "data", "path", f"{path!r} holds no UTF-8 text", "name a folder with text files"
        )
    return texts


def _is_inside(place: Path, roots: list[Path]) -> bool:
    return any(place.is_relative_to(root) for root in roots)


def _files(place: Path, *, out: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for folder, names, files in os.walk(place):
        names[:] = sorted(
            name for name in names if not name.startswith(".") and Path(folder, name) != out
        )
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _text(file: Path) -> str:
    """A file's content, or nothing if it is not text."""
    try:
        text = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if "\0" in text else text
