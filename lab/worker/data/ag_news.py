"""AG's news: titles and first sentences of news items of four topics (Zhang, Zhao and LeCun, 2015)."""

from __future__ import annotations

import csv
from pathlib import Path

from lab.errors import LabError
from lab.jobs.place import Progress
from lab.worker.data.downloads import Download, fetch
from lab.worker.data.texts import Source, Texts

_ROOT = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
TRAIN = Download(
    name="AG News (train)",
    url=f"{_ROOT}/train.csv",
    file="ag_news_train.csv",
    size=29_470_338,
    sha256="76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
)
TEST = Download(
    name="AG News (test)",
    url=f"{_ROOT}/test.csv",
    file="ag_news_test.csv",
    size=1_857_427,
    sha256="521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
)
CLASSES = ("world", "sports", "business", "science and technology")


def source(*, progress: Progress) -> Source:
    """The news items; raises LabError where they cannot be had or are not what was published."""
    train, test = (fetch(part, instead="topics", progress=progress) for part in (TRAIN, TEST))
    return Source(
        fingerprint=f"ag_news {TRAIN.sha256} {TEST.sha256}",
        description="AG News",
        classes=len(CLASSES),
        read=lambda: (_read(train), _read(test)),
    )


def _read(path: Path) -> Texts:
    """Rows of class (from 1), title, description; raises LabError for a row that is none."""
    texts, labels = [], []
    with path.open(encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.reader(stream), start=1):
            if len(row) != 3 or row[0] not in {"1", "2", "3", "4"}:
                raise LabError(f"{path}: row {number} is not a class from 1 to 4, a title and a description")
            labels.append(int(row[0]) - 1)
            texts.append(f"{row[1]} {row[2]}".replace("\\", " "))
    return Texts(texts, labels)
