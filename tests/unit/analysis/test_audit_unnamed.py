"""Columns that only their numbers or units reveal."""

from __future__ import annotations

import pytest
from audits import below, broken, pasted


def test_a_rate_by_its_growth_beside_an_efficiency() -> None:
    rows = ["1 | 872 | 1", "8 | 6679 | 95.70%", "16 | 12828 | 91.90%", "32 | 23870 | 85.50%"]
    text = "\n".join(["GPU | ResNet50 | Scaling Efficiency", "-- | -- | --", *rows])
    result = pasted(text)
    assert result.reading["ResNet50"] == "rate" and not broken(result)
    assert broken(pasted(text.replace("85.50", "95.50"))) == {"quoted-against-own"}


def test_a_number_beside_an_efficiency_that_does_not_grow() -> None:
    result = pasted("GPUs,Seed,Efficiency\n1,7,100%\n2,9,95%\n4,8,90%\n")
    assert "Seed" in result.reading and "rate" not in result.reading.values()
    result = pasted("GPUs,Hue,Efficiency\n1,7,100%\n2,9,95%\n4,8,90%\n")
    assert "Hue" not in result.reading


def test_a_time_of_a_part_by_its_cells() -> None:
    rows = ["1 | 292 s", "2 | 209 s", "4 | 165 s", "8 | 31 s"]
    result = pasted("\n".join(["OpenMP threads | TwoPuncture 时间", "--|--", *rows]))
    assert result.reading == {"OpenMP threads": "world_size", "TwoPuncture 时间": "time"}
    assert broken(result) == {"super-linear"}


def test_times_of_programs_by_their_unit() -> None:
    text = "NP,Standard (s),ScaLAPACK (s)\n4,11.4,12.6\n8,10.7,10.3\n16,12.3,1.2\n"
    result = pasted(text)
    assert result.reading == {"NP": "world_size", "setting": "strategy", "time": "time"}
    (finding,) = [each for each in result.findings if each.rule == "super-linear"]
    assert "ScaLAPACK" in str(finding.records) and "Standard" not in str(finding.records)


@pytest.mark.parametrize("state", ["TIMEOUT", "CANCELLED by 1000", "OUT_OF_ME+", "failed"])
def test_a_failed_job_has_no_time(state: str) -> None:
    rows = f"4,605,COMPLETED\n8,320,COMPLETED\n16,600,{state}\n"
    result = pasted(f"NTasks,Elapsed,State\n{rows}")
    assert "1 failed job is left out" in result.assumptions
    assert "world size 16" not in str(result)


def test_a_projected_row_was_not_measured() -> None:
    text = "Nodes,Tokens/sec\n1,142.6\n2,280.1\n16 (projected),2999.0\n"
    result = pasted(text)
    assert "1 projected row is left out" in result.assumptions and not broken(result)
    assert broken(pasted(text.replace(" (projected)", ""))) == {"super-linear"}


def test_numbers_of_cores() -> None:
    text = "Core Count,Tokens/s\n4,7\n8,13\n16,20\n32,75\n"
    assert pasted(text).reading["Core Count"] == "world_size"
    assert broken(pasted(text)) == {"super-linear"}


def test_efficiencies_over_the_fewest_ranks_that_quote_none() -> None:
    text = "Cores,Tokens/s,Efficiency\n4,7,-\n8,13,93%\n16,20,71%\n32,25,56%\n48,27,40%\n"
    result = pasted(text)
    assert broken(result) == {"quoted-against-own"}
    (finding,) = [each for each in result.findings if each.rule == "quoted-against-own"]
    assert "56 % is quoted on 32 ranks, but the table's own numbers give 45 %" in finding.evidence
    assert "71 %" not in finding.evidence


def test_scaled_speedups_whose_baseline_quotes_none() -> None:
    rows = ["1,14.1,N/A (baseline)", "2,13.9,2.03", "4,14.4,3.92"]
    assert not broken(pasted("\n".join(["GPUs,s/step,Speedup from 1 GPU", *rows])))
    rows[2] = "4,14.4,0.98"  # of which one is scaled and one is not
    assert "quoted-against-own" in broken(pasted("\n".join(["GPUs,s/step,Speedup", *rows])))


def test_groups_of_hybrid_sharding() -> None:
    names = "Model,GPUs,dp_replicate,dp_shard,TP,PP"
    rows = ["70B,32,4,4,2,1", "70B,64,2,4,8,1"]
    assert not broken(pasted("\n".join([names, *rows])))
    faulty = pasted("\n".join([names, *rows, "70B,8,1,8,2,1"]))
    assert broken(faulty) == {"parallel-consistent"}
    assert "dp 8 x tp 2 x pp 1 is 16, not 8 ranks" in faulty.findings[0].evidence
    assert "TP 2" in str(faulty.findings[0].records)  # a setting that is a bare number, by name


def test_gpus_count_more_than_the_ranks_that_share_them() -> None:
    rows = ["1,7,1,19.0", "3,7,2,35.6", "8,7,4,68.0", "8,7,8,110.7"]
    result = pasted("\n".join(["MPI ranks,Threads/rank,GCDs,Performance (ns/day)", *rows]))
    assert result.reading["GCDs"] == "world_size" and "MPI ranks" not in result.reading
    assert not broken(result)
    rows[-1] = "8,7,8,210.7"
    assert broken(pasted("\n".join(["MPI ranks,Threads/rank,GCDs,ns/day", *rows]))) == {
        "super-linear"
    }


@pytest.mark.parametrize("names", ["1 GCD,2 GCDs,8 GCDs", "1 NPU,2 NPU,8 NPU", "1 dev,2 dev,8 dev"])
def test_columns_for_numbers_of_any_device(names: str) -> None:
    result = pasted(f"model,{names}\nA,10 s,5.5 s,1.5 s\nB,20 s,11 s,3 s\n")
    assert result.reading["world_size"] == "world_size" and "super-linear" in result.checked
    assert broken(pasted(f"model,{names}\nA,10 s,5.5 s,0.9 s\n")) == {"super-linear"}


def test_workers_beside_an_efficiency_are_ranks() -> None:
    rows = ["1,0.060,1.0,1.0", "10,0.100,0.6,6.0", "25,0.300,0.2,5.0", "80,0.800,0.075,6.0"]
    names = "Num Workers,Runtime (s),Weak Scaling Efficiency,Scaled Speedup"
    result = pasted("\n".join([names, *rows]))
    assert result.reading["Num Workers"] == "world_size" and not broken(result)
    rows[1] = "10,0.100,0.8,8.0"
    assert broken(pasted("\n".join([names, *rows]))) == {"quoted-against-own"}
    result = pasted("GPUs,num_workers,Time (s),Speedup\n1,4,10,1\n2,4,5.2,1.92\n")
    assert result.reading["num_workers"] == "loader_workers"


def test_a_deviation_beside_a_rate_is_that_of_the_rate() -> None:
    text = "GPUs,Tokens/s mean,Sample SD,Speedup\n1,32015,9.3,1\n2,63000,68.6,1.968\n"
    result = pasted(text)
    assert result.reading["Sample SD"] == "std"
    (finding,) = [each for each in result.findings if each.rule == "repeats"]
    assert "gives a spread for 2 of 2 configurations" in finding.evidence


def test_rows_on_as_many_ranks_with_words_of_their_own_are_no_repeats() -> None:
    rows = [
        "1 node x 1 GPU,1,85065,48 ms",
        "1 node x 2 GPU (PCIe),2,63724,129 ms",
        "2 nodes x 1 GPU (1 GbE),2,1522,5384 ms",
    ]
    result = pasted("\n".join(["Shape;GPUs;tokens/s;step time", *rows]).replace(",", ";"))
    assert result.reading["Shape"] == "strategy" and not broken(result)
    (slower,) = [each for each in result.findings if each.rule == "fixed-overhead"]
    assert "speedup 0.75 (1 node x 2 GPU (PCIe))" in slower.evidence
    numbered = pasted("Job;GPUs;Time (s)\njob a1;1;10\njob a2;2;5.2\njob a3;2;5.3\n")
    assert "strategy" not in numbered.reading.values()  # whose names only number them


def test_gpus_in_traditional_chinese() -> None:
    result = pasted("模型大小,GPU 數,TP,PP,DP\n13B,8,2,1,4\n40B,32,4,2,4\n70B,64,8,2,8\n")
    assert result.reading["GPU 數"] == "world_size"
    assert broken(result) == {"parallel-consistent"}


@pytest.mark.parametrize(("last", "faults"), [("9.08e+05", set()), ("1.5e+06", {"super-linear"})])
def test_what_is_called_actual_beside_an_ideal(last: str, faults: set[str]) -> None:
    rows = ["8,8.85e+04,8.85e+04, 3.75", "32,3.48e+05,3.54e+05, --", f"112,{last},1.24e+06, 40.8"]
    result = pasted("\n".join(["No. Cores, Actual, Ideal, Memory (%)", *rows]))
    assert result.reading["Actual"] == "rate" and broken(result) == faults


def test_iterations_of_a_solver_are_no_steps_of_an_optimizer() -> None:
    rows = ["1,15,580.5", "8,22,100.1", "32,33,49.7"]
    result = pasted("\n".join(["nprocs,iterations,wall_time_s", *rows]))
    assert broken(result) == {"equal-work"} and "15 iterations at world size 1" in str(result)


@pytest.mark.parametrize("layout", ["{}", "| {} |"])
def test_frameworks_whose_numbers_rise_with_the_ranks_are_rated(layout: str) -> None:
    sign = " | " if "|" in layout else ","
    names = ["nodes", "GPUs", "[PyTorch](code/torch)", "[MXNet<br/>bsz=64](code/mx)", "**JAX**"]
    rows = [["1", "1", "100", "90", "110"], ["1", "8", "750", "700", "800"]]
    rows += [["2", "16", "1400", "1300", "1500"]]
    rule = [["---"] * len(names)] * ("|" in layout)
    text = "\n".join(layout.format(sign.join(row)) for row in [names, *rule, *rows])
    result = pasted(text)
    assert result.reading == {
        "nodes": "nodes",
        "GPUs": "world_size",
        "setting": "strategy",
        "rate": "rate",
    }
    assert "'PyTorch', 'MXNet bsz=64', 'JAX' are read as the rate" in str(result.assumptions)
    assert not broken(result)
    faulty = pasted(text.replace("1300", "2300"))
    (finding,) = [each for each in faulty.findings if each.rule == "super-linear"]
    assert "MXNet" in str(finding.records) and "JAX" not in str(finding.records)


def test_numbers_of_frameworks_that_hardly_rise_are_no_rates() -> None:
    result = pasted("GPUs,PyTorch,JAX\n1,10,11\n4,11,13\n8,12,14\n")
    assert "rate" not in result.reading.values()


def test_batches_that_only_some_frameworks_have_do_not_multiply_the_others() -> None:
    rows = ["1,100,90,80", "2,190,170,150", "4,370,330,290"]
    result = pasted("\n".join(["GPUs,PyTorch img/s b64,PyTorch img/s b96,JAX img/s b32", *rows]))
    (finding,) = [each for each in result.findings if each.rule == "repeats"]
    assert finding.evidence.startswith("9 values")


def test_a_serial_program_beside_parallel_ones_has_a_single_time() -> None:
    rows = ["| 1 | 632 | 665 | 704 |", "| 2 | - | 400 | 360 |", "| 4 | - | 250 | {} |"]
    table = "\n".join(
        ["| Processes | Sequential | OpenACC | Pthread |", "|---|---|---|---|", *rows]
    )
    result = pasted(f"### Execution time in ms\n\n{table.format(190)}")
    assert result.reading["time"] == "time" and not broken(result)
    assert "7 values" in str(result)
    faulty = pasted(f"### Execution time in ms\n\n{table.format(90)}")
    assert "Pthread" in str([one.records for one in faulty.findings if one.rule == "super-linear"])


def test_the_only_time_by_its_unit_is_that_of_about_the_quoted_speedups() -> None:
    names = "| Threads | Task_run time (ms) | Speedup |"
    rows = ["| 1 | 56.1 | 1.00x |", "| 2 | 41.5 | 1.35x |", "| 4 | 33.2 | {} |"]
    result = pasted(below(names, *rows).format("1.63x"))
    assert result.reading["Task_run time (ms)"] == "time"
    other = [row.replace("41.5", "90.0").replace("56.1", "70.0") for row in rows]  # of a part
    assert "Task_run time (ms)" not in pasted(below(names, *other).format("1.63x")).reading


def test_multiples_below_numbers_of_threads_are_speedups_and_no_times() -> None:
    rows = ["| Sort | Baseline | ~1.7x | ~3.0x | **3.0x** |"]
    rows += ["| Merge | Baseline | 0.8x | 0.5x | **0.8x** |"]
    result = pasted(below("| Algorithm | 1 thread | 2 threads | 4 threads | Speedup |", *rows))
    assert result.reading == {"world_size": "world_size", "speedup": "speedup"}
    assert not broken(result)
    assert not any(one.rule == "fixed-overhead" for one in result.findings)


def test_numbers_beside_the_seconds_of_a_serial_program_are_seconds() -> None:
    head = "| Size | Sequential (s) | Parallel 2P | Parallel 4P |"
    # Which would be rates, as they rise.
    rows = ["| 256 x 256 | 2.1 | 1.2 | 3.7 |", "| 512 x 512 | 7.0 | 4.2 | {} |"]
    result = pasted(below(head, *rows).format(5.6))
    assert result.reading["time_s"] == "time" and not broken(result)
    assert "super-linear" in broken(pasted(below(head, *rows).format(0.8)))


def test_each_speedup_belongs_to_the_time_that_it_shares_a_word_with() -> None:
    names = "| Threads | Time CPU-bound | Speedup CPU | Time memory-bound | Speedup Mem |"
    rows = ["| 1 | 7,3 s | 1,00 | 0,080 s | 1,00 |", "| 2 | 4,1 s | 1,78 | 0,{} s | {} |"]
    assert not broken(pasted(below(names, *rows).format("060", "1,33")))
    faulty = pasted(below(names, *rows).format("020", "4,00"))
    assert "super-linear" in broken(faulty)
    assert "CPU" not in str([one.records for one in faulty.findings if one.rule == "super-linear"])


def test_millions_are_no_minutes_and_labels_may_tell_the_unit() -> None:
    rows = ["| 1 | 6.60 M | 5.79 M |", "| 4 | 13.34 M | 12.30 M |"]
    assert "time" not in pasted(below("| Threads | uniform | zipf |", *rows)).reading.values()
    rows = ["| map | 6.9 | 5.2 |", "| strings | 141.6 | 76.2 |"]
    result = pasted(below("| Workload, milliseconds | 1 thread | 2 threads |", *rows))
    assert "read as milliseconds" in str(result.assumptions)


def test_flops_and_bandwidths_by_threads_are_rates() -> None:
    rows = ["1,3366,3276", "8,17070,14271", "16,65887,19885"]
    result = pasted("\n".join(["Threads,MFlops,MFlops(n=2048)", *rows, ""]))
    assert result.reading == {"Threads": "world_size", "MFlops": "rate"}
    assert broken(result) == {"super-linear"}
    result = pasted("Threads,Triad (GB/s)\n1,22.0\n16,29.0\n32,146.2\n")
    assert result.reading["Triad (GB/s)"] == "rate" and "super-linear" in result.checked
    cost = pasted("Threads,GFLOPs\n1,4.1\n2,4.1\n4,4.1\n")  # of a model
    assert "rate" not in cost.reading.values()


def test_flops_of_machines_are_no_rates_of_ranks() -> None:
    machines = ["A14,4,654", "M1,8,2617", "M1 Pro,16,5308", "M1 Max,32,10620"]
    result = pasted("\n".join(["Apple GPU,Cores,GFLOPS F32", *machines, ""]))
    assert not broken(result)


def test_a_speedup_is_over_flops_beside_a_time_of_something_else() -> None:
    rows = ["1,40.59,1.00x,0.481 s", "2,49.20,1.21x,0.543 s", "4,50.83,1.25x,0.572 s"]
    result = pasted("\n".join(["threads,GFLOPS,speedup,child total", *rows, ""]))
    assert result.reading["GFLOPS"] == "rate" and not broken(result)


def test_bandwidths_by_the_size_of_a_problem_and_of_machines() -> None:
    rows = ["32,0.0072,0.62,57.0%", "64,0.0072,2.37,57.0%", "128,0.0075,9.00,56.7%"]
    result = pasted("\n".join(["n,blas ms,blas GB/s,efficiency", *rows, ""]))
    assert "world_size" not in result.reading.values() and not broken(result)
    rows = ["1,MI300X,4036,76.2%", "2,MI300A,3648,68.8%", "3,GH200,3500,87.5%"]
    result = pasted("\n".join(["Rank,GPU,Measured GB/s,Efficiency", *rows, ""]))
    assert "Rank" not in result.reading and not broken(result)
