"""Lists such as "8 GPUs: 25 images/s" as tables."""

from __future__ import annotations

from io import StringIO

import pytest
from audits import broken, pasted

from lab.analysis.audit.text_table import read_tables
from lab.errors import InputError


def test_rates_on_numbers_of_gpus() -> None:
    text = """The numbers are as following:

1GPU: 5 images/s
8GPUs: 25 images/s
16GPUs(2 nodes): 41 images/s
32GPUs(4nodes): 80 images/s

So the efficiency is only 50 %?
"""
    result = pasted(text)
    assert result.reading == {"GPUs": "world_size", "images/s": "rate"} and not broken(result)
    assert broken(pasted(text.replace(": 80", ": 190"))) == {"super-linear"}


def test_a_range_and_a_remark_in_a_list() -> None:
    text = """1x1  GPU: 740 img/sec
1x8 GPU: 5000 img/sec
1x8 GPU: 5100-5200 (on a ramdisk)
8x8 GPU (64 GPUs total): ~37000 imgs/sec.  (79% efficient)
"""
    (table,) = read_tables(StringIO(text))
    assert table["GPUs"].tolist() == ["1x1  GPU", "1x8 GPU", "1x8 GPU", "8x8 GPU (64 GPUs total)"]
    result = pasted(text)
    assert result.reading["img/sec"] == "rate" and not broken(result)
    assert "world size 64" in str(result.findings[0].records)


def test_several_lists_with_times_of_nodes_and_gpus() -> None:
    text = """Timings of our solver:
- 1 node: 1h 20m
- 2 nodes: 45m

and of the network:
* 1 GPU -> 12.5 s/epoch
* 2x A100 -> 7.1 s/epoch
"""
    solver, network = read_tables(StringIO(text))
    assert solver.values.tolist() == [["1", "1h 20m"], ["2", "45m"]]
    assert solver.columns.tolist() == ["nodes", "total time"]
    assert network.columns.tolist() == ["GPUs", "epoch time"]
    assert "and of the network" in network.attrs["place"]
    assert network.attrs["notes"].count("and of the network:") == 1


def test_other_lines_with_colons_are_no_list() -> None:
    (table,) = read_tables(StringIO("GPUs,note,time_s\n1,8 GPUs: 5,10\n2,16 GPUs: 6,5.5\n"))
    assert table.columns.tolist() == ["GPUs", "note", "time_s"]


def test_sentences_are_no_table() -> None:
    text = "- 8xH200 FSDP batch size 1: 609 TFLOP/s/GPU\n- 8xH200 FSDP batch size 4: 897\n"
    with pytest.raises(InputError, match="a list of sentences, not a table"):
        read_tables(StringIO(text))


def test_words_between_the_ranks_and_a_rate_or_time() -> None:
    text = "8GPU is not linear:\n1 GPU performance 400 img/sec\n2 GPU performance 790 img/sec\n"
    text += "4 GPU performance 1580 img/sec\n\nThe same in NCCL:\n"
    text += "in 2 GPU it takes 56 sec.\nin 4 GPU it takes 78 sec.\n"
    result = pasted(text)
    assert [set(table.reading) for table in result.tables] == [
        {"GPUs", "img/sec"},
        {"GPUs", "total time"},
    ]
    assert broken(pasted(text.replace("1580", "1780"))) == {"super-linear"}
    bare = pasted("1 GPU and then 200\n2 GPU and then 400\n4 GPU and then 780\n")
    assert not {"time", "rate"} & set(bare.reading.values())


def test_words_before_the_ranks_that_a_time_is_on() -> None:
    text = "- Time with 1 thread: 2395.6 ms\n- Time with 4 threads: 427.2 ms\n"
    result = pasted(text)
    assert result.reading == {"threads": "world_size", "total time": "time"}
    assert broken(result) == {"super-linear"}


def test_a_speedup_in_brackets_behind_a_time() -> None:
    text = "1 thread: 3.78 s\n4 threads: 1.35 s (2.8x)\n8 threads: 839 ms (4.5x speedup)\n"
    result = pasted(text)
    assert result.reading["speedup"] == "speedup" and not broken(result)
    assert broken(pasted(text.replace("4.5x", "6.5x"))) == {"quoted-against-own"}
    throughput = (
        "1 thread: 823ns\n2 threads: 834ns (1.97x throughput)\n4 threads: 847ns (3.9x more)"
    )
    assert "speedup" not in pasted(throughput).reading


@pytest.mark.parametrize("one", ["Single GPU", "1 GPU", "One GPU"])
def test_times_of_clocks_and_in_minutes_and_seconds(one: str) -> None:
    text = f" * {one} computation time: 0:00:22.25\n * 2 GPUs computation time: 0:00:12.63\n"
    (table,) = read_tables(StringIO(text))
    assert table.values.tolist() == [["1", "0:00:22.25"], ["2", "0:00:12.63"]]
    text = "- before: 6m17s\n- OpenMP 4 threads: **4m46s**\n- OpenMP 1 thread: 6m11s\n"
    (table,) = read_tables(StringIO(text))
    assert table.values.tolist() == [["4", "4m46s"], ["1", "6m11s"]]
    parts = "".join(f"- {n} GPU {what} time: {n} s\n" for n in (1, 2) for what in ("load", "step"))
    with pytest.raises(InputError, match="values instead of column names"):
        read_tables(StringIO(parts))
