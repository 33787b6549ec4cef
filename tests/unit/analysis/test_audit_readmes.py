"""Tables in the shapes that READMEs and leaderboards have: clean, and with a fault to be found."""

from __future__ import annotations

import io

import pytest
from audits import below, broken, pasted

from lab.analysis.audit.columns import guess
from lab.analysis.audit.table import from_table
from lab.analysis.audit.text_table import read_tables
from lab.analysis.audit.values import (
    BANDWIDTH_UNITS,
    COUNT_UNITS,
    TIME_UNITS,
    number,
    ranks_of,
)


@pytest.mark.parametrize(
    ("canonical", "names"),
    {
        "world_size": [
            *("GPU number", "GPUNum", "GPU Nums", "# A100s", "HPUs", "Number of IPUs", "GPU(s)"),
            *("PEs", "GPU #", "H100s", "Number of workers", "TPU cores", "Anzahl Prozesse"),
        ],
        "time": [
            *("train time (s/iter)", "ms/iter @ step 10", "Walltime", "total training time"),
            *("T(p) [s]", "$T_N$", "Time in seconds", "Real time", "TTT (min)", "batches/s"),
            *("Mean time (average of 3 runs) in seconds", "Timing (s)", "elapsed_value"),
        ],
        "std": ["Std dev", "StdDev (s)", "± (s)"],
        "rate": ["wps", "ktokens/s", "k samples / sec"],
        "speedup": [
            *("Speedup S(p)", "Speedup S", "x faster", "vs. single GPU", "vs 1 GPU"),
            *("Accélération", "Parallel speed-up, S"),  # no accuracy, and no seconds
        ],
        "efficiency": ["% of linear", "Linearity", "Efficiency E", "Scaling efficiency vs. linear"],
        "micro_batch_size": ["LBS", "samples_per_gpu", "Micro Bsz"],
        "global_batch_size": ["Global Bsz"],
        "model": ["Backbone"],
        "": [
            *("#", "GPU hours", "A100 hours", "inference time (s/iter)"),
            *("throughput improvement over baseline", "Speedup with/without offload", "Comm %"),
        ],
    }.items(),
)
def test_names_in_readmes(canonical: str, names: list[str]) -> None:
    meanings = {name: (meaning.canonical if (meaning := guess(name)) else "") for name in names}
    assert meanings == dict.fromkeys(names, canonical)


@pytest.mark.parametrize(
    ("cell", "ranks"),
    {
        "N1C8": 8.0,
        "N4C32": 32.0,
        "A100*N2C16": 16.0,
        "8p": 8.0,
        "256 chips": 256.0,
        "4 GPUs (V100)": 4.0,
        "16 GPUs (2 nodes)": 16.0,
        "1 x 8": 8.0,
        "16 GCDs": 16.0,
        "8 NPU": 8.0,
    }.items(),
)
def test_ranks_in_cells(cell: str, ranks: float) -> None:
    assert ranks_of(cell)[0] == ranks


@pytest.mark.parametrize(
    ("cell", "seconds"),
    {
        "7h 58m (1.72x)": 28680.0,
        "15h34m（+23%）": 56040.0,
        "12.5±0.4 ms": 0.0125,
        "12.5 (+/- 0.4) ms": 0.0125,
        "4.5¹": 4.5,
        "↓ 12.5": 12.5,
    }.items(),
)
def test_times_with_remarks(cell: str, seconds: float) -> None:
    assert number(cell, units=TIME_UNITS) == pytest.approx(seconds)


SPEEDUPS = ["| 1 | 100 | 1 |", "| 2 | 52 | 1.92 |", "| 4 | 27 | {} |"]
SHAPES = {
    "a rule of single dashes": "|GPUs|Time (s)|Speedup|\n|-|-|-|\n{rows}",
    "a rule with a cell too many": "|GPUs|Time (s)|Speedup|\n|---|---|---|---|\n{rows}",
    "a row of units": "|GPUs|Time|Speedup|\n|---|---|---|\n| # | s | x |\n{rows}",
    "a line for spreadsheets": "sep=|\nGPUs|Time (s)|Speedup\n{bare}",
    "names beside no row": "<table><th>GPUs</th><th>Time (s)</th><th>Speedup</th>{html}</table>",
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("last", "faults"), [("3.7", set()), ("5.9", {"quoted-against-own"})])
def test_a_speedup_in_every_shape(shape: str, last: str, faults: set[str]) -> None:
    rows = [row.format(last) for row in SPEEDUPS]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    html = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
    bare = "\n".join("|".join(row) for row in cells)
    result = pasted(shape.format(rows="\n".join(rows), bare=bare, html=html))
    assert broken(result) == faults
    assert "quoted-against-own" in result.checked


@pytest.mark.parametrize(
    "cells",
    [
        ("1 x V100", "8 x V100", "16 x V100"),
        ("1n1g", "1n8g", "2n8g"),
        ("N1C1", "N1C8", "N2C16"),
        ("1 GPU", "8 GPUs", "16 GPUs (2 nodes)"),
    ],
)
@pytest.mark.parametrize("name", ["Config", "Machine", "Setup", ""])
def test_a_column_that_holds_nothing_but_ranks(name: str, cells: tuple[str, ...]) -> None:
    rates, speedups = ("400", "3,100", "6,050"), ("1.0x", "**7.75x**", "{}*")
    rows = [f"| {' | '.join(row)} |" for row in zip(cells, rates, speedups, strict=True)]
    table = below(f"| {name} | Throughput (img/s) | Speedup |", *rows)
    assert broken(pasted(table.format("15.1x"))) == set()
    assert broken(pasted(table.format("19.0x"))) == {"quoted-against-own"}


def test_sizes_of_images_are_no_ranks() -> None:
    rows = ["| 224x224 | 400 |", "| 320x320 | 210 |", "| 448x448 | 101 |"]
    assert "world_size" not in pasted(below("| Input | img/s |", *rows)).reading.values()


def test_nodes_times_ranks_as_column_names() -> None:
    rows = ["| 32 | 400 | 3100 | 6000 |", "| 64 | 500 | 3900 | {} |"]
    table = below("| batch / GPU | 1 x 1 | 1 x 8 | 2 x 8 |", *rows)
    clean, planted = pasted(table.format(7600)), pasted(table.format(9700))
    assert broken(clean) == set() and "super-linear" in clean.checked
    assert clean.reading["rate"] == "rate"  # as it grows with the ranks
    assert broken(planted) == {"super-linear"}


@pytest.mark.parametrize(
    "head",
    [
        "| batch size | 8 | 16 | 24 |",
        "| Labels | 40 | 250 | 4000 |",
        "| recall | rank1 | rank5 | rank10 |",
        "| Adam | β1 | β2 | lr |",
        "| size | Params, x10^6 | MACs, x10^9 | top-1 |",
    ],
)
def test_numbers_in_names_that_are_no_ranks(head: str) -> None:
    table = below(head, "| ours | 24.15 | 26.9 | 29.4 |", "| theirs | 14.8 | 21.6 | 24.3 |")
    assert "world_size" not in pasted(table).reading.values()


@pytest.mark.parametrize(("last", "faults"), [("15.1x", set()), ("24x", {"quoted-against-own"})])
def test_a_row_for_each_quantity_below_ranks(last: str, faults: set[str]) -> None:
    table = below(
        "| Metric | 1x A100 | 8x A100[^slow] | 16x A100 |",
        "| images/s[^all] | 800 | 6,100 | 12,050 |",
        "| peak TFLOP/s | 312 | 312 | 312 |",
        "| occupancy | 41% | 40% | 40% |",
        f"| speedup | 1 | 7.6 | {last} |",
        "| date | May | May | June |",
    )
    result = pasted(table)
    assert broken(result) == faults
    assert result.reading["images/s"] == "rate"


def test_a_row_for_each_fact_is_not_a_row_of_times() -> None:
    rows = ["| Loss | 2.45 | 1.59 |", "| Total time | 127 min | 17 min |", "| Optimizer | A | A |"]
    apart = pasted(below("| Parameters | One card of X | Eight cards of X |", *rows))
    assert not apart.reading and not apart.conclusive
    beside = pasted(below("| Parameters | GPU (1 pcs) | GPU (8 pcs) |", *rows))
    assert beside.reading["Total time"] == "time" and beside.reading["Loss"] == "loss"


def test_a_row_for_each_model_below_ranks() -> None:
    rows = ["| ResNet (img/s) | 800 | 1590 | 6100 |", "| BERT (seq/s) | 120 | 235 | {} |"]
    table = below("| Model | 1x A100 | 2x A100 | 8x A100 |", *rows)
    assert broken(pasted(table.format(900))) == set()
    assert broken(pasted(table.format(1500))) == {"super-linear", "baseline"}


def test_columns_of_two_quantities_for_each_number_of_ranks() -> None:
    page = (
        "<table><tr><th rowspan=2>Model</th><th colspan=2>1 GPU</th><th colspan=2>8 GPUs</th></tr>"
        "<tr><th>img/s</th><th>time (s)</th><th>img/s</th><th>time (s)</th></tr>"
        "<tr><td>A</td><td>400</td><td>100</td><td>3000</td><td>13.4</td></tr></table>"
    )
    assert pasted(page).reading["rate"] == "rate"


@pytest.mark.parametrize(("last", "faults"), [("9d 18h", set()), ("7d 18h", {"super-linear"})])
def test_times_with_units_below_ranks(last: str, faults: set[str]) -> None:
    rows = ["| f | 69d 23h | 36d 4h | 18d 14h | {} |", "| e | 35d 11h | 18d 15h | 9d 15h | 5d 6h |"]
    result = pasted(below("| Net | 1 GPU | 2 GPUs | 4 GPUs | 8 GPUs |", *rows).format(last))
    assert broken(result) == faults
    assert result.reading["time_s"] == "time"
    assert not any("no unit" in assumption for assumption in result.assumptions)


@pytest.mark.parametrize(("last", "faults"), [("3d 8h", set()), ("1d 8h", {"super-linear"})])
def test_times_with_units_below_what_was_timed(last: str, faults: set[str]) -> None:
    rows = [
        "| 1 | 41 days 4 hours | 14 days 22 hours |",
        "| 2 | 21 days 22 hours | 9 days 5 hours |",
        f"| 8 | 6 days 14 hours | {last} |",
    ]
    result = pasted(below("| GPUs | 1024x1024 | 256x256 |", *rows))
    assert broken(result) == faults
    assert result.reading["time"] == "time" and "super-linear" in result.checked


def test_words_tell_configurations_on_one_number_of_ranks_apart() -> None:
    head, rows = (
        "| Layout | GPUs | time (s) |",
        ["| tp1, pp8 | 64 | 9.5 |", "| tp2, pp4 | 64 | 9.1 |"],
    )
    (note,) = pasted(below(head, *rows)).findings
    assert note.rule == "repeats" and "2 values have neither" in note.evidence


def test_a_share_is_no_setting() -> None:
    rows = ["| 1 | 324 | 33.6% |", "| 4 | 1058 | 39.8% |", "| 8 | {} | 39.8% |"]
    table = below("| GPUs | records/s | Improvement |", *rows)
    assert broken(pasted(table.format(2225))) == set()
    assert broken(pasted(table.format(3100))) == {"super-linear"}


def test_a_blank_cell_means_the_one_above() -> None:
    rows = ["| A | 1 | 400 |", "| | 4 | 1500 |", "| B | 1 | 200 |", "| | 4 | {} |"]
    table = below("| Model | GPUs | img/s |", *rows)
    clean = pasted(table.format(720))
    assert clean.assumptions == ("a blank cell of 'Model' means the one above it",)
    assert broken(clean) == set()
    assert broken(pasted(table.format(1300))) == {"super-linear", "baseline"}


def test_blank_cells_of_several_columns_mean_those_above() -> None:
    rows = ["| 2.1 | water | 16 | 300 |", "| | | 32 | 160 |", "| 2.1 | slab | 24 | 310 |"]
    table = below("| Version | Input | Ranks | time_s |", *rows, "| | | 32 | 250 |")
    result = pasted(table)
    assert result.assumptions == ("a blank cell of 'Version', 'Input' means the one above it",)
    assert not broken(result)


@pytest.mark.parametrize("name", ["epoch", "Epochs", "step"])
def test_two_writers_of_a_log_are_found(name: str) -> None:
    rows = ["| 1 | 0.50 | 2.1 |", "| 2 | 0.51 | 1.9 |", "| 3 | 0.52 | 1.8 |"]
    head = f"| {name} | step_time_s | loss |"
    assert broken(pasted(below(head, *rows))) == set()
    twice = [row for row in rows for _ in range(2)]
    assert "two-writers" in broken(pasted(below(head, *twice)))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("epoch", ("300", "300", "300")),
        ("Epoch", ("90", "60", "60")),
        ("Epochs", ("4", "1", "2", "2", "1", "4", "3", "1")),
        ("step", ("294.77", "189.3", "294.77")),  # a time
        ("step", ("749", "520", "699", "520")),
        ("Step", ("1. Install", "2. Train", "2b. Resume")),
    ],
)
def test_what_only_looks_like_a_log(name: str, values: tuple[str, ...]) -> None:
    rows = [f"| variant {place} | {value} | 0.7{place} |" for place, value in enumerate(values)]
    assert broken(pasted(below(f"| Augmentation | {name} | top-1 |", *rows))) == set()


def test_places_on_a_list_are_no_ranks_of_a_run() -> None:
    rows = ["| 1 | {} | 8 | 100 |", "| 2 | {} | 8 | 130 |", "| 3 | {} | 8 | 181 |"]
    named = [row.format(name) for row, name in zip(rows, "ABC", strict=True)]
    alike = [row.format("A") for row in rows]
    assert broken(pasted(below("| Rank | Team | GPUs | Time (s) |", *named))) == set()
    unordered = [named[1].replace("2", "1", 1), named[0].replace("1", "2", 1), named[2]]
    for rows in (alike, unordered):
        found = broken(pasted(below("| Rank | Team | GPUs | Time (s) |", *rows)))
        assert found == {"rank-imbalance"}


def test_times_of_which_some_name_the_unit() -> None:
    result = pasted(below("| GPUs | time |", "| 1 | 16.8 hours |", "| 2 | 8.7 |", "| 4 | 4.6 |"))
    assert result.assumptions == ("'time' is read as hours, the unit of some of its cells",)
    assert broken(result) == set()


def test_adapters_need_fewer_flops_for_a_token() -> None:
    rows = ["| SFT | 8 | 10000 | 420 |", "| LoRA | 8 | 14000 | 400 |", "| LoRA | 16 | 13800 | {} |"]
    table = below("| Method | GPUs | tokens/s/GPU | TFLOPs/GPU |", *rows)
    assert broken(pasted(table.format(394))) == set()
    assert broken(pasted(table.format(310))) == {"mfu-consistent"}


def test_the_local_batch_of_a_pipeline() -> None:
    head = "| GPUs | GBS | MBS | LBS | GA | TP | PP | step time (s) |"
    clean, planted = (f"| 64 | {batch} | 1 | 8 | 4 | 1 | 4 | 9.5 |" for batch in (512, 4096))
    assert broken(pasted(below(head, clean))) == set()
    assert broken(pasted(below(head, planted))) == {"parallel-consistent"}


def test_a_batch_in_tokens_is_left_out() -> None:
    rows = ["| 8 | 1 | 8 | 0.125M | 3300 |", "| 16 | 1 | 8 | 0.25M | 3260 |"]
    result = pasted(below("| GPUs | TP | Micro Bsz | Global Bsz | TGS |", *rows))
    assert broken(result) == set() and "Global Bsz" not in result.reading


def test_the_deviation_of_a_loss_is_none_of_a_time() -> None:
    rows = ["| 1 | 3.27 | 0.0 | 85.2 |", "| 2 | 3.28 | 0.0 | 45.9 |"]
    result = pasted(below("| GPUs | mean val loss | sd | wall time (s) |", *rows))
    assert "sd" not in result.reading and broken(result) == set()


def test_the_size_of_a_model_in_numbers_is_none_of_a_message() -> None:
    model, message = (
        below(
            f"| Size | {name} | GPUs | Time |", "| 7 B | A | 1 | 100 s |", "| 7 B | A | 4 | 27 s |"
        )
        for name in ("Model", "Link")
    )
    assert "Size" not in pasted(model).reading
    assert pasted(message).reading["Size"] == "bytes"
    rows = ["| 16 | 18B | 1 | 177 s |", "| 32 | 39B | 1 | 82 s |"]
    sizes = pasted(below("| GPUs | Size | DP | step time |", *rows))
    assert sizes.reading["Size"] == "model" and "super-linear" not in broken(sizes)


def test_a_column_that_tells_two_things_is_read_as_both() -> None:
    table = below("| Machine | time (s) |", "| 1x A100 | 100 |", "| 4x A100 | 27 |")
    assert pasted(table).reading["Machine"] == "world_size and gpu"


def test_words_have_no_unit() -> None:
    rows = ["| 1 | Adam | 100 |", "| 4 | Adam | 27 |"]
    assert pasted(below("| GPUs | optimizer | time (s) |", *rows)).assumptions == ()


@pytest.mark.parametrize(
    ("canonical", "names"),
    {
        "model": ["Model ID"],
        "strategy": ["Parallel type"],
        "world_size": ["Num of GPU cards"],
        "per_node": ["MPI tasks per node"],
        "rate": ["ns/day", "SYPD", "sec/kimg", "ms per image", "images/min", "GLUP/s"],
        "rate_per_rank": ["ns/day/GPU", "SYPD/node"],
        "time": ["it/s", "steps per second", "steps/hour", "Loop time", "Time for 20 SCF steps"],
        "": [
            *("Time steps", "Walltime limit", "Max nodes", "Optimized (ms)"),
            "Scaling block size",
        ],
    }.items(),
)
def test_names_of_other_fields(canonical: str, names: list[str]) -> None:
    for name in names:
        meaning = guess(name)
        assert (meaning.canonical if meaning else "") == canonical, name


@pytest.mark.parametrize(
    ("cell", "ranks"), [("TPU v3-32", 32), ("v4-128", 128), ("2x8xH100", 16), ("4x8x8", None)]
)
def test_ranks_in_cells_of_other_machines(cell: str, ranks: int | None) -> None:
    found, _ = ranks_of(cell)
    assert found == ranks if ranks else found != found
    assert ranks_of("2x8xH100 SXM") == (16, "h100 sxm")


@pytest.mark.parametrize(
    "text",
    [
        # s per 1000 images and steps per s are read upside down
        below("| GPUs | s/kimg |", "| 1 | 40 |", "| 2 | 20.5 |", "| 4 | 10.6 |"),
        below("| GPUs | batch per GPU | it/s |", "| 1 | 8 | 5.0 |", "| 2 | 8 | 4.8 |"),
        # a degree of sharding beside one of replication
        below("| GPUs | DP | FSDP | TP | s/it |", "| 16 | 2 | 8 | 1 | 1.1 |"),
        # the length of a video, and a gain in per cent
        below(
            "| Seconds | GPUs | Time taken (s) | Speedup per GPU |",
            "| 8 s | 1 | 90 | - |",
            "| 8 s | 2 | 46.5 | 8 % |",
        ),
        # places on a list
        below(
            "| Rank | Assistant | Solved | Time |",
            *(f"| {n} | bot-{n}x | {99 - n * n} | {t} |" for n, t in ((1, 9), (2, 5), (3, 7))),
        ),
        # machines with a curve each
        below(
            "| machine | GPUs | images/s | speedup |",
            *("| small | 1 | 40 | 1.0 |", "| small | 2 | 79 | 1.98 |"),
            *(
                "| large | 1 | 90 | 1.0 |",
                "| large | 2 | 171 | 1.9 |",
                "| large | 4 | 330 | 3.67 |",
            ),
        ),
        # columns of the same names, once for each program
        below(
            "| GPUs | images/s | speedup | images/s | speedup |",
            "| | alpha | alpha | beta | beta |",
            "| 1 | 30 | 1.0 | 50 | 1.0 |",
            "| 4 | 75 | 2.5 | 190 | 3.8 |",
        ),
        # a setting that only several ranks can have
        below(
            "| GPUs | update on | images/s | speedup | efficiency |",
            *("| 1 | GPU | 40 | 1.0 | 100 % |", "| 2 | CPU | 40.5 | 1.01 | 51 % |"),
            "| 4 | CPU | 77 | 1.92 | 48 % |",
        ),
        # programs on equally many ranks, one of which is the reference
        below(
            "| Name | GPUs | Duration | Speedup |",
            *("| first | 8 | 40 min | 1x |", "| ours | 8 | 20 min | 2x |"),
            "| ours, many | 16 | 11 min | 3.6x |",
        ),
        # a global batch that grows with the ranks
        below(
            "| GPUs | Batch size | s/it | Speedup |",
            *("| 1 | 4 | 0.50 | 1 |", "| 2 | 8 | 0.55 | 1.82 |", "| 4 | 16 | 0.58 | 3.45 |"),
        ),
        # what a queue allows
        below("| Queue | Max nodes | Time |", "| day | 512 | 24 h |", "| hour | 10 | 1 h |"),
    ],
)
def test_no_fault_in_tables_of_other_fields(text: str) -> None:
    assert not broken(pasted(text))


def test_faults_in_tables_of_other_fields() -> None:
    nodes = below(
        "| Nodes | MPI tasks per node | Total MPI tasks | Loop time |",
        *("| 1 | 32 | 64 | 900 |", "| 2 | 32 | 64 | 460 |", "| 4 | 32 | 128 | 240 |"),
    )
    assert "parallel-consistent" in broken(pasted(nodes))
    types = below(
        "| GPUs | Parallel type | Latency | Speedup |",
        *("| 1 | Baseline | 100 s | 1.00x |", "| 2 | TP | 52 s | 0.96x |"),
        *("| 2 | SP | 51 s | 0.98x |", "| 4 | SP | 27 s | 0.93x |"),
    )
    evidence = [f.evidence for f in pasted(types).findings if f.rule == "quoted-against-own"]
    assert "the table's own times give 1.92x" in evidence[0]
    batches = below(
        "| GPUs | Batch size | Epoch time | Speedup |",
        *("| 1 | 16 | 40 s | 1 |", "| 2 | 32 | 21 s | 1.9 |", "| 4 | 64 | 11 s | 3.6 |"),
    )
    assert "equal-work" in broken(pasted(batches))
    efficiency = below(
        "| GPUs | images/s | speedup | efficiency |",
        *("| 1 | 50 | 1.00x | 100 % |", "| 2 | 96 | 1.92x | 96 % |", "| 4 | 180 | 3.60x | 96 % |"),
    )
    assert "quoted-against-own" in broken(pasted(efficiency))


def test_a_row_that_is_commented_out_is_no_row() -> None:
    text = below("| GPUs | s/it |", "| 1 | 2.0 |", "| 2 | 1.1 |", "<!--| 4 | 0.1 | -->")
    assert not broken(pasted(text))
    assert pasted(text).reading == {"GPUs": "world_size", "s/it": "time"}


def test_names_below_names_below_names() -> None:
    page = """<table><tr><th rowspan=3>GPUs</th><th colspan=4>Time</th></tr>
    <tr><th colspan=2>small</th><th colspan=2>large</th></tr>
    <tr><th>first (s)</th><th>next (s)</th><th>first (s)</th><th>next (s)</th></tr>
    <tr><td>1</td><td>4</td><td>3</td><td>8</td><td>7</td></tr></table>"""
    assert not any("\x1f" in column for column in pasted(page).reading)


@pytest.mark.parametrize(
    ("canonical", "names"),
    {
        "world_size": ["Number of GPU", "GPUs Number", "NPU count", "card num"],
        "rate": ["FPS", "sps", "Packets/sec", "Avg (tok/s)"],
        "rate_per_rank": ["TPS/GPU", "tpgps", "Tok/s/dev", "tokens/s/NPU"],
        "time": ["Time μ", "step time (μs)"],
        "std": ["Time σ"],
        "grad_accum": ["Micro Num"],
        "": ["tok/s per $", "50% (tok/s)", "p99 tokens/s", "Projected speedup", "Loss σ"],
    }.items(),
)
def test_more_names_in_readmes(canonical: str, names: list[str]) -> None:
    meanings = {name: (meaning.canonical if (meaning := guess(name)) else "") for name in names}
    assert meanings == dict.fromkeys(names, canonical)


@pytest.mark.parametrize(
    ("cell", "units", "value"),
    [
        ("250K/sec", COUNT_UNITS, 250e3),
        ("1.8M/sec", COUNT_UNITS, 1.8e6),
        ("9.04s/it", TIME_UNITS, 9.04),
        (r"$52.1 \pm 0.3$", TIME_UNITS, 52.1),
        ("×1.92", COUNT_UNITS, 1.92),
        ("1.92 times", COUNT_UNITS, 1.92),
        ("1\u2009919", COUNT_UNITS, 1919),
        (r"46.9\%", COUNT_UNITS, 0.469),
        ("~10 min (1 epoch)", TIME_UNITS, 600.0),
        ("300 MB/s", BANDWIDTH_UNITS, 300e6),
        ("673.2GBps", BANDWIDTH_UNITS, 673.2e9),
        ("400 Gbps", BANDWIDTH_UNITS, 50e9),
        ("440.25", BANDWIDTH_UNITS, 440.25e9),
    ],
)
def test_units_in_cells(cell: str, units: dict[str, float], value: float) -> None:
    factor = 1e9 if units is BANDWIDTH_UNITS else 1.0
    assert number(cell, units=units, factor=factor) == pytest.approx(value)


def test_prefixes_of_rates_differ_between_rows() -> None:
    rows = ["| 1 | 250K/sec | 1.0x |", "| 4 | 950K/sec | 3.8x |", "| 8 | 1.8M/sec | 7.2x |"]
    assert broken(pasted(below("| GPUs | Throughput | Speedup |", *rows))) == set()


@pytest.mark.parametrize(("last", "faults"), [("14.2x", set()), ("19.2x", {"quoted-against-own"})])
def test_speedups_of_steps_whose_work_grows(last: str, faults: set[str]) -> None:
    rows = ["| 1 | 27.8 | 1.0x |", "| 4 | 29.2 | 3.8x |", "| 8 | 30.1 | 7.4x |"]
    head = "| GPUs | Time/iteration (ms) | Speedup vs 1 GPU |"
    assert broken(pasted(below(head, *rows, f"| 16 | 31.4 | {last} |"))) == faults


@pytest.mark.parametrize("names", ["p|Tp|Sp|Ep", "$p$|$T_p$ (s)|$S_p$|$E_p$", "n|T|S|E"])
def test_symbols_of_textbooks(names: str) -> None:
    rows = ["1|100|1.00|1.00", "2|52.1|1.92|0.96", "4|27.6|3.62|0.91"]
    table = below(*(f"|{row}|" for row in (names, *rows)))
    reading = ["world_size", "time", "speedup", "efficiency"]
    assert [pasted(table).reading[name] for name in names.split("|")] == reading
    assert broken(pasted(table)) == set()
    assert broken(pasted(table.replace("3.62|0.91", "4.62|1.15"))) == {"quoted-against-own"}
    degrees = pasted(below("|Tp|Pp|Ep|Tokens/s|", "|2|2|1|940|", "|4|1|2|910|")).reading
    assert degrees["Tp"] == "tp" and degrees["Ep"] == "ep"


@pytest.mark.parametrize(("last", "faults"), [("7.2x", set()), ("9.2x", {"quoted-against-own"})])
def test_speedups_of_runs_whose_work_grows(last: str, faults: set[str]) -> None:
    head = "| Nodes | GPUs | Batch size per GPU | Training time | Speedup |"
    rows = ["| 1 | 4 | 32 | 812 s | 1.0x |", "| 2 | 8 | 32 | 846 s | 1.9x |"]
    rows += ["| 4 | 16 | 32 | 871 s | 3.7x |"]
    assert broken(pasted(below(head, *rows, f"| 8 | 32 | 32 | 898 s | {last} |"))) == faults


@pytest.mark.parametrize("efficiency", ["90", "720"])
def test_efficiencies_of_runs_whose_work_grows(efficiency: str) -> None:
    head = "| GPUs | Batch size per GPU | Training time | Efficiency (%) |"
    rows = ["| 1 | 32 | 812 s | 100 |", "| 2 | 32 | 846 s | 96 |", "| 4 | 32 | 871 s | 93 |"]
    faults = broken(pasted(below(head, *rows, f"| 8 | 32 | 900 s | {efficiency} |")))
    assert faults == (set() if efficiency == "90" else {"quoted-against-own"})


@pytest.mark.parametrize(("last", "faults"), [("1.25", set()), ("1.75", {"quoted-against-own"})])
def test_a_speedup_after_each_program(last: str, faults: set[str]) -> None:
    head = "| GPUs | samples/s (PyTorch) | Speedup | samples/s (JAX) | Speedup |"
    rows = ["| 1 | 380 | 1 | 360 | 1 |", f"| 2 | 741 | 1.95 | 450 | {last} |"]
    assert broken(pasted(below(head, *rows))) == faults


def test_speedups_over_a_schedule() -> None:
    head = "| Processes | schedule | tokens/s | Speedup vs GPipe |"
    rows = [
        *("| 2 | gpipe | 624 | 1.0 |", "| 2 | 1f1b | 750 | 1.20 |"),
        *("| 4 | gpipe | 878 | 1.0 |", "| 4 | 1f1b | 917 | 1.04 |"),
    ]
    assert broken(pasted(below(head, *rows))) == set()


def test_speedups_of_programs_on_an_unknown_number_of_ranks() -> None:
    head = "| Configuration | Throughput | Speedup vs Base |"
    rows = ["| Base | 35K reads/s | 1.0x |", "| + SIMD | 48K reads/s | 1.37x |"]
    zero = "| + Zero-Copy | 78K reads/s | 2.23x |"
    assert broken(pasted(below(head, *rows, zero))) == set()
    assert broken(pasted(below(head, *rows, "| + DDP | 78K reads/s | 2.23x |"))) == set()


def test_a_ratio_on_the_ranks_of_the_baseline_compares_programs() -> None:
    head = "| Variant | GPUs | Speedup |"
    rows = ["| plain | 1 | 1.0x |", "| fused | 1 | 2.1x |", "| fused | 4 | 3.9x |"]
    assert "super-linear" not in broken(pasted(below(head, *rows)))


def test_ranks_in_names_of_configurations() -> None:
    head = "| Config | tok/s |"
    rows = ["| baseline | 38 |", "| 7b_12gpu_tp4 | 290 |", "| 7b_32gpu_fsdp | 700 |"]
    result = pasted(below(head, *rows))
    assert result.assumptions == (
        "'7b_12gpu_tp4', '7b_32gpu_fsdp' ran on as many ranks as their names say, the others on 1",
    )
    assert broken(result) == set()


def test_an_efficiency_beside_a_speedup_that_matches_the_rates() -> None:
    head = "| GPUs | tokens/s | Speedup | Efficiency | Time (s) |"
    rows = ["| 1 | 43500 | 1.0x | 100% | 2340 |", "| 4 | 152000 | 3.50x | {} | 665 |"]
    for efficiency, faults in (("87.5%", set()), ("70%", {"quoted-against-own"})):
        table = below(head, *(row.format(efficiency) for row in rows))
        assert broken(pasted(table)) == faults


def test_efficiencies_over_a_baseline_that_is_not_in_the_table() -> None:
    head = "| GPUs | tokens/s | Efficiency |"
    for last, faults in (("89%", {"baseline"}), ("69%", {"baseline", "quoted-against-own"})):
        rows = ["| 8 | 45000 | 95% |", "| 16 | 88000 | 92% |", f"| 32 | 172000 | {last} |"]
        assert broken(pasted(below(head, *rows))) == faults


def test_efficiencies_over_another_layout() -> None:
    head = "| GPUs | TP | PP | DP | MFU | Efficiency vs 8 |"
    rows = ["| 8 | 8 | 1 | 1 | 58% | 100% |", "| 64 | 8 | 2 | 4 | 54% | 93% |"]
    assert broken(pasted(below(head, *rows))) == set()
    models = ["| 8 | 7B | 58% | 100% |", "| 64 | 70B | 54% | 93% |"]
    assert broken(pasted(below("| GPUs | Model | MFU | Efficiency vs 8 |", *models))) == {
        "baseline"
    }


def test_targets_are_not_measured() -> None:
    rows = ["| 2 | >45% | >48% |", "| 4 | >35% | >40% |", "| 8 | >28% | >35% |"]
    result = pasted(below("| GPU count | Good efficiency | Excellent efficiency |", *rows))
    assert result.reading == {"GPU count": "world_size"}


def test_pieces_of_a_log() -> None:
    rows = [f"| {name} | {step} | 6.4 |" for name in ("dense", "tensor") for step in range(3)]
    assert broken(pasted(below("| Layout | Step | Total |", *rows))) == set()
    mixed = [row.replace("tensor", "dense") for row in rows]
    assert broken(pasted(below("| Layout | Step | Total |", *mixed))) == {"two-writers"}


def test_machines_of_a_plan_are_not_compared() -> None:
    head = "| node | DP | TP | max-num-seqs |"
    rows = ["| prefill | 2 | 8 | 4 |", "| decode | 64 | 1 | 28 |"]
    assert broken(pasted(below(head, *rows))) == set()


@pytest.mark.parametrize(("rate", "faults"), [("1461.6", set()), ("2046", {"quoted-against-own"})])
def test_rates_times_times_of_steps(rate: str, faults: set[str]) -> None:
    head = "| Config | SeqLen | GBS | GPUs | Step time (s) | Tokens/GPU/s |"
    rows = [
        "| A | 4096 | 2048 | 256 | 35.39 | 925.9 |",
        f"| B | 4096 | 2048 | 256 | 22.42 | {rate} |",
    ]
    assert broken(pasted(below(head, *rows))) == faults


@pytest.mark.parametrize(("rate", "faults"), [("304", set()), ("430", {"quoted-against-own"})])
def test_rates_times_times_of_runs(rate: str, faults: set[str]) -> None:
    head = "| GPUs | Throughput (tok/s) | Training time (h) |"
    rows = ["| 1 | 43.1 | 390 |", "| 2 | 76.2 | 221 |", "| 4 | 151 | 111.2 |"]
    assert broken(pasted(below(head, *rows, f"| 8 | {rate} | 55.4 |"))) == faults


def test_batches_that_no_accumulation_makes() -> None:
    head = "| GPUs | TP | DP | MBS | GBS | TFLOPs |"
    for batch, faults in ((768, set()), (769, {"parallel-consistent"})):
        rows = [f"| 64 | 4 | 16 | 2 | {batch} | 43.0 |", "| 64 | 2 | 32 | 2 | 512 | 40.1 |"]
        assert broken(pasted(below(head, *rows))) == faults


def test_degrees_that_make_a_multiple_of_the_ranks() -> None:
    head = "| NPUs | TP | DP | tokens/s |"
    result = pasted(below(head, "| 8 | 8 | 2 | 900 |", "| 8 | 4 | 4 | 950 |"))
    assert {finding.severity for finding in result.findings if finding.records} >= {"warning"}
    assert "error" not in {finding.severity for finding in result.findings}
    assert broken(result) == {"parallel-consistent"}


def test_training_times_at_another_batch() -> None:
    head = "| GPUs | Batch size | Time (s) |"
    rows = ["| 2 | 1 | 3277 |", "| 4 | 4 | 1266 |", "| 8 | 4 | 672 |"]
    result = pasted(below(head, *rows))
    assert "super-linear" not in broken(result)
    found = {finding.rule: finding.evidence for finding in result.findings}
    assert "the batch differs (1 against 4)" in found["super-linear"]


@pytest.mark.parametrize(
    "rows",
    [
        ("| Step 0 loss | 7.1115 | 7.1116 |", "| Step 9 loss | 6.5201 | 6.5204 |"),
        ("| AllReduce | 442 GB/s | 436 GB/s |", "| Training | 331,842 tok/s | 136,970 tok/s |"),
        ("| health | 8/8 | 16/16 |", "| GEMM | 731 TFLOPS | N/A |", "| Link | 442 GB/s | 1 GB/s |"),
    ],
)
def test_rows_of_other_quantities_below_ranks(rows: tuple[str, ...]) -> None:
    for head in ("| Test | 8 GPUs | 16 GPUs |", "| Test | Single GPU | Ours (8 GPUs) |"):
        reading = pasted(below(head, *rows)).reading
        assert not {"time", "rate"} & set(reading.values())


def test_rates_in_cells_below_ranks() -> None:
    rows = ["| ours | ~8,400 tok/s | ~12,200 tok/s |", "| theirs | ~6.7k tok/s | ~9.4k tok/s |"]
    assert "rate" in pasted(below("| Name | 2 GPUs | 4 GPUs |", *rows)).reading.values()


def test_rates_of_which_few_grow() -> None:
    head = "| DNN | Link | 1 GPU | 4 GPUs | 8 GPUs |"
    rows = ["| CNN | slow | 253 | 925 | 1795 |", "| BERT | slow | 49 | 51 | 53 |"]
    rows += ["| GPT | fast | 5.1 | 19 | 38 |"]
    assert "rate" in pasted(below(head, *rows)).reading.values()


@pytest.mark.parametrize(
    ("head", "rows", "reading"),
    [
        ("m,n,k,TFLOPS", ("5120,32768,2880,610", "2880,1024,512,95"), {"TFLOPS": "flops"}),
        ("run,n,mean loss", ("a,10,3.2832", "b,11,3.2789"), {"mean loss": "loss"}),
        ("Wall time,Step,Value", ("1521468449.3,0,0.09", "1521468459.1,1,0.07"), {"Step": "step"}),
        ("Path,Compiled,loss", ("a,0.769 ms,1", "b,0.512 ms,1"), {"loss": "loss"}),
        ("Run,MFU", ("NVFP4 (bf16 tail),41", "BF16,38"), {"Run": "strategy", "MFU": "mfu"}),
        ("GPU,reserved GB", ("0,88.4", "1,87.9"), {"GPU": "rank", "reserved GB": "memory"}),
        ("Model,Size,GPUs", ("A,8x7B,64", "B,671B,128"), {"Model": "model", "GPUs": "world_size"}),
    ],
)
def test_what_names_seem_to_say(head: str, rows: tuple[str, ...], reading: dict[str, str]) -> None:
    found = pasted("\n".join((head, *rows)) + "\n").reading
    assert {name: found.get(name) for name in reading} == reading
    assert set(found) - set(reading) <= {"run"}


def test_values_left_out_are_counted_in_words() -> None:
    result = pasted("gpus,time_s\n1,10\n2,0\n4,3\n")
    assert "1 value of time is not positive and is left out" in result.assumptions


def test_steps_of_rates_are_no_work() -> None:
    rows = ["| 1 | 50 | 43,469 tok/s |", "| 4 | 5000 | 152,142 tok/s |"]
    assert broken(pasted(below("| GPUs | Steps | Throughput |", *rows))) == set()


@pytest.mark.parametrize(("rate", "faults"), [("3413", set()), ("4413", {"quoted-against-own"})])
def test_rates_times_times_of_steps_of_a_batch_per_card(rate: str, faults: set[str]) -> None:
    head = "| model | cards | batch size | ms/step | img/s |"
    rows = [f"| resnet50 | 8 | 32 | 74.52 | {rate} |", "| vgg13 | 8 | 32 | 30.15 | 8491 |"]
    assert broken(pasted(below(head, *rows))) == faults


def test_places_on_a_list_with_gaps() -> None:
    rows = ["| 1 | Team A | 11.2 | |", "| 2 | Team B | / | 18.6 |", "| 3 | Team C | 24.8 | 23.5 |"]
    rows.append("| 4 | Team D | 26.1 | 40.1 |")
    assert not pasted(below("| Rank | Team | Track 1 | Track 2 |", *rows)).reading


def test_sizes_of_models_and_data_sets() -> None:
    rows = ["| tiny | 97.7 | 95.3 | 111 |", "| big | 98.1 | 89.4 | 293 |"]
    reading = pasted(below("| Backbone | Top-1 Acc(%) | Latency(ms) | Size(M) |", *rows)).reading
    assert "bytes" not in reading.values()
    rows = ["| cats | 800MB | 8 min |", "| plants | 1.5GB | 15 min |"]
    reading = pasted(below("| Dataset | Size | Time per epoch |", *rows)).reading
    assert "bytes" not in reading.values()


def test_a_share_is_no_time() -> None:
    rows = ["| ours | 0.11% |", "| theirs | 0.29% |"]
    assert not pasted(below("| Item | FU-kernel time |", *rows)).reading


def test_speedups_of_each_precision_are_not_from_one_to_another() -> None:
    head = (
        "| Framework | FP32 img/s bsz=128 | FP32 speedup bsz=128 "
        "| AMP img/s bsz=256 | AMP speedup bsz=256 |"
    )
    rows = (
        "| A | 12411.97 | 31.21 | 33141.02 | 22.50 |",
        "| B | 11233.92 | 28.67 | 30713.68 | 22 |",
    )
    result = pasted(below(head, *rows))
    assert "'speedup' as speedup" in str(result)
    assert not broken(result)


def test_columns_that_say_on_how_many_ranks() -> None:
    head = "| Llama 3.1 8b | Throughput on 8x H100 GPUs | Throughput on 16x H100 GPUs (GBS=256) |"
    rows = ["| Training step time (seconds per step) | 12.91 | 13.00 |"]
    rows += ["| Throughput in tokens per second | 81222 | 161319 |"]
    rows += ["| Model flops utilization | 59.37% | 58.96% |"]
    result = pasted(below(head, *rows))
    assert {"time", "rate", "mfu"} <= set(result.reading.values())
    assert "mfu-consistent" in result.checked and not broken(result)
    wrong = pasted(below(head, *rows[:2], "| Model flops utilization | 59.37% | 64.96% |"))
    assert broken(wrong) == {"mfu-consistent"}


def test_groups_of_sequence_parallelism_are_settings() -> None:
    head = "| Model | Sequence Length | GPU Number | Sequence Parallel | Tokens per Second |"
    rows = ["| Llama3 8B | 8k | 2 | 2 | 1037.0 |", "| Llama3 8B | 8k | 4 | 1 | 2331.3 |"]
    rows.append("| Llama3 8B | 8k | 8 | 1 | 2771.2 |")
    assert not broken(pasted(below(head, *rows)))
    alike = [row.replace("| 2 | 2 |", "| 2 | 1 |") for row in rows]
    assert broken(pasted(below(head, *alike))) == {"super-linear"}


@pytest.mark.parametrize(("quoted", "faults"), [("7.3", set()), ("8.3", {"quoted-against-own"})])
def test_a_row_of_ratios_below_columns_of_ranks(quoted: str, faults: set[str]) -> None:
    rows = [f"| base | 118.5 | 865.6 | {quoted} |", "| amp+xla | 400 | 2720.8 | 6.8 |"]
    rows.append("| speed up | 3.37 | 3.14 | |")
    result = pasted(below("| method | 1 GPU | 8 GPU | speed up |", *rows))
    assert {"world_size", "rate", "speedup"} <= set(result.reading.values())
    assert broken(result) == faults


def test_a_column_of_other_hardware_or_framework_is_no_part_of_a_line() -> None:
    head = "| Task | TPU v3-8 | 8 GPU | 1 GPU | 1 GPU (PyTorch) |"
    result = pasted(below(head, "| QQP | 7m | 31m | 2h | 8h |", "| MNLI | 8m | 33m | 2h | 9h |"))
    assert "super-linear" in result.checked and not broken(result)
    assert result.reading["hardware"] == "device" and "framework" in result.reading
    rows = result.findings[0].records
    assert "row 1 (QQP, world size 1)" in rows and "row 1 (QQP, tpu v3, world size 8)" in rows
    assert "row 1 (QQP, pytorch, world size 1)" in rows


def test_shares_without_a_name_are_no_times() -> None:
    head = "| Model | v5e-256 (bf16) | v5p-128 (bf16) | v5e-256 (int8) | v5p-128 (int8) |"
    rows = ["| Gemma-2b | 58% | 55% | 64% | 68% |", "| Gemma-7b | 58% | 60% | 70% | 70% |"]
    assert not {"time", "rate"} & set(pasted(below(head, *rows)).reading.values())


@pytest.mark.parametrize(("on_4", "faults"), [("31.0", set()), ("37.5", {"super-linear"})])
def test_a_run_out_of_memory_is_no_baseline(on_4: str, faults: set[str]) -> None:
    rows = ["| Llama-70B | 1 | OOM |", "| Llama-70B | 2 | 16.0 |", f"| Llama-70B | 4 | {on_4} |"]
    result = pasted(below("| Model | GPUs | Tokens/s |", *rows))
    assert broken(result) == faults
    baseline = next(fault for fault in result.findings if fault.rule == "baseline")
    assert "speedups are over 2 ranks" in baseline.evidence


@pytest.mark.parametrize("quoted", ["7.48x", "6.10x"])
def test_a_ratio_whose_brackets_say_on_how_many_ranks(quoted: str) -> None:
    head = "| Model | 1 GPU | 2 GPUs | 8 GPUs | Speedup (8 GPUs) |"
    rows = [f"| ResNet-50 | 394.0 | 768.7 | 2946.8 | {quoted} |"]
    rows.append("| BERT | 41.5 | 81.5 | 308.6 | 7.44x |")
    result = pasted("Training throughput (samples/s)\n\n" + below(head, *rows))
    assert result.reading["speedup"] == "speedup"
    assert broken(result) == ({"quoted-against-own"} if quoted == "6.10x" else set())


def test_blank_cells_of_several_columns_that_rows_begin_with() -> None:
    rows = ["| OMP | fp32 | 1 | 12.1 |", "| | | 2 | 6.1 |", "| | fp64 | 1 | 24.0 |"]
    rows += ["| | | 2 | 12.2 |", "| SIMD | | 1 | 2.4 |", "| | | 2 | {} |"]
    table = below("| Version | Precision | Threads | Time (s) |", *rows)
    assert broken(pasted(table.format(1.3))) == set()
    (finding,) = [
        each for each in pasted(table.format(0.9)).findings if each.rule == "super-linear"
    ]
    assert "row 5" in finding.records[0] and "row 6" in finding.records[1]
    assert not any("fp64" in label for label in finding.records)


def test_a_constant_seed_makes_no_repeats_of_different_sizes() -> None:
    rows = ["| 22.9 | 8 | 11 | 7 |", "| 37.6 | 8 | 18 | 7 |", "| 116 | 9 | 11 | 7 |"]
    assert broken(pasted(below("| Time (s) | Moves | Threads | Seed |", *rows))) == set()


def test_machines_called_emulated_without_a_measurement_compare_nothing() -> None:
    rows = ["| 24 | a2 |", "| 48 | a4 |"]
    table = below("| Cores | Emulated instance |", *rows)
    assert "emulated" not in pasted(table).checked
    timed = below("| Cores | Emulated instance | Time (s) |", "| 24 | a2 | 9 |", "| 48 | a4 | 5 |")
    assert broken(pasted(timed)) == {"emulated"}


def test_degrees_of_tensor_parallelism_as_columns() -> None:
    head = "| Concurrency | TP=1 | TP2 | TP-4 |"
    table = below(head, "| 1 | 41.3 | 68.4 | 101 |", "| 8 | 310.1 | 540.2 | 830 |")
    result = pasted(f"Throughput (tok/s) of an 8B model:\n\n{table}")
    assert result.reading["rate"] == "rate" and not broken(result)
    assert "world size 4" in str(result)
    wrong = pasted(f"Throughput (tok/s) of an 8B model:\n\n{table.replace('| 830 |', '| 1830 |')}")
    assert broken(wrong) == {"super-linear"}
    for heading in ("", "Memory of a rank in GB:\n\n"):  # what is measured is unknown
        assert not {"time", "rate"} & set(pasted(heading + table).reading.values())
    other = below("| GPUs | Tokens/s |", "| 1 | 68.4 |", "| 2 | 101 |")
    assert not pasted(f"{table}\n## Results\n\n{other}").tables


def test_two_results_in_a_cell() -> None:
    head = "Prefill / decode in tok/s\n\n| Model | 1 GPU | 2 GPUs | 4 GPUs |\n|---|---|---|---|\n"
    rows = (
        "| 4B | 1,622 / 51.8 | 2,685 / 60 | 4,744 / 75.8 |\n| 9B | 829 / 28.9 | 1,418 / 39 | - |\n"
    )
    result = pasted(head + rows)
    assert not broken(result)
    assert "10 values" in str(result) and "row 2 (9B, second, world size 2)" in str(
        result.findings[0].records
    )
    assert broken(pasted(head + rows.replace("75.8", "230.8"))) == {"super-linear"}


def test_a_share_in_brackets_is_not_the_unit_of_a_cell() -> None:
    head = "| Model | 1 GPU | 2 GPUs | 4 GPUs |"
    table = below(
        head, "| A | 400 (100%) | 780 (97%) | 1500 (94%) |", "| B | 210 | 380 | 700 (83%) |"
    )
    assert pasted(table).reading["rate"] == "rate"


@pytest.mark.parametrize(("quoted", "faults"), [("85%", set()), ("70%", {"quoted-against-own"})])
def test_rates_of_each_node(quoted: str, faults: set[str]) -> None:
    rows = ["| 1 | 2000 | 100% |", "| 2 | 1900 | 95% |", f"| 8 | 1700 | {quoted} |"]
    result = pasted(below("| Nodes | img/s per node | Efficiency |", *rows))
    assert result.reading["img/s per node"] == "rate_per_rank" and broken(result) == faults


@pytest.mark.parametrize(("head", "each"), [("Nodes | GPUs", 12500), ("GPUs | Run", None)])
def test_the_ranks_of_a_node_share_its_rate(head: str, each: float | None) -> None:
    text = below(f"| {head} | tokens/s/node |", "| 1 | 8 | 100000 |", "| 2 | 16 | 98000 |")
    (frame,) = read_tables(io.StringIO(text))
    rates = from_table(frame).frame["rate_per_rank"]
    assert rates.iloc[0] == each if each else rates.isna().all()


def test_the_same_columns_below_each_number_of_gpus() -> None:
    def section(heading: str, number: int, *rates: float) -> str:
        rows = [f"| model {name} | {rate} |" for name, rate in zip("AB", rates, strict=True)]
        return f"### {heading.format(number)}\n\n{below('| Model | Images/s |', *rows)}\n"

    for heading in ("Number of GPUs: {}", "{} GPUs"):
        last = section(heading, 4, 1500, 700)
        text = section(heading, 1, 400, 210) + section(heading, 2, 780, 380) + last
        result = pasted(text)
        assert set(result.reading.values()) == {"model", "rate", "world_size"}
        assert not result.tables and not broken(result)
        faster = text.replace(last, section(heading, 4, 1500, 950))
        assert broken(pasted(faster)) == {"super-linear"}
    parts = section("{} nodes 16 GPUs", 2, 780, 380), section("{} nodes 32 GPUs", 4, 1500, 700)
    assert "world_size" not in pasted("".join(parts)).reading.values()  # of a node, or of all


def test_cells_are_rates_of_whatever_is_done_in_a_second() -> None:
    head = "| Strategy | 1 Node | 2 Nodes | 4 Nodes |"
    result = pasted(below(head, "| A | 353.5 inf/s | 367 inf/s | 371 inf/s |"))
    assert result.reading["rate"] == "rate" and "fixed-overhead" not in str(result.findings)
    moved = pasted(below(head, "| A | 353.5 GB/s | 367 GB/s | 371 GB/s |"))
    assert "rate" not in moved.reading.values()


def test_orders_of_a_method_are_no_ranks() -> None:
    head = "| n_cells | p=2 n_dofs | p=2 error | p=2 rate | p=3 n_dofs | p=3 error | p=3 rate |"
    rows = ["| 16 | 2304 | 0.05 | 2.9 | 4096 | 0.01 | 3.9 |"]
    rows.append("| 64 | 9216 | 0.006 | 9.1 | 16384 | 0.0006 | 4.1 |")
    assert "world_size" not in pasted(below(head, *rows)).reading.values()


def test_programs_whose_times_only_a_unit_reveals_make_a_table_of_measurements() -> None:
    other = below("| Option | Time |", "| a | 3 s |", "| b | 4 s |", "| c | 4 s |")
    table = below("| Nodes | Alpha (ms) | Beta (ms) |", "| 1 | 80 | 120 |", "| 2 | 41 | 61 |")
    result = pasted(f"{other}\n{table}")
    assert not result.tables and result.reading["Nodes"] == "nodes"


def test_variables_of_a_shell_are_no_log() -> None:
    code = "\n".join(f"perl -le '$n=8; $ms={size}; $seq=2048; print $ms/$n'" for size in (1, 2, 3))
    table = below("| Option | Effect |", "| a | none |", "| b | more |")
    assert "time" not in pasted(f"{table}\n```\n{code}\n```\n").reading.values()


def test_columns_called_by_letters_hold_no_symbols() -> None:
    letters = "ABCDGHPTSE"
    rows = [",".join(str(row * place % 7 + 1) for place in range(10)) for row in range(1, 9)]
    result = pasted("\n".join([",".join(letters), *rows]) + "\n")
    assert {"S", "E"}.isdisjoint(result.reading)


@pytest.mark.parametrize(
    "added", ["AMP", "mixed precision", "torch.compile", "MP", "a cache in memory"]
)
def test_what_one_program_has_beside_the_other_is_no_parallel_speedup(added: str) -> None:
    rows = [
        "| Single GPU | 139.9 |",
        "| DDP (2 GPUs) | 145.5 |",
        f"| DDP + {added} (2 GPUs) | 31 |",
    ]
    result = pasted(below("| Config | Step (ms) |", *rows))
    assert not broken(result) and "differs (Single GPU against DDP + " in str(result.findings)
    plain = pasted(below("| Config | Step (ms) |", rows[0], "| DDP (2 GPUs) | 31 |"))
    assert broken(plain) == {"super-linear", "baseline"}


def test_escaped_signs_of_markdown_are_those_signs() -> None:
    table = below("| num\\_gpus | step\\_time (s) |", "| 1 | 8.0 |", "| 2 | 4.5 |")
    assert set(pasted(table).reading) == {"num_gpus", "step_time (s)"}


def test_columns_on_as_many_ranks_are_programs_of_their_own() -> None:
    head = "| Metric | 1 GPU | 4 GPU (naive) | 4 GPU (ours) |"
    rows = ["| Epoch time | 12 min | 5.1 min | 4.2 min |", "| Efficiency | 100% | 59% | 85% |"]
    result = pasted(below(head, *rows))
    assert result.reading["strategy"] == "strategy"
    findings = [each for each in result.findings if each.rule == "quoted-against-own"]
    (evidence,) = (each.evidence for each in findings)
    assert evidence == (
        "An efficiency of 85 % is quoted on 4 ranks, but the table's own numbers give 71 %."
    )


def test_jobs_are_no_settings_and_the_cores_of_a_node_count_for_its_ranks() -> None:
    head = "ntasks,threads,nodes,tasks_per_node,job_id,total_time"
    rows = [f"{n},{t},{n},1,{900 + n + t},{60 / n / t}" for t in (1, 8) for n in (1, 2, 4)]
    rows += [f"4,8,4,1,{999},3.9"]
    result = pasted("\n".join([head, *rows]) + "\n")
    assert not {"parallel-consistent"} & broken(result)
    assert "job_id" not in str(result.findings)


def test_the_most_iterations_are_the_work_and_not_the_number_of_one() -> None:
    rows = [f"{work},{n},{work / n**0.9}" for work in (500, 1000) for n in (1, 2, 4)]
    result = pasted("\n".join(["MAX_ITER,procs,seconds", *rows]) + "\n")
    assert result.reading["MAX_ITER"] == "steps" and not broken(result)


def test_a_call_on_one_rank_is_no_communication() -> None:
    table = "nprocs,comm_time\n1,{}\n2,0.03\n4,0.1\n8,0.12\n"
    assert broken(pasted(table.format(0.003))) == set()
    assert broken(pasted(table.format(0.09))) == {"communication-alone"}


def test_a_worker_that_is_the_baseline_has_no_strategy() -> None:
    rows = ["1 worker (baseline),122.6", "2 workers,20.1", "4 workers,14.3"]
    result = pasted("\n".join(["Workers,Time (s)", *rows, ""]))
    (found,) = [one for one in result.findings if one.rule == "super-linear"]
    assert "nothing in these numbers explains it" in found.evidence


def test_the_quoted_speedup_is_named_not_its_rounded_efficiency() -> None:
    rows = ["1,1.0x,100%", "3,4.88x,163%"]
    result = pasted("\n".join(["Workers,Speedup,Efficiency", *rows, ""]))
    (found,) = [one for one in result.findings if one.rule == "super-linear"]
    assert "A speedup of 4.88x is quoted on 3 ranks" in found.evidence


def test_percentiles_of_latencies_are_no_times_of_programs() -> None:
    rows = ["300,1.93,2.07", "600,3.68,4.03"]
    result = pasted("\n".join(["Threads,v1 95% (ms),v2 95% (ms)", *rows, ""]))
    assert "time" not in result.reading.values()
    rows = ["300,243530,236885,1.93,2.07", "600,304121,291395,3.68,4.03"]
    head = "Threads,v6.1.0 TPS,v6.2.0 TPS,v6.1.0 95% (ms),v6.2.0 95% (ms)"
    result = pasted("\n".join([head, *rows, ""]))
    assert result.reading["throughput"] == "rate" and not broken(result)
