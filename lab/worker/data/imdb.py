"""The large movie review data set: good and bad reviews of films (Maas et al., 2011)."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

from lab.errors import LabError
from lab.jobs.place import Progress
from lab.worker.data.downloads import Download, fetch
from lab.worker.data.texts import Source, Texts

ARCHIVE = Download(
    name="IMDB",
    url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    file="aclImdb_v1.tar.gz",
    size=84_125_825,
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
CLASSES = ("neg", "pos")
_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/[^/]+\.txt")


def source(*, progress: Progress) -> Source:
    """The reviews; raises LabError where they cannot be had or are not what was published."""
    path = fetch(ARCHIVE, instead="topics", progress=progress)
    return Source(f"imdb {ARCHIVE.sha256}", "IMDB", len(CLASSES), lambda: _read(path))


def _read(path: Path) -> tuple[Texts, Texts]:
    """The labelled reviews of the archive in the order of their names; nothing of it is written to disk."""
    found: dict[str, list[tuple[str, str, int]]] = {"train": [], "test": []}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            place = _REVIEW.fullmatch(member.name)
            content = archive.extractfile(member) if place and member.isfile() else None
            if place and content:
                text = content.read().decode("utf-8").replace("<br />", " ")
                found[place[1]].append((member.name, text, CLASSES.index(place[2])))
    if not all(found.values()):
        raise LabError(f"{path} holds no reviews where they should be: aclImdb/train/pos and the like")
    train, test = (Texts([text for _, text, _ in rows], [label for *_, label in rows]) for rows in map(sorted, found.values()))
    return train, test
