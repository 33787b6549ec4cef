"""Tables of courses, reports and benchmarks: what tells their rows apart, and what they are of."""

from __future__ import annotations

import pytest
from audits import below, broken, pasted

from lab.analysis.audit.columns import guess
from lab.analysis.audit.values import ranks_of


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("# Processors", "world_size"),
        ("NPU", "world_size"),
        ("im / gpu", "micro_batch_size"),
        ("batchs", "batch"),
        ("times", "time"),
        ("Time (%)", ""),
        ("Δbusbw", ""),
        ("Throughput (TFLOP/s/device)", "flops_per_rank"),
        ("Throughput TFLOP/s/GPU", "flops_per_rank"),
        ("number of params", "parameters"),
    ],
)
def test_names(name: str, canonical: str) -> None:
    meaning = guess(name)
    assert (meaning.canonical if meaning else "") == canonical


def test_numbers_joined_by_a_word_name_no_gpu() -> None:
    assert ranks_of("2 and 4")[1] == ""


@pytest.mark.parametrize(("steps", "faults"), [(500, set()), (900, {"equal-work"})])
def test_steps_of_a_batch_for_each_gpu(steps: int, faults: set[str]) -> None:
    rows = "GPUs,Batchsize,Steps,Runtime\n1,64,1000,2:00:00\n"
    assert broken(pasted(f"{rows}2,64,{steps},1:02:00\n")) == faults


def test_models_told_apart_by_their_parameters_alone() -> None:
    rows = [("2.7", 8, 16.7), ("2.7", 16, 32.8), ("6.7", 8, 8.1), ("6.7", 16, 15.8)]
    lines = [f"{size},{gpus},{rate}" for size, gpus, rate in [*rows, ("28", 16, 4.3)]]
    result = pasted("\n".join(["No. Parameters (B),GPUs,Samples/s", *lines]))
    assert result.reading["No. Parameters (B)"] == "parameters" and not broken(result)
    faulty = pasted("\n".join(["No. Parameters (B),GPUs,Samples/s", *lines, "28,32,12.9"]))
    assert "28B parameters" in faulty.findings[0].evidence


def test_a_speedup_of_a_third_program_is_not_that_of_the_other_two() -> None:
    names = "m,dtype,eager_ms,compiled_ms,ours_ms,ours_speedup_vs_eager,ours_speedup_vs_compiled"
    rows = ["16,fp16,0.016,0.014,0.010,1.60,1.40", "32,fp16,0.018,0.015,0.012,1.50,1.25"]
    assert not broken(pasted("\n".join([names, *rows])))
    names = "m,dtype,eager_ms,compiled_ms,speedup_vs_eager"
    faulty = pasted("\n".join([names, "16,fp16,0.016,0.014,1.14", "32,fp16,0.018,0.012,1.20"]))
    assert broken(faulty) == {"quoted-against-own"}


def test_a_speedup_between_two_programs_on_as_many_gpus() -> None:
    names = "Tokens,GPUs,Ring (ms),Regular (ms),Speedup"
    rows = ["298,2,679.65,24.08,.03x", "4998,2,676.99,29.51,.04x"]
    assert not broken(pasted("\n".join([names, *rows])))
    rows = ["298,2,679.65,24.08,1.8x", "4998,2,676.99,29.51,1.7x"]  # over something unknown
    assert broken(pasted("\n".join([names, *rows]))) == {"baseline"}


def test_devices_by_their_indices_are_not_counted() -> None:
    rows = ["0\t1\t9541", "1\t1\t9560", "0,1\t2\t17183", "0,1,2\t3\t25825"]
    result = pasted("\n".join(["gpus\tgpu_count\tsamples/sec", *rows]))
    assert result.reading == {"gpu_count": "world_size", "samples/sec": "rate"}


def test_the_bandwidth_of_a_memory_is_not_that_of_a_bus() -> None:
    levels = ["Registers,256 KB/SM,20 TB/s,1 ns", "HBM,80 GB,2 TB/s,400 ns"]
    memory = pasted("\n".join(["Level,Size,Bandwidth,Latency", *levels]))
    assert "Bandwidth" not in memory.reading and not broken(memory)
    sizes = ["all-reduce,1 GB,450 GB/s", "all-reduce,2 GB,2000 GB/s"]
    collective = pasted("\n".join(["Collective,Size,Bandwidth", *sizes]))
    assert collective.reading["Bandwidth"] == "busbw"
    assert broken(collective) == {"plausible-bandwidth"}


@pytest.mark.parametrize(("name", "severity"), [("Bus bandwidth", "warning"), ("busbw", "error")])
def test_a_bus_bandwidth_without_a_unit(name: str, severity: str) -> None:
    result = pasted(f"Nodes,{name}\n1,2512.1\n2,1192.2\n4,655.7\n")
    severities = [one.severity for one in result.findings if one.rule == "plausible-bandwidth"]
    assert severities == [severity]
    assert ("names no unit" in result.findings[0].evidence) == (severity == "warning")


@pytest.mark.parametrize("name", ["GPU %", "CPU %", "Our speedup", "Data loss", "top1 err"])
def test_names_of_no_quantity(name: str) -> None:
    assert guess(name) is None


def test_a_speedup_over_the_serial_time_of_its_row() -> None:
    names = "Nodes,Time (s),Time Serial (s),Speedup"
    rows = ["2,0.948,6.204,6.544", "3,0.740,6.202,8.381", "4,0.671,6.229,9.283"]
    result = pasted("\n".join([names, *rows]))
    assert not broken(result)  # a node may have many cores
    notes = [finding.evidence for finding in result.findings if finding.rule == "baseline"]
    assert "over 'Time Serial (s)' of their rows" in notes[0]
    rows[1] = "3,0.740,6.202,9.3"
    assert "baseline" in broken(pasted("\n".join([names, *rows])))


def test_speedups_over_one_node_are_checked() -> None:
    rows = ["1,6.2,1.0", "2,1.0,6.2", "4,0.7,8.9"]
    assert "super-linear" in broken(pasted("\n".join(["Nodes,Time (s),Speedup", *rows])))


def test_ranks_of_matrices_are_no_ranks() -> None:
    rows = ["8,45 min", "16,50 min", "32,56 min"]
    assert "Rank" not in pasted("\n".join(["Rank,Train Time", *rows])).reading
    rows = ["0,45 s", "1,50 s", "2,46 s"]
    assert "Rank" in pasted("\n".join(["Rank,Train Time", *rows])).reading


def test_a_gpu_id_that_is_a_name() -> None:
    reading = pasted("layer,gpu_id,latency_ms\n1,1080Ti,1.7\n2,A6000,1.2\n").reading
    assert "rank" not in reading.values()


def test_about_five_hours_in_chinese() -> None:
    result = pasted("模型,Time of each epoch\nnaml,约4小时\nfastformer,约120小时\n")
    assert result.reading["Time of each epoch"] == "time"


def test_footnotes_of_column_names() -> None:
    text = "| GPUs | time <sup>[1](#note)</sup> |\n|---|---|\n| 1 | 5h9min |\n| 4 | 1h40min |\n"
    assert pasted(text).reading == {"GPUs": "world_size", "time": "time"}


def test_models_of_one_row_each_are_not_compared() -> None:
    rows = ["1B,32,220k", "7B,64,480k", "30B,128,1.4M", "70B,256,2.8M"]
    assert not broken(pasted("\n".join(["Model size,GPUs,Throughput (tokens/sec)", *rows])))
    rows = [row.replace("30B", "7B") for row in rows]
    faulty = pasted("\n".join(["Model size,GPUs,Throughput (tokens/sec)", *rows]))
    assert "super-linear" in broken(faulty)


def test_acceleration_rates() -> None:
    result = pasted("No. of GPU,Acceleration Rate\n1,1.00 X\n2,1.98 X\n4,3.73 X\n")
    assert result.reading == {"No. of GPU": "world_size", "Acceleration Rate": "speedup"}
    assert not broken(result) and "super-linear" in result.checked


def test_a_speedup_over_another_algorithm_on_as_many_ranks() -> None:
    names = "n,baseline (s),ring (s),speedup"
    rows = ["2,0.000454,0.000163,2.79", "4,0.001051,0.000283,3.71", "8,0.002075,0.001039,2.00"]
    assert not broken(pasted("\n".join([names, *rows])))
    rows = ["2,1.0,0.36,2.79", "4,1.01,0.26,3.89", "8,1.0,0.16,6.25"]  # over one rank
    assert "super-linear" in broken(pasted("\n".join([names, *rows])))


@pytest.mark.parametrize(("gain", "read"), [("85", False), ("185", True)])
def test_a_speedup_in_per_cent(gain: str, read: bool) -> None:
    result = pasted(f"GPUs,Time (s),Speedup (%)\n1,100,{'100' if read else '0'}\n2,54,{gain}\n")
    assert ("Speedup (%)" in result.reading) == read and not broken(result)


def test_times_with_units_whatever_their_rows_are_called() -> None:
    rows = ["strong,scaling_256,39.5 s,20.5 s", "strong,scaling_512,80.1 s,41.7 s"]
    result = pasted("\n".join(["Mode,Case,1 GPU,2 GPU", *rows]))
    assert "time" in result.reading.values() and "speedup" not in result.reading.values()


@pytest.mark.parametrize(("largest", "faults"), [(933, set()), (1400, {"plausible-bandwidth"})])
def test_bus_bandwidths_with_reductions_in_the_switch(largest: int, faults: set[str]) -> None:
    rows = ["8 GB,455.5,896.7", f"32 GB,{largest / 1.969:.2f},{largest}"]
    assert broken(pasted("\n".join(["Size,algbw (GB/s),busbw (GB/s)", *rows]))) == faults


def test_models_that_grow_with_the_ranks_are_one_weak_scaling() -> None:
    rows = ["8,13B,24.5,100%", "16,26B,23.8,97.1%", "32,52B,22.9,93.5%"]
    assert not broken(pasted("\n".join(["GPUs,Model size,samples/s,Scaling efficiency", *rows])))


def test_times_of_several_programs() -> None:
    names = (
        "Threads / Ranks,Serial Time (s),OpenMP Time (s),MPI Time (s),OpenMP Speedup,MPI Speedup"
    )
    rows = ["1,53.2,54.5,53.0,0.98,1.00", "4,53.2,13.8,14.4,3.86,3.69", "8,53.2,7.6,7.4,7.00,9.19"]
    result = pasted("\n".join([names, *rows]))
    assert result.reading["Threads / Ranks"] == "world_size"
    (found,) = [one for one in result.findings if one.rule == "quoted-against-own"]
    assert found.evidence.startswith("A speedup of 9.19x is quoted on 8 ranks, but")
    assert found.records == ("row 3 (mpi, world size 8)",)
    assert "'OpenMP Time (s)', 'MPI Time (s)' are read as the time of a program" in (
        result.assumptions
    )


def test_the_time_of_mpi_is_communication_only_beside_a_whole() -> None:
    names = "Processes,Serial Time (s),MPI Time (s),Speedup"
    rows = ["1,10.0,10.2,0.98", "2,10.0,5.3,1.89", "4,10.0,2.9,4.45"]
    assert broken(pasted("\n".join([names, *rows]))) == {"quoted-against-own"}
    names = "Processes,Total Time (s),MPI Time (s)"
    result = pasted("\n".join([names, "1,10.0,0.9", "2,5.6,1.1"]))
    assert broken(result) == {"communication-alone"}


def test_columns_of_problem_sizes() -> None:
    names = "Processes,Time_108,Time_2916,Speedup_108,Speedup_2916"
    rows = ["1,0.95,33.8,1.0,1.0", "2,0.50,17.0,1.9,1.99", "4,0.30,8.6,3.17,5.93"]
    result = pasted("\n".join([names, *rows]))
    (found,) = [one for one in result.findings if one.severity == "warning"]
    assert "5.93x is quoted on 4 ranks at problem size 2916" in found.evidence
    rates = pasted("GPUs,img/s (bs=64),img/s (bs=128)\n1,100,120\n2,190,230\n4,370,610\n")
    assert broken(rates) == {"super-linear"}
    (found,) = [one for one in rates.findings if one.rule == "super-linear"]
    assert "batch 128" in found.records[0]


@pytest.mark.parametrize(
    ("rows", "read"),
    [
        ("1000 x 1000,12.1,6.4,2.0\n2000 x 2000,100,55,40", True),
        ("N=1000,12.1,6.4,2.0", True),
        ("static,12.1,6.4,2.0\ndynamic,12.1,6.4,3.3", True),
        ("1,12.1,12.4,2.0\n2,6.1,6.4,6.3", False),  # of repeats
        ("1 process,12.1,12.4,2.0\n2 processes,6.1,6.4,6.3", False),
    ],
)
def test_a_corner_above_labels_names_the_columns(rows: str, read: bool) -> None:
    result = pasted(f"# Execution time (s)\nProcesses,1,2,4\n{rows}\n")
    assert broken(result) == ({"super-linear"} if read else set())


@pytest.mark.parametrize("remarks", ["memory efficient,best throughput", "1.5x loss,baseline"])
def test_remarks_beside_columns_of_ranks(remarks: str) -> None:
    cells = remarks.split(",")
    rows = [f"| DDP | 8400 tok/s | 12200 tok/s | {cells[0]} |", f"| FSDP | 5 | 9 | {cells[1]} |"]
    text = "\n".join(["| Strategy | 2 GPU | 4 GPU | Notes |", "|---|---|---|---|", *rows])
    assert pasted(text + "\n").reading["rate"] == "rate"


def test_a_throughput_in_milliseconds_is_a_time() -> None:
    result = pasted("| GPUs | Throughput |\n|---|---|\n| 4 | 661ms |\n| 8 | 345ms |\n")
    assert result.reading["Throughput"] == "time"


def of_columns(names: str, *rows: str) -> str:
    """A table in Markdown with these names and rows of cells."""
    return "\n".join(f"| {line} |" for line in (names, "|".join(["---"] * 9), *rows)) + "\n"


SIZED = {
    "Serial | 2 | 4 | Speedup 2 | Speedup 4 | Efficiency 2 | Efficiency 4": "0.9 | 0.8",
    "Sequential (s) | P=2 (s) | P=4 (s) | Speedup P=2 | Speedup P=4 | E (P=2) | F (P=4)": "1 | 2",
    "1进程(s) | 2进程(s) | 4进程(s) | 2进程加速比 | 4进程加速比 | 备注 | 其他": "1 | 2",
}


@pytest.mark.parametrize(("names", "rest"), SIZED.items())
def test_ratios_beside_the_times_of_as_many_ranks(names: str, rest: str) -> None:
    right = f"1000 | 10.0 | 5.55 | 3.12 | 1.80 | 3.20 | {rest}"
    wrong = right.replace("3.20", "3.90")
    assert broken(pasted(of_columns(f"Size | {names}", right))) == set()
    result = pasted(of_columns(f"Size | {names}", wrong))
    assert broken(result) == {"quoted-against-own"}
    assert any("3.90x is quoted on 4 ranks" in one.evidence for one in result.findings)


def test_a_serial_time_is_that_of_one_rank() -> None:
    rows = "64 | 12.0 | 7.0 | 5.0", "80 | 50.0 | 16.0 | 11.0"
    result = pasted(of_columns("samples | sequential | 4 ranks | 8 ranks", *rows))
    assert broken(result) == set()  # sizes of problems are no repeats
    assert "'sequential'" in result.assumptions[0]
    assert "super-linear" in result.checked


def test_each_machine_with_its_own_speedup() -> None:
    names = "Cores | Xeon (s) | Xeon speedup | Power9 (s) | Power9 speedup"
    rows = ["1 | 100 | 1.0 | 80 | 1.0", "2 | 52 | 1.92 | 41 | 1.95", "4 | 27 | 3.70 | 21 | 3.81"]
    assert broken(pasted(of_columns(names, *rows))) == set()
    result = pasted(of_columns(names, *rows[:2], rows[2].replace("3.81", "3.31")))
    assert broken(result) == {"quoted-against-own"}


def test_tables_of_threads_below_each_other_in_a_sheet() -> None:
    times = ("Map", "2.1"), ("Reduce", "2.0")
    names = "\tSerial\t2 Threads\t4 Threads\n"
    parts = [f"{what}{names}10\t1.0\t0.6\t0.4\n20\t{time}\t1.1\t0.7\n" for what, time in times]
    result = pasted("\n".join(parts))
    assert [len(table.findings) for table in result.tables] == [1, 1]


def test_what_is_no_number_of_ranks_and_no_time() -> None:
    rows = "1024 | 1024 | 1024 | 1.691", "2048 | 2048 | 2048 | 16.157"
    assert "P" not in pasted(of_columns("N | P | M | Mean Time", *rows)).reading
    few = "1024 | 1 | 1024 | 1.691", "1024 | 2 | 1024 | 0.957"
    assert pasted(of_columns("N | P | M | Mean Time", *few)).reading["P"] == "world_size"
    steps = pasted("TimeStep,Temps_total(ms)\n1,2.5\n2,2.6\n3,2.4\n")
    assert steps.reading == {"Temps_total(ms)": "time"}
    rows = "1 | 12.5", "2 | 6.6", "4 | 3.5"
    assert pasted(of_columns("Processus | Temps", *rows)).reading["Temps"] == "time"
    assert pasted(of_columns("GPUs | Temps", "1 | 61", "2 | 64")).reading == {"GPUs": "world_size"}


def test_ranges_and_products() -> None:
    rows = "1 | 12.8–13.7", "2 | 6.5–6.9", "4 | 2.0–2.1"
    result = pasted(of_columns("Nodes | Time (s)", *rows))
    assert broken(result) == {"super-linear", "baseline"}
    assert "13.25 s against 2.05 s" in result.findings[0].evidence
    rounded = pasted(of_columns("Nodes | Time (s)", *rows[:2], "4 | 3.0–3.1"))
    assert broken(rounded) == set()  # 12.8 s over 3.1 s is no more than 4 ranks can give
    rows = "1 | 32 * 1 | 100", "8 | 32 * 8 | 780"
    result = pasted(of_columns("GPUs | Batch | images/s", *rows))
    assert result.reading["Batch"] == "global_batch_size"


def test_columns_of_ranks_are_as_precise_as_their_digits() -> None:
    names = "Size | Sequential (s) | P=2 (s) | P=4 (s) | Speedup P=2 | Speedup P=4"
    rows = "128 | 0.0002 | 0.0457 | 0.0533 | 0.01 | 0.00", "9999 | 8.6 | 4.4 | 2.3 | 1.95 | 3.7"
    assert broken(pasted(of_columns(names, *rows))) == set()
    assert broken(pasted(of_columns(names, *rows).replace("0.01", "0.03"))) == {
        "quoted-against-own"
    }


def test_a_spread_reaches_no_negative_time() -> None:
    rows = "1 | 10.0 | 0.3", "2 | 5.2 | 4.0"
    (finding,) = [
        one
        for one in pasted(of_columns("Threads | Time | Std", *rows)).findings
        if one.severity == "warning"
    ]
    assert "and 0 s to 13.20 s" in finding.evidence


LINES = {
    "  Parallel n=     {n}  procs={p}  median={t}s  ±0.0004s": "median",
    "Nthreads: {p}  Runtime(sec): {t}  Workload: 100/{n}": "Runtime(sec)",
    "{p} MPI Processes | Time Spent : {t} sec": "Time Spent",
}


@pytest.mark.parametrize(("line", "timed"), LINES.items())
def test_lines_of_names_and_values(line: str, timed: str) -> None:
    runs = [line.format(n=64, p=p, t=t) for p, t in ((1, "13.87"), (2, "6.94"), (4, "3.20"))]
    result = pasted("\n".join(f"{run}\nMT_CONF=0,1,{run[:5]}" for run in runs) + "\n")
    assert result.reading[timed] == "time"
    assert "world_size" in result.reading.values()
    assert broken(result) == {"super-linear"}


def test_settings_in_titles_above_names_and_values() -> None:
    part = "### mode=rows p={p}\nmode=rows processes={p} dim=9600\navg_time={t} s\nspeedup={s}\n"
    runs = [
        part.format(p=p, t=t, s=s) for p, t, s in ((1, 8.0, 1.0), (2, 4.1, 1.95), (4, 2.2, 2.6))
    ]
    result = pasted("".join(runs))
    assert broken(result) == {"quoted-against-own"}
    assert result.reading["p"] == "world_size"


def test_a_row_of_jobs_in_a_table_on_its_side() -> None:
    rows = "Job ID | 94224 | 94226 | 94276", "Time | 21.4 | 10.9 | 5.5", "Speed-up | 1 | 1.96 | 3.2"
    result = pasted(of_columns("Cores | 1 | 2 | 4", *rows))
    assert result.reading == {"world_size": "world_size", "Time": "time", "Speed-up": "speedup"}
    assert broken(result) == {"quoted-against-own"}


def test_a_title_above_names_with_numbers() -> None:
    text = "Map,all\n2 threads,4 threads\n1.1,0.6\n1.0,0.5\n\nReduce,all\n2 cpus,4 cpus\n2.1,1.2\n"
    assert broken(pasted(text)) == set()


@pytest.mark.parametrize(
    ("head", "reading"),
    [
        ("| Threads | 1000 | 2000 |", "Threads"),
        ("| procs | 100x100 | N=500 |", "procs"),
        ("| P\\N | 16 | 32 |", "ranks"),
    ],
)
def test_columns_for_sizes_of_problems_beside_ranks(head: str, reading: str) -> None:
    table = below(head, "| 1 | 10.0 | 20.0 |", "| 2 | 5.3 | 10.4 |", "| 4 | 2.9 | 5.5 |")
    result = pasted(f"Times in seconds.\n\n{table}")
    assert result.reading == {reading: "world_size", "time": "time"}
    assert not broken(result)
    wrong = pasted(f"Times in seconds.\n\n{table.replace('5.5', '3.5')}")
    assert broken(wrong) == {"super-linear"}


def test_a_corner_that_says_that_the_columns_are_ranks() -> None:
    table = below("| N \\ P | 100 | 200 |", "| 1000 | 10.0 | 5.3 |", "| 2000 | 20.0 | 4.2 |")
    result = pasted(f"Times in seconds.\n\n{table}")
    assert "the columns of 'N \\\\ P' are the ranks" in result.assumptions
    assert result.reading == {"world_size": "world_size", "time": "time"}
    assert broken(result) == {"super-linear", "baseline"}


STRATEGIES = ("| GPUs | DDP{0} | FSDP{0} |", "| 1 | 10.0 | 9.0 |", "| 2 | 5.2 | 4.7 |")
SCHEDULES = ("| Threads | static{0} | guided{0} |", "| 1 | 10.0 | 9.0 |", "| 2 | 5.2 | 4.7 |")


@pytest.mark.parametrize("rows", [STRATEGIES, SCHEDULES])
@pytest.mark.parametrize(("unit", "heading"), [(" (s)", "Results"), ("", "Execution time in s")])
def test_columns_named_after_what_is_compared(
    rows: tuple[str, ...], unit: str, heading: str
) -> None:
    table = f"## {heading}\n\n" + below(*rows).format(unit)
    clean, wrong = pasted(table + "| 4 | 2.7 | 2.6 |\n"), pasted(table + "| 4 | 2.7 | 1.6 |\n")
    assert "time" in clean.reading.values() and not broken(clean)
    assert "super-linear" in broken(wrong)
    (finding,) = (one for one in wrong.findings if one.rule == "super-linear")
    assert "9.00 s against 1.60 s" in finding.evidence


@pytest.mark.parametrize(
    ("heading", "last", "reading"),
    [
        ("Throughput (samples/s)", "| 4 | 35.0 | 33.0 |", "rate"),
        ("Speedup", "| 4 | 35.0 | 33.0 |", "speedup"),
        ("Speedup and efficiency", "| 4 | 35.0 | 33.0 |", ""),
        ("Throughput (samples/s)", "| 4 | 35.0 | 3.0 |", ""),  # which does not rise
        ("Peak memory (GB), after some time", "| 4 | 2.0 | 3.0 |", ""),
    ],
)
def test_columns_that_a_heading_says_all_of(heading: str, last: str, reading: str) -> None:
    table = below("| GPUs | ours | theirs |", "| 1 | 10.0 | 9.0 |", "| 2 | 19.2 | 17.7 |", last)
    read = set(pasted(f"## {heading}\n\n{table}").reading.values())
    assert read & {"time", "rate", "speedup"} == {reading} - {""}


def test_dp_beside_ddp_is_a_strategy() -> None:
    rows = ("| 1 GPU | 100 | 101 |", "| 2 GPUs | 70 | 52 |")
    result = pasted(
        "Seconds per epoch\n\n" + below("| | DP | DDP |", *rows, "| 4 GPUs | 60 | 20 |")
    )
    assert {"DP": "time", "DDP": "time"}.items() <= result.reading.items()
    (finding,) = (one for one in result.findings if one.rule == "super-linear")
    assert "101.00 s against 20.00 s" in finding.evidence
    degrees = pasted(
        "Throughput\n\n" + below("| GPUs | DP | TP |", "| 4 | 2 | 2 |", "| 8 | 4 | 1 |")
    )
    assert broken(degrees) == {"parallel-consistent"}


@pytest.mark.parametrize("name", ["Pure MPI [s]", "MPI only (s)", "MPI (s)"])
def test_pure_mpi_beside_a_hybrid_is_a_program(name: str) -> None:
    rows = ("| 1 | 40.0 | 41.0 |", "| 2 | 20.4 | 21.2 |", "| 4 | 10.5 | 11.3 |")
    result = pasted(below(f"| #procs | {name} | Hybrid (s) |", *rows))
    assert result.reading["time"] == "time" and not broken(result)
    part = pasted(
        below(f"| #procs | Time (s) | {name} |", "| 1 | 40.0 | 0 |", "| 2 | 20.4 | 1.2 |")
    )
    assert part.reading[name] == "communication"


def test_nodes_times_gpus() -> None:
    rows = ("| 1x4 | 400 |", "| 2x4 | 210 |", "| 4x4 | 80 |")
    result = pasted(below("| Nodes x GPUs | epoch time (s) |", *rows))
    (finding,) = (one for one in result.findings if one.rule == "super-linear")
    assert "5.0x on 16 ranks" in finding.evidence


@pytest.mark.parametrize(
    ("head", "row", "evidence"),
    [
        ("| Threads | Real | User | Sys |", "| {} | {} | 9.9 | 0.1 |", "10.00 s against 1.20 s"),
        ("| GPUs | NCCL (s) | Gloo (s) |", "| {} | {} | 9.5 |", "10.00 s against 1.20 s"),
        ("| GPUs | ours | DeepSpeed | Ray |", "| {} | {:.0f} img/s | 31 img/s | 9 img/s |", ""),
    ],
)
def test_columns_for_programs_and_what_shells_print(head: str, row: str, evidence: str) -> None:
    times = (10.0, 5.2, 1.2) if evidence else (30.0, 58.0, 310.0)
    rows = (row.format(ranks, time) for ranks, time in zip((1, 2, 4), times, strict=True))
    result = pasted(below(head, *rows))
    assert "communication-alone" not in broken(result)
    (finding,) = (one for one in result.findings if one.rule == "super-linear")
    assert evidence in finding.evidence


def test_a_time_of_a_single_program() -> None:
    rows = ["| 1 | 8.0 | 1.00x |", "| 2 | 4.2 | 1.90x |", "| 4 | 2.3 | {}x |"]
    table = below("| Threads | Pthreads Time (s) | Speedup |", *rows)
    assert not broken(pasted(table.format(3.48)))
    assert broken(pasted(table.format(3.88))) == {"quoted-against-own"}
    part = pasted(table.replace("Pthreads", "MPI").format(3.48))
    assert part.reading["MPI Time (s)"] == "communication"


def test_rows_on_as_many_ranks_that_quote_different_speedups_are_no_repeats() -> None:
    rows = ["1,9.0,1.0", "2 (one node),5.0,1.8", "2 (two nodes),90.0,0.1", "4 (one node),3.0,{}"]
    table = "\n".join(["Processes,time_s,speedup", *rows])
    assert not broken(pasted(table.format(3.0)))
    assert broken(pasted(table.format(3.6))) == {"quoted-against-own"}


def test_an_efficiency_called_after_a_rate_is_of_it() -> None:
    names = "| GPUs | old ns/day | new ns/day | Speedup | old eff | new eff |"
    rows = ["| 8 | 0.65 | 0.67 | +3% | 100% | 100% |", "| 64 | 0.48 | 0.57 | +19% | 74% | 85% |"]
    result = pasted(below(names, *rows))
    assert result.reading["new eff"] == "efficiency" and not broken(result)


def test_ratios_below_a_heading_may_fall() -> None:
    rows = ["| 1 | 1.00x | 1.00x |", "| 2 | 1.42x | 0.83x |", "| 4 | 1.64x | 0.72x |"]
    text = "## Speedup over 1 thread\n\n" + below("| Threads | static | dynamic |", *rows)
    assert pasted(text).reading["speedup"] == "speedup"


def test_times_below_a_heading_beside_a_table_of_speedups() -> None:
    rows = ["| p = 1 | 0.40 | 1.60 |", "| p = 4 | 0.11 | 0.42 |"]
    text = "## Runtime (seconds)\n\n" + below("| Threads | 1M points | 4M points |", *rows)
    text += "\n## Results\n\n" + below("| Threads | Speedup |", "| 1 | 1.0 |", "| 4 | 3.8 |")
    assert [table.reading.get("time", "") for table in pasted(text).tables] == ["time", ""]


def test_runs_without_ranks_tell_no_others_apart() -> None:
    rows = ["2,1,2,18.9", "2,3,4,37.5", "2,8,8,70.1", "2,128,0,10.1", "2,512,0,36.9"]
    result = pasted("\n".join(["version,MPI ranks,GPUs,ns/day", *rows]))
    assert all("MPI ranks" not in str(finding.records) for finding in result.findings)


def test_runs_are_numbered_in_digits_of_any_script() -> None:
    rows = ["run٣,1,8.0", "run٤,2,4.1", "run٥,4,2.2"]
    (alone,) = pasted("\n".join(["repeat,GPUs,time (s)", *rows])).findings
    assert alone.rule == "repeats" and "world size 4" in alone.records[-1]


def test_each_row_has_a_serial_time_in_ms_that_its_speedup_is_over() -> None:
    rows = ["| 2 | 900.0 | 470.0 | 1.91x |", "| 4 | 910.0 | 260.0 | 3.50x |"]
    table = below("| Cores | Serial time (ms) | Parallel time (ms) | Speedup |", *rows)
    assert not broken(pasted(table + "| 8 | 1300.0 | 240.0 | 5.42x |"))
    assert broken(pasted(table + "| 8 | 1300.0 | 240.0 | 9.42x |")) >= {"quoted-against-own"}


@pytest.mark.parametrize(("share", "faults"), [("0.24", set()), ("0.37", {"quoted-against-own"})])
def test_as_many_cores_in_all_rows_by_the_quoted_efficiencies(share: str, faults: set[str]) -> None:
    rows = ["a,6,6.0,4.1,1.46,0.24", "b,6,22.7,15.9,1.43,0.24", f"c,6,32.0,22.1,1.45,{share}"]
    names = "file,cores,serial time (s),parallel time (s),speedup,efficiency"
    assert broken(pasted("\n".join([names, *rows]))) == faults


def test_numbers_of_threads_with_their_word() -> None:
    rows = ["| 2 threads | 18.7 |", "| 4 threads | 12.9 |", "| 8 threads | 12.4 |"]
    result = pasted(below("| Threads | time (s) |", *rows))
    assert result.reading["Threads"] == "world_size" and "super-linear" in result.checked


@pytest.mark.parametrize(("digits", "faults"), [("", set()), ("00", {"too-regular"})])
def test_a_deviation_of_zero_that_is_rounded(digits: str, faults: set[str]) -> None:
    rows = [f"| {n} | {t}{digits} ± 0.0{digits} |" for n, t in ((1, 6.5), (2, 3.7), (4, 2.4))]
    assert broken(pasted(below("| Threads | time (s) |", *rows))) == faults


def test_efficiencies_over_one_rank_beside_speedups_over_two() -> None:
    result = pasted("ranks,time_s,speedup,efficiency\n2,1.26,1.0,50%\n4,0.70,1.8,45%\n")
    (fault,) = (finding for finding in result.findings if finding.severity == "warning")
    assert "efficiencies over another baseline" in fault.evidence


def test_a_speedup_is_compared_precisely_where_the_others_are_exact() -> None:
    rows = ["1,100.0,1.00", "2,52.0,1.92", "4,27.0,3.70", "8,15.0,6.67", "16,9.0,{}"]
    table = "\n".join(["Threads,Time (s),Speedup", *rows])
    assert not broken(pasted(table.format(11.0)))  # 11.11, cut off
    assert broken(pasted(table.format(10.7))) == {"quoted-against-own"}
    rough = table.replace("1.92", "1.98").replace("3.70", "3.60")
    assert not broken(pasted(rough.format(10.7)))


def test_labels_with_the_ranks_of_their_row_name_one_program_each() -> None:
    head = "| Implementation | T (s) | Efficiency | Cores |"
    rows = ["| Python P=1 | 168.4 | 1.00 | 1 |", "| Python P=2 | 91.1 | 0.92 | 2 |"]
    rows += ["| C P=1 | 0.0561 | 1.00 | 1 |", "| C P=2 | 0.0286 | {} | 2 |"]
    assert not broken(pasted(below(head, *rows).format(0.98)))
    assert broken(pasted(below(head, *rows).format(0.88))) == {"quoted-against-own"}


def test_labels_that_differ_in_what_they_count_are_programs_on_these_ranks() -> None:
    head = "|  | Time | Speedup | Efficiency |"
    rows = ["| Sequential | 16.0 s | 1x | 100% |", "| MPI (1 thread) | 14.8 s | 1.08x | 108% |"]
    rows += ["| MPI (2 threads) | 8.2 s | 1.95x | 98% |", "| MPI (4 threads) | 4.4 s | {}x | 91% |"]
    result = pasted(below(head, *rows).format(3.64))
    assert result.reading["ranks"] == "world_size" and result.reading["strategy"] == "strategy"
    assert not broken(result)
    assert broken(pasted(below(head, *rows).format(2.9))) == {"quoted-against-own"}


def test_options_as_labels_count_ranks_and_other_labels_do_not() -> None:
    rows = ["| `--jobs 1` | 43.7 s |", "| `--jobs 2` | 31.4 s |", "| automatic | 12.1 s |"]
    result = pasted(below("| Arm | Total time |", *rows))
    assert result.reading["ranks"] == "world_size"
    assert "world size 2" in str(result) and "automatic" not in str(result.findings)


@pytest.mark.parametrize("label", ["GPU {} kernels", "Phase {} process", "node {} copy"])
def test_numbers_of_devices_and_phases_in_labels_are_no_ranks(label: str) -> None:
    rows = [f"| {label.format(number)} | 16.{number} s | 80 |" for number in (1, 2, 4)]
    assert "world_size" not in pasted(below("| Part | Total time | Load |", *rows)).reading.values()


def test_rows_of_other_problems_are_no_repeats_where_each_has_its_own_serial_time() -> None:
    head = "| Scenario | Threads | Sequential | Parallel | Speedup |"
    rows = [
        "| Scaling | 1 | 16.5 ms | 16.4 ms | 1.01x |",
        "| Scaling | 4 | 16.5 ms | 15.2 ms | 1.09x |",
    ]
    rows += [
        "| Objects | 4 | 67.9 ms | 57.6 ms | 1.18x |",
        "| Heavy | 4 | 53.0 ms | 43.6 ms | 1.22x |",
    ]
    result = pasted(below(head, *rows))
    assert result.reading["time"] == "time" and not broken(result)
    assert not any(one.rule == "fixed-overhead" for one in result.findings)


@pytest.mark.parametrize("name", ["Time{}", "T{} (s)", "Num Nodes = {}"])
def test_columns_of_times_that_end_in_the_ranks(name: str) -> None:
    head = f"| Method | {' | '.join(name.format(ranks) for ranks in (1, 2, 4))} |"
    label = "MPI ({} nodes)" if "Nodes" in name else "case {}"
    rows = [
        f"| {label.format(2)} | 9.6 s | 5.0 s | 2.6 s |",
        f"| {label.format(4)} | 8.0 s | 4.1 s | 1.1 s |",
    ]
    result = pasted(below(head, *rows))
    assert {"world_size", "time"} <= set(result.reading.values())
    assert "super-linear" in broken(result) and "7.3x on 4" in str(result.findings)


@pytest.mark.parametrize("name", ["Time{}", "T{} (s)"])
@pytest.mark.parametrize("ends", [(1, 2, 3), (1000, 2000, 4000)])
def test_columns_of_times_that_end_in_repeats_or_sizes(name: str, ends: tuple[int, ...]) -> None:
    head = f"| Method | {' | '.join(map(name.format, ends))} |"
    result = pasted(below(head, "| MPI | 9.6 | 9.5 | 9.7 |", "| OpenMP | 8.0 | 8.1 | 8.0 |"))
    assert "world_size" not in result.reading.values()


def test_a_single_thread_beside_columns_of_several() -> None:
    rows = ["| GEMM | 80.8 | 294.3 | 733.4 |", "| MLP | 52.6 | 195.3 | 479.5 |"]
    result = pasted(below("| Bench | Single | 4 | 16 |", *rows))
    assert result.reading["rate"] == "rate"
    assert not {one.rule for one in result.findings} - {"repeats"}


def test_labels_that_end_in_other_numbers_than_the_ranks() -> None:
    rows = ["| exp1 | 1 | 100 | 100% |", "| exp2 | 2 | 190 | 95% |", "| exp3 | 4 | 360 | 80% |"]
    result = pasted(below("| Experiment | GPUs | samples/s | efficiency |", *rows))
    assert broken(result) == {"quoted-against-own"}  # 80 %, not 90 %
