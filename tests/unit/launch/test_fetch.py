"""Data in the cache before ranks need it, and its absence said before anything is submitted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from studies import SMALL_STUDY, StudyMaker

import lab
from lab.config.cluster import Cluster
from lab.config.paths import DOWNLOADS
from lab.config.study import Study
from lab.launch import preflight

SITE = {"executor": "slurm", "gpus_per_node": 2, "nodes": 2}


def site(**keys: object) -> Cluster:
    return Cluster.model_validate({"name": "site", **SITE, **keys})


def test_data_is_prepared_where_the_profile_says(
    make_study: StudyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    before = dict(os.environ)
    study = Study.load(make_study())
    cluster = site(environment={"LAB_CACHE": "$SCRATCH/cache"})
    (fetched,) = lab.fetch(study, cluster, progress=False)
    assert "corpus.txt" in fetched.holds and len(fetched.sha256) == 64
    tokens = [path for path in (tmp_path / "scratch/cache/tokens").iterdir() if path.is_dir()]
    assert len(tokens) == 1 and dict(os.environ) == before
    assert lab.fetch(study, cluster, progress=False) == [fetched]


def test_downloads_that_nodes_would_lack_are_named_with_the_command(
    make_study: StudyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = {**SMALL_STUDY["base"], "data": "shakespeare"}  # type: ignore[dict-item]
    study = Study.load(make_study(base=base))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cluster = site(environment={"LAB_CACHE": str(tmp_path / "cache")})
    (problem,) = preflight._not_fetched(study, cluster, study.tasks)
    assert problem.where == "data" and f"shakespeare (1 MB) is not in {tmp_path}" in problem.what
    assert "`lab fetch " in problem.advice and "--cluster site" in problem.advice
    elsewhere = cluster.model_copy(update={"file": "/site/profiles/site.yaml"})
    (problem,) = preflight._not_fetched(study, elsewhere, study.tasks)
    assert "--cluster /site/profiles/site.yaml" in problem.advice
    (download,) = DOWNLOADS["shakespeare"]
    for cache in ("cache", "xdg/scaling-lab"):
        path = tmp_path / cache / "downloads" / download.file
        path.parent.mkdir(parents=True)
        path.touch()
        assert not list(preflight._not_fetched(study, cluster, study.tasks))
        path.unlink()
    unknown = site(environment={"LAB_CACHE": "$ONLY_ON_NODES/cache"})
    assert not list(preflight._not_fetched(study, unknown, study.tasks))
    assert not list(preflight._not_fetched(study, Cluster(name="here"), study.tasks))
