"""How many ranks each row of a table stands for, and its batches, however the table gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lab.analysis.audit import columns
from lab.analysis.audit.columns import LAYOUT, MEASURED, RATIOS, Guess, normal, parse_name
from lab.analysis.audit.keys import MOST_VALUES
from lab.analysis.audit.quantities import SERIAL, as_texts
from lab.analysis.audit.values import COUNTED_UNITS, NEARLY, numbers, ranks_of

AFTER_WORD = "parallel|open_?mp|omp|mpi|threads|workers|multi-?process(?:ing)?"
SIZES = re.compile(r"\d+(?:\s*[x×*]\s*\d+)+")  # of images, or nodes and ranks
DEGREE = r"(?<![a-z])%s[ =:_-]?(\d{1,5})(?![\d.])"
ON_CORES = re.compile(r"(?:^|_)(?:mpi\w*|ranks?|n?tasks?|n?proc\w*|np|p|n|world_?size)(?=_|$)")
OF_A_RANK = re.compile(r"(?!.*_per_)|.*_per_(?:rank|task|proc|mpi)")  # not of a block, say
OF_A_NODE = re.compile(r"per_node(?:_|$)")
WORKERS = {"threads", "cpus", "strategy", "loader_workers"}  # which may count ranks
FEW = 2  # numbers of cores that tell nothing
MOSTLY = 0.5  # of the rows
Degrees = np.ndarray[Any, np.dtype[np.float64]]


def world_size(tidy: pd.DataFrame, hint: tuple[int, str] | None) -> tuple[pd.Series | float, str]:
    """World sizes by nodes, strategies or ranks, and what that assumes; NaN and "" if unknown."""
    if tidy["per_node"].count() > 0:
        ranks = tidy["nodes"].fillna(1.0) * tidy["per_node"]
        return ranks, "the ranks are the nodes times the ranks per node"
    if tidy["dp"].count() > 0:
        ranks = tidy[["dp", *LAYOUT]].prod(axis=1, min_count=1)
        return ranks, "the ranks are the product of the degrees of parallelism"
    total = tidy["rate"] / tidy["rate_per_rank"]
    if _are_counts(total.dropna()):
        return total.round(), "the ranks are the total rate over that of a rank"
    if tidy["nodes"].nunique() > 1:
        return tidy["nodes"], "the table does not give the ranks per node, so a node counts as one"
    if tidy["ratio_over"].count() > 0:
        return np.nan, ""  # of programs that are compared in each row
    if tidy["strategy"].count() > 0 and (counts := _by_strategies(tidy["strategy"], hint)):
        return counts
    count = tidy["rank"].nunique()
    if count > 1:
        return float(count), f"the {count} ranks that have rows are taken for all"
    return np.nan, ""


def _by_strategies(
    strategies: pd.Series, hint: tuple[int, str] | None
) -> tuple[pd.Series, str] | None:
    """World sizes where strategies run on one rank or on several, by their names."""
    names = strategies.fillna("").map(lambda name: normal(name).replace("_", " "))
    parallel = names.map(columns.is_parallel).astype(bool)
    counted = r"gpus?|ranks?|procs?|process(?:es)?|threads?|cores?|workers?|x"
    number = rf"(\d{{1,6}})\s*x?\s*[-_ ]?(?:{counted})|x(\d{{1,6}})"
    number += rf"|^(?:{AFTER_WORD})[-_ (=]*(\d{{1,4}})\)?$"
    counts = names.str.extract(number).bfill(axis=1)[0].astype(float)
    counts = counts.where(counts > 0)
    parallel |= counts > 1
    kinds = {columns.residue(name) for name in names[parallel].unique()}
    serial = names.map(lambda name: columns.is_serial(name) or columns.residue(name) in kinds)
    if not parallel.any() or parallel.all() or not (parallel | serial).all():
        return None
    unnamed = parallel & counts.isna()
    counts = counts.where(~unnamed, hint[0] if hint else np.nan)
    many = ", ".join(repr(name) for name in strategies[parallel].str.lower().unique())
    number = f"{hint[0]} ranks by {hint[1]}" if hint else "an unknown number of ranks"
    if not unnamed.any():
        number = "as many ranks as their names say"
    return counts.where(parallel, 1.0), f"{many} ran on {number}, the others on 1"


def _are_counts(values: pd.Series) -> bool:
    """Whether numbers are whole but for their rounding."""
    whole = values.round()
    exact = (values / whole - 1).abs() < NEARLY
    return len(values) > 0 and bool(((whole >= 2) & exact).all())


def of_a_node(tidy: pd.DataFrame, given: dict[str, str]) -> Iterator[str]:
    """Take ranks as those of each node if some rows have fewer of them than nodes, and say so,
    unless they are the quoted speedups over the efficiencies."""
    if "per_node" in given or "nodes" not in given:
        return
    if not (tidy["world_size"] < tidy["nodes"]).any():
        return
    if not _are_quoted(tidy["world_size"], tidy["speedup"], tidy["efficiency"]):
        tidy["per_node"], tidy["world_size"] = tidy["world_size"], np.nan
        given["per_node"] = name = given.pop("world_size")
        yield f"{name!r} counts the ranks of each node, as there are fewer than nodes"


def _are_quoted(counts: pd.Series, speedups: pd.Series, efficiencies: pd.Series) -> bool:
    """Whether most quoted speedups over their efficiencies are these numbers."""
    return bool(((speedups / efficiencies / counts - 1).abs() < NEARLY).mean() > MOSTLY)


def degrees(tidy: pd.DataFrame, given: dict[str, str]) -> None:
    """Enter degrees of parallelism: those that strategies name, such as dp2+tp2+pp4, if no column
    gives any, and the data parallelism of hybrid sharding, replicas times shards."""
    if "strategy" in given and not set(given) & {"dp", *LAYOUT}:
        words = tidy["strategy"].fillna("").astype(str).str.lower()
        named = {name: words.str.extract(DEGREE % name, expand=False) for name in ("dp", *LAYOUT)}
        known = {name: cells for name, cells in named.items() if cells.count() > 0}
        for name, cells in known.items() if len(known) > 1 else ():  # one may be of anything
            tidy[name], given[name] = cells.astype(float), given["strategy"]
    if "dp" not in given and {"dp_replicate", "dp_shard"} <= set(given):
        tidy["dp"], given["dp"] = tidy["dp_replicate"] * tidy["dp_shard"], given["dp_shard"]


def rates_of_each(tidy: pd.DataFrame, given: dict[str, str]) -> Iterator[str]:
    """Take rates as those of each rank if most quoted efficiencies are ratios of them, and say so,
    as a total rate would have to grow with the ranks."""
    if "rate_per_rank" in given or not {"rate", "efficiency"} <= set(given):
        return
    keys = [name for name in tidy.columns if name.startswith("key:")]
    rows = tidy.sort_values("world_size")
    first = rows.groupby(keys or (lambda row: 0))[["world_size", "rate"]].transform("first")
    rows = rows[rows["world_size"] > first["world_size"]]
    ratios = rows["rate"] / first["rate"].loc[rows.index]
    alike = (ratios / rows["efficiency"] - 1).abs().dropna() < NEARLY
    if len(alike) and alike.mean() > MOSTLY and ratios.median() <= 1 + NEARLY:
        tidy["rate_per_rank"], tidy["rate"] = tidy["rate"], tidy["rate"] * tidy["world_size"]
        tidy["rate_per_rank_rounding"] = tidy["rate_rounding"]
        tidy["rate_std"] *= tidy["world_size"]
        given["rate_per_rank"] = name = given.pop("rate")
        yield f"{name!r} is that of each rank, as the quoted efficiencies are its ratios"


def rates_of_nodes(tidy: pd.DataFrame, given: Mapping[str, str]) -> None:
    """Divide rates such as "tokens/s/node" by the ranks of a node, NaN where these are unknown."""
    if OF_A_NODE.search(normal(given.get("rate_per_rank", ""))):
        tidy["rate_per_rank"] /= tidy["per_node"].fillna(tidy["world_size"] / tidy["nodes"])


def hybrid(tidy: pd.DataFrame, given: Mapping[str, str]) -> Iterator[str]:
    """Take cores for ranks if ranks on cores have various numbers of threads, and say so.

    The threads of a rank are then its strategy, where the table gives no other. `cores_per_rank`
    are the threads of each row's ranks, NaN where they do not count cores.
    """
    tidy["cores_per_rank"] = np.nan
    if "threads" not in given:
        return
    ranks = given.get("world_size", given.get("per_node", ""))
    threads = numbers(tidy["threads"])
    on_cores = ON_CORES.search(normal(ranks)) and "gpu" not in normal(ranks)
    of_a_rank = OF_A_RANK.match(normal(given["threads"]))
    known = threads.dropna()  # a program on a GPU has none
    whole = bool(((known >= 1) & (known % 1 == 0)).all())
    if not on_cores or not of_a_rank or not whole:
        return
    tidy["cores_per_rank"] = threads
    if threads.nunique() < 2:
        return
    cores = tidy["world_size"].fillna(tidy["nodes"].fillna(1.0) * tidy["per_node"]) * threads
    own = "world_size" not in given or cores[tidy["speedup"] == 1].nunique() > 1  # baselines
    if own or (threads.groupby(cores).nunique() > 1).any():
        names = (threads.map("{:g}".format) + " threads").where(threads > 1, "1 thread")
        tidy["strategy"] = tidy["strategy"].fillna(names)
    tidy["threads"] = np.nan
    if own:
        yield f"each number of {given['threads']!r} has a baseline of its own"
    else:
        tidy["world_size"], tidy["per_node"] = cores, tidy["per_node"] * threads
        tidy["cores_per_rank"] = threads.where(threads.isna(), 1.0)
        product = f"{ranks!r} times {given['threads']!r}"
        yield f"{product} counts the cores, which are taken for the ranks"


def _are_steps_of_scaling(cores: pd.Series) -> bool:
    """Whether numbers of cores are those of a program, not of different machines."""
    least = cores.min()
    return bool(least == 1 or ((cores % least == 0).all() and cores.nunique() > FEW))


def by_cells(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> dict[str, Guess]:
    """A column without a name for ranks whose cells all differ in them, such as 1n8g and 2n8g."""
    for column in frame.columns:
        if column in meanings and meanings[column].canonical != "strategy":
            continue
        texts = as_texts(frame[column]).dropna().unique()[:MOST_VALUES]
        if len(texts):
            pairs = {ranks_in_words(str(text)) for text in texts if not SIZES.fullmatch(str(text))}
            named = all(
                ranks > 0 and (not name or columns.names_gpu(name)) for ranks, name in pairs
            )
            if len(pairs) == len(texts) > 1 and named:
                return {column: Guess("world_size", 1.0)}
    return {}


def ranks_in_words(text: str) -> tuple[float, str]:
    """The ranks in a cell, also of a serial program, and what they are."""
    words = normal(text)
    if words in SERIAL:
        return 1.0, ""
    pair = ranks_of(text)
    return pair if pair[0] > 0 else ranks_of(words.replace("_", " "))


def workers(frame: pd.DataFrame, meanings: Mapping[str, Guess]) -> str:
    """The column of threads or cores that counts ranks where no other column does, or ""."""
    kinds = {column: meaning.canonical for column, meaning in meanings.items()}
    if "world_size" in kinds.values() or not MEASURED & set(kinds.values()):
        return ""
    ratios = {kind: numbers(frame[name]) for name, kind in kinds.items() if kind in RATIOS}
    for column, kind in kinds.items():
        if kind not in WORKERS:
            continue
        values = numbers(frame[column], units=COUNTED_UNITS).dropna()
        values = values[values != 0]  # of a serial program
        whole = bool(((values >= 1) & (values % 1 == 0)).all())
        quoted = len(ratios) > 1 and _are_quoted(values, ratios["speedup"], ratios["efficiency"])
        counted = kind == "threads" or (
            kind == "cpus" and (quoted or _are_steps_of_scaling(values))
        )
        counted = counted or (kind == "strategy" and parse_name(column).stem == "parallelism")
        counted = counted or (kind == "loader_workers" and bool(RATIOS & set(kinds.values())))
        varied = quoted or values.nunique() > 1
        if counted and "per" not in normal(column).split("_") and whole and varied:
            return column
    return ""


def global_batch(tidy: pd.DataFrame, given: dict[str, str]) -> Iterator[str]:
    """Take a batch as the global one if it grows with the ranks in every row, or if it holds whole
    micro-batches of all replicas, and say so."""
    if "batch" not in given or "global_batch_size" in given:
        return
    batch, ranks = tidy["batch"], tidy["world_size"]
    if "micro_batch_size" in given:
        replicas = tidy["dp"].fillna(ranks / _of_a_replica(tidy))
        # A batch per rank that is divided into micro-batches would not be.
        is_global = bool((batch % (tidy["micro_batch_size"] * replicas) == 0).all())
        why = "holds whole micro-batches of all replicas"
    else:
        each = (batch / ranks).dropna()
        is_global = len(each) == len(tidy) and each.nunique() == 1 and ranks.nunique() > 1
        why = "grows with the ranks"
    if is_global:
        tidy["global_batch_size"], tidy["batch"] = batch, np.nan
        given["global_batch_size"] = name = given.pop("batch")
        yield f"{name!r} {why} and is read as the global batch"


def complete_batches(tidy: pd.DataFrame, given: Mapping[str, str]) -> None:
    """Derive the degree of data parallelism, and batches from each other and the accumulation."""
    if not given.keys() & {"sharding", "rank_batch_size", "global_batch_size", "micro_batch_size"}:
        return
    shards = numbers(tidy["sharding"])
    if re.search("fsdp|degree|size", normal(given.get("sharding", ""))):
        sharded = tidy["dp"] * _of_a_replica(tidy) * shards == tidy["world_size"]
        tidy["dp"] = tidy["dp"].where(~sharded, tidy["dp"] * shards)
    replicas = tidy["dp"].fillna(tidy["world_size"] / _of_a_replica(tidy))
    ranks = replicas * tidy["grad_accum"].fillna(1.0)
    accumulated = (tidy["rank_batch_size"] * replicas).fillna(
        _undivided(tidy["micro_batch_size"], ranks)
    )
    for batch, derived in (
        ("global_batch_size", accumulated),
        ("micro_batch_size", tidy["global_batch_size"] / ranks),
    ):
        tidy[batch] = tidy[batch].fillna(derived)
    accumulated = tidy["global_batch_size"] / (tidy["micro_batch_size"] * replicas)
    tidy["grad_accum"] = tidy["grad_accum"].fillna(accumulated)


def _of_a_replica(tidy: pd.DataFrame) -> Degrees:
    """The ranks that share each replica of a model, as far as the degrees are known."""
    return np.asarray(np.nanprod(tidy[list(LAYOUT)].to_numpy(dtype=float), axis=1))


def _undivided(each: pd.Series, ranks: pd.Series) -> pd.Series:
    """The batches of which these are the ranks' shares; of 256, each of 3 ranks has 85."""
    batches = each * ranks
    known = batches.dropna().unique()
    for whole in known if len(known) <= MOST_VALUES else ():
        rounded_down = (whole // ranks == each) & (batches > (1 - NEARLY) * whole)
        batches = batches.mask(rounded_down & (batches < whole), whole)
    return batches
