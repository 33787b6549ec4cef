"""Reports in sections, the output of benchmarks of programs, and nested records."""

from __future__ import annotations

import json

import pytest
from audits import broken, pasted

from lab.errors import InputError

GOOGLE = """Run on (8 X 3600 MHz CPU s)
--------------------------------------------------------------------------------------
Benchmark                       Time             CPU   Iterations UserCounters...
--------------------------------------------------------------------------------------
BM_Sort/1024/real_time/threads:1   8123456 ns      8110000 ns           86 items_per_second=100.1M/s
BM_Sort/1024/real_time/threads:2   4201345 ns      8350000 ns          166 items_per_second=199.6M/s
BM_Sort/1024/real_time/threads:4   2300111 ns      9000000 ns          304 items_per_second=355.9M/s
"""
PYTEST = """collected 2 items

------------------------------- benchmark: 2 tests -------------------------------
Name (time in ms)         Min                Mean             StdDev             Rounds  Iterations
----------------------------------------------------------------------------------
test_sort[4]           4.0134 (1.0)       4.2001 (1.0)       0.1911 (1.0)         220           1
test_sort[1]          15.1134 (3.76)     15.2001 (3.62)      0.2911 (1.52)         62           1
----------------------------------------------------------------------------------

Legend:
  Outliers: 1 Standard Deviation from Mean
"""
STREAM = """-------------------------------------------------------------
STREAM version $Revision: 5.10 $
-------------------------------------------------------------
Number of Threads requested = 44
Your clock granularity/precision appears to be 1 microseconds.
-------------------------------------------------------------
Function    Best Rate MB/s  Avg time     Min time     Max time
Copy:           92980.4     0.005803     0.005774     0.005843
Triad:         124009.3     0.006532     0.006494     0.006566
-------------------------------------------------------------
Solution Validates: avg error less than 1.000000e-13 on all three arrays
"""
REPORT = """==================================================
MULTI-GPU REPORT
==================================================

============================================
Configuration: AGNews_1 GPU
============================================
Dataset: AGNews (train size: 120000)
Mean epoch time: 40.00 ± 0.63 s
Throughput: 3000 samples/sec
Speedup: 1.00x

============================================
Configuration: AGNews_4 GPUs
============================================
Dataset: AGNews (train size: 120000)
Mean epoch time: 12.50 ± 0.51 s
Throughput: 9600 samples/sec
Speedup: 3.20x
"""
RUNS = [(1, 8.0, 1.0), (2, 4.2, 1.9), (4, 2.5, 3.2)]
UNRULED = "".join(f"Number of threads: {n}\nTime: {t} s\nSpeedup: {s}\n\n" for n, t, s in RUNS)
TITLED = "".join(f"== {n} GPUs ==\nloss: 2.5\nTime: {t} s\nSpeedup: {s}x\n" for n, t, s in RUNS)
KEYED = "n=1024\n" + "".join(
    f"===== threads={n}\nlabel=v{n}\nseconds={t}\nspeedup={s}\n\n" for n, t, s in RUNS
)
SERVED = """============ Serving Benchmark Result ============
Successful requests:                     1024
Request throughput (req/s):              2.80
Total Token throughput (tok/s):          5589.55
---------------Time to First Token----------------
Mean TTFT (ms):                          5673.23
==================================================
"""


def test_google_benchmark() -> None:
    result = pasted(GOOGLE)
    wanted = {"real time": "time", "threads": "world_size", "items_per_second": "rate"}
    assert result.reading == wanted
    assert not broken(result)
    fast = pasted(GOOGLE.replace("2300111 ns", "1000111 ns"))
    assert "super-linear" in broken(fast)
    rows = [
        {"name": f"BM/threads:{n}", "run_type": "iteration", "iterations": 10, "threads": n}
        | {"real_time": t, "cpu_time": 8.0, "time_unit": "ms", "repetition_index": 0}
        for n, t, _ in RUNS
    ]
    of_all = [row | {"run_type": "aggregate", "real_time": 99.0} for row in rows]
    saved = pasted(json.dumps({"context": {"num_cpus": 8}, "benchmarks": rows + of_all}))
    assert saved.reading == {"threads": "world_size", "real_time": "time"}
    assert not broken(saved)


def test_pytest_benchmark() -> None:
    result = pasted(PYTEST)
    assert result.reading["mean time (ms)"] == "time"
    assert result.reading["repeats"] == "repeats"
    rows = [
        {"name": f"test[{n}]", "params": {"workers": n}, "options": {"min_rounds": 5}}
        | {
            "stats": {
                "min": t,
                "mean": t,
                "stddev": 0.01,
                "rounds": 9,
                "iterations": 1,
                "ops": 1 / t,
            }
        }
        for n, t, _ in RUNS
    ]
    saved = pasted(json.dumps({"machine_info": {"cpu": {"count": 8}}, "benchmarks": rows}))
    assert saved.reading["workers"] == "world_size"
    assert saved.reading["mean time (s)"] == "time"
    assert not broken(saved)


def test_stream_prints_seconds() -> None:
    result = pasted(STREAM)
    assert result.reading["Avg time (s)"] == "time"
    assert not result.assumptions


@pytest.mark.parametrize("text", [REPORT, UNRULED, TITLED, KEYED])
def test_sections(text: str) -> None:
    result = pasted(text)
    assert {"time", "speedup"} <= set(result.reading.values())
    assert not broken(result)
    assert {"super-linear", "quoted-against-own"} <= {*result.checked}
    wrong = text.replace("3.2", "3.9") if "3.20x" not in text else text.replace("3.20x", "3.90x")
    assert broken(pasted(wrong)) == {"quoted-against-own"}


def test_the_result_of_one_run_is_read() -> None:
    assert pasted(SERVED).reading == {"Total Token throughput (tok/s)": "rate"}
    twice = SERVED + SERVED.replace("5589", "9589").replace("1024", "2048")
    assert "rate" in pasted(twice).reading.values()
    with pytest.raises(InputError):
        pasted("Note: nothing\nTime: soon\nWhy: it is late and 4 of us are here\n")


def test_a_bar_in_a_cell_of_a_grid() -> None:
    rule, rows = "+--------+------------------+----------+", RUNS
    lines = ["| # GPUs | Command          | Time (s) |", rule.replace("-", "=")]
    for n, time, _ in rows:
        lines += [f"| {n}      | run | tee log    | {time:<9}|", rule]
    result = pasted("\n".join([rule, *lines, ""]))
    assert result.reading == {"# GPUs": "world_size", "Time (s)": "time"}
    assert not broken(result)


def test_records_within_records() -> None:
    sizes = [{"size_mb": 1, "bandwidth_gbps": 32.2}, {"size_mb": 100, "bandwidth_gbps": 386.8}]
    details = {"world_size": 8, "results_by_size": sizes}
    content = {"results": {"nccl": {"status": "PASS", "details": details}}}
    result = pasted(json.dumps(content))
    assert result.reading["world_size"] == "world_size"
    assert result.reading["size_mb"] == "bytes"
    runs = [
        {"gpus": n, "epochs": [{"epoch": e, "time_s": t} for e in range(3)]} for n, t, _ in RUNS
    ]
    nested = pasted(json.dumps({"model": "gpt2", "runs": runs}))
    assert nested.reading["gpus"] == "world_size"
    assert nested.reading["time_s"] == "time"
    ranks = [{"rank": 0, "mean_step_sec": 0.27, "images_per_sec": 961.0}]
    one = {"world_size": 1, "nodes": 1, "gpus_per_node": 8, "model": "resnet", "per_rank": ranks}
    alone = pasted(json.dumps(one))
    assert alone.reading["model"] == "model"
    assert not broken(alone)  # one of the GPUs of a node


def test_lines_of_mlperf() -> None:
    def line(key: str, value: object, **done: float) -> str:
        record = {"time_ms": 1695794953980, "key": key, "value": value, "metadata": done}
        return f":::MLLOG {json.dumps(record)}"

    lines = [line("init_start", None), line("global_batch_size", 512), line("seed", 1)]
    for samples, rate in ((1000, 7936.6), (2000, 7247.7), (3000, 7300.1)):
        lines.append(line("tracked_stats", {"throughput": rate}, samples_count=samples))
    assert pasted("\n".join(lines) + "\n").reading == {"throughput": "rate"}


@pytest.mark.parametrize("heading", ["Using {n} threads", "Mit {n} Threads:", "`THREADS={n}`:"])
def test_lines_that_count_what_the_next_report(heading: str) -> None:
    times = {1: (4.1, 4.2), 2: (2.2, 2.1), 4: (1.2, 1.3)}
    lines = [
        line
        for n, repeats in times.items()
        for line in [heading.format(n=n), *(f"Sorting took {time} seconds" for time in repeats)]
    ]
    result = pasted("\n".join(lines) + "\n")
    assert result.reading == {"threads": "world_size", "total time": "time"}
    assert not broken(result)


def test_logs_below_what_counts_the_gpus() -> None:
    rates = {1: 213.7, 2: 408.6, 4: 938.9}
    below = [
        f"**{n} GPUs ({n}x):**\nINFO:root:Epoch[0] Batch [49]\tSpeed: {rate} samples/sec\tacc=0.5\n"
        for n, rate in rates.items()
    ]
    result = pasted("".join(below))
    assert result.reading == {
        "gpus": "world_size",
        "Speed (samples/sec)": "rate",
        "acc": "accuracy",
    }
    assert broken(result) == {"super-linear"}


def test_runs_below_other_words_are_not_compared() -> None:
    rates = {"small": (4.0e8, 7.9e8), "large": (1.0e8, 1.8e8)}
    lines = [
        f"--- {n} GPU with the {model} model\n[info] > Samples/s: {rate:.3e}\n"
        for model, both in rates.items()
        for n, rate in zip((1, 2), both, strict=True)
    ]
    result = pasted("".join(lines))
    assert result.reading["gpus"] == "world_size"
    assert not broken(result)
    assert "fixed-overhead" not in {finding.rule for finding in result.findings}


@pytest.mark.parametrize(
    ("command", "name"),
    [("mpirun -np {n} ./cg", "ranks"), ("OMP_NUM_THREADS={n} ./cg", "threads")],
)
def test_outputs_below_commands(command: str, name: str) -> None:
    ran = {1: "12.3", 2: "6.4", 4: "3.5"}
    lines = (f"$ time {command.format(n=n)} big\nreal {time}\nuser 9\n" for n, time in ran.items())
    assert pasted("".join(lines)).reading == {name: "world_size", "total time": "time"}


def test_tables_below_sentences_that_count_ranks() -> None:
    text = "".join(
        f"## With {n} processes:\n\n| Size | Time (s) |\n|---|---|\n| 512 | {8 / n} |\n\n"
        for n in (1, 2, 4)
    )
    assert pasted(text).reading["processes"] == "world_size"


def test_steps_in_two_code_blocks_are_of_two_trainings() -> None:
    lines = "\n".join(f"step: {step}  loss: {5 - step / 10}  tps: 5,812" for step in (10, 20, 30))
    page = f"## Eager\n```\n{lines}\n```\n## Compiled\n```\n{lines}\n```\n"
    assert not broken(pasted(page))
    assert broken(pasted(f"```\n{lines}\n{lines}\n```\n")) == {"two-writers"}


@pytest.mark.parametrize(
    ("one", "four"),
    [
        ("$ time blastn -query a.fa -num_threads 1", "me@host:~> time blastn -num_threads 4"),
        ("For comparison, when running on the small data with 1 thread:", "and with 4 threads:"),
    ],
)
def test_real_times_below_commands_and_sentences_that_count_threads(one: str, four: str) -> None:
    text = f"{one}\n\nreal    0m8.93s\nuser    0m8.52s\n\n{four}\n\nreal 0m3.38s\nuser 0m10.2s\n"
    result = pasted(text)
    assert result.reading == {"threads": "world_size", "total time": "time"}
    assert broken(pasted(text.replace("0m3.38s", "0m1.08s"))) == {"super-linear"}


def test_metrics_below_headings_that_count_nodes() -> None:
    metrics = "### {} nodes\n\n| Metric | Value |\n|---|---|\n| GPU | A100 |\n| Tokens/s | {} |\n\n"
    text = "".join(metrics.format(n, rate) for n, rate in ((1, 3400), (2, 6700), (4, 13100)))
    result = pasted(text.replace("1 nodes", "1 node"))
    assert {result.reading["nodes"], result.reading["Tokens/s"]} == {"nodes", "rate"}
    assert not broken(result)
    assert broken(pasted(text.replace("13100", "15100"))) == {"super-linear"}
    both = pasted(text.replace(" nodes", " nodes with 8 GPUs each"))
    assert "nodes" not in both.reading


def test_steps_in_indented_blocks_between_sentences_are_of_two_trainings() -> None:
    lines = "".join(f"    step: {step}  loss: {5 - step / 10}  tps: 5,812\n" for step in (1, 2, 3))
    page = "The loss of the tuned model goes down fast:\n\n{}\n{}\n\n{}\n"
    between = "For comparison, here is how it goes without:"
    assert not broken(pasted(page.format(lines, between, lines)))
    assert broken(pasted(page.format(lines, "", lines))) == {"two-writers"}
