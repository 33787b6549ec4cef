"""Tables whose columns have names in Chinese, Japanese or Korean."""

from __future__ import annotations

import pytest
from audits import below, broken, pasted

from lab.analysis.audit.columns import guess
from lab.analysis.audit.languages import in_english
from lab.analysis.audit.values import duration, ranks_of


@pytest.mark.parametrize(
    ("canonical", "names"),
    {
        "world_size": ["卡数", "总卡数", "GPU数", "NPU数量", "GPU 番号", "进程个数"],
        "nodes": ["节点数"],
        "rate": ["吞吐量 (img/s)", "总吞吐", "性能(fps)"],
        "rate_per_rank": ["单卡吞吐量 (tok/s)", "token/p/s"],
        "speedup": ["加速比", "实际加速比"],
        "efficiency": ["扩展效率", "线性度"],
        "threads": ["线程数", "线程数量"],
        "time": ["运行时间", "时间开销（秒）", "训练时间(1000步)", "每步耗时", "时间 (ms)"],
        "memory": ["显存（GB）", "显存/卡"],
        "global_batch_size": ["全局 BS"],
        "micro_batch_size": ["每卡microbatch"],
        "grad_accum": ["梯度累积"],
        "model": ["模型名称"],
        "strategy": ["并行策略"],
        "accuracy": ["准确率"],
        "": ["理想加速比", "Loss下降幅度", "每个 GPU 内存", "训练速度", "隐藏维度", "GPU 속도"],
    }.items(),
)
def test_names(canonical: str, names: list[str]) -> None:
    meanings = {name: (meaning.canonical if (meaning := guess(name)) else "") for name in names}
    assert meanings == dict.fromkeys(names, canonical)


@pytest.mark.parametrize(
    ("canonical", "names"),
    {
        "world_size": ["GPU 개수"],
        "nodes": ["ノード数", "노드 수", "机器数量"],
        "per_node": ["每台机器的GPU数量", "单机卡数"],
        "rate": ["スループット (img/s)", "처리량 (img/s)"],
        "speedup": ["スピードアップ", "속도 향상"],
        "efficiency": ["並列効率", "병렬 효율"],
        "time": ["学習時間", "Epoch당 시간", "실행 시간 (초)"],
        "memory": ["ピークGPUメモリ（GB）"],
        "batch": ["バッチサイズ", "배치 크기"],
        "global_batch_size": ["有効バッチサイズ"],
    }.items(),
)
def test_names_in_japanese_and_korean_and_those_of_a_machine(
    canonical: str, names: list[str]
) -> None:
    assert {name: meaning.canonical for name in names if (meaning := guess(name))} == dict.fromkeys(
        names, canonical
    )


@pytest.mark.parametrize(("quoted", "faults"), [("1.9x", set()), ("2.9x", {"quoted-against-own"})])
def test_a_korean_table_of_speedups(quoted: str, faults: set[str]) -> None:
    text = f"""| GPU 개수 | Epoch당 시간 | 속도 향상 |
|---|---|---|
| 1 GPU | ~20분 | 1.0x |
| 2 GPUs | ~10.5분 | {quoted} |
"""
    assert broken(pasted(text)) - {"super-linear"} == faults


def test_other_texts_stay_as_they_are() -> None:
    assert [in_english(text) for text in ("Step time", "Durée", "β1")] == [
        "Step time",
        "Durée",
        "β1",
    ]


def test_units_and_ranks_in_cells() -> None:
    assert [duration("25分钟"), duration("3.5小时"), duration("~2天")] == [1500, 12600, 172800]
    assert ranks_of("8卡")[0] == 8.0


@pytest.mark.parametrize(("quoted", "faults"), [("3.6x", set()), ("4.6x", {"quoted-against-own"})])
def test_a_table_of_speedups(quoted: str, faults: set[str]) -> None:
    text = f"""| 卡数 | 吞吐量 (samples/s) | 加速比 | 理想加速比 |
|---|---|---|---|
| 1 | 410 | 1.0x | 1x |
| 2 | 772 | 1.9x | 2x |
| 4 | 1480 | {quoted} | 4x |
"""
    result = pasted(text)
    assert broken(result) == faults
    assert result.reading == {
        "卡数": "world_size",
        "吞吐量 (samples/s)": "rate",
        "加速比": "speedup",
    }


def test_models_are_told_apart() -> None:
    rows = "\n".join(
        f"| {name} | {gpus} | {mfu}% | {rate} |"
        for name, gpus, mfu, rate in (
            ("小", 8, 52.1, 14200),
            ("中", 16, 53.0, 9100),
            ("大", 32, 51.8, 4300),
        )
    )
    result = pasted("| 模型 | GPU数 | MFU | Tokens/sec/GPU |\n|---|---|---|---|\n" + rows)
    assert result.reading["模型"] == "model"
    assert broken(result) == set()


def test_rates_below_numbers_of_cards() -> None:
    text = """### 吞吐量定义为TGS，每GPU每秒处理的token数

| 并行配置 | 8卡 | 16卡 | 32卡 |
|---|---|---|---|
| zero1 | 4062 | 3842 | 3752 |
| zero3 | 3822 | 3595 | 3475 |
"""
    result = pasted(text)
    assert result.reading["rate_per_rank"] == "rate_per_rank"
    assert "fixed-overhead" not in {finding.rule for finding in result.findings}


def test_times_on_one_card_and_on_those_of_machines() -> None:
    text = """
| 模型 | 单机单卡耗时 | 单机8卡耗时 | 加速比 |
|---|---|---|---|
| 小 | 133.2d | 18.96d | **7.03** |
| 大 | 21.8d | 6.2d | **3.99** |
"""
    (fault,) = (one for one in pasted(text).findings if one.severity != "note")
    assert fault.rule == "quoted-against-own" and "3.99x is quoted on 8 ranks" in fault.evidence
    assert in_english("3机8卡") == " 3 nodes x 8 gpus "


def test_threads_in_korean() -> None:
    rows = "| 1 | 100 | 1.00 | 1.00 |\n| 4 | 390 | 3.90 | 0.82 |\n"
    result = pasted("| 스레드 | 처리량(rows/s) | Speedup | 효율 |\n|---|---|---|---|\n" + rows)
    assert result.reading["스레드"] == "world_size" and broken(result) == {"quoted-against-own"}


def test_numbers_of_anything_as_columns_are_no_ranks() -> None:
    result = pasted("| Количество чисел | 10 | 1000 |\n|---|---|---|\n| Время, с | 0.6 | 1.1 |\n")
    assert "world_size" not in result.reading.values()


def test_formulas_of_machines_and_processes() -> None:
    rows = [f"| $1 \\times {n}$ | ${t}$ | ${s}$ |" for n, t, s in ((1, 90.0, 1.0), (4, 24.0, 3.75))]
    table = below(r"| 机器数 $\times$ 进程数 | 运行时间$(ms)$ | 加速比 |", *rows)
    result = pasted(table + r"| $2 \times 4$ | $13.0$ | $6.92$ |")
    assert "quoted-against-own" in result.checked and not broken(result)
    assert broken(pasted(table + r"| $2 \times 4$ | $13.0$ | $7.92$ |")) == {"quoted-against-own"}


def test_rows_that_go_on_beside_the_first_ones() -> None:
    rows = ["| 1 | 90.3 | 4 | 25.1 |", "| 2 | 46.0 | 8 | {} |"]
    table = below("| 进程数 | 时间/s | 进程数 | 时间/s |", *rows)
    result = pasted(table.format(14.6))
    assert "'进程数', '时间/s' go on beside their first rows" in result.assumptions
    assert not broken(result)
    assert "super-linear" in broken(pasted(table.format(7)))
