"""What columns and cells are taken for, in the many ways that people write the same table."""

from __future__ import annotations

import io
import itertools
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from audits import below, broken, pasted

from lab.analysis.audit import audit
from lab.analysis.audit.columns import counted, guess
from lab.analysis.audit.table import from_table
from lab.analysis.audit.values import COUNT_UNITS, number, ranks_of, rounding, roundings
from lab.errors import InputError


def frame(text: str) -> pd.DataFrame:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return pd.DataFrame(rows[1:], columns=rows[0])


@pytest.mark.parametrize(
    ("canonical", "names"),
    {
        "world_size": [
            "#-GPUs",
            "No. of GPUs",
            "GPUs¹",
            "# of accelerators",
            "gpu_num",
            "CPU processes",
            "MPI ranks",
        ],
        "rate_per_rank": [
            "t/s/GPU",
            *("Tokens / sec / GPU", "tok_s_gpu", "tokens/s/GPU", "Throughput (T/s/GPU)"),
            *("samples/sec per GPU", "tokens/GPU/s", "per-GPU throughput", "TGS"),
        ],
        "rate": [
            "Throughput - TF32 [img/s]",
            "throuthput(sample/sec)",
            "tok_s",
            "OneFlow samples/s",
        ],
        "flops_per_rank": ["TFLOP/s/GPU", "Model TFLOP / sec / GPU", "TFLOPs per GPU"],
        "mfu": ["MFU", "mfu_pct", "MFU (%)", "Model FLOPs utilization"],
        "tp": ["TP", "tp_size", "tensor parallel", "Tensor Model Parallel Size", "Tensor"],
        "pp": ["PP", "pipeline parallelism", "Pipeline degree"],
        "dp": ["DP", "data parallel size", "dp_degree"],
        "micro_batch_size": [
            "MBS",
            "Batch size / GPU",
            "Local Batch size",
            "batch_size_per_device",
        ],
        "global_batch_size": ["GBS", "GlobalBatchSize", "Global Batch Size"],
        "grad_accum": ["GA", "GAS", "grad_acc", "Accumulation steps (FP32 and FP16)"],
        "speedup": ["Weak scaling - FP32", "Mixed Precision Strong Scaling", "speed-up"],
        "time": ["Time to train - TF32", "Training time with FP32", "FP32 Training Time (90E)"],
        "gpu": ["DGX System", "System", "GPU model"],
        "memory": [
            "gpu_memory_gb",
            "memory_usage(MB)",
            "Peak mem/GPU (GiB)",
            "vram",
            "Max GPU RAM",
        ],
        "sequence_length": ["Context window", "cutoff_len", "Tokens per sample", "Packed sequence"],
        "recompute": ["Activation Ckpt", "act_ckpt", "Remat policy", "gradient checkpoint"],
        "batch": ["Batch size (sequences)", "train_batch_size"],
        "sequence_parallel": ["SP", "use_sp", "Sequence Parallel World Size", "Ulysses degree"],
        "sharding": ["ZeRO-1", "ds_zero_stage", "FSDP size", "sharding degree"],
        "dp_shard": ["dp_shard", "FSDP group size"],
        "dp_replicate": ["hsdp replicate", "outer_dp", "num_distributed_optimizer_instances"],
    }.items(),
)
def test_names_that_people_use(canonical: str, names: list[str]) -> None:
    meanings = {name: (meaning := guess(name)) and meaning.canonical for name in names}
    assert meanings == dict.fromkeys(names, canonical)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "Ideal speedup",
            "Linear scaling",
            "Scaling Params",
            "Expected throughput",
            "Energy efficiency",
        ),
        *("Ideal efficiency (%)", "Efficiency (theoretical)"),
        *("Throughput speedup (FP32 - mixed precision)", "Accuracy (perplexity)", "GFLOPs"),
        *("Peak memory bandwidth utilisation factor x", "Inference throughput"),
    ],
)
def test_what_nobody_measured_or_means_something_else(name: str) -> None:
    meaning = guess(name)
    assert meaning is None


@pytest.mark.parametrize(
    "name",
    [
        *("gpu_mem_util_pct", "mem_pct", "host_memory_gb", "GPU memory size (GB)", "total_memory"),
        *("Mem Usage Ratio", "Memory overhead (GB)"),
    ],
)
def test_memory_that_is_not_what_a_rank_uses(name: str) -> None:
    meaning = guess(name)
    assert meaning is None or meaning.canonical != "memory"


@pytest.mark.parametrize(
    ("cell", "ranks", "words"),
    [
        ("8x A100", 8, "a100"),
        ("8 × H100 SXM", 8, "h100 sxm"),
        ("2 nodes x 8", 16, ""),
        ("2 machines x 8", 16, ""),
        ("4 nodes, 8 GPUs", 32, ""),
        ("n1g8", 8, ""),
        ("2n_8g", 16, ""),
        ("2x8", 16, ""),
        ("8 GPUs", 8, ""),
        ("A100 x8", 8, "a100"),
        ("DGX A100 (8x A100 80GB)", 8, "a100 80gb"),
    ],
)
def test_ranks_in_cells(cell: str, ranks: float, words: str) -> None:
    assert ranks_of(cell) == (ranks, words)


@pytest.mark.parametrize("cell", ["A100", "32", "", "yes", "512 tokens of it"])
def test_cells_that_name_no_ranks(cell: str) -> None:
    assert math.isnan(ranks_of(cell)[0])


def test_two_numbers_in_a_cell_are_none_and_suffixes_count() -> None:
    for cell in ("5120/2560", "64 , 32", "4096 and 4096", "128 (FP32) / 256 (AMP)"):
        assert math.isnan(number(cell, units=COUNT_UNITS))
    assert number("12.4k tok/s", units=COUNT_UNITS) == 12400
    assert number("3849(-1754,↓31.3%)") == 3849 and number("37556 (36108)") == 37556
    assert number("12*") == 12 and number("x3.62") == 3.62


@pytest.mark.parametrize(
    ("cell", "share"), [("~18h", 0.5 / 18), ("7h 36min", 30 / 27360), ("01:00:00", 0.5 / 3600)]
)
def test_what_the_last_digit_leaves_open(cell: str, share: float) -> None:
    assert rounding(cell) == pytest.approx(share)


def test_what_the_last_digit_leaves_open_of_a_number() -> None:
    assert rounding("1.98 x") == pytest.approx(0.005 / 1.98)
    assert rounding("17400 img/s") == pytest.approx(50 / 17400)
    assert rounding("1000") == pytest.approx(0.005) and rounding("n/a") == 0


def test_a_whole_column_is_rounded_as_each_of_its_cells() -> None:
    cells = ["0.10", "12.5", "0.0", "007.250", "17,400", "1e-3", "3.", ".5", "1:02", "n/a", "2 h"]
    each = [rounding(cell) for cell in cells]
    assert roundings(pd.Series(cells)).tolist() == pytest.approx(each)


PRECISIONS = """
GPUs|Batch size / GPU|Throughput - FP32|Throughput - mixed precision|Throughput speedup (FP32 to mixed precision)|Weak scaling - FP32|Weak scaling - mixed precision
1|64|100.2|301.5|3.01|1.00|1.00
4|64|371.4|1034.2|2.78|3.71|3.43
8|64|728.6|2014.8|2.77|7.27|6.68
"""


def test_columns_of_precisions_in_any_order_are_read_the_same() -> None:
    table = frame(PRECISIONS)
    for order in itertools.islice(itertools.permutations(table.columns), 0, 5040, 360):
        observations = from_table(table[list(order)])
        gains = {curve.label: round(curve.points[-1].gain, 2) for curve in observations.curves}
        assert gains == {"fp32": 7.27, "mixed precision": 6.68}
        assert broken(audit(table[list(order)])) == set()


@pytest.mark.parametrize(
    ("old", "new", "evidence"),
    [
        ("2.77|7.27|6.68", "2.77|6.68|7.27", "7.27x is quoted on 8 ranks at mixed precision"),
        ("2014.8|2.77", "2014.8|3.77", "3.77x is quoted for mixed precision over fp32"),
    ],
)
def test_quotes_beside_their_own_numbers(old: str, new: str, evidence: str) -> None:
    result = audit(frame(PRECISIONS.replace(old, new)))
    assert broken(result) == {"quoted-against-own"} and evidence in str(result)


def test_hours_without_decimals_are_no_superlinear_speedup() -> None:
    table = frame("GPUs|Time to train - AMP|Time to train - TF32\n1|~18h|~40h\n8|~2h|~5h")
    result = audit(table)
    assert broken(result) == set() and "super-linear" in result.checked
    exact = frame("GPUs|Time to train - AMP|Time to train - TF32\n1|18.0h|40.0h\n8|2.00h|5.0h")
    assert broken(audit(exact)) == {"super-linear"}


def test_ranks_and_gpus_in_one_column_are_lines_of_their_own() -> None:
    table = frame("Hardware|samples/s\n1x V100|100.1\n8x V100|741.3\n1x A100|310.2\n8x A100|2290.7")
    observations = from_table(table)
    assert {curve.label: len(curve.points) for curve in observations.curves} == {
        "v100": 2,
        "a100": 2,
    }
    assert broken(audit(table)) == set()


LAYOUTS = """
model|gpus|dp|tp|pp|mbs|gas|gbs|tokens/s/gpu|mfu
7B|8|4|2|1|2|8|64|3410|45.1
7B|16|8|2|1|2|4|64|3290|43.5
7B|16|4|2|2|2|8|64|3105|41.1
13B|16|4|2|2|2|8|64|1790|43.9
"""


def test_layouts_that_multiply_are_clean_in_any_order_and_by_other_names() -> None:
    table = frame(LAYOUTS)
    names = {
        "gpus": "#-GPUs",
        "dp": "Data Parallel",
        "tp": "TP size",
        "gas": "Gradient accumulation steps",
        "tokens/s/gpu": "Tokens / sec / GPU",
        "mfu": "MFU (%)",
    }
    for variant in (table, table[table.columns[::-1]], table.rename(columns=names)):
        result = audit(variant)
        assert broken(result) == set()
        assert {"parallel-consistent", "mfu-consistent"} <= set(result.checked)


@pytest.mark.parametrize(
    ("old", "new", "rule", "severity", "evidence"),
    [
        ("16|8|2|1", "16|4|2|1", "parallel-consistent", "error", "is 8, not 16 ranks"),
        ("7B|16|4|2|2|2|8|64", "7B|16|4|2|2|2|8|128", "parallel-consistent", "warning", "of 128"),
        ("3105|41.1", "3105|47.8", "mfu-consistent", "warning", "more where pp > 1"),
        ("1790|43.9", "1790|143.9", "impossible-mfu", "error", "MFU is 143.9 %"),
    ],
)
def test_a_planted_fault_of_layouts(
    old: str, new: str, rule: str, severity: str, evidence: str
) -> None:
    result = audit(frame(LAYOUTS.replace(old, new)))
    (finding,) = [finding for finding in result.findings if finding.rule == rule]
    assert finding.severity == severity and evidence in finding.evidence


def test_names_of_megatron_lm() -> None:
    degrees = "tp_size|Pipeline MP size|Data-parallel size"
    result = audit(frame(f"GPUs|{degrees}|Per-GPU teraFLOP/s\n16|2|4|2|420\n32|8|1|4|431"))
    assert result.reading["Pipeline MP size"] == "pp"
    assert result.reading["Per-GPU teraFLOP/s"] == "flops_per_rank"
    assert broken(result) == set()


def test_pipeline_parallelism_may_be_left_out() -> None:
    unnamed = "GPUs|TP|Stufen|DP|Step time (s)\n16|2|4|2|1.9\n32|2|8|2|3.8\n32|8|1|4|2.1"
    assert "parallel-consistent" not in broken(audit(frame(unnamed)))
    single = unnamed.replace("16|2|4|2", "16|2|4|8").replace("32|2|8|2", "32|2|8|8")
    assert "parallel-consistent" in broken(audit(frame(single)))


@pytest.mark.parametrize(("each", "faults"), [("48150", set()), ("38150", {"quoted-against-own"})])
def test_a_total_in_tokens_beside_tgs(each: str, faults: set[str]) -> None:
    rows = ["64|512|50010|3.2006e6", f"128|512|{each}|6.163e6", "256|512|46970|1.2024e7"]
    assert broken(audit(frame("\n".join(["GPUs|Global batch|TGS|Tok/s", *rows])))) == faults


@pytest.mark.parametrize(
    ("odd", "faults"),
    [
        ("106.7|34.2", set()),
        ("106.7|40.0", {"mfu-consistent"}),
        ("53.4|34.2", set()),  # of 156 TFLOP/s, an A100's peak in TF32
    ],
)
def test_the_peak_is_one_number(odd: str, faults: set[str]) -> None:
    rows = ["6.7B|16|151.2|48.5", "13B|128|117.3|37.6", f"30B|8|{odd}", "65B|64|114.3|36.6"]
    result = audit(frame("\n".join(["Params|GPUs|TFLOP/s/GPU|MFU (%)", *rows])))
    assert broken(result) == faults
    assert not faults or "peak of 266.8 TFLOP/s" in str(result.findings)


@pytest.mark.parametrize(("time", "faults"), [("1.83", set()), ("2.38", {"mfu-consistent"})])
def test_mfu_beside_the_time_of_a_step(time: str, faults: set[str]) -> None:
    head = "Model|GPUs|TP|PP|DP|Micro-batch|Batch size|Step time (s)|MFU (%)"
    rows = ["1.3B|16|1|4|4|2|32|0.183|46.3", f"1.3B|32|4|1|8|2|256|{time}|18.5"]
    rows.append("1.3B|64|2|1|32|2|512|1.46|23.2")
    result = audit(frame("\n".join([head, *rows])))
    assert result.reading["Batch size"] == "global_batch_size"
    assert broken(result) == faults


def test_a_peak_with_sparsity() -> None:
    table = "gpu|gpus|precision|TFLOP/s/GPU|MFU\nH100|8|{0}|430|{1}\nH100|16|{0}|421|{2}"
    assert "impossible-mfu" in broken(audit(frame(table.format("bf16", "21.7%", "21.3%"))))
    assert not broken(audit(frame(table.format("bf16", "43.5%", "42.5%"))))
    assert not broken(audit(frame(table.format("fp8", "21.7%", "21.3%")))), "its dense peak"


def test_tf32_has_its_own_peak() -> None:
    table = "gpu|gpus|precision|TFLOP/s/GPU|MFU\n{}|8|{}|{}|{}"
    beyond = audit(frame(table.format("A100", "TF32", 170, "90%")))
    (finding,) = [finding for finding in beyond.findings if finding.rule == "impossible-mfu"]
    assert finding.severity == "error" and "dense 156 of A100 in TF32" in finding.evidence
    for words in ("A100|TF32|62.4|20%", "node|TF32|62.4|20%"):  # of 312, which is with sparsity
        gpu, *cells = words.split("|")
        (finding,) = audit(frame(table.format(gpu, *cells))).findings
        assert finding.rule == "impossible-mfu" and "its dense peak is 156" in finding.evidence
    assert not broken(audit(frame(table.format("A100", "TF32", 62.4, "40%"))))
    assert not broken(audit(frame(table.format("V100", "TF32", 14, "90%"))))


def test_a_total_beside_what_each_gpu_does() -> None:
    table = "gpus|tokens/s|tokens/s/gpu\n8|80123|10015\n16|{}|9870"
    assert not broken(audit(frame(table.format(157920))))
    assert broken(audit(frame(table.format(137920)))) == {"quoted-against-own"}


def test_silence_is_not_health() -> None:
    result = audit(frame("model|score\na|1\nb|2"))
    assert not result.conclusive and result.trustworthy and not result.findings
    assert str(result).startswith("Checked 0 of 21 rules: too little to say.")
    assert re.search(r"More rules could be checked with: .*world_size \(\d+ rules\)", str(result))
    assert "nothing found" not in str(result)
    assert "too little to say" in result._repr_html_()


def test_the_reading_is_shown() -> None:
    result = audit(frame(PRECISIONS))
    assert result.reading["Throughput - FP32"] == result.reading["Throughput - mixed precision"]
    assert "'Weak scaling - FP32' as speedup" in str(result)
    assert (
        "'<b>GPUs</b>'" not in audit(frame("<b>GPUs</b>|images/s\n1|100\n2|190"))._repr_html_()
    ), "names are escaped"


@pytest.mark.parametrize("name", ["node", "host"])
def test_a_column_called_node_may_count_them(name: str) -> None:
    counts = from_table(pd.DataFrame({name: [1, 2, 4], "time_s": [10.0, 5.2, 2.8]}))
    assert counts.reading == {name: "nodes", "time_s": "time"}
    names = from_table(pd.DataFrame({name: ["a", "b", "c"], "time_s": [10.0, 5.2, 2.8]}))
    assert names.reading == {name: "host", "time_s": "time"}


def test_a_speedup_of_one_precision_over_another_at_every_size_is_no_parallel_one() -> None:
    table = "GPUs|Precision|images/s|Speedup\n1|FP32|100|1.0\n1|AMP|210|2.1\n8|FP32|770|1.0\n8|AMP|1540|2.0"
    assert broken(audit(frame(table))) == set()


def test_faults_of_one_cause_are_one_finding_with_their_rows() -> None:
    rows = "\n".join(f"model{n}|1|10.0\nmodel{n}|8|1.0" for n in range(9))
    result = audit(frame(f"model|gpus|time (s)\n{rows}"))
    (finding,) = [finding for finding in result.findings if finding.rule == "super-linear"]
    assert len(finding.records) == 18 and "And 6 more like these." in finding.evidence


def test_two_configurations_with_the_same_fault_say_it_once():
    rows = [
        f"| {n} | {name} | 8 | {time / n} |"
        for name, time in (("DDP", 40), ("FSDP", 44))
        for n in (4, 8)
    ]
    found = pasted(below("| GPUs | strategy | batch per GPU | time per epoch (h) |", *rows))
    (finding,) = [one for one in found.findings if one.rule == "equal-work"]
    assert finding.evidence.count("grows from 32 to 64 on 8 ranks") == 1
    assert len(finding.records) == 4


def test_batches_that_differ_at_one_world_size_are_settings_and_no_repeats() -> None:
    table = "gpus|tp|mbs|gbs|step (ms)\n4|2|4|8|130\n4|2|4|16|219\n8|2|4|16|131\n8|2|4|32|221"
    observations = from_table(frame(table))
    assert all(len(point.times) == 1 for point in observations.points)
    assert "repeats" not in broken(audit(frame(table)))


def test_of_several_rates_the_audit_says_which_one_it_took() -> None:
    rates = frame("gpus|images/s|tokens/s\n1|100|2000\n2|190|3800")
    result = audit(rates)
    said = "'tokens/s' is read as the rate, not 'images/s'"
    assert said in str(result) and said.replace("'", "&#x27;") in result._repr_html_()
    assert result.reading == {"gpus": "world_size", "tokens/s": "rate"}
    named = audit(rates, columns={"rate": "images/s"})
    assert named.reading["images/s"] == "rate" and not named.assumptions


def test_bytes_in_parquet_are_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    text = frame("gpus|time (s)|speedup\n1|100|1\n2|50|1.4")
    text.assign(host=b"\xff", speedup=[b"1", b"1.4"]).to_parquet(path)
    assert broken(audit(path)) == broken(audit(text.assign(host="x")))


def test_parquet_is_read_as_text_is(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    text = frame("gpus|time (s)|speedup\n1|100|1\n2|50|1.4")
    text.to_parquet(path)
    result = audit(path)
    assert result.findings == audit(text).findings and "quoted-against-own" in broken(result)
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        audit(path)
    with pytest.raises(InputError, match=r"cannot be read as Parquet: No such file"):
        audit(tmp_path / "none.parquet")


# Shapes of published tables whose columns resemble others; numbers are made up.
PUBLISHED = {
    "versions of software": "Software Component|Version\nPyTorch|2.11.0a0\nCore|0.17.0\nEngine|2.14",
    "versions of frameworks": "Framework|Version|Source\nOne|0.2.0|here\nTwo|2.2|there",
    "rates by framework": "node num|device num|OneFlow|PyTorch|MXNet\n"
    "1|1|397.6|367.3|392.2\n1|8|3130.3|2887.7|3007.0\n2|16|6260.3|5716.8|5758.5",
    "times by framework": "Batch Size|TensorRT (ms)|PyTorch (ms)|TensorRT/PyTorch Speedup\n"
    "1|23.6|25.1|1.06\n2|24.6|25.1|1.02\n4|25.9|31.0|1.20",
    "systems that are no machines": "System|English|Chinese\nBaseline|73.7|67.0\nBERT Cased|81.9|76.6",
    "machines beside each other": "GPU|Channels|Latency (s)\nA100|2000|0.11\nV100|2000|0.42\nT4|600|0.17",
    "machines at a scale each": "DGX System|Nodes x GPUs|Precision|Time to Train (Hrs)\n"
    "DGX2H|32 x 16|FP16|2.67\nDGX2H|32 x 16|FP32|8.02\n"
    "DGXA100|32 x 8|FP16|2.02\nDGXA100|32 x 8|TF32|3.57",
    "losses by epoch": "Loss (Model/Epoch)|1|250|500|750\nFP16|13.07|0.57|0.44|0.39\n"
    "FP32|8.58|0.48|0.39|0.34",
    "seeds": "DGX A100 80GB, FP16, 8x GPU|Seed #1|Seed #2|Seed #3|Mean|Std\n"
    "dev-clean|3.57|3.48|3.54|3.54|0.07\ntest-other|10.75|10.62|10.54|10.73|0.21",
    "epochs, not one of them": "Model|Epochs|GPUs|Time to train - TF32|Time to train - AMP\n"
    "b0|400|8|19|11\nb4|350|8|126|66",
    "speedups in per cent": "GPUs|Batch size / GPU|Throughput|Weak scaling\n"
    "1|64|364.3|100%\n4|64|1432.7|393%\n8|64|2838.8|779%",
    "approximate hours": "GPUs|Throughput|Scaling|Training Time\n1|1024 img/s|1.0x|~40 hours\n"
    "8|8013 img/s|7.83x|~4 hours",
    "batches by precision": "Nodes|GPUs / node|Batch size / GPU (TF32 and FP16)"
    "|Accumulated Batch size / GPU (TF32 and FP16)|Accumulation steps (TF32 and FP16)"
    "|Mixed Precision Throughput|Mixed Precision Strong Scaling|TF32 Throughput|TF32 Strong Scaling\n"
    "1|8|126 and 256|8192 and 8192|65 and 32|5541|1|2428|1\n"
    "2|8|126 and 256|4096 and 4096|32.5 and 16|10646|1.92|4638|1.91\n"
    "4|8|126 and 256|2048 and 2048|16.25 and 8|21389|3.86|9445|3.89",
    "another batch on all ranks": "Batch size / GPU|Grad accumulation|GPUs|Throughput|Strong scaling\n"
    "32|4|1|6522.4|1.00\n64|2|1|7596.3|1.00\n32|1|4|23660.1|3.11\n16|1|8|32175.4|4.24",
    "ablation on eight ranks": "#GPU|Loader|XLA|Training Time<br/>HH:MM:SS &darr;|Speed Up\n"
    "1|TF|&cross;|51:38:24|---\n8|TF|&cross;|11:30:45|1x (base)\n8|DALI|&cross;|6:23:43|1.8x\n"
    "8|DALI|&check;|7:33:15|1.5x",
    "memory of each GPU": "Model|Load time|GPU 0 use|GPU 1 use\na|8.7s|11.7GB|0GB\nb|12.4s|21.9GB|1.5GB",
    "precisions on eight ranks": "GPUs|Precision|Time to train [h]|Time to train speedup\n"
    "8|TF32|4.81|-\n8|AMP|3.77|1.27",
    "tensor parallelism left out": "GPUs|Size|DP|PP|PP Chunks|Mic-BS|Glob-BS|Speed|TFlops\n"
    "16|18B|1|8|64|4|256|90.5s|26.1\n16|18B|1|4|128|4|512|179s|26.4\n32|39B|1|8|128|4|512|82s|62.3",
    "accumulation on nodes of unknown size": "Nodes|Batch size / GPU|Gradient Accumulation"
    "|Global Batch Size|Throughput\n1|60|64|61440|3077\n4|60|16|61440|12001\n16|60|4|61440|46009",
    "names below an empty header": "||||||\n|---|---|-:|-:|---|\n|Model|Lay|TP|GPUs|Step|\n"
    "|size|ers|||time (s)|\n|1.7B|24|1|32|3.1|\n|8B|32|4|32|7.9|",
    "a name twice": "Batch|Avg (tok/s)|Speedup|90% (tok/s)|Speedup\n1|1291|1.03|1195|1.02\n8|6151|1.09|5078|1.08",
}


def markdown(text: str) -> str:
    """The rows as a Markdown table, unless they are one already."""
    if text.startswith("|"):
        return text
    header, *rows = text.splitlines()
    rule = "|".join("-" for _ in header.split("|")) + "-"
    return "\n".join(f"|{line}|" for line in (header, rule, *rows))


@pytest.mark.parametrize("text", PUBLISHED.values(), ids=PUBLISHED)
def test_published_shapes_bring_no_false_finding(text: str) -> None:
    result = audit(io.StringIO(markdown(text)))
    assert broken(result) == set(), str(result)


@pytest.mark.parametrize(
    ("name", "column", "canonical"),
    [
        ("rates by framework", "device num", "world_size"),
        ("speedups in per cent", "Weak scaling", "speedup"),
        ("approximate hours", "Scaling", "speedup"),
        ("batches by precision", "Batch size / GPU (TF32 and FP16)", "micro_batch_size"),
        ("tensor parallelism left out", "PP Chunks", "grad_accum"),
        ("ablation on eight ranks", "Training Time HH:MM:SS ↓", "time"),
        ("names below an empty header", "Step time (s)", "time"),
        ("a name twice", "Speedup", "speedup"),
    ],
)
def test_what_their_columns_are_read_as(name: str, column: str, canonical: str) -> None:
    assert audit(io.StringIO(markdown(PUBLISHED[name]))).reading[column] == canonical


@pytest.mark.parametrize(
    ("name", "old", "new", "rule"),
    [
        ("speedups in per cent", "779%", "679%", "quoted-against-own"),
        ("approximate hours", "~4 hours", "~3 hours", "super-linear"),
        ("batches by precision", "21389|3.86", "21389|4.86", "quoted-against-own"),
        ("another batch on all ranks", "4.24", "5.24", "quoted-against-own"),
        ("ablation on eight ranks", "1.8x", "2.8x", "baseline"),
        ("tensor parallelism left out", "32|39B|1|8", "32|39B|1|12", "parallel-consistent"),
    ],
)
def test_a_fault_in_such_a_table_is_found(name: str, old: str, new: str, rule: str) -> None:
    assert old in PUBLISHED[name]
    assert rule in broken(audit(io.StringIO(markdown(PUBLISHED[name].replace(old, new)))))


@pytest.mark.parametrize(
    ("name", "seconds"), [("t / ms", 1e-3), ("Step time / s", 1.0), ("Laufzeit / min", 60.0)]
)
def test_a_unit_after_a_slash(name: str, seconds: float) -> None:
    meaning = guess(name)
    assert meaning and (meaning.canonical, meaning.factor) == ("time", seconds)


@pytest.mark.parametrize(
    ("name", "quantity", "factor"),
    [
        ("tokens/s (M)", "rate", 1e6),
        ("Speed (s/it)", "time", 1.0),
        ("Tera FLOPs per GPU", "flops_per_rank", 1e12),
        ("Mem Usage / MB", "memory", 1e6),
    ],
)
def test_units_of_rates_speeds_and_memory(name: str, quantity: str, factor: float) -> None:
    meaning = guess(name)
    assert meaning and (meaning.canonical, meaning.factor) == (quantity, factor)


@pytest.mark.parametrize(
    ("thing", "names"),
    {
        "token": ["Throughput (tok/s)", "TGS", "tps/GPU", "Throughput (T/s)", "Seq 4k (tokens/s)"],
        "sample": ["samples/sec", "Throughput (S/s)"],
        "image": ["FP32 img/s", "Kimgs/s", "Throughput (images)"],
        "": ["Throughput", "rate"],
    }.items(),
)
def test_what_rates_count(thing: str, names: list[str]) -> None:
    assert {name: counted(name) for name in names} == dict.fromkeys(names, thing)


def test_parameters_in_trillions() -> None:
    read = from_table(pd.DataFrame({"GPUs": [8, 16], "Params": ["1T", "2B"], "Time": [2, 1]}))
    assert read.frame["parameters"].tolist() == [1e12, 2e9]


def test_a_rate_is_no_time_with_its_unit_after_a_slash() -> None:
    meaning = guess("samples / s")
    assert meaning and meaning.canonical == "rate"


@pytest.mark.parametrize(
    ("name", "cells", "quantity"),
    [
        ("Throughput", ("3.4 SYPD", "6.5 SYPD", "12.1 SYPD"), "rate"),
        ("Speed", ("1.4 s", "0.8 s", "0.5 s"), "time"),
        ("Time (ms), median (min-max)", ("812 (800-830)", "420 (410-433)", "230"), "time"),
        ("Execution Time", ("9 hours and 47 minutes", "5 hours", "3 h"), "time"),
    ],
)
def test_cells_below_names_and_units_of_several_kinds(
    name: str, cells: tuple[str, ...], quantity: str
) -> None:
    rows = [f"| {ranks} | {cell} | 30.1 |" for ranks, cell in zip((1, 2, 4), cells, strict=True)]
    result = pasted(below(f"| No.proc | {name} | TFlops |", *rows))
    assert result.reading["No.proc"] == "world_size" and result.reading[name] == quantity


def test_machines_with_emphasis_within_their_names() -> None:
    rows = ["| 1 | 8x H**2**00 | 24 min |", "| 2 | 2x8xH200 | 12.4 min |"]
    result = pasted(below("| Nodes | GPU Config | Duration |", *rows))
    assert result.reading["GPU Config"] == "world_size and gpu" and not broken(result)
