"""Environments that differ between the runs of a table, by columns of many names."""

from __future__ import annotations

import pytest
from audits import broken, pasted

RATES = (("1", "411", "1.00"), ("2", "802", "1.95"), ("4", "1559", "3.79"), ("8", "2919", "7.10"))


def table(column: str, values: str, *, quoted: bool = True) -> str:
    """Rates on 1, 2, 4 and 8 GPUs, their speedups, and a column with these values."""
    head = ["GPUs", "Images/s", *["Speedup"] * quoted, column]
    cells = zip(RATES, values.split(), strict=True)
    rows = [[*row[: len(head) - 1], value.replace("_", " ")] for row, value in cells]
    return "\n".join(",".join(row) for row in (head, *rows))


@pytest.mark.parametrize(
    ("column", "one", "other"),
    [
        ("torch", "2.3.0+cu121", "2.1.2+cu118"),
        ("cuDNN", "8.9.2", "9.1.0"),
        ("CUDA", "11.8", "12.1"),
        ("Driver version", "535.104", "550.54"),
        ("Container", "pytorch:23.10-py3", "pytorch:24.03-py3"),
        ("GPU", "A100-SXM4-80GB", "A100-PCIE-40GB"),
        ("Hardware", "A100", "H100"),
        ("Framework", "PyTorch_2.2", "PyTorch_2.4"),
    ],
)
@pytest.mark.parametrize("values", ["{1} {0} {0} {0}", "{0} {0} {1} {1}", "{0} {0} {0} {1}"])
def test_a_speedup_over_a_run_in_another_environment(
    column: str, one: str, other: str, values: str
) -> None:
    same = pasted(table(column, " ".join([one] * 4)))
    assert "mixed-environment" in same.checked and not broken(same)
    mixed = pasted(table(column, values.format(one, other)))
    assert "mixed-environment" in broken(mixed) <= {"mixed-environment", "baseline"}
    assert one.replace("_", " ") in str(mixed) and other.replace("_", " ") in str(mixed)


def test_versions_of_several_programs() -> None:
    head, *rows = table("PyTorch,CUDA", "2.3.0,12.1 2.3.0,12.1 2.3.0,12.1 2.3.0,12.1").split("\n")
    assert not broken(pasted("\n".join([head, *rows])))
    (finding,) = (
        one
        for one in pasted("\n".join([head, *rows[:3], rows[3].replace("12.1", "12.4")])).findings
        if one.rule == "mixed-environment"
    )
    assert "'2.3.0, CUDA 12.1', '2.3.0, CUDA 12.4'" in finding.evidence


def test_gpus_that_are_compared_on_equally_many_ranks() -> None:
    rows = ["1,V100,360,1.0", "8,V100,2800,7.8", "8,A100,6200,17.2", "16,A100,12100,33.6"]
    result = pasted("\n".join(["GPUs,GPU type,Images/s,Speedup", *rows]))
    assert "mixed-environment" not in broken(result)


def test_gpus_on_various_numbers_of_ranks_are_lines_of_their_own() -> None:
    rows = ["1,V100,100", "2,V100,52", "4,V100,27", "8,A100,6.1", "16,A100,3.3"]
    result = pasted("\n".join(["GPUs,GPU type,step time (ms)", *rows]))
    assert not broken(result) and "super-linear" not in {one.rule for one in result.findings}


def test_rates_without_a_speedup_claim_nothing() -> None:
    rows = ["8,A100,2800", "16,A100,5500", "32,H100,26000"]
    assert not broken(pasted("\n".join(["GPUs,GPU type,Images/s", *rows])))
