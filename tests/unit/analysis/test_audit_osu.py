"""The output of the OSU micro-benchmarks and of the Intel MPI Benchmarks."""

from __future__ import annotations

from audits import broken, pasted

SIZES = {4: 10.1, 1024: 23.2, 65536: 214.1, 524288: 765.0, 1048576: 515.5}
ROWS = "\n".join(f"{size:<10d}{time:18.2f}" for size, time in SIZES.items())
OUTPUT = f"""Loading the modules

# OSU MPI Allreduce Latency Test v7.5
# Datatype: MPI_INT.
# Size       Avg Latency(us)
{ROWS}

real	0m7.902s
"""


def test_a_collective_by_the_size_of_its_messages() -> None:
    result = pasted(f"```\nmpirun -n 144 -N 36 -x UCX_TLS=rc,sm osu_allreduce\n{OUTPUT}```\n")
    assert result.reading["message_bytes"] == "bytes"
    assert result.reading["time_us"] == "time"
    assert result.reading["ranks"] == "world_size"
    assert not broken(result)
    faster = next(each for each in result.findings if each.rule == "plausible-bandwidth")
    assert "less than the next smaller message" in faster.evidence
    assert len(faster.records) == 1


def test_ranks_of_nodes_and_their_tasks() -> None:
    result = pasted(f"srun -N4 --ntasks-per-node=96 osu_allreduce\n{OUTPUT}")
    repeats = next(each for each in result.findings if each.rule == "repeats")
    assert "world size 384" in repeats.records[0]


def test_without_a_command_the_ranks_are_unknown() -> None:
    result = pasted(OUTPUT)
    assert "world_size" not in result.reading.values()
    assert result.reading["time_us"] == "time"


def test_several_collectives_are_told_apart() -> None:
    other = OUTPUT.replace("Allreduce", "Allgather")
    result = pasted(f"mpirun -np 8 osu_allreduce\n{OUTPUT}mpirun -np 8 osu_allgather\n{other}")
    repeats = next(each for each in result.findings if each.rule == "repeats")
    assert "10 values have neither repeats nor a spread" in repeats.evidence
    assert any("Allgather" in place for place in repeats.records)


def test_minimum_and_maximum_over_the_ranks() -> None:
    head = "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
    rows = "8   2.10   1.90   2.30   1000\n1024   5.10   4.90   5.30   1000"
    text = f"# OSU MPI Bcast Latency Test v5.8\n{head}\n{rows}\n"
    result = pasted(f"mpirun -np 16 osu_bcast -f\n{text}")
    assert result.reading["time_us"] == "time"
    assert result.reading["repeats"] == "repeats"


IMB = """# Benchmarking Allreduce
# #processes = 16
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            4         1000         2.06         2.49         1.80
         1024         1000         4.10         5.40         4.80

# Benchmarking Unidir_Get
# #processes = 2
#    MODE: AGGREGATE
       #bytes #repetitions      t[usec]   Mbytes/sec
            4         1000         2.00         1.91
         1024         1000         2.50       390.63
"""


def test_intel_benchmarks_by_the_slowest_rank() -> None:
    result = pasted(IMB)
    assert result.reading["message_bytes"] == "bytes"
    assert result.reading["ranks"] == "world_size"
    assert not broken(result)
    half = IMB.replace(" 5.40 ", " 0.40 ").replace(" 2.50 ", " 0.50 ")
    faster = next(each for each in pasted(half).findings if each.rule == "plausible-bandwidth")
    assert faster.records == (
        "row 2 (Allreduce, 1 KiB, world size 16)",
        "row 4 (Unidir_Get aggregate, 1 KiB, world size 2)",
    )


def test_bandwidths_by_the_size_of_messages() -> None:
    rows = "\n".join(f"    {size:<10d}{size / 4 ** (size > 4096):18.2f}" for size in SIZES)
    text = (
        f"    # OSU MPI Bi-Directional Bandwidth Test v7.5\n    # Size    Bandwidth (MB/s)\n{rows}"
    )
    result = pasted(f"mpirun -np 2 osu_bibw\n{text}\n")
    assert result.reading["algbw_mb_per_s"] == "algbw"
    assert result.reading["ranks"] == "world_size" and not broken(result)
    rated = (
        "# OSU MPI Multiple Bandwidth / Message Rate Test v5.8\n# Size      MB/s    Messages/s\n"
    )
    assert "algbw_mb_per_s" in pasted(f"{rated}1  7.79  7790845.03\n2  15.93  7962625.43\n").reading
