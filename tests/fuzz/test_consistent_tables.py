"""Tables of many names, units and shapes whose numbers agree, and the same with one that does not.

`LAB_FUZZ_SEED` and `LAB_FUZZ_COUNT` (a factor) try others.
"""

from __future__ import annotations

import io
import math
import os
import random
from dataclasses import dataclass

import pytest
from audits import broken

from lab.analysis.audit import audit

SEED = int(os.environ.get("LAB_FUZZ_SEED", "16"))
COUNT = int(150 * float(os.environ.get("LAB_FUZZ_COUNT", "1")))
RANKS = ("GPUs", "# of GPUs", "num_gpus", "World size", "ranks", "Processes", "nproc", "GPU count")
TIMES = {
    **dict.fromkeys(("Training time (s)", "Total time", "Runtime [s]", "Time/epoch (sec)"), 1.0),
    "Epoch time (min)": 60.0,
    "Step time (ms)": 1e-3,
    "avg_step_time_ms": 1e-3,
}
RATES = ("Throughput (samples/s)", "images/sec", "tokens_per_second", "Throughput")
SPEEDUPS, SHARES = ("Speedup", "Speed-up", "Relative speedup"), ("Efficiency (%)", "Scaling eff.")
SIZES = ((1, 2, 4), (1, 2, 4, 8), (1, 2, 3, 4), (2, 4, 8), (8, 16, 32, 64), (1, 4, 8, 16))
Table = list[dict[str, str]]


@dataclass(frozen=True)
class Names:
    """A table's column names, and whether its work grows with the ranks."""

    ranks: str
    time: str
    rate: str
    speedup: str
    share: str
    weak: bool


def digits(value: float, count: int) -> str:
    """A number rounded to so many significant digits."""
    return f"{value:.{max(count - 1 - math.floor(math.log10(abs(value))), 0)}f}"


def consistent(rng: random.Random) -> tuple[Names, Table]:
    """Times of Amdahl's law, or of weak scaling, with noise, and all that follows from them."""
    every = (RANKS, tuple(TIMES), RATES, SPEEDUPS, SHARES)
    names = Names(*(rng.choice(some) for some in every), weak=rng.random() < 0.3)
    sizes, several = rng.choice(SIZES), rng.random() < 0.3
    given = {"rate": rng.random() < 0.4, "share": rng.random() < 0.6}
    batch = rng.choice(("", "Batch size per GPU", "Global batch size"))
    table: Table = []
    for model in rng.sample(("ResNet-50", "BERT-base", "GPT-2"), 2 if several else 1):
        first, serial, grown = rng.uniform(50, 900), rng.uniform(0.01, 0.1), rng.uniform(0, 0.05)
        base = 0.0
        for size in sizes:
            n = size / sizes[0]
            shape = 1 + grown * math.log2(n) if names.weak else serial + (1 - serial) / n
            time = first * shape * (1 + rng.gauss(0, 0.004))
            base, work = base or time, n if names.weak else 1.0
            speedup = base / time * work
            batches = (64, 64 * size) if names.weak else (64 * sizes[-1] // size, 64 * sizes[-1])
            row = {"Model": model, names.ranks: str(size)}
            row |= {batch: str(batches[batch.startswith("Global")])} if batch else {}
            row[names.time] = digits(time / TIMES[names.time], 4)
            row |= {names.rate: digits(5e5 * work / time, 4)} if given["rate"] else {}
            row[names.speedup] = f"{speedup:.2f}{'x' * several}"
            percent = "%" in names.share
            share = f"{100 * speedup / n:.1f}" if percent else f"{speedup / n:.3f}"
            row |= {names.share: share} if given["share"] else {}
            table.append(row)
    return names, table


def written(table: Table, rng: random.Random) -> str:
    """The table as CSV, TSV, Markdown, HTML or LaTeX."""
    lines = [list(table[0]), *(list(row.values()) for row in table)]
    if (kind := rng.choice(("csv", "tsv", "md", "html", "tex"))) == "md":
        rows = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([rows[0], "|---" * len(lines[0]) + "|", *rows[1:]])
    if kind == "html":
        rows = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines]
        return f"<table>{''.join(rows)}</table>".replace("td>", "th>", 2 * len(lines[0]))
    if kind == "tex":
        body = " \\\\\n".join(" & ".join(line) for line in lines)
        for sign in "#%_":
            body = body.replace(sign, f"\\{sign}")
        return f"\\begin{{tabular}}{{{'l' * len(lines[0])}}}\n{body} \\\\\n\\end{{tabular}}"
    return "\n".join({"csv": ",", "tsv": "\t"}[kind].join(line) for line in lines)


@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_numbers_that_agree_break_no_rule_and_one_that_does_not_breaks_one(seed: int) -> None:
    rng = random.Random(seed)
    names, table = consistent(rng)
    text = written(table, rng)
    assert broken(audit(io.StringIO(text))) <= {"too-regular"}, text  # which chance may break
    row = rng.choice([row for row in table if float(row[names.speedup].strip("x")) > 1])
    speedup = float(row[names.speedup].strip("x"))
    row[names.speedup] = row[names.speedup].replace(f"{speedup:.2f}", f"{1.2 * speedup:.2f}")
    planted = written(table, rng)
    assert broken(audit(io.StringIO(planted))) & {"quoted-against-own", "super-linear"}, planted
