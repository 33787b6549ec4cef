"""How many ranks a row has where no column says it: by its nodes, by its way to run (`serial`, `mpi`), or by the ranks there are."""

from __future__ import annotations

import re

import pandas as pd

from lab.analysis.wide import PARALLEL, SERIAL, WORDS

TOKEN = re.compile(r"[^a-z0-9]+")


def of_nodes(tidy: pd.DataFrame) -> list[str]:
    """Fill `world_size` from the nodes and the ranks on each, in place; what was assumed, empty where nodes tell nothing."""
    if tidy["per_node"].notna().any():
        tidy["world_size"] = tidy["nodes"].fillna(1.0) * tidy["per_node"]
        return ["the ranks are the nodes times those on each"]
    if tidy["nodes"].nunique() < 2:
        return []
    tidy["world_size"] = tidy["nodes"]
    return ["how many ranks a node has is not said, and a node counts as one"]


def of_ranks(tidy: pd.DataFrame) -> list[str]:
    """Fill `world_size` with the number of ranks that have rows, in place; what was assumed, empty where there is one at most."""
    ranks = tidy["rank"].dropna().nunique()
    if ranks < 2:
        return []
    tidy["world_size"] = float(ranks)
    return [f"the {ranks} ranks that have rows are all of them"]


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
