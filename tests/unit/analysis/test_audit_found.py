"""Tables in shapes that were found in public repositories after the others."""

from __future__ import annotations

import math

import pytest
from audits import below, broken, pasted

from lab.analysis.audit.columns import guess
from lab.analysis.audit.values import number


def test_a_speedup_beside_columns_of_ranks_is_that_of_the_most() -> None:
    rows = [
        "| small | 80.0 ms | 12.5 ms | 6.40× | 80% |",
        "| big | 400.0 ms | 52.0 ms | 7.69× | 96% |",
    ]
    result = pasted(below("| Size | 1 GPU | 8 GPUs | Speedup | Efficiency |", *rows))
    assert {"speedup", "efficiency"} <= set(result.reading.values())
    assert [finding.rule for finding in result.findings] == ["repeats"]
    wrong = [rows[0].replace("6.40×", "7.40×"), rows[1]]
    result = pasted(below("| Size | 1 GPU | 8 GPUs | Speedup | Efficiency |", *wrong))
    assert broken(result) == {"quoted-against-own"}


def test_cells_with_a_cross_are_speedups() -> None:
    rows = ["| 64³ | 1.00× | 1.60× | 2.10× |", "| 512³ | 1.00× | 1.95× | 3.80× |"]
    result = pasted(below("| Grid | 1 GPU | 2 GPUs | 4 GPUs |", *rows))
    assert result.reading["speedup"] == "speedup"
    assert not broken(result)


def test_numbers_that_grow_with_the_ranks_in_all_rows_are_rates() -> None:
    rows = [
        "| ours | 300 | 550 | 2100 |",
        "| theirs | 260 | 310 | 480 |",
        "| old | 90 | 95 | 120 |",
    ]
    result = pasted(below("| Framework | 1 GPU | 2 GPUs | 8 GPUs |", *rows))
    assert "rate" in result.reading.values()
    assert "time" not in result.reading.values()


def test_bandwidths_of_collectives_are_no_times() -> None:
    rows = ["| all-reduce | 310 | 220 | 12.0 |", "| all-gather | 340 | 330 | 5.1 |"]
    for few in ("2 GPUs", "1 GPU"):
        result = pasted("## GB/s\n\n" + below(f"| what | {few} | 4 GPUs | 8 GPUs |", *rows))
        assert not result.reading
    rows = ["| all-reduce | 31 ms | 22 ms | 12 ms |", "| all-gather | 34 ms | 33 ms | 5 ms |"]
    timed = pasted(below("| what | 2 GPUs | 4 GPUs | 8 GPUs |", *rows))
    assert "communication" in timed.reading.values()


def test_a_row_of_ratios_below_rows_of_programs() -> None:
    rows = [
        "| serial | 71,000 | 780,000 | 3,100,000 |",
        "| a1b2c3d | 850,000 | 900,000 | 990,000 |",
    ]
    rows.append("| SPEEDUP | 0.1X | 0.9X | 3.1X |")
    assert not pasted(below("| | 10 | 100 | 250 |", *rows)).findings


def test_a_counted_number_of_gpus_from_zero_is_no_rank() -> None:
    rows = ["| 404 GB | 0 | ~248s |", "| 404 GB | 1 | ~166s |"]
    result = pasted(below("| Dataset Size | Num of GPUs | Time Per Epoch |", *rows))
    assert result.reading["Num of GPUs"] == "world_size"
    assert not broken(result)


def test_a_synchronous_program_is_no_communication() -> None:
    rows = ["| 1 | 89.2 | 89.6 |", "| 2 | 57.3 | 51.1 |", "| 4 | 47.3 | 36.6 |"]
    assert not broken(pasted(below("| GPUs | Sync (ms) | Overlap (ms) |", *rows)))
    phases = ["| 1 | 89.2 | 3.1 |", "| 2 | 57.3 | 9.0 |", "| 4 | 47.3 | 9.9 |"]
    result = pasted(below("| GPUs | step (ms) | Sync (ms) |", *phases))
    assert result.reading["Sync (ms)"] == "communication"


@pytest.mark.parametrize("name", ["Threads", "Cores"])
def test_threads_count_where_there_are_no_ranks(name: str) -> None:
    rows = ["| 1 | 960.0 | 1.00 |", "| 2 | 350.0 | 2.74 |", "| 4 | 190.0 | 5.05 |"]
    result = pasted(below(f"| {name} | Time (s) | Speedup |", *rows))
    assert result.reading[name] == "world_size"
    assert f"{name!r} counts the ranks, as no other column does" in result.assumptions
    assert broken(result) == {"super-linear"}
    machines = ["| Xeon | 28 | 960.0 |", "| EPYC | 64 | 190.0 |"]
    assert not broken(pasted(below("| Machine | Cores | Time (s) |", *machines)))
    beside = pasted(below(f"| GPUs | {name} | Time (s) |", "| 1 | 8 | 20 |", "| 2 | 16 | 11 |"))
    assert beside.reading["GPUs"] == "world_size"


def test_kinds_of_ddp_are_no_repeats() -> None:
    rows = ["| none | 1 | 8 | 180.0 | 2900.0 |", "| naive | 2 | 16 | 265.0 | 3940.0 |"]
    rows += ["| bucketed | 2 | 16 | 226.0 | 4619.5 |", "| torch | 2 | 16 | 230.0 | 4539.1 |"]
    result = pasted(below("| DDP | GPUs | Global BS | Wall (s) | tok/s |", *rows))
    assert result.reading["DDP"] == "strategy"
    # The work grows with the ranks, which all four rows agree on.
    assert not broken(result)


def test_a_measured_share_that_recurs_is_no_setting() -> None:
    rows = ["| 8 | 2072 | 1.0x | 88 |", "| 16 | 1156 | 1.8x | 88 |", "| 32 | 697 | 3.0x | 95 |"]
    rows += ["| 64 | 420 | 4.9x | 95 |"]
    result = pasted(below("| GPUs | Step time (ms) | Speedup | GPU util (%) |", *rows))
    assert "GPU util (%)" not in result.reading
    assert [finding.records for finding in result.findings if finding.rule == "baseline"] == [
        ("row 1 (world size 8)",)
    ]


@pytest.mark.parametrize("name", ["N={}", "p = {}", "np={}"])
def test_columns_by_a_letter_for_the_ranks(name: str) -> None:
    heads = " | ".join(name.format(n) for n in (1, 2, 4))
    rows = ["| Time (s) | 837.1 | 443.3 | 247.6 |", "| Speedup | 1.00 | 1.89 | 3.38 |"]
    result = pasted(below(f"| Metric | {heads} |", *rows))
    assert {"time", "speedup", "world_size"} <= set(result.reading.values())
    assert broken(result) == set()
    sizes = below("| Solver | N=100 | N=200 | N=400 |", "| serial | 8.1 | 44.3 | 247.6 |")
    assert not pasted(sizes).reading


@pytest.mark.parametrize(("third", "faults"), [("2.57", set()), ("3.08", {"quoted-against-own"})])
def test_a_batch_that_ranks_cannot_share_evenly(third: str, faults: set[str]) -> None:
    rows = ["| 1 | 256 | 348.3 | 1.00 |", "| 2 | 128 | 189.2 | 1.84 |", "| 4 | 64 | 109.3 | 3.19 |"]
    head = "| Ranks | Batch size per GPU | Total time | Speedup |"
    assert broken(pasted(below(head, *rows, f"| 3 | 85 | 135.5 | {third} |"))) == faults


def test_layouts_are_compared_by_their_rates() -> None:
    rows = ["| 64 | 8 | 1024 | 42.9 | 97800 |", "| 128 | 4 | 4096 | 85.9 | 195300 |"]
    head = "| GPUs | Micro batch size | Global batch size | Step time (s) | Tokens/s |"
    assert broken(pasted(below(head, *rows))) == set()


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("GPUs (nodes)", ("8 (1)", "16 (2)")),
        ("GPUs (cp_size)", ("8 (1 node)", "16 (2 nodes)")),
        ("GPUs", ("8 x NVIDIA H100", "16 x NVIDIA H100")),
    ],
)
def test_numbers_of_gpus_with_an_aside(name: str, cells: tuple[str, str]) -> None:
    rows = [f"| {cell} | {time} |" for cell, time in zip(cells, ("364 s", "190 s"), strict=True)]
    reading = pasted(below(f"| {name} | Step time |", *rows)).reading
    assert "world_size" in reading[name]


def test_the_time_of_a_number_of_things() -> None:
    reading = pasted(
        below("| MPI Ranks | Time (75 frames) |", "| 1 | ~112 min |", "| 4 | ~30 min |")
    )
    assert reading.reading["Time (75 frames)"] == "time"
    reading = pasted(below("| GPUs | Time (inference) |", "| 1 | 12 |", "| 4 | 4 |"))
    assert "Time (inference)" not in reading.reading


def test_names_after_a_hash_below_a_sentence() -> None:
    text = "Here is my time.\n```\n# nodes  time(sec)\n16    2.59\n32    2.61\n64    26.5\n```\n"
    assert pasted(text).reading == {"nodes": "nodes", "time(sec)": "time"}


def test_numbered_cores_are_no_numbers_of_cores() -> None:
    rows = ["| Runtime [s] | 7.1 | 7.1 | 7.1 |", "| Scalar MUOPS/s | 0.0006 | 8.0e-06 | 8.4e-07 |"]
    assert not pasted(below("| Metric | Core 0 | Core 1 | Core 2 |", *rows)).reading


def test_the_batch_that_most_rows_agree_with() -> None:
    rows = [f"| {n} | 1 | 128 | {ms} | 333.5 |" for n, ms in (("N", 383.8), ("S", 383.8))]
    rows += ["| M | 1 | 108 | 323.8 | 333.5 |", "| L | 2 | 64 | 383.8 | 333.5 |"]
    rows.append("| X | 3 | 43 | 386.8 | 333.5 |")
    head = "| scale | cards | batch size | ms/step | img/s |"
    assert not broken(pasted(below(head, *rows)))
    wrong = [*rows[:-1], rows[-1].replace("386.8", "586.8")]
    assert broken(pasted(below(head, *wrong))) == {"quoted-against-own"}


def test_a_single_card_in_chinese_is_one() -> None:
    rows = ["| 单卡 | 4.54 | 1.00x |", "| 4卡 | 17.2 | 3.79x |"]
    result = pasted(below("| 卡数 | ips | 加速比 |", *rows))
    assert not broken(result)
    assert "baseline" not in {finding.rule for finding in result.findings}


def test_numbered_rows_are_no_ranks() -> None:
    assert "N" not in pasted("N,cpu,speedup\n0,a,1.05\n0,b,2.22\n1,a,1.03\n1,b,2.1\n").reading


def test_versions_without_a_number_are_programs() -> None:
    rows = ["| Serial | 1 | 5.9 |", "| Parallel | 1 | 6.0 |", "| Parallel | 2 | 3.6 |"]
    reading = pasted(below("| Version | GPUs | Time (s) |", *rows)).reading
    assert reading["Version"] == "strategy"
    assert pasted("Version,GPUs,Time (s)\n1.2,1,5\n1.3,2,3\n").reading["Version"] == "version"


def test_what_takes_longer_than_a_step_is_no_part_of_it() -> None:
    head = "batch_size,throughput,latency_ms,load_ms"
    assert not broken(pasted(f"{head}\n1,31346,0.73,62.2\n1,51178,1.13,114.1\n"))
    assert broken(pasted(f"{head}\n1,900,1.13,0.6\n1,800,1.25,0.7\n")) == {"data-stall"}


def test_lengths_tell_rows_apart_in_a_column_or_a_cell() -> None:
    rows = ["| 8B | 2048 | 9,700 | 22.5% |", "| 8B | 8192 | 9,100 | 39.0% |"]
    result = pasted(below("| Model | SEQ | Tokens/s/GPU | MFU |", *rows))
    assert result.reading["SEQ"] == "sequence_length"
    assert not broken(result)
    rows = [
        "| plain | 340 | 20 % |",
        "| MBS 2 | 430 | 25 % |",
        "| MBS 2, seq=8192 | 370 | 24.5 % |",
    ]
    assert not broken(pasted(below("| config | tps/GPU | MFU |", *rows)))
    rows[2] = rows[2].replace("seq=8192", "compiled")
    assert broken(pasted(below("| config | tps/GPU | MFU |", *rows))) == {"mfu-consistent"}
    rows = ["| 1500 | 820 | 1.83 |", "| 2700 | 1400 | 1.93 |"]  # sequential, in ms
    assert "Seq" not in pasted(below("| Seq | MPI (ms) | Speedup |", *rows)).reading


def test_a_speedup_over_a_serial_time_that_grows_with_the_work() -> None:
    head = "| Threads | Time (s) | Time Serial (s) | Epochs | Speedup | Efficiency |"
    rows = ["| 4 | 5.0 | 10.0 | 50 | 2.00 | 0.50 |", "| 8 | 8.0 | 20.0 | 100 | 2.50 | 0.3125 |"]
    rows.append("| 16 | 12.5 | 40.0 | 200 | 3.20 | 0.20 |")
    assert not broken(pasted(below(head, *rows)))
    wrong = [*rows[:2], rows[2].replace("0.20 |", "0.40 |")]
    assert broken(pasted(below(head, *wrong))) == {"quoted-against-own"}


def test_a_step_with_more_work_has_its_share_in_the_evidence() -> None:
    rows = ["| 1 | 0.42 | 9.5 | 100% |", "| 2 | 0.20 | 39.9 | 210% (105% each) |"]
    rows.append("| 4 | 0.10 | 159.6 | 420% |")
    result = pasted(below("| GPUs | Time/Iteration (s) | Samples/s | Scaling Efficiency |", *rows))
    assert broken(result) == {"super-linear", "baseline"}
    evidence = " ".join(finding.evidence for finding in result.findings)
    assert "for 2 times the work mean at most 200.00 ms on 1" in evidence
    assert "An efficiency of" not in evidence  # 420 % are what the rates give


def test_ranks_follow_from_a_total_and_the_rate_of_each() -> None:
    rows = ["| a | 105,900 | 13,237 | 80 |", "| b | 98,640 | 12,330 | 75 |"]
    result = pasted(below("| Runtime | Tokens/s | Tokens/s/GPU | TFLOPs/GPU |", *rows))
    assert "the ranks are the total rate over that of a rank" in result.assumptions
    assert "baseline" in result.checked
    rows = ["| a | 105,900 | 31,237 |", "| b | 98,640 | 12,330 |"]
    assert not pasted(below("| Runtime | Tokens/s | Samples/s/GPU |", *rows)).assumptions


@pytest.mark.parametrize(
    ("head", "cells", "read"),
    [
        ("| run | step | tokens/s/GPU |", ("R75 | 22.3s | 925", "R70 | 24.6s | 847"), "time"),
        ("| x | Step (s) | tokens/s/GPU |", ("a | 1.70 | 9", "b | 1.31 (-23%) | 12"), "time"),
        ("| n | Tempo (real) | z |", ("2 | 0m0.346s | a", "4 | 0m0.270s | b"), "time"),
        ("| n | tok/s/GPU | z |", ("2 | 7 322 | a", "4 | 11 724 | b"), "rate_per_rank"),
    ],
)
def test_cells_in_other_writings(head: str, cells: tuple[str, ...], read: str) -> None:
    result = pasted(below(head, *(f"| {cell} |" for cell in cells)))
    name = head.split("|")[2].strip()
    assert result.reading[name] == read
    assert "run" not in result.reading
    assert math.isnan(number("224 224"))  # an image
    assert number(r"$2.4\times10^{-2}$") == number("2.4x10^-2") == 0.024


def test_a_dash_of_a_checked_baseline_is_no_setting() -> None:
    rows = ["| local | 1 | 10 | — |", "| local | 2 | 5.5 | yes |", "| local | 4 | 3 | yes |"]
    result = pasted(below("| where | Ranks | Time (s) | Verified |", *rows))
    assert "baseline" not in {finding.rule for finding in result.findings}


def test_programs_timed_on_numbers_of_threads() -> None:
    rows = ["| 1 | 1.850s | 0.216s |", "| 10 | 0.943s | 0.173s |"]
    result = pasted(below("| threads | ours | theirs |", *rows))
    assert result.reading["threads"] == "world_size" and "super-linear" in result.checked


def test_speedups_over_the_only_run_that_quotes_one() -> None:
    rows = ["| 256 | 8192 | 1 |", "| 512 | 8192 | 1.83 |", "| 512 | 16384 | 1.79 |"]
    result = pasted(below("| GPUs | seq | Speedup |", *rows))
    assert not broken(result)
    assert any("relative to a run with other settings" in one.evidence for one in result.findings)


def test_the_efficiency_of_a_cpu_is_its_use() -> None:
    rows = ["| 48 | ~95% | ~437 s |", "| 96 | ~91% | ~385 s |", "| 192 | ~85% | ~252 s |"]
    result = pasted(below("| MPI ranks | CPU efficiency | Wall time |", *rows))
    assert "CPU efficiency" not in result.reading and not broken(result)


def test_marks_out_of_five_are_no_efficiency() -> None:
    rows = ["| a | 30 | 3.24 |", "| b | 30 | 3.77 |"]
    result = pasted(below("| config | GPUs | judge_efficiency |", *rows))
    assert "judge_efficiency" not in result.reading and not broken(result)
    percent = ["| 1 | 10 | 100 |", "| 2 | 6 | 3.5 |"]
    result = pasted(below("| GPUs | Time (s) | Efficiency |", *percent))
    assert broken(result) == {"quoted-against-own"}


def test_adapters_named_in_any_column_are_trained_with_fewer_flops() -> None:
    names = "| Type | GPUs | MFU | tokens/s/GPU |"
    rows = [
        "| SFT | 8 | 26.6% | 6210 |",
        "| RL | 8 | 13.9% | 3254 |",
        "| RL LoRA | 8 | 21% | 6090 |",
    ]
    assert "mfu-consistent" not in broken(pasted(below(names, *rows)))
    rows[2] = rows[2].replace(" LoRA", "")
    assert "mfu-consistent" in broken(pasted(below(names, *rows)))


def test_processors_that_are_gpus() -> None:
    rows = ["| Tesla P100 | 8 | 29 h |", "| Tesla V100 | 2048 | 1.2 min |"]
    result = pasted(below("| Processor | # Processors | Time |", *rows))
    assert result.reading["Processor"] == "gpu"


@pytest.mark.parametrize("end", ["", "10\t1.44\t0.3\n"])
def test_the_last_lines_of_a_log_may_be_a_summary(end: str) -> None:
    rows = [f"{step}\t{3 / step:.2f}\t{0.1 * step:.1f}" for step in range(1, 11)]
    log = "step\tloss\tstep_s\n" + "\n".join([*rows, "10\t\t0.2", "10\tNone\t0.3"]) + "\n"
    assert ("two-writers" in broken(pasted(log + end))) == bool(end)


def test_ranks_that_gain_nothing_are_no_slower() -> None:
    result = pasted("GPUs,Time (s)\n1,1490.4\n4,1491.0\n")
    (found,) = [one for one in result.findings if one.rule == "fixed-overhead"]
    assert "4 ranks are no faster than 1: speedup 1.00" in found.evidence
    assert found.evidence.endswith("1491.00 s, if both do the same work."), "it may be weak scaling"
    stated = pasted("GPUs,global batch,Time (s)\n1,64,1490.4\n4,64,1491.0\n")
    (found,) = [one for one in stated.findings if one.rule == "fixed-overhead"]
    assert "same work" not in found.evidence
    rates = pasted("GPUs,tokens/s\n1,9100\n2,8600\n4,8500\n")
    (found,) = [one for one in rates.findings if one.rule == "fixed-overhead"]
    assert "4 ranks are slower than 1: speedup 0.93" in found.evidence
    assert "If the rates are those of each rank, say so in their name." in found.advice


def test_the_columns_of_speedups_that_were_not_read_are_named() -> None:
    rows = ["| 1 | 1.0 | 1.0 |", "| 2 | 1.9 | 1.8 |"]
    result = pasted(below("| GPUs | Speedup small | Speedup large |", *rows))
    assert result.assumptions == (
        "'Speedup small' is read as the speedup, not 'Speedup large'; "
        "--column speedup=COLUMN chooses another",
    )


def test_degrees_in_the_words_of_a_strategy() -> None:
    names = "| Parallelism | GPUs | samples/s |"
    rows = ["| zero2(dp8) | 8 | 17.1 |", "| zero1(dp2)+tp2+pp4 | 16 | 25.8 |"]
    result = pasted(below(names, *rows))
    assert "parallel-consistent" in result.checked and not broken(result)
    rows[1] = rows[1].replace("16", "8")
    (found,) = [one for one in pasted(below(names, *rows)).findings if one.severity != "note"]
    assert "dp 2 x tp 2 x pp 4 is 16, not 8 ranks in row 2" in found.evidence
    other = below("| Strategy | GPUs | samples/s |", "| FSDP2 | 8 | 17.1 |", "| DDP 4 | 8 | 25.8 |")
    assert "parallel-consistent" not in pasted(other).checked


def test_a_speedup_by_other_hardware_is_no_scaling() -> None:
    rows = ["| Tesla P100 | 8 | 29 h |", "| Tesla V100 | 2048 | 1.2 min |"]
    result = pasted(below("| Processor | GPUs | Time |", *rows))
    assert not broken(result)
    (found,) = [one for one in result.findings if one.rule == "super-linear"]
    assert "the GPU differs (Tesla P100 against Tesla V100)" in found.evidence
    same = pasted(below("| Processor | GPUs | Time |", *(row.replace("P1", "V1") for row in rows)))
    assert "super-linear" in broken(same)


def test_a_quoted_efficiency_tells_ranks_from_those_of_a_node() -> None:
    rows = ["| 1 | 1 | 80.0 | 1.00 | 1.00 |", "| 1 | 2 | 42.1 | 1.90 | 0.95 |"]
    rows += ["| 2 | 1 | 80.2 | 1.00 | 1.00 |", "| 2 | 4 | 22.2 | 3.60 | 0.90 |"]
    head = "| Nodes | MPI Tasks | Time (s) | Speedup | Efficiency |"
    result = pasted(below(head, *rows))
    assert result.reading["MPI Tasks"] == "world_size"
    assert not broken(result)
    of_nodes = [row.replace("3.60 | 0.90", "3.60 | 0.45").replace("0.95", "0.90") for row in rows]
    of_nodes[2] = "| 2 | 1 | 42.0 | 1.90 | 0.95 |"
    assert pasted(below(head, *of_nodes)).reading["MPI Tasks"] == "per_node"


def test_as_many_ranks_on_other_nodes_are_no_repeats() -> None:
    rows = ["| 1 | 1 | 8521 | 1 |", "| 1 | 2 | 4486 | 1.9 |", "| 1 | 4 | 2332 | 3.65 |"]
    rows += ["| 2 | 1 | 5100 | 1.67 |", "| 4 | 1 | 3115 | 2.74 |"]
    head = "| #Nodes | #GPUs per node | Runtime (s) | Speedup |"
    assert not broken(pasted(below(head, *rows)))
    wrong = [row.replace("1.67", "1.97") for row in rows]
    result = pasted(below(head, *wrong))
    assert broken(result) == {"quoted-against-own"}
    assert "1.97x is quoted on 2 ranks" in str(result)


def test_nodes_and_gpus_in_the_names_of_columns() -> None:
    head = "| Model | 1 N 1 GPU | 1 N 4 GPUs | 2 N 4 GPUs |"
    result = pasted("images/s\n\n" + below(head, "| small | 100 | 390 | 770 |"))
    assert "world size 8" in str(result.findings[0].records)
    sizes = ["| Problem size (N) | 92160 | 190464 | 264192 |", "| Block size | 64 | 64 | 64 |"]
    assert "time" not in pasted(below(head, *sizes)).reading.values()


def test_places_on_a_list_beyond_the_ranks_are_no_ranks() -> None:
    head = "| Rank | ns/day | ntmpi | ntomp | GPUs | Configuration |"
    rows = ["| 1 | 227.8 | 6 | 6 | 2 | dlb=yes |", "| 2 | 220.1 | 8 | 5 | 2 | dlb=yes |"]
    rows += ["| 3 | 215.9 | 6 | 4 | 2 | dlb=yes, pin=1 |", "| 4 | 207.5 | 8 | 4 | 2 | dlb=no |"]
    rows += ["| 5 | 200.5 | 8 | 5 | 2 | dlb=yes, pin=1 |"]
    result = pasted(below(head, *rows))
    assert "Rank" not in result.reading
    assert not broken(result)


def test_a_warm_up_before_repetitions_is_a_whole_one() -> None:
    text = "n,threads,repetitions,warmup,median_seconds\n1024,1,7,1,2.1\n1024,4,7,1,0.6\n"
    assert not broken(pasted(text))
    result = pasted(text.replace(",7,1,", ",7,0,"))
    assert broken(result) == {"cold-start"}
    assert "No repetition" in str(result)
    steps = text.replace("repetitions,warmup", "loss,warmup").replace("n,", "steps,", 1)
    assert broken(pasted(steps)) == {"cold-start"}


def test_a_speedup_between_two_numbers_of_ranks_is_none_over_one() -> None:
    head = "| Benchmark | 4× H200 | 8× H200 | 16× H200 | Scaling (8→16) |"
    result = pasted(below(head, "| tuned | 99 min | 68 min | 38 min | 1.79× |"))
    assert "speedup" not in result.reading.values()
    assert not broken(result)


def test_a_projection_may_be_regular() -> None:
    rows = ["| 1 | 1.0x | 43K tok/s |", "| 2 | 1.75x | 76K tok/s |", "| 4 | 3.50x | 152K tok/s |"]
    rows += ["| 8 | 7.0x | 304K tok/s |", "| 16 | 14.0x | 608K tok/s |"]
    for head in ("| GPUs | Projected Speedup | Throughput |", "| GPUs | What | Throughput |"):
        regular = broken(pasted(below(head, *rows)))
        assert regular == (set() if "Projected" in head else {"too-regular"})
    theory = below("| GPUs | Speedup 32-bit |", "| 4 | 3.53x |", "| 96 | 13.4x |")
    assert not broken(pasted("Theoretical speedup\n===\n\n" + theory))
    assert broken(pasted("Speedup\n===\n\n" + theory)) == {"baseline"}


def test_a_gpu_called_by_a_number_is_its_model() -> None:
    head = "| Method | FPS | GPU |"
    for name in ("3090", "RTX 4090"):
        result = pasted(below(head, "| ours | 36.2 | 2080 Ti |", f"| paper | 60 | {name} |"))
        assert result.reading["GPU"] == "gpu"


def test_sizes_of_matrices_are_no_ranks() -> None:
    head = "| Methods | Matrices 1024*1024 | Matrices 2048*2048 |"
    assert not pasted(
        below(head, "| naive | 8098 ms | 84232 ms |", "| omp | 44 ms | 204 ms |")
    ).reading


@pytest.mark.parametrize(
    ("name", "quantity"),
    [
        *[(name, "rate") for name in ("Photons/s", "lookups/s", "Histories per second")],
        *[(name, None) for name in ("Mbytes/s", "errors/s", "total bytes/s")],
        *[("processes_mpi", "world_size"), ("threads_openmp", "threads")],
        *[("Num of Hardware", "world_size"), ("50k Training Time", "time")],
    ],
)
def test_more_names(name: str, quantity: str | None) -> None:
    meaning = guess(name)
    assert (meaning.canonical if meaning else None) == quantity


def test_threads_of_some_programs() -> None:
    rows = ["seq,1,1,8.0", "mpi+omp,1,1,8.1", "mpi+omp,2,1,4.2", "mpi+omp,1,2,4.4"]
    rows += ["mpi+omp,2,2,2.3", "cuda,,,0.4"]
    result = pasted("version,processes_mpi,threads_openmp,seconds\n" + "\n".join(rows) + "\n")
    assert "counts the cores" in str(result.assumptions)
    assert not broken(result)


def test_batches_that_few_configurations_scale_in() -> None:
    alone = [f"| other{n} | 1 | {batch} | {8 + batch / 9} |" for n in range(9) for batch in (1, 16)]
    scaled = [
        f"| ours | {n} | {b} | {(8 + b / 9) / n**0.5} |" for n in (1, 2, 4) for b in (1, 16, 64)
    ]
    head = "| Model | GPUs | Batch | Latency (s) |"
    assert not broken(pasted(below(head, *alone, *scaled)))


def test_speedups_of_the_least_times() -> None:
    rows = ["seq,base,1,4.00,4.40,0.30,1.0", "omp,threads,1,4.20,4.50,0.30,0.952"]
    rows += ["omp,threads,2,2.10,2.50,0.30,1.905", "omp,threads,4,1.10,1.40,0.10,3.636"]
    rows += ["omp,threads,8,0.80,0.95,0.05,5.0", "omp,schedule,8,0.76,0.90,0.05,5.263"]
    text = "version,kind,threads,runtime_min,runtime_mean,runtime_stddev,speedup\n"
    result = pasted(text + "\n".join(rows) + "\n")
    assert result.reading["runtime_min"] == "time"
    assert "quoted speedups are its ratios" in str(result.assumptions)
    assert not broken(result) & {"quoted-against-own", "baseline"}
    of_means = text.replace("min", "m").replace("mean", "min").replace("_m,", "_mean,")
    assert pasted(of_means + "\n".join(rows) + "\n").reading["runtime_mean"] == "time"


def test_a_speedup_over_a_run_with_another_batch() -> None:
    head = "| GPUs | Time (s) | Speedup | Global batch size |"
    rows = ["| 1 | 100 | 1.0 | 256 |", "| 2 | 52 | 1.92 | 256 |", "| 4 | 28 | 3.57 | 256 |"]
    assert not broken(pasted(below(head, *rows, "| 8 | 16.5 | 6.06 | 256 |")))
    result = pasted(below(head, *rows, "| 8 | 16.5 | 6.06 | 128 |"))
    assert broken(result) == {"equal-work"}
    assert "6.06x is quoted on 8 ranks with a global batch of 128, over 1 with 256" in str(result)


def test_faults_of_one_cause_are_one_finding_as_grave_as_the_gravest() -> None:
    rows = ["| 2 | 2.5 |", "| 4 | 8.0 |", "| 8 | 7.0 |"]
    result = pasted(below("| Threads | Speedup |", *rows))
    (finding,) = [finding for finding in result.findings if finding.rule == "super-linear"]
    assert finding.severity == "error" and finding.evidence.startswith("A speedup of 8.00x")
    assert [label.split(" (")[0] for label in finding.records] == ["row 2", "row 1"]


def test_gpus_over_nodes_are_those_of_each() -> None:
    head = "| node num | gpus/nodes | gpu num | Throughput | Speedup |"
    rows = ["| 1 | 1 | 1 | 380 | 1 |", "| 1 | 8 | 8 | 2900 | 7.63 |", "| 2 | 8 | 16 | 5700 | 15 |"]
    result = pasted(below(head, *rows))
    assert result.reading["gpu num"] == "world_size" and result.reading["gpus/nodes"] == "per_node"
    assert not broken(result)


def test_what_is_called_worse_is_no_speedup() -> None:
    head = "| Method | Memory per GPU | vs Single GPU |"
    rows = ["| Single GPU | 40.6 GB | baseline |", "| DDP (8 GPUs) | 48.5 GB | 1.2× worse |"]
    result = pasted(below(head, *rows, "| FSDP (8 GPUs) | 22.0 GB | 1.8× better |"))
    assert "speedup" not in result.reading.values() and not broken(result)


def test_times_grow_with_the_size_of_a_problem_called_n() -> None:
    rows = [f"{n},{n / 140 * speed:.2f}" for speed in (1, 9) for n in (20, 40, 80, 160)]
    result = pasted("n,wall_time\n" + "\n".join(rows) + "\n")
    assert "world_size" not in result.reading.values() and not broken(result)
    fallen = pasted("n,wall_time\n" + "\n".join(f"{n},{100 / n:.2f}" for n in (1, 2, 4)) + "\n")
    assert fallen.reading["n"] == "world_size"


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("n (problem size)", ""),
        ("n (Tamaño del problema)", ""),
        ("p (processes)", "world_size"),
        ("Number Nodes", "nodes"),
        ("Ranks/Nodes", "per_node"),
        ("Simulation run time", "time"),
        ("Tempo médio execução", "time"),
        ("Rodada", "repeat"),
    ],
)
def test_names_that_say_more_than_their_first_word(name: str, canonical: str) -> None:
    meaning = guess(name)
    assert (meaning.canonical if meaning else "") == canonical


def test_loops_of_several_lengths_are_no_repeats() -> None:
    rows = [f"Mutex,{n},{loops},{loops / 20 + n / 10}" for loops in (10, 50, 90) for n in (2, 4, 8)]
    result = pasted("lock,threads,iterations,time\n" + "\n".join(rows) + "\n")
    assert not broken(result)


def test_numbered_samples_are_repeats() -> None:
    rows = [f"{n},{one},{8 / n + noise}" for n in (1, 2, 4) for one, noise in ((1, 1), (2, 0))]
    result = pasted("threads,sample,time_s\n" + "\n".join(rows) + "\n")
    assert result.reading["sample"] == "repeat"
    named = pasted("threads,sample,time_s\n1,NA12,8\n2,NA12,4.1\n1,NA78,6\n2,NA78,3.2\n")
    assert "sample" not in named.reading


def test_a_single_measurement_has_no_deviation() -> None:
    rows = "1,{0},4.79,0\n2,{0},2.61,0\n4,{0},1.43,0\n"
    head = "workers,repeats,mean_s,stdev_s\n"
    assert "too-regular" not in broken(pasted(head + rows.format(1)))
    assert "too-regular" in broken(pasted(head + rows.format(5)))


def test_columns_of_vectors_are_no_ranks() -> None:
    rows = "| 0 | -0.013 | -0.042 | 0.02 | 0.012 |", "| 1 | 0.033 | 0.021 | 0.0009 | 0.047 |"
    assert not broken(pasted(below("| doc | 1 | 2 | 3 | 4 |", *rows)))


def test_a_serial_time_beside_columns_of_threads_is_that_of_one() -> None:
    head = "| N | Seq. time (s) | 2 Threads time (s) | 2 Threads Speedup | 4 Threads time (s) |"
    head += " 4 Threads Speedup |"
    rows = ["| 1000 | 6.02 | 4.35 | 1.38 | 1.51 | 3.99 |", "| 2000 | 24 | 17 | 1.41 | 6 | 4 |"]
    result = pasted(below(head, *rows))
    assert "baseline" in result.checked and not broken(result)
    wrong = pasted(below(head, rows[0].replace("3.99", "2.88"), rows[1]))
    assert broken(wrong) == {"quoted-against-own"}
    symbols = (
        "| N | Seq. T(1) | 2 Threads T(2) | 2 Threads S(2) | 4 Threads T(4) | 4 Threads S(4) |"
    )
    assert pasted(below(symbols, *rows)).findings == result.findings


def test_a_solver_that_writes_files_does_not_wait_for_data() -> None:
    rows = "128,37.4,29.7\n64,60.2,20.1\n"
    assert not broken(pasted("Ranks,Simulation run time,I/O run time\n" + rows))
    assert broken(pasted("Ranks,Epoch time,I/O time\n" + rows)) == {"data-stall"}


def test_processes_times_threads_in_a_cell() -> None:
    rows = ["| 1 × 1 (serial) | 8.0 |", "| 2 × 4 | 1.2 |", "| 4 × 2 | 1.1 |", "| 8 × 1 | 1.05 |"]
    result = pasted(below("| Configuration (MPI × OMP) | Time (s) |", *rows))
    assert "super-linear" in result.checked and not broken(result)
    assert any("processes times threads" in one for one in result.assumptions)
    faster = pasted(below("| MPI x Threads | Time (s) |", *rows[:3], "| 8 × 1 | 0.5 |"))
    assert "super-linear" in broken(faster)


FLOAT = r"""
\begin{table}
\caption{%s}
\begin{tabular}{c|c|c|c}
\rowcolor{white}
Size & 1 rank & 4 ranks & 16 ranks \\
\hline
\rowcolor[gray]{0.9}
1024 & 0.040 & 0.009 & 0.001 \\
2048 & 0.160 & 0.040 & 0.005 \\
\end{tabular}
\end{table}
"""


def test_each_table_of_a_paper_has_its_own_caption() -> None:
    captions = ("Communication time of each size", "Execution time of each size")
    paper = r"\title{Cannon}\section{Results}" + "".join(FLOAT % one for one in captions)
    result = pasted(paper)
    places = [table.place for table in result.tables]
    assert all(repr(one) in place for one, place in zip(captions, places, strict=True))
    assert [*result.tables[0].reading.values()] == ["world_size", "communication"]
    assert not broken(result.tables[0]) - {"communication-alone"}
    assert "super-linear" in broken(result.tables[1])


def test_accents_of_latex() -> None:
    rows = r"1 & 18.2 & 1 \\ 2 & 9.5 & 1.92 \\ 4 & 5.1 & 3.57 \\ \end{tabular}"
    head = (
        r"\begin{tabular}{c|c|c} Nombre de c\oe{}urs utilis\'es & Temps (s) & Acc\'el\'eration \\ "
    )
    assert [*pasted(head + rows).reading.values()] == ["world_size", "time", "speedup"]


def test_a_table_over_sizes_or_of_versions_hides_none_over_threads() -> None:
    threads = below("| threads | Time (s) | speedup |", "| 1 | 8.2 | 1 |", "| 2 | 4.3 | 3.9 |")
    sizes = below("| n | Time (s) |", "| 512 | 0.73 |", "| 1024 | 8.46 |")
    versions = below("| Version | Time (s) |", "| plain | 0.4 |", "| MPI (8 procs) | 0.9 |")
    for other in (sizes, versions):
        assert broken(pasted(f"{other}\n\n{threads}")) == {"quoted-against-own"}
    ranks = below("| n | Time (s) |", "| 1 | 8.4 |", "| 2 | 2.2 |")
    assert "world_size" in pasted(f"{ranks}\n\n{threads}").reading.values()


@pytest.mark.parametrize("name", ["-", "#", " "])
def test_a_first_column_without_a_name_holds_the_programs(name: str) -> None:
    rows = ["| reduction | 2 | 0.121 | 1.9 |", "| reduction | 4 | 0.062 | 3.9 |"]
    names = f"| {name} | Threads | Time (s) | Speedup |"
    assert not broken(pasted(below(names, "| sequential | 1 | 0.239 | - |", *rows)))
    assert broken(pasted(below(names, "| sequential | 1 | 0.339 | - |", *rows)))


def test_all_tables_over_processes_count_whatever_their_times_are_called() -> None:
    threads = ["| 2 | 1 | 8 |", "| 2 | 2 | 4.4 |", "| 4 | 1 | 4.2 |"]
    other = below("| Nombre de processus | Threads | Time (ms) |", *threads)
    name = "Nombre de processus (20 000 individus par processus)"
    wrong = below(f"| {name} | Temps d'une boucle (en ms) |", "| 1 | 35 |", "| 2 | 4.4 |")
    assert "super-linear" in broken(pasted(f"{wrong}\n\n{other}"))


def test_names_that_mean_something_else_beside_their_cells() -> None:
    blocks = ["| 4 | 10000 | 14.7us |", "| 8 | 10000 | 8.99us |"]
    assert "sequence_length" not in pasted(below("| blocksize | N | Time |", *blocks)).reading
    read = pasted(below("| block size | tokens/s |", "| 512 | 9000 |", "| 1024 | 9500 |")).reading
    assert read["block size"] == "sequence_length"
    rates = ["| 125000 | 4681 | 4824 |", "| 250000 | 4047 | 4521 |"]
    assert not pasted(below("| Identities | Data Parallel | Model Parallel |", *rates)).reading
    clocks = ["| 1 | 23.60 | 1m13.7s |", "| 2 | 25.90 | 41.1s |"]
    assert pasted(below("| threads | t(n) | time |", *clocks)).reading["time"] == "time"


@pytest.mark.parametrize(
    ("name", "cells", "faults"),
    [
        ("ns/op", ("226", "50"), {"super-linear", "baseline"}),
        ("op/s", ("4.88", "20.9"), {"super-linear", "baseline"}),
        ("Years/Day", ("4.51", "8.35"), set()),
        ("aggregate-FOM", ("1.42E+07", "2.48E+07"), set()),
    ],
)
def test_rates_of_benchmarks(name: str, cells: tuple[str, str], faults: set[str]) -> None:
    rows = [f"| {n} | {cell} |" for n, cell in zip((1, 2), cells, strict=True)]
    result = pasted(below(f"| threads | {name} |", *rows))
    assert result.reading[name] == "rate" and broken(result) == faults


def test_rates_of_several_programs() -> None:
    names = "| workers | Alpha QPS | Beta QPS |"
    result = pasted(below(names, "| 1 worker | 18608 | 15625 |", "| 2 workers | 34975 | 39058 |"))
    (found,) = [one for one in result.findings if one.rule == "super-linear"]
    assert all("Beta" in row for row in found.records)
    plain = pasted(below(names.replace("Alpha", "p99"), "| 1 | 18 | 15 |", "| 2 | 34 | 39 |"))
    assert plain.reading["Beta QPS"] == "rate"


def test_pairs_of_columns_for_sizes_of_a_problem() -> None:
    names = "| #process | 32x32 time (ms) | Efficiency | 64x64 time(ms) | Efficiency |"
    rows = ["| 1 | 25.7 | 1 | 258.3 | 1 |", "| 2 | 14.6 | 0.88 | 137.4 | 0.94 |"]
    right = pasted(below(names, *rows))
    assert set(right.reading.values()) >= {"time", "efficiency"} and not broken(right)
    assert broken(pasted(below(names, rows[0], rows[1].replace("0.94", "0.64"))))


def test_rates_are_printed_in_the_period_of_their_column() -> None:
    result = pasted(below("| Nodes | SYPD |", "| 1 | 2.5 |", "| 4 | 24 |"))
    (found,) = [one for one in result.findings if one.rule == "baseline"]
    assert "4 ranks at 24 per day mean at least 6 per day on 1" in found.evidence


def test_names_that_are_formulas_of_textbooks() -> None:
    rows = ["| 1 | 10.01 | 1.000 | 1.000 |", "| 2 | 5.01 | 2.000 | 1.000 |"]
    rows.append("| 4 | 2.60 | 3.850 | 0.963 |")
    head = "| p | Tp (s) | Sp = T1/Tp | Ep = Sp/p |"
    result = pasted(below(head, *rows))
    assert [*result.reading.values()] == ["world_size", "time", "speedup", "efficiency"]
    assert not broken(result)
    wrong = rows[2].replace("3.850", "3.350").replace("0.963", "0.838")
    assert broken(pasted(below(head, *rows[:2], wrong))) == {"quoted-against-own"}


def test_samples_of_a_trial_are_repeats() -> None:
    trial = "with {} threads:\n```\nBenchmarkTools.Trial:\n  minimum time: {} s (0.00% GC)\n"
    trial += "  median time: {} s (0.00% GC)\n  mean time: {} s (0.00% GC)\n  samples: {}\n```\n\n"
    text = trial.format(1, 1.308, 1.327, 1.338, 4) + trial.format(2, 0.707, 0.711, 0.712, 8)
    result = pasted(text)
    assert result.reading["repeats"] == "repeats" and not broken(result)


def test_physical_gpus_are_ranks() -> None:
    result = pasted("Physical GPUs,time_s\n1,1561\n2,1011\n4,300\n")
    assert result.reading["Physical GPUs"] == "world_size"
    assert broken(result) == {"super-linear"}


@pytest.mark.parametrize("names", ["run1_s,run2_s", "Trial 1 (s),Trial 2 (s)", "time1,time2,time3"])
def test_numbered_columns_of_times_are_repeats(names: str) -> None:
    times = {1: "100.1,120.2,110.3", 2: "51.2,50.1,49.9", 4: "27.3,24.4,26.5"}
    few = names.count(",") + 1
    rows = "".join(f"{n},{','.join(of.split(',')[:few])}\n" for n, of in times.items())
    result = pasted(f"threads,{names}\n{rows}")
    assert result.reading["repeat"] == "repeat" and not broken(result)  # though 120 / 24.4 > 4
    apart = pasted(f"threads,{names}\n{rows.replace('50.1', '9.1').replace('120.2', '20.1')}")
    assert "repeat" not in apart.reading


def test_tasks_in_round_numbers_are_no_ranks() -> None:
    rows = ["| 100 | 1.7 ms | 0.3 ms | 5.41x |", "| 500 | 5.7 ms | 1.5 ms | 3.86x |"]
    rows.append("| 1000 | 11.3 ms | 2.9 ms | 3.88x |")
    result = pasted(below("| Tasks | Sequential | Parallel | Speedup |", *rows))
    assert "world_size" not in result.reading.values() and not broken(result)
    ranks = pasted("Tasks,time_s\n100,9.1\n128,7.2\n256,3.7\n")
    assert ranks.reading["Tasks"] == "world_size"


def test_speedups_in_a_table_of_their_own() -> None:
    times = below("| MPI ranks | Time (s) |", "| 1 | 2.29 |", "| 2 | 1.47 |", "| 4 | 1.07 |")
    speedups = below("| MPI ranks | Speedup |", "| 2 | 1.55 |", "| 4 | 2.14 |")
    result = pasted(f"{times}\n\nThe speedups:\n\n{speedups}")
    assert len(result.tables) == 2 and not broken(result)
    others = times.replace("MPI ranks", "GPUs")
    assert broken(pasted(f"{others}\n\nThe speedups:\n\n{speedups}")) == {"baseline"}


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("Time (speedup)", ("3.22 (1.00x)", "1.83 (1.76x)", "0.76 (4.24x)")),
        ("Time [s] / Speedup", ("3.22", "1.83 / 1.76", "0.76 / 4.24")),
        ("img/s (efficiency)", ("400", "780 (97.5%)", "2400 (75%)")),
    ],
)
def test_a_time_or_rate_and_a_ratio_in_a_cell(name: str, cells: tuple[str, ...]) -> None:
    rows = [f"| {n} | {cell} |" for n, cell in zip((1, 2, 8), cells, strict=True)]
    result = pasted(below(f"| Threads | {name} |", *rows))
    assert "quoted-against-own" in result.checked and not broken(result)
    wrong = rows[2].replace("4.24", "6.24").replace("75%", "95%")
    assert broken(pasted(below(f"| Threads | {name} |", *rows[:2], wrong))) == {
        "quoted-against-own"
    }


def test_programs_that_a_first_word_tells_apart() -> None:
    head = "| GPUs | Pyg's Time | Pyg's Scalability | Quiver's Time | Quiver's Scalability |"
    rows = ["| 1 | 36.5 | 1.0 | 11.1 | 1.0 |", "| 2 | 30 | 1.22 | 5.8 | 1.91 |"]
    rows.append("| 4 | 28.2 | 1.29 | 3.25 | 3.42 |")
    assert not broken(pasted(below(head, *rows)))
    assert broken(pasted(below(head, *rows[:2], rows[2].replace("3.42", "2.42")))) == {
        "quoted-against-own"
    }
    for one, other in (("Strong", "Weak"), ("Measured", "Amdahl")):
        kinds = head.replace("Pyg's", one).replace("Quiver's", other)
        assert "setting" not in pasted(below(kinds, *rows)).reading


def test_machines_of_different_sizes_are_not_compared() -> None:
    rows = ["| 2 vCPU / 4GB | 1 | ~30 req/s |", "| 4 vCPU / 8GB | 2 | ~100 req/s |"]
    rows.append("| 16+ vCPU / 32GB | 8 | 1000 req/s |")
    sizes = below("| Server | Workers | Throughput |", *rows)
    assert not broken(pasted(sizes))
    nodes = sizes.replace("2 vCPU / 4GB", "n1").replace("4 vCPU / 8GB", "n2")
    assert "super-linear" in broken(pasted(nodes))
