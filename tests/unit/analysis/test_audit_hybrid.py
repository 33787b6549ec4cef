"""Ranks that are not what a table's count of ranks says: cores of hybrid programs, and nodes."""

from __future__ import annotations

import pytest
from audits import broken, pasted

GRID = ["1,1,64.0", "1,4,17.5", "2,1,33.0", "2,4,9.0", "4,1,17.0", "4,4,4.8"]


def csv(names: str, *rows: str) -> str:
    return "\n".join([names, *rows]) + "\n"


def test_ranks_times_threads_count_the_cores() -> None:
    result = pasted(csv("MPI ranks,Threads,Time (s)", *GRID))
    assert not broken(result)
    assert "super-linear" in result.checked
    assert (
        "'MPI ranks' times 'Threads' counts the cores, which are taken for the ranks"
        in result.assumptions
    )
    result = pasted(csv("MPI ranks,Threads,Time (s)", *GRID[:-1], "4,4,2.8"))
    (found,) = [one for one in result.findings if one.rule == "super-linear"]
    assert "22.9x on 16 ranks" in found.evidence


def test_threads_that_vary_on_equal_ranks_count_as_cores() -> None:
    result = pasted(csv("MPItask,OMP threads,time", "2,1,40.0", "2,2,21.0", "2,4,8.0"))
    (found,) = [one for one in result.findings if one.rule == "super-linear"]
    assert "5.0x on 8 ranks (40.00 s against 8.00 s), above the 4x" in found.evidence


def test_each_number_of_threads_may_have_a_baseline() -> None:
    speedups = ("1.00", "1.00", "1.94", "1.94", "3.76", "3.65")
    rows = [f"{row},{speedup}" for row, speedup in zip(GRID, speedups, strict=True)]
    result = pasted(csv("MPI ranks,Threads,Time (s),Speedup", *rows))
    assert not broken(result)
    assert "each number of 'Threads' has a baseline of its own" in result.assumptions
    assert [finding.rule for finding in result.findings] == ["repeats"]
    result = pasted(csv("MPI ranks,Threads,Time (s),Speedup", *rows[:-1], "4,4,4.8,5.65"))
    assert broken(result) == {"quoted-against-own"}


@pytest.mark.parametrize("names", ["GPUs,num_threads", "MPI ranks,threads per block"])
def test_other_threads_are_settings(names: str) -> None:
    result = pasted(csv(f"{names},img/s", "1,4,100", "2,8,190", "4,8,370"))
    assert "mixed-environment" in broken(result)


def test_fewer_ranks_than_nodes_are_those_of_a_node() -> None:
    rows = ["1,1,100,1", "1,2,55,1.82", "2,1,60,1.67", "4,1,35,2.86", "4,2,20,9.0"]
    result = pasted(csv("Nodes,GPUs,Time (s),Speedup", *rows))
    assert result.reading["GPUs"] == "per_node"
    assert "'GPUs' counts the ranks of each node, as there are fewer than nodes" in (
        result.assumptions
    )
    (found,) = [one for one in result.findings if one.rule == "quoted-against-own"]
    assert "9.00x is quoted on 8 ranks, but the table's own times give 5.00x" in found.evidence
    total = ["1,4,100,1", "2,8,55,1.82", "4,16,30,3.33"]
    result = pasted(csv("Nodes,GPUs,Time (s),Speedup", *total))
    assert result.reading["GPUs"] == "world_size"


def test_cores_that_do_not_start_at_one() -> None:
    text = "core  time    Run\n 128  0.0064  4x4x8\n 256  0.0032  4x8x8\n 512  0.0011  8x8x8  O2\n"
    result = pasted(text)
    assert result.reading["core"] == "world_size"
    assert broken(result) == {"super-linear"}
    machines = pasted(csv("machine,cores,time", "a,28,10.0", "b,40,8.1", "c,64,7.9"))
    assert "cores" not in machines.reading or machines.reading["cores"] == "cpus"


def test_a_column_called_proc_counts_them() -> None:
    result = pasted(csv("proc,time_s", "1,100", "4,30", "16,5"))
    assert result.reading["proc"] == "world_size" and broken(result) == {"super-linear"}
    result = pasted(csv("proc,time_s", "0,100", "1,130", "2,101", "3,99"))
    assert result.reading["proc"] == "rank" and "rank-imbalance" in result.checked


def test_threads_of_a_rank_and_efficiencies_that_are_no_per_cent() -> None:
    rows = ["1,1,1,7100,1.00", "2,1,2,4568,0.77", "16,1,16,2776,0.16", "32,2,16,1333,0.17"]
    result = pasted(csv("Cores,Ranks,Thread per rank,Time (s),Efficiency (%)", *rows))
    assert broken(result) == set()
    assert "'Ranks' times 'Thread per rank' counts the cores, which are taken for the ranks" in (
        result.assumptions
    )
    rows[-1] = rows[-1].replace("0.17", "0.27")
    result = pasted(csv("Cores,Ranks,Thread per rank,Time (s),Efficiency (%)", *rows))
    (found,) = [one for one in result.findings if one.rule == "quoted-against-own"]
    assert "An efficiency of 27 % is quoted on 32 ranks" in found.evidence


def test_times_of_each_process_are_those_of_ranks() -> None:
    rows = ["1,3.79,-", "2,1.96,2.31"]
    result = pasted(csv("Processes,Time process 0 (s),Time process 1 (s)", *rows))
    assert result.reading["rank"] == "rank" and "rank-imbalance" in broken(result)


def test_a_serial_program_has_one_rank_unless_another_has() -> None:
    result = pasted(csv("Configuration,Time (s)", "Serial,30.0", "2 processes,20.5"))
    assert result.reading["Configuration"] == "world_size" and "super-linear" in result.checked
    rows = ["Serial,30.0", "1 process,31.0", "2 processes,20.5"]
    result = pasted(csv("Processes,Time (s)", *rows))
    (found,) = [one for one in result.findings if one.rule == "repeats"]
    assert "2 values" in found.evidence
