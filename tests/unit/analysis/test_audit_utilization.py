"""Rules about MFU and TFLOP/s, where the table around them says little."""

from __future__ import annotations

import pytest
from audits import broken, pasted


@pytest.mark.parametrize(
    ("heading", "faults"),
    [
        ("# Training", set()),
        ("# Training on A100", set()),
        ("# Training on A100, bf16 and tf32", set()),
        ("# Training on A100, bf16", {"mfu-consistent"}),
        ("# Training on H100", {"mfu-consistent"}),
    ],
)
def test_a_named_gpu_and_precision_have_one_peak(heading: str, faults: set[str]) -> None:
    rows = ["6.7B,16,151.2,48.5", "13B,128,117.3,37.6", "30B,8,53.4,34.2", "65B,64,114.3,36.6"]
    table = "\n".join([heading, "Params,GPUs,TFLOP/s/GPU,MFU (%)", *rows])
    assert broken(pasted(table)) == faults  # 53.4 is 34.2 % of an A100's peak in TF32


@pytest.mark.parametrize(
    ("heading", "row", "faults"),
    [
        ("# H100, BF16", "430,21.7", {"impossible-mfu"}),  # of the peak with sparsity
        ("# H100, BF16", "1100,111.2", {"impossible-mfu"}),
        ("# H100, BF16", "430,43.5", set()),
        ("# H100, BF16 and FP8", "430,21.7", set()),  # the dense peak in FP8
        ("# H100", "430,21.7", set()),
    ],
)
def test_the_precision_may_stand_above_the_table(heading: str, row: str, faults: set[str]) -> None:
    assert broken(pasted(f"{heading}\nGPUs,TFLOP/s/GPU,MFU (%)\n8,{row}\n")) == faults


def test_a_setting_with_a_precision_of_its_own_overrides_the_heading() -> None:
    rows = ["FSDP,8,430,43.5", "FSDP with Float8,8,560,28.3"]
    table = "\n".join(["# H100, BF16", "Configuration,GPUs,TFLOP/s/GPU,MFU (%)", *rows])
    assert not broken(pasted(table))


def test_a_log_has_one_number_of_ranks_even_if_it_does_not_say_it() -> None:
    lines = [f"step: {n}  loss: 3.{n}  tps: 5,81{n}  mfu: 34.02%" for n in range(1, 7)]
    assert not broken(pasted("\n".join(lines)))
    wrong = [*lines[:3], lines[3].replace("34.02", "38.02"), *lines[4:]]
    assert broken(pasted("\n".join(wrong))) == {"mfu-consistent"}


def test_a_row_named_as_others_is_of_their_model() -> None:
    head = "strategy,GPUs,tokens/s/GPU,MFU"
    rows = ["zero1,8,3000,0.41", "zero1,16,2970,0.406", "zero3,8,2700,0.369", "zero3,16,2660,0.364"]
    assert not broken(pasted("\n".join([head, *rows])))
    half = [*rows[:3], "zero3,16,2660,0.182"]
    assert broken(pasted("\n".join([head, *half]))) == {"mfu-consistent"}
    other = [*rows[:3], "fsdp,16,2660,0.182"]  # perhaps another model
    assert not broken(pasted("\n".join([head, *other])))


@pytest.mark.parametrize(("share", "faults"), [("44%", set()), ("", {"impossible-mfu"})])
def test_a_gpu_of_the_notes_whose_peak_is_not_that_of_the_rows(
    share: str, faults: set[str]
) -> None:
    rows = "\n".join(f"| {ranks} | 512 | 137 | {share} |" for ranks in (32, 64))
    head = "| GPUs | Batch | TFLOPs/GPU | TFlops % |\n|---|---|---|---|\n"
    result = pasted(f"We are using 32 GB V100s in fp16.\n\n{head}{rows}\n")
    assert broken(result) == faults
    assert not share or result.reading["TFlops %"] == "mfu"


def test_degrees_in_names_of_strategies_are_called_by_their_own_name() -> None:
    rows = ["LLaMA-7B,8,FSDP,3800,45%", "LLaMA-70B,64,ZeRO-3 + TP=4 + PP=2,450,40%"]
    result = pasted("\n".join(["Model,A100s,Strategy,Tokens/s/GPU,MFU", *rows, ""]))
    assert all("Strategy 4" not in record for one in result.findings for record in one.records)
    assert any("tp 4" in record for one in result.findings for record in one.records)
