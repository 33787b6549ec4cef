"""Rules about numbers that follow from others of the same row, where most rows agree."""

from __future__ import annotations

import pytest
from audits import broken, pasted


@pytest.mark.parametrize(
    ("row", "faults"),
    [
        ("4,512,128", set()),
        ("4,512,100", {"parallel-consistent"}),
        ("4,512,256", {"parallel-consistent"}),
        ("4,512,64", set()),  # accumulated twice
        ("3,512,170", set()),  # rounded down
    ],
)
def test_one_batch_per_rank_that_is_no_share_of_the_global_batch(
    row: str, faults: set[str]
) -> None:
    rows = ["1,512,512", "2,512,256", row, "8,512,64"]
    table = "\n".join(["GPUs,Global batch size,Batch size per GPU", *rows])
    assert broken(pasted(table)) == faults


def test_batches_that_never_multiply_have_degrees_that_the_table_omits() -> None:
    rows = ["16,64,8", "32,128,8", "64,256,8", "128,1024,8"]
    assert not broken(pasted("\n".join(["GPUs,Global batch size,Micro batch", *rows])))


@pytest.mark.parametrize(
    ("row", "faults"),
    [
        ("7b,64,4,2,512", set()),
        ("7b,64,4,4,512", {"parallel-consistent"}),  # half of the replicas, or wrong
        ("70b,64,4,4,512", set()),  # perhaps on two GPUs each
    ],
)
def test_accumulation_of_one_row_unlike_others_of_its_model(row: str, faults: set[str]) -> None:
    rows = ["7b,8,4,16,512", "7b,16,4,8,512", "7b,32,4,4,512", row]
    table = "\n".join(["Model,GPUs,MicroBatchSize,GradAccum,GlobalBatchSize", *rows])
    assert broken(pasted(table)) == faults


def test_a_rate_that_batch_and_time_of_a_step_do_not_give() -> None:
    head = "GPUs,Batch size per GPU,Step time (ms),Images/s"
    rows = ["1,64,70.6,907", "2,64,73.1,1751", "4,64,75.4,3395", "8,64,77.9,6572"]
    assert not broken(pasted("\n".join([head, *rows])))
    wrong = [rows[0], "2,64,73.1,3395", *rows[2:]]
    assert broken(pasted("\n".join([head, *wrong]))) == {"quoted-against-own"}


def test_speedups_and_efficiencies_over_fewer_ranks_than_were_measured() -> None:
    rows = ["16,888.4,1.00x,25.0 %", "32,817.8,1.09x,13.6 %"]
    table = "Threads,Time (s),Speedup (vs 4T),Efficiency\n"
    result = pasted(table + "\n".join(rows) + "\n")
    assert broken(result) == {"baseline"}
    result = pasted(table + "\n".join([*rows, "64,800.0,1.11x,1.7 %"]) + "\n")
    assert "quoted-against-own" in broken(result)  # 1.11x on 64 is 6.9 % of 4
    absurd = "16,888.4,1e-320,25.0 %\n32,817.8,1e-320,13.6 %\n"
    assert "quoted-against-own" in broken(pasted(table + absurd))


def test_batches_that_grow_with_the_ranks_are_more_work() -> None:
    rows = ["1,16,374.8,1.0x", "2,32,412.3,1.82x", "4,64,524.7,3.43x"]
    result = pasted("\n".join(["GPUs,Batch size,Time (ms),Speedup", *rows, ""]))
    assert broken(result) == {"quoted-against-own"}
    (found,) = [one for one in result.findings if one.severity == "warning"]
    assert found.evidence.startswith("A speedup of 3.43x is quoted on 4 ranks")


def test_the_last_digit_of_an_efficiency_may_be_cut_off() -> None:
    head = "Cores,Time (s),Speedup,Efficiency (%)\n1,3.50,1.00,100.0\n12,0.345,10.14,84.5\n"
    assert not broken(pasted(head + "48,3.50,1.00,2.0\n"))
    assert broken(pasted(head + "48,3.50,1.00,1.9\n")) == {"quoted-against-own"}


def test_runs_of_a_fixed_time_do_as_much_as_they_can() -> None:
    rates = (99.1, 161.5, 174.4, 181.6, 98.0, 87.2, 127.6, 159.0)
    rows = [f"{n},{rate},15" for n, rate in zip((1, 2, 3, 4) * 2, rates, strict=True)]
    names = [f"gromacs/{version}" for version in ("2016", "5.1") for _ in range(4)]
    lines = [f"{name},{row}" for name, row in zip(names, rows, strict=True)]
    assert not broken(pasted("\n".join(["module,nodes,ns/day,run time [min]", *lines])))
