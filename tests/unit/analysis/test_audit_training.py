"""Published tables and logs of training: how their columns are named, and what they do not claim."""

from __future__ import annotations

import pytest
from audits import below, broken, pasted

from lab.analysis.audit.columns import guess


def severities(text: str, rule: str) -> list[str]:
    return [finding.severity for finding in pasted(text).findings if finding.rule == rule]


def test_the_time_of_a_job_beside_a_rate_is_not_that_of_the_work() -> None:
    names = "JobID,Job_Time,Model_Size [Billion Param],Nodes,Iterations,Tokens/sec\n"
    rows = "9531956,00:45:00,175,48,30,20032.3\n8630894,00:45:00,175,96,430,36055.39\n"
    result = pasted(names + rows)
    assert "Job_Time" not in result.reading and "equal-work" not in broken(result)
    alone = pasted("Nodes,Job time (s)\n1,80\n2,45\n")
    assert alone.reading["Job time (s)"] == "time"


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("Model_Size [Billion Param]", 1e9),
        ("Model size (billion parameters)", 1e9),
        ("Params (millions)", 1e6),
    ],
)
def test_parameters_in_billions_or_millions(name: str, factor: float) -> None:
    meaning = guess(name)
    assert meaning is not None
    assert (meaning.canonical, meaning.factor) == ("parameters", factor)


def test_an_epoch_that_takes_as_long_on_more_ranks_claims_nothing() -> None:
    table = "GPUs,batch per GPU,epoch time (s)\n1,64,100\n2,64,{}\n4,64,{}\n"
    assert severities(table.format(101, 103), "equal-work") == ["note"]
    assert severities(table.format(95, 31), "equal-work") == ["warning"]


def test_the_slow_first_step_of_a_log_is_a_note() -> None:
    log = "\n".join(f"step {n} loss 3.{n} time {5.2 if n == 1 else 1.2} s" for n in range(1, 5))
    assert severities(log, "cold-start") == ["note"]
    table = "step,time (s)\n1,5.2\n2,1.2\n3,1.2\n4,1.2\n"
    assert severities(table, "cold-start") == ["warning"]


def test_a_batch_in_tokens_is_no_number_of_samples() -> None:
    result = pasted("GPUs,tokens per global batch,tokens/s\n8,524288,9e4\n16,524288,1.7e5\n")
    assert "tokens per global batch" not in result.reading


@pytest.mark.parametrize(("cells", "unit"), [((38.5, 21), "GB"), ((14225, 9100), "MB")])
def test_a_memory_without_a_unit_is_read_by_its_size(cells: tuple[float, ...], unit: str) -> None:
    result = pasted("GPUs,GPU mem,tokens/s\n1,{},900\n2,{},1700\n".format(*cells))
    assert result.reading["GPU mem"] == "memory"
    assert f"'GPU mem' names no unit, such as GB, and is read as {unit}, by its size" in (
        result.assumptions
    )


def test_a_memory_of_unknown_size_is_left_out() -> None:
    result = pasted("GPUs,GPU mem,tokens/s\n1,14225,900\n2,91,1700\n")
    assert "GPU mem" not in result.reading


def test_several_gpus_are_the_same_as_one() -> None:
    rows = "1 V100 GPU,14min\n2 V100 GPUs,8min\n8 V100s,3min\n"
    result = pasted(f"GPU setup,Training time\n{rows}")
    assert result.reading["GPU setup"] == "gpu and world_size"
    assert not broken(result)


def test_the_best_epochs_of_runs_are_no_log() -> None:
    rows = [f"{dim},{lr},{epoch},0.9" for dim, lr, epoch in ((64, 1, 5), (64, 2, 3), (128, 1, 4))]
    rows += [row.replace(",0.9", ",0.8").replace("64", "256") for row in rows]
    table = "\n".join(("dim,lr,epoch,loss,params", *(f"{row},{row[:2]}e4" for row in rows)))
    assert "two-writers" not in broken(pasted(table))


def test_scalability() -> None:
    ratios = pasted("Devices,Epoch time (s),Scalability\n1,36.5,1.0\n2,18.3,1.16\n4,9.4,3.9\n")
    assert ratios.reading["Scalability"] == "speedup"
    assert "quoted-against-own" in broken(ratios)  # 1.99
    shares = pasted("GPUs,img/s,Scaling (%)\n1,365,100\n2,710,97.3\n4,1343,92\n")
    assert shares.reading["Scaling (%)"] == "efficiency" and not broken(shares)


def test_the_dimensions_of_matrices_are_no_ranks() -> None:
    rows = ["| down | 131072 | 2048 | 5120 | 275.2 | 143 % |"]
    rows += ["| up | 131072 | 8192 | 2048 | 192.4 | 112 % |"]
    for head in ("| GEMM | total_M | N | K |", "| GEMM | M | N | E |"):
        result = pasted(below(f"{head} time (us) | efficiency |", *rows))
        assert "N" not in result.reading and not broken(result)


def test_the_nodes_of_a_graph_are_no_machines() -> None:
    rows = ["| Cora | 2708 | 10556 | 1.2 | 0.9 |", "| PubMed | 19717 | 88648 | 9.1 | 3.2 |"]
    result = pasted(below("| Dataset | Nodes | Edges | GCN (ms) | GAT (ms) |", *rows))
    assert "Nodes" not in result.reading and not result.findings


def test_the_pixels_of_images_are_no_ranks() -> None:
    rows = ["| DeiT | 939 | 101 |", "| Swin | 755 | 85 |"]
    result = pasted(below("| Model (FPS) | 224x224 | 448x448 |", *rows))
    assert not result.findings
    nodes = pasted(below("| Model (FPS) | 1x8 | 4x8 |", *rows))
    assert "baseline" in {finding.rule for finding in nodes.findings}


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("Model Size (GB)", None),
        ("Model Size (B)", "parameters"),
        ("Accuracy improvement", None),
        ("Training wall time (h)", "time"),
        ("Precision dtype", "precision"),
        ("global sps", "rate"),
        ("Memory (M)", "memory"),
        ("显存占用率", None),
        ("#Machine", "nodes"),
        ("Time per Tree", "time"),
        ("Time taken/s", "time"),
        ("Speed (ms/token)", "rate"),
    ],
)
def test_names_of_columns(name: str, canonical: str | None) -> None:
    meaning = guess(name)
    assert (meaning.canonical if meaning else None) == canonical


def test_columns_for_two_frameworks_or_for_eight_bits() -> None:
    rows = ["| 1 | 3344.1 | 1980.3 |", "| 4 | 7421.0 | 1702.0 |"]
    result = pasted(below("| GPUs | Paddle Tokens/s | Torch Tokens/s |", *rows))
    assert "the framework (paddle, torch) is read from the column names" in result.assumptions
    rows = ["| vgg16 | 105.6 | 13.08 |", "| resnet50 | 35.9 | 4.02 |"]
    result = pasted(below("| model | f32 latency (ms) | s8 latency (ms) |", *rows))
    assert "the precision (f32, s8) is read from the column names" in result.assumptions


def test_rates_below_the_names_of_programs_are_no_versions() -> None:
    rows = ["| 4 | 36.34 | 50.76 | 1.4 |", "| 6 | 38.10 | 61.28 | 1.6 |"]
    result = pasted(below("| Micro batch size | PyTorch | DeepSpeed | Speedup (x) |", *rows))
    assert "PyTorch" not in result.reading
    versions = pasted(below("| GPUs | PyTorch | Time (s) |", "| 1 | 2.1 | 9 |", "| 2 | 2.4 | 5 |"))
    assert versions.reading["PyTorch"] == "version"


def test_a_rate_in_bytes_is_not_that_of_the_training() -> None:
    rows = ["| bf16 | 107.38 | 1418.93 |", "| int4 | 200.59 | 763.33 |"]
    result = pasted(below("| Quantization | Tokens/sec | Throughput (GB/sec) |", *rows))
    assert result.reading["Tokens/sec"] == "rate"


def test_cells_with_the_unit_of_a_rate_are_rates() -> None:
    rows = ["| 1 | 213.7 samples/sec |", "| 2 | 408.6 samples/sec |"]
    result = pasted(below("| GPUs | Speed |", *rows))
    assert result.reading["Speed"] == "rate" and "super-linear" in result.checked


def test_hours_and_minutes_with_their_unit() -> None:
    result = pasted(below("| GPUs | Training time |", "| 1 | 5:58h |", "| 8 | 0:48h |"))
    assert result.reading["Training time"] == "time"
    assert result.assumptions == ()
    assert "too-regular" not in broken(result)


def test_systems_of_several_gpus_beside_their_number() -> None:
    rows = ["| 32 x DGX-2H | 16 | 2.07 |", "| 32 x DGX-1 | 8 | 4.1 |"]
    result = pasted(below("| DGX System | GPUs | Time to train (hours) |", *rows))
    assert result.reading["GPUs"] == "world_size"


def test_the_words_of_a_title_tell_rates_from_times() -> None:
    rows = ["| bert 345m | 44.7 | 137.9 | 339.0 |", "| bert 175m | OOM | OOM | OOM |"]
    title = "# Number of samples trained per second\n\n"
    result = pasted(title + below("| nodes * gpus | 1*1 | 1*8 | 4*8 |", *rows))
    assert "fixed-overhead" not in {finding.rule for finding in result.findings}


def test_lines_of_mmengine_and_mxnet() -> None:
    lines = [
        f"01/23 10:05:0{n} - mmengine - INFO - Epoch(train)  [62][{n}50/2693]  lr: 2.0e-03  "
        f"eta: 1 day, 2:09:41  time: 1.2{n}  data_time: 0.03  memory: 14225  loss: 203{n}.3"
        for n in range(4)
    ]
    result = pasted("\n".join(lines))
    assert {"step", "time", "data", "memory", "loss"} <= set(result.reading.values())
    lines = [
        f"INFO:root:Epoch[0] Batch [{n}9]\tSpeed: 21{n}.7 samples/sec\taccuracy=0.9"
        for n in range(4)
    ]
    result = pasted("\n".join(lines))
    assert result.reading["Speed"] == "rate" and "batch" not in result.reading.values()


def test_letters_for_degrees_of_parallelism_are_no_times() -> None:
    rows = ["| 65B | 256 | 2 | 8 | 97577 |", "| 175B | 256 | 8 | 16 | 30121 |"]
    result = pasted(below("| model | NUM_GPUS | $t$ | $p$ | tokens per second |", *rows))
    assert "time" not in result.reading.values()
    textbook = pasted("p,t\n1,9.1\n2,5.2\n4,2.9\n")
    assert textbook.reading == {"p": "world_size", "t": "time"}


def test_runs_of_different_base_models_are_not_compared() -> None:
    rows = [
        "| MVP | Llama 3.2 1B | 1x A100 | ~10 min |",
        "| Full | Llama 3.1 8B | 8x A100 | ~2 h |",
    ]
    result = pasted(below("| Setup | Base Model | GPUs | Training Time |", *rows))
    assert "fixed-overhead" not in {finding.rule for finding in result.findings}


@pytest.mark.parametrize("head", ["Hardware,GPUs", "GPUs,Hardware"])
def test_hardware_with_its_number_beside_another_column_of_it(head: str) -> None:
    rows = [("1x A100", "1", "90"), ("8x A100", "8", "12")]
    cells = [(row if head.startswith("H") else (row[1], row[0])) for row in rows]
    lines = [f"{one[0]},{one[1]},{row[2]}" for one, row in zip(cells, rows, strict=True)]
    result = pasted("\n".join((f"{head},Time (min)", *lines)))
    assert result.reading == {"GPUs": "world_size", "Hardware": "device", "Time (min)": "time"}
    assert not broken(result)


def test_a_row_of_changes_is_no_measurement() -> None:
    rows = [
        "| v034 | 2731.2 ms | 5,992 | 34.4% |",
        "| **v035** | **4077.5 ms** | **6,027** | 34.6% |",
    ]
    change = "| **Δ (v035 − v034)** | **+49.3%** | **+0.6%** | **+0.2 pp** |"
    result = pasted(below("| Run | Step time | tok/s/chip | MFU |", *rows, change))
    assert result.reading["Step time"] == "time"
    assert "'Δ (v035 − v034)' compares other rows and is left out" in result.assumptions


def test_places_of_optimizers_are_no_ranks() -> None:
    rows = [
        "| 1 | Muon | lr=0.0014 | 5.0843 | 21.23 ms |",
        "| 2 | AdamW-Atan2 | lr=0.0005 | 5.5179 | 16.24 ms |",
    ]
    rows += ["| 3 | AdamW | lr=0.0005 | 5.5275 | 15.43 ms |"]
    result = pasted(below("| Rank | Optimizer | Config | Val loss | Step time |", *rows))
    assert "Rank" not in result.reading and not broken(result)


def test_numbers_of_jobs_number_no_repeats() -> None:
    table = "job,GPUs,samples/s\n{},1,9.1\n{},2,16.4\n{},4,30.1\n"
    jobs = table.format(7565972, 7580297, 7580162)
    assert severities(jobs, "repeats") == ["note"]
    assert severities(table.format(1, 1, 1), "repeats") == ["warning"]


def test_a_throughput_in_multiples_is_a_speedup() -> None:
    table = below(
        "| Model | GPUs | Throughput |",
        *("| 7B | 1 | baseline |", "| 7B | 2 | 1.9x |", "| 7B | 4 | {}x |"),
    )
    fine, odd = pasted(table.format("3.7")), pasted(table.format("7.9"))
    assert fine.reading["Throughput"] == "speedup" and not broken(fine)
    assert broken(odd) == {"super-linear"}


@pytest.mark.parametrize(
    ("configurations", "faults"),
    [
        (("Dense 21B", "8x7B", "236B (MoE)"), set()),
        (("7B, TP=1", "7B, TP=2", "7B, TP=4"), {"mfu-consistent"}),
        (("DDP", "FSDP", "ZeRO"), {"mfu-consistent"}),
    ],
)
def test_configurations_that_name_sizes_of_models_are_other_models(
    configurations: tuple[str, ...], faults: set[str]
) -> None:
    cells = (("180", "62%"), ("155", "58%"), ("150", "55%"))
    rows = [
        f"| {name} | {rate} | {mfu} |"
        for name, (rate, mfu) in zip(configurations, cells, strict=True)
    ]
    assert broken(pasted(below("| Config | Tokens/s/GPU | MFU |", *rows))) == faults


@pytest.mark.parametrize(("quoted", "faults"), [("7.5", set()), ("4.5", {"quoted-against-own"})])
def test_a_speedup_of_a_precision_that_nothing_was_measured_with(
    quoted: str, faults: set[str]
) -> None:
    head = "| GPUs | img/s TF32 | img/s AMP | Scaling FP32 | Scaling AMP |"
    rows = ["| 1 | 10.0 | 18.0 | - | - |", f"| 8 | 75.0 | 126.0 | {quoted} | 7.0 |"]
    result = pasted(below(head, *rows))
    assert broken(result) == faults
    assert any("'Scaling FP32' is read as that of tf32" in one for one in result.assumptions)


@pytest.mark.parametrize(
    ("model", "rate", "severity"),
    [
        ("Llama 2 70B", "320", []),  # of 42 %, and attention
        ("Llama 2 70B", "450", ["warning"]),  # of at least 59 %
        ("Llama 2 70B", "1500", ["error"]),  # more than the GPU can do
        ("Llama 2 70B LoRA", "450", []),  # which needs no gradients of the weights
        ("Mixtral 8x7B", "1500", []),  # of which a token takes a part
        ("ours 70B", "1500", []),
    ],
)
def test_a_rate_that_a_published_model_cannot_have_at_its_mfu(
    model: str, rate: str, severity: list[str]
) -> None:
    table = below("| Model | GPU | tokens/s/GPU | MFU |", f"| {model} | A100 | {rate} | 45% |")
    assert severities(table, "mfu-consistent") == severity


@pytest.mark.parametrize(("rate", "faults"), [("364", set()), ("264", {"quoted-against-own"})])
def test_ratios_beside_columns_for_numbers_of_gpus(rate: str, faults: set[str]) -> None:
    head = "| Path | 1 GPU | 4 GPUs | 1 to 4 speedup | 4-GPU efficiency |"
    row = f"| direct | 100 records/s | {rate} records/s | 3.64x | 91% |"
    assert broken(pasted(below(head, row))) == faults


def test_times_of_operations_on_numbers_of_gpus() -> None:
    rows = [
        "| cone | forward | 8,000.0 ms | 4,029.2 ms |",
        "| cone | backward | 4,546.5 ms | 900.1 ms |",
    ]
    result = pasted(below("| Geometry | Operation | 1 GPU | 2 GPUs |", *rows))
    assert result.reading == {"world_size": "world_size", "time_s": "time"}
    (finding,) = [one for one in result.findings if one.rule == "super-linear"]
    assert all("backward" in record for record in finding.records)


def test_emojis_in_cells_say_nothing() -> None:
    rows = [
        "| 🟢 1 | 14.8 s | - |",
        "| 2 | 🟢 **7.4 s** | ✅ 2.0x |",
        "| 4 | 32.8 s 💥 | ❌ 3.9x |",
    ]
    result = pasted(below("| GPUs | Time | Speedup |", *rows))
    assert result.reading == {"GPUs": "world_size", "Time": "time", "Speedup": "speedup"}
    assert broken(result) == {"quoted-against-own"}
    checked = pasted(
        below("| GPUs | Time | Flash attention |", "| 1 | 9 s | ✅ |", "| 2 | 9 s | ❌ |")
    )
    assert "Flash attention" not in checked.reading


def test_a_log_below_a_drawn_table_of_gpus() -> None:
    box = (
        "+-----+--------+\n| GPU | Fan    |\n+=====+========+\n| 0   | N/A    |\n+-----+--------+\n"
    )
    lines = [f"step:{n}/9 train_loss:{9 - n}.5 train_time:{n * 140}ms" for n in range(1, 6)]
    result = pasted(box + "\n".join(lines))
    assert result.reading["train_loss"] == "loss" and "step" in result.reading


def test_threads_and_cores_in_the_names_of_runs() -> None:
    rows = [
        "| Serial (1 thread) | 12.4 s | 1.00x |",
        "| Parallel (3 threads) | 6.7 s | 1.86x |",
        "| Parallel (8 threads) | 4.8 s | 3.60x |",
    ]
    assert broken(pasted(below("| Configuration | Time | Speedup |", *rows))) == {
        "quoted-against-own"
    }


def test_rates_of_each_rank_by_their_efficiencies() -> None:
    rows = ["| small | 6,457 | 4,783 | 74.1% |", "| large | 406 | 353 | 86.9% |"]
    result = pasted(below("| Model | 1N TPS | 64N TPS | Weak Scaling Efficiency |", *rows))
    assert result.reading["nodes"] == "nodes" and result.reading["rate"] == "rate_per_rank"
    assert {finding.rule for finding in result.findings} == {"repeats"}


def test_shares_of_communication() -> None:
    rows = ["| 1 | 130 | 128 | {} |", "| 2 | 132 | 128 | 2.9 |", "| 4 | 134 | 128 | 3.0 |"]
    head = "| GPUs | step (ms) | nosync (ms) | comm% |"
    text = below(head, *rows)
    result = pasted(text.format(0.0))
    assert result.reading == {
        "GPUs": "world_size",
        "step (ms)": "time",
        "comm%": "communication",
    }
    assert not broken(result)
    assert broken(pasted(text.format(2.4))) == {"communication-alone"}


def test_nodes_in_the_names_of_columns_are_not_the_ranks_of_a_layout() -> None:
    rows = ["| KV pool per GPU | 120 | 60 |", "| Capacity per GPU | 90 | 40 |"]
    result = pasted(below("| Item | MI355X (TP8, 1 node) | B200 (TP8×PP2, 2 nodes) |", *rows))
    assert not broken(result)


@pytest.mark.parametrize(
    "name",
    ["p4d.24xlarge", "ml.g5.2xlarge", "Standard_ND96asr_v4", "a3-highgpu-8g", "hpc7a.96xlarge"],
)
def test_types_of_cloud_machines(name: str) -> None:
    rows = [f"| {n}x {name} | {rate} |" for n, rate in ((1, 1000), (2, 1900), (4, 9000))]
    result = pasted(below("| Instances | samples/s |", *rows))
    assert result.reading["Instances"] == "gpu and world_size"
    assert broken(result) >= {"super-linear"}


def test_rates_of_types_of_cloud_machines() -> None:
    rows = ["| 1 | 1000 | 2100 |", "| 2 | 1950 | 4000 |"]
    head = "| Nodes | p4d.24xlarge (tok/s) | p5.48xlarge (tok/s) |"
    assert "the gpu (p4d 24xlarge, p5 48xlarge)" in str(pasted(below(head, *rows)).assumptions)


def test_generation_is_no_ratio() -> None:
    assert (meaning := guess("generation speed [tokens/sec]")) and meaning.canonical == "rate"


def test_the_limit_of_a_command_is_no_time_of_it() -> None:
    command = "srun --nodes=1 --ntasks={} --time=60 bash"
    result = pasted("\n".join([command.format(number) for number in (1, 4, 1, 1)]))
    assert "time" not in result.reading.values() and not broken(result)
