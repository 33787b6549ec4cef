"""Tables of solvers, of parallel programs in courses, and of trainings beside them."""

from __future__ import annotations

import pytest
from audits import below, broken, pasted

from lab.analysis.audit.columns import guess


def noted(text: str) -> set[str]:
    """The rules with a note, except that nothing is repeated."""
    return {finding.rule for finding in pasted(text).findings} - {"repeats"}


OF_SIZES = [
    "| 1000 | 1 | 10.0 | 1.0 |",
    "| 1000 | 4 | 2.9 | 3.45 |",
    "| 2000 | 1 | 80.0 | 1.0 |",
    "| 2000 | 4 | 21.5 | 3.72 |",
]


@pytest.mark.parametrize("ranks", ["Processes", "Threads", "Cores"])
def test_n_beside_a_number_of_processes_is_the_size_of_the_problem(ranks: str) -> None:
    result = pasted(below(f"| N | {ranks} | Time (s) | Speedup |", *OF_SIZES))
    assert result.reading[ranks] == "world_size"
    assert "N" not in result.reading
    assert {finding.rule for finding in result.findings} == {"repeats"}
    wrong = [*OF_SIZES[:3], OF_SIZES[3].replace("3.72", "3.12")]
    result = pasted(below(f"| N | {ranks} | Time (s) | Speedup |", *wrong))
    assert broken(result) == {"quoted-against-own"}


def test_n_alone_counts_the_ranks() -> None:
    result = pasted(below("| N | Time (s) |", "| 1 | 10.0 |", "| 2 | 5.2 |", "| 4 | 2.9 |"))
    assert result.reading["N"] == "world_size"


OF_PROGRAMS = [
    "| 600 | 1.54 ms | 0.77 ms | 2.00x | 50% |",
    "| 900 | 9.6 ms | 2.4 ms | 4.0x | 99% |",
]


@pytest.mark.parametrize(
    "columns",
    ["Sequential | Parallel", "Serial (ms) | MPI (ms)", "Average Sequential (ms) | OpenMP (ms)"],
)
def test_a_speedup_beside_a_serial_and_a_parallel_time(columns: str) -> None:
    head = f"| Size | {columns} | Speedup | Efficiency |"
    result = pasted(below(head, *OF_PROGRAMS))
    assert "quoted-against-own" in result.checked
    assert not result.findings
    assert not any("ran on" in text for text in result.assumptions)
    assert "communication" not in result.reading.values()
    wrong = [OF_PROGRAMS[0], OF_PROGRAMS[1].replace("4.0x", "5.0x")]
    result = pasted(below(head, *wrong))
    assert broken(result) == {"quoted-against-own"}
    assert "5.00x is quoted" in result.findings[0].evidence
    assert "4.00x" in result.findings[0].evidence


def test_a_single_thread_beside_two_programs_is_serial() -> None:
    rows = ["| 1 | 10.1 | 10.3 | 10.2 |", "| 2 | 10.1 | 5.3 | 5.5 |", "| 4 | 10.1 | 2.9 | 3.0 |"]
    head = "| Threads | Single-thread time (s) | OpenMP time (s) | Pthreads time (s) |"
    result = pasted(below(head, *rows))
    assert any(said.startswith("'OpenMP time (s)', 'Pthreads") for said in result.assumptions)


def test_a_size_beside_a_speedup_is_that_of_a_problem() -> None:
    rows = ["| 512 | 1 | 0.8 | 1.0 |", "| 512 | 4 | 0.25 | 3.2 |"]
    rows += ["| 1024 | 1 | 6.4 | 1.0 |", "| 1024 | 4 | 1.8 | 3.6 |"]
    result = pasted(below("| Size | Threads | Time (s) | Speedup |", *rows))
    assert "bytes" not in result.reading.values()
    assert "super-linear" in result.checked and not broken(result)


def test_a_degree_of_parallelism_counts_the_ranks() -> None:
    rows = ["| 1 | 328.8 | 1.00x |", "| 2 | 164.5 | 2.00x |", "| 4 | 91.1 | 4.61x |"]
    result = pasted(below("| MaxParallelism | ms/step | speedup |", *rows))
    assert result.reading["MaxParallelism"] == "world_size"
    assert broken(result) == {"quoted-against-own"}


def test_an_increase_in_per_cent_is_no_ratio() -> None:
    rows = ["| a | 1.8 s | 0.6 s | 200% |", "| b | 3.0 s | 0.6 s | 400% |"]
    assert not pasted(below("| Query | Sequential | Parallel | Speedup |", *rows)).findings


def test_a_program_called_nccl_is_no_communication() -> None:
    rows = ["| 1 | 0.52 | 0.54 | 1.00x |", "| 2 | – | 0.28 | 1.93x |", "| 4 | – | 0.15 | 3.60x |"]
    head = "| GPUs | Single-GPU (ms) | NCCL (ms) | NCCL Speedup |"
    assert not broken(pasted(below(head, *rows)))
    parts = ["| 1 | 10.0 | 9.9 | 0.5 |", "| 2 | 6.0 | 5.0 | 0.9 |"]
    result = pasted(below("| GPUs | Time (ms) | Compute (ms) | NCCL (ms) |", *parts))
    assert result.reading["NCCL (ms)"] == "communication"
    assert "communication-alone" in broken(result)


def test_ranks_after_the_word_parallel() -> None:
    rows = ["| Serial (1) | 75.2 | 1.00 |", "| Parallel 2 | 38.1 | 1.97 |"]
    rows.append("| Parallel 4 | 15.0 | 5.01 |")
    result = pasted(below("| Configuration | Time (s) | Speedup |", *rows))
    assert broken(result) == {"super-linear"}
    assert "world size 4" in " ".join(result.findings[0].records)


def test_marks_of_correctness_are_no_settings() -> None:
    rows = ["| 1 | 1.51 | ✓ ⭐ |", "| 2 | 0.80 | ✓ |", "| 4 | 0.42 | ✓ |"]
    assert not noted(below("| Workers | Time (s) | Correct |", *rows))


def test_a_program_that_is_faster_on_one_rank_too() -> None:
    rows = ["| SEQ | 1 | 2.24 | 1.00 |", "| MPI | 1 | 0.130 | 17.2 |", "| MPI | 2 | 0.075 | 29.9 |"]
    text = below("| Mode | Processes | Time (s) | Speedup |", *rows)
    assert noted(text) == {"baseline"}
    evidence = next(each.evidence for each in pasted(text).findings if each.rule == "baseline")
    assert "17.20x is quoted on 1 rank" in evidence


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("atom-steps/s", "rate"),
        ("Mcell-steps/s", "rate"),
        ("MLUPS", "rate"),
        ("MLUPS/rank", "rate_per_rank"),
        ("aggregate ops/s", "rate"),
        ("per-worker ops/s", "rate_per_rank"),
        ("Files/sec", "rate"),
        ("steps/s", "time"),
        ("train it/s", "time"),
        ("Number of threads", "threads"),
        ("Threads ($p$)", "threads"),
        ("Total cores", "cpus"),
        ("No. of cores", "cpus"),
        ("# Pr.", "world_size"),
        ("Time taken (s)", "time"),
        ("Processing time", "time"),
        ("Solver time (s)", "time"),
        ("GFLOP/s", "rate"),
        ("Performance (GFLOPS)", "rate"),
        ("MFLOP/s per core", "rate_per_rank"),
        ("GTEPS", "rate"),
        ("MDOF/s", "rate"),
        ("吞吐倍率", "speedup"),
        ("Scale-up", "speedup"),
        ("days/ns", "time"),
    ],
)
def test_names(name: str, meaning: str) -> None:
    found = guess(name)
    assert found is not None and found.canonical == meaning


@pytest.mark.parametrize(
    "name", ["Rank MB", "Ops/timestep (M)", "GFLOPs", "Node SP GFlop/s", "Pipeline Efficiency"]
)
def test_names_of_nothing_that_is_read(name: str) -> None:
    assert guess(name) is None


def test_units_before_what_they_are_of() -> None:
    elapsed, cells = guess("Seconds Elapsed"), guess("Mcells/s")
    assert elapsed is not None and (elapsed.canonical, elapsed.factor) == ("time", 1.0)
    assert cells is not None and (cells.canonical, cells.factor) == ("rate", 1e6)


def test_a_time_of_computing_alone_is_that_of_the_whole() -> None:
    rows = ["| 1 | 10.0 | 1.0 |", "| 2 | 5.2 | 1.92 |", "| 4 | 2.9 | 4.45 |"]
    result = pasted(below("| Processes | Computation time (s) | Speedup |", *rows))
    assert result.reading["Computation time (s)"] == "time"
    assert broken(result) == {"quoted-against-own"}


def test_models_of_gpus_that_are_numbers() -> None:
    rows = ["| 1×5090 | 120K |", "| 2×5090 | 285K |"]
    result = pasted(below("| GPU | Tok/s |", *rows))
    assert broken(result) == {"super-linear"}
    assert "2.4x on 2 ranks" in result.findings[0].evidence


def test_columns_for_numbers_of_threads() -> None:
    rows = ["| 1024 | 4.44 | 9.18 | 18.57 |", "| 2048 | 5.27 | 9.52 | 12.6 |"]
    result = pasted(below("| Matrix Size | threads=1 | threads=2 | threads=4 |", *rows))
    assert {"rate", "world_size"} <= set(result.reading.values())
    ratio = ["| 1 | 328.8 | 1.00x |", "| 2 | 164.5 | 2.00x |"]
    result = pasted(below("| Cores | ms/step | speedup vs 1 thread |", *ratio))
    assert result.reading["speedup vs 1 thread"] == "speedup"


def test_sizes_of_models_beside_mfu_are_no_bytes() -> None:
    rows = ["| 480M | 4 | 21.3% | 167,030 |", "| 810M | 8 | 15.2% | 65,128 |"]
    rows.append("| 1.2B | 8 | 18.5% | 51,430 |")
    result = pasted(below("| Size | GPUs | MFU | tokens/s/GPU |", *rows))
    assert result.reading["Size"] == "model"
    assert not broken(result) and not noted(below("| Size | GPUs | MFU | tokens/s/GPU |", *rows))


def test_variants_called_b0_and_b10_are_no_batches() -> None:
    rows = ["| step time | 796 ms | 770 ms | 713 ms |", "| tokens/s | 20572 | 21269 | 22982 |"]
    result = pasted(below("| | B0 (base) | B10 (norm) | B11 (ours) |", *rows))
    assert "batch" not in result.reading.values()
    batches = ["| resnet | 41 ms | 80 ms |", "| vit | 62 ms | 119 ms |"]
    result = pasted(below("| | time B16 | time B32 |", *batches))
    assert "batch" in result.reading.values()


def test_places_of_named_runs_are_no_ranks() -> None:
    rows = ["| 1 | h100-base | 4,471 | 27.2 |", "| 2 | h100-mbs2 | 4,404 | 27.8 |"]
    rows.append("| 3 | h100-deepep | 4,272 | 28.7 |")
    result = pasted(below("| Rank | Run | Tok/s/GPU | Iter Time (s) |", *rows))
    assert "Rank" not in result.reading
    assert not broken(result)


def test_models_in_a_column_without_a_known_name_have_their_own_flops() -> None:
    rows = ["| 2M | SWA | 603.7 | 406.5k |", "| 2M | GDN | 453.7 | 250.0k |"]
    rows += ["| 4M | SWA | 570.5 | 384.1k |", "| 4M | GDN | 445.3 | 245.4k |"]
    head = "| Global batch | Mixer | TFLOPs/GPU | tok/s/GPU |"
    assert not broken(pasted(below(head, *rows)))
    wrong = [*rows[:3], rows[3].replace("445.3", "545.3")]
    assert broken(pasted(below(head, *wrong))) == {"mfu-consistent"}


def test_a_spread_of_rates_is_one() -> None:
    rows = ["| 1 | 112.9 ± 0.5 img/s |", "| 2 | 221.0 ± 0.9 img/s |"]
    text = below("| GPUs | Throughput |", *rows)
    evidence = next(each.evidence for each in pasted(text).findings if each.rule == "repeats")
    assert "a spread for 2 of 2 configurations" in evidence


def test_a_table_on_numbers_of_cores_is_read_before_one_of_sizes() -> None:
    sizes = below(
        "| Input | Serial (s) | Parallel (s) |", "| 10 | 1.0 | 0.4 |", "| 90 | 9.0 | 3.0 |"
    )
    cores = below("| Cores | Time (s) |", "| 1 | 9.0 |", "| 4 | 3.0 |")
    assert pasted(f"{sizes}\nScaling:\n\n{cores}").reading["Cores"] == "world_size"


def test_sizes_that_differ_between_numbers_of_ranks_are_not_compared() -> None:
    rows = ["| 5 336 | 1 | 100 |", "| 21 344 | 8 | 400 |", "| 85 376 | 32 | 2800 |"]
    assert not noted(below("| Fluid cells | Ranks | Wall time (s) |", *rows))


def test_documents_that_differ_between_numbers_of_gpus_are_not_compared() -> None:
    assert not broken(pasted("PDFs,GPUs,pages/s\n500,8,12.8\n83K,32,80.7\n985K,320,986\n"))


def test_sizes_that_grow_with_the_ranks_are_those_of_weak_scaling() -> None:
    rows = ["| 512 | 1 | 1.00 |", "| 1024 | 2 | 1.01 |", "| 4096 | 8 | 0.80 |"]
    assert broken(pasted(below("| Total rows | Ranks | Time (s) |", *rows))) == {"super-linear"}
    assert not noted(below("| Total rows | Ranks | Time (s) |", *rows[:2]))
    assert "fixed-overhead" in noted(below("| Rows in all | Ranks | Time (s) |", *rows[:2]))


def test_hosts_of_phases_are_not_those_of_one_comparison() -> None:
    rows = ["| A | AWS | 8 | 6.4 h |", "| B | local | 8 | 1.5 h |", "| C | local | 1 | 5 min |"]
    assert not broken(pasted(below("| Phase | Machine | Cores | Time |", *rows)))
    same = ["| AWS | 8 | 6.4 h |", "| local | 1 | 9 h |"]
    assert broken(pasted(below("| Machine | Cores | Time |", *same))) == {"mixed-environment"}


@pytest.mark.parametrize(
    "head", ["| ranks | min time (s) | avg time (s) | max time (s) |", "| np | min | mean | max |"]
)
def test_a_minimum_shows_that_a_mean_is_of_repeats(head: str) -> None:
    rows = ["| 1 | 99 | 100 | 102 |", "| 2 | 50 | 51 | 55 |", "| 4 | 25 | 26 | 29 |"]
    result = pasted(below(head, *rows))
    assert not broken(result)
    assert "max time (s)" not in result.reading


def test_a_mean_below_the_maximum_on_one_rank_is_of_repeats() -> None:
    rows = ["| 1 | 95 | 100 |", "| 4 | 25 | 30 |"]
    result = pasted(below("| ranks | mean time (s) | max time (s) |", *rows))
    assert result.reading == {"ranks": "world_size", "mean time (s)": "time"}


def test_times_too_far_apart_for_repeats_are_of_other_settings() -> None:
    rows = ["| 1 | 512 | 90 | 80 |", "| 4 | 512 | 30 | 81 |", "| 1 | 64 | 2.00 | 79 |"]
    result = pasted(below("| ranks | nx | time (s) | sweeps |", *rows, "| 4 | 64 | 1.00 | 83 |"))
    assert not broken(result)
    repeats = next(finding for finding in result.findings if finding.rule == "repeats")
    assert repeats.records[0] == "row 1 (nx 512, world size 1)"
    quick = [*rows, "| 4 | 64 | 0.40 | 83 |"]
    assert broken(pasted(below("| ranks | nx | time (s) | sweeps |", *quick))) == {"super-linear"}


def test_sizes_of_problems_on_one_number_of_ranks_are_no_repeats() -> None:
    rows = ["| 1 | 1000 | 9.0 |", "| 1 | 1100 | 12.0 |", "| 2 | 1000 | 8.0 |", "| 2 | 1200 | 9.5 |"]
    result = pasted(below("| ranks | Problem size | Time (s) |", *rows))
    assert not broken(result)
    assert "row 2 (Problem size 1100, world size 1)" in str(result.findings)


def test_a_grid_of_processes_has_the_ranks_of_linpack() -> None:
    rows = ["| 4000 | 384 | 1 | 1 | 1060 |", "| 4000 | 384 | 2 | 4 | 241 |"]
    head = "| N | NB | P | Q | Time(secs) |"
    result = pasted(below(head, *rows))
    assert result.reading["ranks"] == "world_size" and not broken(result)
    wrong = [rows[0], "| 4000 | 384 | 2 | 2 | 141 |"]
    assert "super-linear" in broken(pasted(below(head, *wrong)))


@pytest.mark.parametrize(
    "name",
    ["threads-per-core", "parallel max", "N (MB)", "Scaling the initial minimum size with 1/0.8"],
)
def test_names_that_are_no_setting(name: str) -> None:
    assert guess(name) is None


def test_a_size_beside_no_message_is_that_of_a_problem() -> None:
    rows = ["| 1000 | 1 | 10.00 |", "| 1000 | 4 | 0.50 |", "| 2000 | 1 | 40.00 |"]
    result = pasted(below("| Size | Processes | Time (s) |", *rows, "| 2000 | 4 | 11.00 |"))
    assert "Size" not in result.reading
    assert {*broken(result)} == {"baseline", "super-linear"}
    rows = ["| 1000 | 4 | 1.2 |", "| 2000 | 4 | 1.9 |"]
    assert pasted(below("| Size | Ranks | Latency |", *rows)).reading["Size"] == "bytes"


def test_a_thousand_and_more_called_n_are_no_ranks() -> None:
    rows = ["| 16 | 5000 | 1.2 | 80 |", "| 32 | 5000 | 1.0 | 96 |", "| 16 | 9984 | 9.2 | 78 |"]
    result = pasted(below("| TILE | n | Total (s) | Speedup |", *rows))
    assert "n" not in result.reading and not broken(result)


def test_threads_that_vary_beside_the_ranks_of_a_node_are_configurations() -> None:
    rows = [f"| {n} | 2 | {t} | {80 / n / t**0.5:.2f} |" for n in (1, 2) for t in (1, 4)]
    result = pasted(below("| Nodes | Tasks per node | Threads | Time (s) |", *rows))
    assert not broken(result)
    assert "row 2 (4 threads, world size 2)" in str(result.findings)


def test_work_of_a_rank_that_differs_is_not_compared() -> None:
    head = "Weak scaling.\n\n| nproc | cells per rank | Time (s) |\n|---|---|---|\n"
    rows = "| 96 | 47040 | 176.56 |\n| 384 | 42552 | 153.76 |\n| 1536 | 37825 | 135.76 |\n"
    assert not broken(pasted(head + rows))
    even = rows.replace("42552", "47040").replace("37825", "47040")
    assert broken(pasted(head + even)) == {"super-linear"}
    strong = "| 96 | 47040 | 176.79 |\n| 384 | 11760 | 25.16 |\n"
    assert "super-linear" in broken(pasted(head.removeprefix("Weak scaling.\n\n") + strong))


def test_means_of_commands() -> None:
    text = "command,mean,stddev,median,user,system,min,max,parameter_threads\n" + "".join(
        f"./solve {n},{time},0.01,{time},3.9,0.02,{time},{time},{n}\n"
        for n, time in ((1, 3.92), (2, 2.01), (4, 1.05))
    )
    result = pasted(text)
    assert result.reading["threads"] == "world_size"
    assert result.reading["mean time (s)"] == "time" and not broken(result)
    assert "super-linear" in broken(pasted(text.replace("1.05", "0.55")))


def test_results_of_hpcg() -> None:
    result = """HPCG-Benchmark{version}
Machine Summary::Distributed Processes={ranks}
Machine Summary::Threads per processes=2
Global Problem Dimensions::Global nx={nx}
GFLOP/s Summary::Raw Total=99
Final Summary::HPCG result is VALID with a GFLOP/s rating of={rate}
"""
    texts = (
        result.format(ranks=ranks, nx=104 * ranks, rate=rate, version=version)
        for ranks, rate, version in ((1, 1.5, " version=3.1"), (8, 30.0, ""))
    )
    audited = pasted("".join(texts))
    assert audited.reading["ranks"] == "world_size" and audited.reading["GFLOP/s"] == "rate"
    assert broken(audited) >= {"super-linear"}


def test_cells_with_the_symbol_of_the_ranks() -> None:
    rows = ["| N=1000 | p=2 | 4.36x | 218% |", "| N=1000 | p=8 | 5.96x | 74.5% |"]
    text = below("| Matrix Size | Processors | SpeedUp | Efficiency |", *rows)
    assert "super-linear" in broken(pasted(text))


def test_a_speedup_in_per_cent_that_is_called_an_efficiency() -> None:
    rows = [
        "| 1 | 100.0 | 100% |",
        "| 2 | 52.0 | 192% |",
        "| 4 | 28.0 | 357% |",
        "| 8 | 20 | 500% |",
    ]
    result = pasted(below("| processes | time (s) | efficiency |", *rows))
    assert "efficiency" not in result.reading.values() and not broken(result)


def test_columns_that_count_something_on_numbers_of_ranks() -> None:
    rows = ["| 1.02 | 1 | 1 | 1 |", "| 1.12 | 1 | 1 | 2 |", "| 1.24 | 1 | 2 | 3 |"]
    result = pasted(below("| imbalance | P=4 loops | P=8 loops | P=16 loops |", *rows))
    assert "time" not in result.reading.values() and not broken(result)


def test_a_time_whose_name_ends_with_a_stroke() -> None:
    rows = [
        "# nodes   avg time /   std dev",
        "#          step",
        " 48   54.9   0.12",
        " 96   20.1   0.18",
    ]
    result = pasted("\n".join(rows))
    assert result.reading["avg time /"] == "time" and broken(result) == {"super-linear"}


@pytest.mark.parametrize(("last", "faults"), [("4.14×", set()), ("9.14×", {"super-linear"})])
def test_ratios_of_machines_over_one_of_them(last: str, faults: set[str]) -> None:
    rows = ["| 1 | 1.00× | 1.44× |", "| 2 | 1.75× | 2.44× |", f"| 4 | 3.00× | {last} |"]
    result = pasted(below("| Nodes | hpc7a (96 c/n) | hpc8a (96 c/n) |", *rows))
    assert result.reading["setting"] == "strategy" and broken(result) == faults


@pytest.mark.parametrize(("first", "last"), [("(1, 1)", "(1, 4)"), ("1", "4")])
def test_statistics_of_samples_on_grids_of_ranks(first: str, last: str) -> None:
    rows = [
        f"| (16384, 1024) | {first} | 5.827 s | 5.827 s | 5.829 s | 1.60 MiB | 12 |",
        f"| (16384, 4096) | {last} | 5.825 s | 5.850 s | 5.845 s | 1.49 MiB | 40 |",
    ]
    text = below("| size | ranks | min | median | mean | memory | samples |", *rows)
    result = pasted(text)
    assert result.reading["ranks"] == "world_size" and result.reading["repeats"] == "repeats"
    assert result.reading["median time"] == "time"
    assert "super-linear" in result.checked and not noted(text)


def test_parts_called_by_short_names_and_files_add_up() -> None:
    rows = ["1,10,9,0,1", "2,6,4.5,0.4,1.1", "4,4,2.2,0.7,1.1"]
    result = pasted("\n".join(["procs,t_total,t_comp,t_comm,t_IO", *rows, ""]))
    assert result.reading["t_comp"] == "compute" and result.reading["t_IO"] == "other"
    assert "phases-close" in result.checked and not broken(result)
    result = pasted("\n".join(["procs,t_total,t_comp,t_comm", *(r[:-4] for r in rows[1:]), ""]))
    assert broken(result) == {"phases-close"}


def test_ranks_of_rows_without_gpus() -> None:
    head = "| System | MPI ranks | GPUs | Performance (ns/day) |"
    rows = ["| A | 1 | 1 | 60 |", "| A | 2 | 2 | 110 |", "| A | 128 | 0 | 20 |"]
    result = pasted(below(head, *rows, "| A | 256 | 0 | 38 |"))
    assert result.reading["GPUs"] == "world_size" and not broken(result)
    assert "'MPI ranks' counts the ranks of rows without GPUs" in result.assumptions
    assert broken(pasted(below(head, *rows, "| A | 256 | 0 | 48 |"))) == {"super-linear"}


def test_one_work_in_rows_that_differ_in_numbers_only() -> None:
    head = "| cluster | ntasks | cpus-per-task | wall time (s) | ns/day |"
    rows = [
        f"| v100 | {tasks} | {cpus} | {time} | {1720 / time:.1f} |"
        for tasks, cpus, time in ((1, 1, 10.5), (2, 1, 18.6), (4, 1, 12.3), (4, 4, 10.7))
    ]
    assert not broken(pasted(below(head, *rows)))
    wrong = pasted(below(head, *rows, "| v100 | 4 | 2 | 18.6 | 156.1 |"))
    assert broken(wrong) == {"quoted-against-own"} and "4 other rows" in str(wrong.findings)


def test_executors_count_the_ranks_beside_tasks() -> None:
    rows = ["| 2 | 60 | 182.7 |", "| 4 | 68 | 137.0 |"]
    result = pasted(below("| Executors | Total tasks | Total run time (s) |", *rows))
    assert result.reading["Executors"] == "world_size"


def test_rows_that_are_apart_may_be_of_programs_that_no_column_names() -> None:
    head, times = "| Threads | Time (s) |", {2: (8.2, 6.3), 4: (6.4, 5.6)}
    passes = [f"| {ranks} | {times[ranks][one]} |" for one in (0, 1) for ranks in times]
    assert not broken(pasted(below(head, *passes)))
    assert broken(pasted(below(head, *sorted(passes)))) == {"repeats"}
    far_apart = [row.replace("8.2", "82") for row in sorted(passes)]
    assert "repeats" not in broken(pasted(below(head, *far_apart)))
