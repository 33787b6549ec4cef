"""Tables whose rows are ways to run (`serial`, `mpi`, `cuda`, `mpi+cuda`): how many ranks each has, and on what."""

from __future__ import annotations

import re

import pandas as pd

from lab.analysis.wide import PARALLEL, SERIAL, WORDS

TOKEN = re.compile(r"[^a-z0-9]+")


def place(tidy: pd.DataFrame, hint: tuple[int, str] | None) -> list[str]:
    """Fill `world_size` from the words of `strategy`, in place; what was assumed, empty where the words do not tell."""
    names = [str(name).lower() if name is not None else "" for name in tidy["strategy"]]
    parallel = [any(re.fullmatch(PARALLEL, token) for token in TOKEN.split(name)) for name in names]
    if not any(parallel) or all(parallel):
        return []
    sizes = [
        float(_number(name) or (hint[0] if hint else 0)) if many else 1.0 for name, many in zip(names, parallel, strict=True)
    ]
    tidy["world_size"] = [size if size else float("nan") for size in sizes]
    told = f"{hint[0]} ranks by {hint[1]}" if hint else "an unknown number of ranks"
    many = ", ".join(dict.fromkeys(repr(name) for name, flag in zip(names, parallel, strict=True) if flag))
    return [f"{many} ran on {told}, the others on 1"]


def residue(strategy: str) -> frozenset[str]:
    """The words of a strategy that say what it runs on: without those for parallel, serial and counts of ranks."""
    words = {
        token for token in TOKEN.split(strategy.lower()) if token and not re.fullmatch(rf"\d+|x\d+|{PARALLEL}|{SERIAL}", token)
    }
    return frozenset(words - {"gpu", "gpus", "gpu_s", "baseline", "no", "s", "with", "without", *WORDS})


def _number(name: str) -> int | None:
    found = re.search(r"(\d{1,6})\s*x?\s*[-_ ]?(?:gpus?|ranks?|procs?|process|x)|x(\d{1,6})", name)
    return int(found[1] or found[2]) if found else None
