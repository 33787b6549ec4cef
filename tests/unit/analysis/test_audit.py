"""Every rule of the audit: a planted fault that it finds, a clean case on which it stays silent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import pytest
from factories import calibration, inferred, losses, point, record, run, stat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from studies import StudyMaker

from lab.analysis.audit import Audit, apply_rules, audit, columns
from lab.analysis.audit.records import from_records
from lab.analysis.audit.rule import Finding, Rule
from lab.analysis.audit.rules import RULES
from lab.analysis.audit.table import from_table
from lab.config.emulation import Compute, Emulated, Link
from lab.config.run import PrecisionName
from lab.config.study import Study
from lab.errors import InputError
from lab.perfmodel.calibration import calibration_path, write_calibration
from lab.records.schema import Observed
from lab.records.store import Record, Store, write_record
from lab.records.table import table

TABLES = Path(__file__).parents[2] / "fixtures" / "tables"
NAMES = {
    *(
        "slowest-rank",
        "communication-alone",
        "rank-imbalance",
        "super-linear",
        "equal-work",
        "two-writers",
        "phases-close",
    ),
    *(
        "plausible-bandwidth",
        "data-stall",
        "cold-start",
        "repeats",
        "mixed-environment",
        "same-learning",
        "baseline",
    ),
    *("too-regular", "fixed-overhead", "emulated"),
    *("mfu-consistent", "impossible-mfu", "parallel-consistent", "quoted-against-own"),
}
OF_TABLES = {"mfu-consistent", "impossible-mfu", "parallel-consistent", "quoted-against-own"}


def of(result: Audit, rule: str) -> list[Finding]:
    return [finding for finding in result.findings if finding.rule == rule]


def evidence(result: Audit, rule: str) -> str:
    return "\n".join(finding.evidence for finding in of(result, rule))


def unchecked(result: Audit) -> set[str]:
    return {entry.rule for entry in result.not_checked}


def frame(text: str) -> pd.DataFrame:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.strip().splitlines()]
    return pd.DataFrame(rows[1:], columns=rows[0])


def clean(
    world_sizes: Sequence[int] = (1, 2, 4),
    batches: Sequence[int] = (64,),
    repeats: int = 3,
    **fields: Any,
) -> list[Record]:
    """Records of a strong scaling study with a serial part, communication and 1 % of noise."""
    noise = np.random.default_rng(7)
    records = []
    for batch in batches:
        for size in world_sizes:
            for repeat in range(repeats):
                wait = 0.004 * (size > 1)
                work = (0.01 + 0.3 * batch / 64 / size) * noise.normal(1, 0.01)
                parts = {
                    "data": 0.01,
                    "forward": 0.33,
                    "backward": 0.54,
                    "optimizer": 0.1,
                    "h2d": 0.0,
                    "other": 0.02,
                }
                phases = {name: share * work for name, share in parts.items()}
                phases["backward"] += wait
                waits = (0.008 * noise.normal(1, 0.01), wait) if size > 1 else None
                records.append(
                    record(
                        run(size, batch),
                        repeat,
                        step_time=work + wait,
                        phases=phases,
                        communication=waits,
                        **fields,
                    )
                )
    return records


def altered(item: Record, part: str, **fields: Any) -> Record:
    return item.model_copy(update={part: getattr(item, part).model_copy(update=fields)})


def test_there_is_a_rule_of_every_name() -> None:
    assert {rule.name for rule in RULES} == NAMES and len(RULES) == len(NAMES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_needs_columns_that_exist(rule: Rule) -> None:
    needs = [name for need in rule.needs.split(", ") for name in need.split(" or ")]
    of_records = from_records(clean()).frame.columns
    assert not set(needs) - {*columns.COLUMNS, *of_records}


def test_clean_records_have_no_error_and_no_warning() -> None:
    result = audit(clean(batches=(32, 64)))
    assert result.trustworthy and result.findings == ()
    assert unchecked(result) == OF_TABLES


def test_the_table_of_clean_records_is_read_as_they_are() -> None:
    frame = table(clean(batches=(32, 64))).assign(stolen_compute_time=0.002)
    frame.insert(0, "configuration", frame["strategy"] + " x" + frame["world_size"].astype(str))
    result = audit(frame)
    assert result.trustworthy and result.findings == ()
    assert {result.reading[name] for name in ("repeat", "strategy")} == {"repeat", "strategy"}
    frame["exposed_communication_time"] *= 20
    assert "of communication are exposed" in evidence(audit(frame), "phases-close")


def test_the_transfer_of_exposed_communication_is_no_copy_to_the_device() -> None:
    own = table(clean()).assign(h2d_time=None)  # as of a script
    own["transfer_time"] = own["exposed_communication_time"]
    observed = from_table(own).frame
    assert observed["h2d"].isna().all() and observed["exposed"].notna().any()
    assert not of(audit(own), "phases-close")
    alone = own[["world_size", "step_time", "transfer_time"]]
    assert from_table(alone).frame["h2d"].notna().any()


def test_the_name_of_a_study_is_as_good_as_the_study(
    make_study: StudyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm" / "calibration").mkdir(parents=True)
    (tmp_path / "slurm" / "two.yaml").write_text("executor: local\ndevice: cpu\n")
    write_calibration(calibration(2, bytes_per_s=1e9), calibration_path("two"))
    study = Study.load(make_study("mine"))
    for task in study.tasks:
        measured = record(task.run, communication=(0.001, 0.001), cluster="two")
        path = Store(study.out).folder(task)
        write_record(altered(measured, "communication", bytes=5_000_000), path)
    for source in (study, study.folder, "mine", study.folder / "study.yaml"):
        assert "calibrated at" in evidence(audit(source), "plausible-bandwidth")
    (noisy,) = calibration(2, bytes_per_s=1e9).parts
    busy = noisy.environment.model_copy(update={"foreign_cpu": 1.0})
    noisy = noisy.model_copy(update={"environment": busy})
    write_calibration(calibration().model_copy(update={"parts": (noisy,)}), calibration_path("two"))
    assert noisy.disturbed and not of(audit(study), "plausible-bandwidth")


def test_no_records_are_checked_for_nothing() -> None:
    assert unchecked(audit([])) == NAMES


# Published tables


def test_strong_scaling_of_a_gpt() -> None:
    result = audit(TABLES / "gpt_strong_scaling.csv")
    assert "4.25x on 4 ranks at batch 128, but the slowest rank 2.95x" in evidence(
        result, "slowest-rank"
    )
    assert {finding.severity for finding in of(result, "slowest-rank")} == {"error"}
    assert "50.93 s" in evidence(result, "communication-alone") and "25.31 s" in evidence(
        result, "communication-alone"
    )
    assert "1384.64 s against 806.75 s" in evidence(result, "rank-imbalance")
    assert "706.41 s against 415.71 s" in evidence(result, "rank-imbalance")
    (imbalance,) = of(result, "rank-imbalance")
    assert len(imbalance.records) == 8  # the ranks of batch 64 on 4 agree within 2 %
    assert "4.25x on 4 ranks" in evidence(
        result, "super-linear"
    ) and "2.21x on 2 ranks" in evidence(result, "super-linear")
    assert "unclear whether 'global_or_per_gpu_batch' is global or per rank" in evidence(
        result, "equal-work"
    )
    assert [finding.severity for finding in of(result, "repeats")] == ["warning"]
    assert not of(result, "phases-close") and "phases-close" not in unchecked(result)
    assert {"two-writers", "plausible-bandwidth", "same-learning"} <= unchecked(result)


def test_negative_scaling_on_news() -> None:
    result = audit(TABLES / "agnews_negative_scaling.csv")
    assert "from 32 to 128 on 4 ranks: 3750 steps of 5.21 ms against 938 of 45.14 ms" in evidence(
        result, "equal-work"
    )
    assert "8 on 4, 2 for each of 4 ranks; 16 on 4, 4 for each of 4 ranks" in evidence(
        result, "data-stall"
    )
    assert "40 MB per step (10,000,000 parameters in fp32)" in evidence(
        result, "plausible-bandwidth"
    )
    # Values that say nothing by themselves follow the names of their columns.
    settings = "small, seq_len 128, d_model 128, layers 2, batch 128, world size 4"
    assert of(result, "data-stall")[0].records[0] == f"row 2 ({settings})"
    assert "speedup 0.46" in evidence(result, "fixed-overhead") and "speedup 0.80" in evidence(
        result, "fixed-overhead"
    )
    assert not of(result, "super-linear") and "same-learning" in unchecked(result)


def test_stages_of_a_program() -> None:
    result = audit(TABLES / "gpt2_stages.csv")
    assert [finding.severity for finding in of(result, "super-linear")] == ["error"]
    assert "11.9x on 4 ranks (15264.00 s against 1287.00 s)" in evidence(result, "super-linear")
    assert "'serial' is weaker than 'mpi'" in evidence(result, "baseline")
    assert of(result, "repeats")


def test_two_gpus_without_nvlink() -> None:
    result = audit(TABLES / "gpt2_ddp_2x3090.csv")
    assert result.trustworthy
    assert "speedup 0.65 (gpt2, block 128, ddp_no_nvlink), 19.56 s against 30.02 s" in evidence(
        result, "fixed-overhead"
    )
    assert len(of(result, "repeats")) == 1


def test_collectives() -> None:
    result = audit(TABLES / "nccl_all_reduce.csv")
    assert result.trustworthy and {finding.rule for finding in result.findings} <= {"repeats"}
    assert "plausible-bandwidth" not in unchecked(result) and "super-linear" in unchecked(result)


# Tables in other shapes


def test_ranks_by_the_nodes_and_what_is_on_each() -> None:
    result = audit(
        frame(
            "nodes,gpus per node,epoch time,speedup\n"
            "1,4,01:12:30,1\n2,4,00:38:10,1.9\n4,4,00:15:02,4.82"
        )
    )
    assert "The speedup is 4.8x on 16 ranks (4350.00 s against 902.00 s)" in evidence(
        result, "super-linear"
    )
    (found,) = (one for one in result.findings if one.rule == "super-linear")
    assert "Check the number of ranks first: the ranks are the nodes times the" in found.advice
    result = audit(frame("nodes,step_s,comm_s\n1,1.0,0.1\n2,0.4,0.1"))
    (found,) = (one for one in result.findings if one.rule == "super-linear")
    assert "a node counts as one" in found.advice
    assert "communication-alone" in unchecked(result), "a node may have several ranks"


CLEAN_TABLE = """
gpus,global batch,trial,step time (ms),loss
1,64,1,100.3,2.31
1,64,2,101.1,2.30
1,64,3,99.8,2.31
2,64,1,54.9,2.31
2,64,2,55.6,2.31
2,64,3,55.2,2.30
4,64,1,31.7,2.31
4,64,2,31.1,2.31
4,64,3,31.4,2.30
"""


def test_a_clean_table_of_other_names_is_trustworthy() -> None:
    result = audit(frame(CLEAN_TABLE))
    assert result.findings == ()
    assert {
        "super-linear",
        "repeats",
        "equal-work",
        "same-learning",
        "baseline",
        "too-regular",
    }.isdisjoint(unchecked(result))


def test_a_mapping_names_the_columns() -> None:
    table = frame("a,b,c\n1,0,100\n2,0,51\n2,1,71\n4,0,20\n4,1,20")
    result = audit(table, columns={"world_size": "a", "rank": "b", "time": "c"})
    assert "Rank 1 takes 71.00 s against 51.00 s of rank 0" in evidence(result, "rank-imbalance")
    assert "5.0x on 4 ranks" in evidence(result, "super-linear")
    with pytest.raises(InputError, match="did you mean 'world_size'"):
        audit(table, columns={"world_sise": "a"})
    with pytest.raises(InputError, match="no column 'z'"):
        audit(table, columns={"world_size": "z"})


def test_a_wide_table_in_milliseconds() -> None:
    result = audit(
        frame("model,time_1gpu_ms,time_2gpu_ms,time_4gpu_ms\nsmall,100,52,18\nlarge,900,460,250")
    )
    assert "5.6x on 4 ranks at small (100.00 ms against 18.00 ms)" in evidence(
        result, "super-linear"
    )
    assert len(of(result, "super-linear")) == 1


def test_ranks_without_means_against_a_quoted_speedup() -> None:
    result = audit(frame("procs,rank,epoch_time,speedup\n1,0,100,1\n2,0,40,2.0\n2,1,60,2.0"))
    assert "2.00x is quoted on 2 ranks, but the slowest rank gives 1.67x" in evidence(
        result, "slowest-rank"
    )


def test_mean_and_slowest_as_columns() -> None:
    result = audit(frame("n_gpus,mean_step_ms,max_step_ms\n1,100,100\n4,25,40"))
    assert "4.00x on 4 ranks, but the slowest rank 2.50x" in evidence(result, "slowest-rank")


def test_speedups_alone() -> None:
    result = audit(frame("GPUs,Speedup\n1,1.0\n2,1.9\n4,4.6\n8,7.1"))
    assert "4.60x is quoted on 4 ranks" in evidence(result, "super-linear")
    assert not of(audit(frame("GPUs,Speedup\n1,1.0\n2,1.9\n4,3.6\n8,6.5")), "super-linear")


def test_throughput_alone() -> None:
    result = audit(frame("num_gpus,tokens/s\n1,1000\n2,1930\n4,5100"))
    assert "5.1x on 4 ranks" in evidence(result, "super-linear")


# Rule by rule


def test_slowest_rank_of_records() -> None:
    item = next(item for item in clean() if item.run.world_size == 2)
    slow = altered(
        item, "timing", per_rank=item.timing.per_rank | {"step": [item.timing.step.median, 1.5]}
    )  # type: ignore[union-attr]
    assert "slowest rank takes 1.50 s" in evidence(audit([slow]), "slowest-rank")


def test_imbalance_of_records() -> None:
    item = next(item for item in clean() if item.run.world_size == 2)
    step = item.timing.step.median  # type: ignore[union-attr]
    per_rank = item.timing.per_rank | {"step": [step, step * 0.9]}  # type: ignore[union-attr]
    skewed = altered(item, "timing", per_rank=per_rank)
    assert [finding.severity for finding in of(audit([skewed]), "rank-imbalance")] == ["warning"]


def test_medians_of_ranks_within_the_interval_of_the_step_differ_by_chance() -> None:
    item = record(run(2), step_time=0.1)
    assert item.timing is not None
    for low, rules in ((0.093, set()), (0.095, {"rank-imbalance"})):
        step = item.timing.step.model_copy(update={"interval": (low, 0.106)})
        uneven = altered(
            item, "timing", step=step, per_rank=item.timing.per_rank | {"step": [0.094, 0.1]}
        )
        assert {finding.rule for finding in of(audit([uneven]), "rank-imbalance")} == rules


@pytest.mark.parametrize(("measured", "severity"), [(2, "warning"), (25, "error")])
def test_an_imbalance_of_few_steps_may_be_the_skew_at_their_ends(
    measured: int, severity: str
) -> None:
    item = record(run(2, steps=5 + measured), step_time=0.1)
    step = item.timing.step.median  # type: ignore[union-attr]
    per_rank = item.timing.per_rank | {"step": [step, step * 1.36]}  # type: ignore[union-attr]
    skewed = altered(item, "timing", per_rank=per_rank)
    assert [finding.severity for finding in of(audit([skewed]), "rank-imbalance")] == [severity]


def test_communication_alone() -> None:
    assert "5.00 ms" in evidence(
        audit([record(run(1), communication=(0.005, 0.001))]), "communication-alone"
    )
    silent = audit(frame("gpus,step_ms,comm_ms\n1,100,0\n2,60,8"))
    assert not of(silent, "communication-alone") and "communication-alone" not in unchecked(silent)
    assert "communication-alone" in unchecked(audit(frame("gpus,step_ms,comm_ms\n2,60,8\n4,40,9")))


def test_super_linear_heeds_the_interval() -> None:
    table = "gpus,run,step_s\n1,1,{}\n1,2,1.00\n1,3,1.02\n2,1,0.45\n2,2,0.46\n2,3,0.455"
    assert of(audit(frame(table.format("1.01"))), "super-linear")
    assert not of(audit(frame(table.format("0.89"))), "super-linear")


def test_equal_work() -> None:
    neither = audit(frame("gpus,global_batch,step_s\n1,32,1\n2,48,0.9\n4,100,0.9"))
    assert "neither is fixed" in evidence(neither, "equal-work")
    weak = audit(frame("gpus,batch_per_gpu,step_ms\n1,32,100\n2,32,104\n4,32,109"))
    assert not of(weak, "equal-work") and not of(weak, "super-linear")
    epochs = audit(frame("gpus,per_gpu_batch,epoch_s\n1,32,100\n2,32,54\n4,32,30"))
    assert "from 32 to 128 on 4 ranks" in evidence(epochs, "equal-work")
    steps = [record(run(1), step_time=0.1), record(run(2, steps=60), step_time=0.06)]
    assert "30 optimizer steps" in evidence(audit(steps), "equal-work")


@pytest.mark.parametrize(
    ("scaling", "batches", "evidence_of_it"),
    [
        ("strong", {1: 32, 2: 64, 4: 128}, "called strong scaling: the batch of 32 is per rank"),
        ("weak", {1: 64, 2: 64, 4: 64}, "called weak scaling, but the global batch of 64 is fixed"),
    ],
)
def test_a_scaling_that_contradicts_its_batches(
    scaling: Literal["strong", "weak"], batches: dict[int, int], evidence_of_it: str
) -> None:
    records = [
        record(run(size, batch), repeat, step_time=0.1 / size**0.9)
        for size, batch in batches.items()
        for repeat in range(3)
    ]
    result = apply_rules(from_records(records, scaling=scaling))
    assert evidence_of_it in evidence(result, "equal-work")
    assert {item.severity for item in of(result, "equal-work")} == {"warning"}
    other: Literal["strong", "weak"] = "weak" if scaling == "strong" else "strong"
    assert not of(apply_rules(from_records(records, scaling=other)), "equal-work")


@pytest.mark.parametrize("name", ["scaling", "Scaling type", "mode"])
def test_a_column_says_how_a_table_scales(name: str) -> None:
    table = f"{name},gpus,batch per gpu,epoch (s)\n{{0}},1,32,402\n{{0}},2,32,214\n{{0}},4,32,118"
    strong = audit(frame(table.format("Strong")))
    assert "called strong scaling" in evidence(strong, "equal-work")
    [beyond] = of(audit(frame(table.replace("epoch", "step").format("strong"))), "super-linear")
    assert "grows in what is called strong" in beyond.evidence and beyond.severity == "warning"
    assert not of(audit(frame(table.format("weak scaling"))), "equal-work")


def test_rows_of_both_kinds_of_scaling_in_one_table() -> None:
    table = (
        "scaling,gpus,global batch,step (s)\n"
        "strong,1,64,1.0\nstrong,2,64,0.53\nweak,1,64,1.0\nweak,2,{},1.04"
    )
    assert not of(audit(frame(table.format(128))), "equal-work")
    assert len(of(audit(frame(table.format(64))), "equal-work")) == 1


def test_a_table_that_starts_at_the_fewest_ranks_that_fit() -> None:
    table = "gpus,step (s),speedup\n8,40.0,{}\n16,21.0,{}\n32,11.1,{}"
    relative = of(audit(frame(table.format(1, 1.9, 3.6))), "baseline")
    assert [item.severity for item in relative] == ["note"]
    assert "speedups are over 8 ranks" in relative[0].evidence
    assert audit(frame(table.format("", 1.9, 3.6))).trustworthy
    wrong = of(audit(frame(table.format(1, 1.9, 3.9))), "quoted-against-own")
    assert "3.90x is quoted on 32 ranks, but the table's own times give 3.60x" in wrong[0].evidence
    over_one = of(audit(frame(table.format(7.6, 14.5, 27.4))), "baseline")
    assert [item.severity for item in over_one] == ["warning"]
    assert "speedups over another baseline are quoted" in over_one[0].evidence
    beyond = frame("gpus,speedup\n8,1\n16,2.6\n32,3.8")
    assert "2.60x is quoted on 16 ranks, 30 % above N" in evidence(audit(beyond), "super-linear")
    efficiency = "gpus,images/s,efficiency (%)\n8,800,100\n16,1520,{}"
    assert audit(frame(efficiency.format(95))).trustworthy
    wrong = of(audit(frame(efficiency.format(80))), "quoted-against-own")
    assert [item.severity for item in wrong] == ["warning"]


def test_a_speedup_of_one_rank_is_over_another_program() -> None:
    result = audit(frame("gpus,images/s,speedup\n1,219,2.1\n4,840,2.0\n8,1650,1.9"))
    assert result.trustworthy
    assert "2.10x is quoted on 1 rank: it is relative to another" in evidence(result, "baseline")
    rates = frame("gpus,images/s\n1,219\n8,3300")
    assert "8 ranks at 3300 per s mean at least 412.5 per s on 1" in evidence(
        audit(rates), "baseline"
    )


def test_rates_of_other_batches_per_rank_explain_a_part() -> None:
    table = "gpus,batch per gpu,tokens/s\n8,2,1000\n16,{},2600"
    other = of(audit(frame(table.format(4))), "super-linear")
    assert [item.severity for item in other] == ["note"]
    assert "the batch per rank differs (2 against 4)" in other[0].evidence
    same = of(audit(frame(table.format(2))), "super-linear")
    assert [item.severity for item in same] == ["warning"]


def test_lengths_of_sequences_are_configurations_of_their_own() -> None:
    table = frame("gpus,seq_len,tokens/s\n8,4096,1000\n8,512,2600\n16,512,5000\n32,4096,3700")
    assert audit(table).trustworthy


def test_a_replay_has_no_parts_and_a_published_row_may_stand_for_many() -> None:
    published = [
        altered(
            altered(item, "environment", replay="a paper"),
            "timing",
            phases={},
            per_rank={"step": item.timing.per_rank["step"]},
        )
        for item in clean(repeats=1)
        if item.timing
    ]
    result = audit(published)
    assert "phases-close" in unchecked(result) and not of(result, "phases-close")
    assert [item.severity for item in of(result, "repeats")] == ["note"]


def test_two_writers() -> None:
    table = "gpus,epoch,epoch_time,loss\n" + "\n".join(
        f"2,{epoch},{10 + 0.1 * epoch},2" for epoch in (1, 2, 2, 3, 1, 3)
    )
    result = audit(frame(table))
    assert [finding.severity for finding in of(result, "two-writers")] == ["error"]
    ordered = audit(
        frame("gpus,epoch,epoch_time\n1,1,10.1\n1,2,10.2\n1,3,10\n2,1,5.5\n2,2,5.6\n2,3,5.4")
    )
    assert not of(ordered, "two-writers")
    records = clean()
    assert "has 2 records" in evidence(audit([*records, records[0]]), "two-writers")
    longer = altered(records[0], "quality", loss=losses(37))
    assert "A record of 30 steps holds 37 losses" in evidence(
        audit([longer, *records[1:]]), "two-writers"
    )


@pytest.mark.parametrize(("slowest", "found"), [(1.1, True), (1.9, False)])
def test_medians_of_uneven_steps_need_not_add_up(slowest: float, found: bool) -> None:
    checked = record(run(), phases={"backward": 0.02}).model_copy(
        update={"checks": {"phases_close": True}}
    )
    assert checked.timing is not None
    step = checked.timing.step
    uneven = step.model_copy(update={"p10": 0.9 * step.median, "p90": slowest * step.median})
    timing = checked.timing.model_copy(update={"step": uneven})
    checked = checked.model_copy(update={"timing": timing})
    script = Observed(steps=30, ended="by the lab", optimizer="AdamW", optimizers=1)
    of_script = checked.model_copy(update={"checks": {}, "script": script})
    for one in (checked, of_script):
        assert found == bool(of(audit([one]), "phases-close"))


def test_medians_of_uneven_parts_of_even_steps_need_not_add_up() -> None:
    # Every other step waits 30 of its 60 ms for a batch, and the others compute as much longer.
    steps = record(run(), phases={"data": 0.0, "backward": 0.03}).model_copy(
        update={"checks": {"phases_close": True}}
    )
    assert of(audit([steps]), "phases-close")
    assert steps.timing is not None
    wide = {
        name: stat.model_copy(update={"p10": stat.median, "p90": stat.median + 0.03})
        for name, stat in steps.timing.phases.items()
    }
    uneven = steps.timing.model_copy(update={"phases": wide})
    assert not of(audit([steps.model_copy(update={"timing": uneven})]), "phases-close")


def test_phases_close() -> None:
    assert "parts do not add up" in evidence(
        audit([record(run(), phases={"backward": 0.02})]), "phases-close"
    )
    table = "gpus,step_ms,compute_ms,comm_ms,data_ms\n1,100,98,0,2\n2,{},50,8,2"
    assert not of(audit(frame(table.format("60"))), "phases-close")
    assert not of(
        audit(frame(table.format("54"))), "phases-close"
    )  # communication overlaps compute
    assert "60.00 ms where the whole takes 90.00 ms" in evidence(
        audit(frame(table.format("90"))), "phases-close"
    )
    assert [item.severity for item in of(audit(frame(table.format("40"))), "phases-close")] == [
        "error"
    ]
    header = (
        "gpus,batch per gpu,step_ms,compute_ms,allreduce_ms,exposed comm (ms),gradient size (MB)"
    )
    exposed = header + "\n2,32,231,210,60,21,500\n4,32,235,211,4,24,500"
    beyond = of(audit(frame(exposed)), "phases-close")
    assert [item.severity for item in beyond] == [
        "error"
    ] and "24.00 ms of communication are exposed" in beyond[0].evidence
    alone = audit(frame("gpus,step_ms,comm_ms,exposed_ms\n1,100,0,0\n2,60,20,30\n4,40,20,10"))
    assert "30.00 ms of communication are exposed" in evidence(alone, "phases-close")
    assert "phases-close" in unchecked(
        audit(frame("gpus,step_ms,comm_ms,exposed_ms\n1,100,0,0\n2,60,20,10"))
    )
    checked = record(run(), phases={"backward": 0.052})
    assert of(audit([checked]), "phases-close")
    assert not of(
        audit([checked.model_copy(update={"checks": {"phases_close": True}})]), "phases-close"
    )


def test_a_record_does_not_wait_longer_for_communication_than_it_takes() -> None:
    for exposed, wrong in ((0.021, False), (0.03, True)):
        item = record(run(2), communication=(0.02, exposed))
        found = of(audit([record(run()), item]), "phases-close")
        assert (
            any("30.00 ms of communication are exposed" in one.evidence for one in found) == wrong
        )


@pytest.mark.parametrize(("p90", "wrong"), [(110, False), (96, True)])
def test_medians_of_parts_add_up_within_the_spread_of_the_steps(p90: float, wrong: bool) -> None:
    table = "gpus,step_time,step_time_p10,step_time_p90,compute_time,data_time\n1,95,94,{0},91,1"
    assert bool(of(audit(frame(table.format(p90))), "phases-close")) == wrong


def test_plausible_bandwidth() -> None:
    table = "gpus,nodes,params,step_ms,comm_ms\n1,1,100M,100,0\n4,1,100M,60,{}"
    assert "more than the link carries" in evidence(
        audit(frame(table.format("0.1"))), "plausible-bandwidth"
    )
    assert "less than a tenth" in evidence(audit(frame(table.format("900"))), "plausible-bandwidth")
    assert not of(audit(frame(table.format("30"))), "plausible-bandwidth")
    item = altered(record(run(2), communication=(0.001, 0.001)), "communication", bytes=5_000_000)
    assert not of(audit([item], calibration={2: 5e9}), "plausible-bandwidth")
    assert "calibrated at 1 GB/s" in evidence(audit([item], calibration=1e9), "plausible-bandwidth")
    assert "calibrated at 100 GB/s" in evidence(
        audit([item], calibration=1e11), "plausible-bandwidth"
    )
    # The name of a GPU tells what links those of a node, and nothing of the network between nodes.
    for hosts, judged in ((["a", "a"], True), (["a", "b"], False)):
        placed = record(run(2), communication=(0.01, 0.01), device="cuda", gpu="H100", hosts=hosts)
        placed = altered(placed, "communication", bytes=50_000_000)
        found = of(audit([placed]), "plausible-bandwidth")
        assert [one.evidence.endswith("(H100, at most 450 GB/s).") for one in found] == [
            True
        ] * judged
    quoted = audit(frame("gpus,size_mb,busbw_gbps,link\n8,256,230,100GbE\n8,512,90,100GbE"))
    assert "28.8 GB/s is quoted" in evidence(quoted, "plausible-bandwidth")
    named = "gpus,params_m,step_s,compute_s,comm_s,link\n2,124,0.33,0.31,{},NVLink 600GB/s"
    assert not of(audit(frame(named.format("0.002"))), "plausible-bandwidth")
    assert "than the link carries (600GB/s)" in evidence(
        audit(frame(named.format("0.0001"))), "plausible-bandwidth"
    )


def test_data_stall() -> None:
    assert "waiting for data" in evidence(
        audit([record(run(), phases={"data": 0.03, "backward": 0.026})]), "data-stall"
    )
    table = "gpus,cpus,num_workers,step_ms\n1,8,4,100\n2,8,{},60"
    assert "16 on 8" in evidence(audit(frame(table.format(8))), "data-stall")
    assert not of(audit(frame(table.format(4))), "data-stall")


def test_cold_start() -> None:
    assert "Fewer than 2 warm-up steps" in evidence(
        audit([record(run(warmup_steps=0))]), "cold-start"
    )
    table = "gpus,epoch,epoch_s\n1,0,{}\n1,1,10.1\n1,2,10.0\n1,3,10.2"
    assert "The first epoch takes 19.00 s" in evidence(audit(frame(table.format(19))), "cold-start")
    assert not of(audit(frame(table.format(10.3))), "cold-start")


def test_repeats() -> None:
    assert [item.severity for item in of(audit(clean(repeats=1)), "repeats")] == ["warning"]
    assert [item.severity for item in of(audit(clean(repeats=2)), "repeats")] == ["note"]
    overlapping = audit(frame("gpus,step_ms,step_ms_std,n_runs\n1,100,9,5\n2,90,8,5"))
    assert "their ranges overlap: 82.00 ms to 118.00 ms and 74.00 ms to 106.00 ms" in evidence(
        overlapping, "repeats"
    )
    assert not of(audit(frame("gpus,step_ms,step_ms_std,n_runs\n1,100,1,5\n2,60,1,5")), "repeats")
    unstated = "gpus,step_ms{0}\n1,100{1}\n2,60{1}\n4,35{1}"
    assert of(audit(frame(unstated.format("", ""))), "repeats")[0].severity == "note"
    assert of(audit(frame(unstated.format(",runs", ",1"))), "repeats")[0].severity == "warning"
    seeds = "gpus,seed,tokens/s\n" + "\n".join(
        f"{n},{seed},{1000 * n * 0.95 + 3 * seed}" for n in (1, 2) for seed in range(3)
    )
    assert not of(audit(frame(seeds)), "repeats"), "seeds are repeats"


def test_the_audit_of_records_says_which_configurations_its_run_ids_are() -> None:
    slow = record(run(1), phases={"data": 0.03, "backward": 0.026})
    result = audit([slow, record(run(2))])
    configurations = {slow.run_id: "x1", run(2).id: "x2"}
    assert result.configurations == configurations and "configurations" not in result.model_dump()
    assert f"\n{slow.run_id} is x1\n" in str(result)
    assert f"{slow.run_id} is x1" in result._repr_html_()
    stalled = result.model_copy(update={"findings": tuple(of(result, "data-stall"))})
    assert f"{run(2).id} is" not in str(stalled)


def test_ranks_are_not_named_beside_their_record() -> None:
    (finding,) = of(audit(clean(repeats=1)), "repeats")
    assert finding.records and not any(" rank " in name for name in finding.records)


def test_mixed_environment() -> None:
    records = clean()
    other = altered(records[-1], "environment", versions={"torch": "2.6.0"})
    assert "torch 2.6.0" in evidence(audit([*records[:-1], other]), "mixed-environment")
    elsewhere = altered(records[-1], "environment", hosts=["node9"] * 4)
    assert [
        item.severity for item in of(audit([*records[:-1], elsewhere]), "mixed-environment")
    ] == ["note"]
    table = frame("gpus,host,torch_version,step_ms\n1,a,2.6,100\n2,a,2.7,60")
    assert "'2.6', '2.7'" in evidence(audit(table), "mixed-environment")
    hosts = frame("gpus,hostname,step_ms\n1,a,100\n2,b,60")
    assert "2 different sets of hosts: a, b" in evidence(audit(hosts), "mixed-environment")


def emulated_records(bytes_per_s: float, **emulated: Any) -> list[Record]:
    """Clean records behind an emulated link, on which gradients of 10 MB move as fast as this."""
    place = Emulated(link=Link(bandwidth_gbit=1), way="namespaces", **emulated)
    return [
        altered(
            item,
            "communication",
            bytes=10_000_000,
            total=stat(10e6 / bytes_per_s),
            exposed=stat(0.004),
        )
        if item.run.world_size > 1
        else item
        for item in clean((1, 2), emulated=place)
    ]


def test_emulated() -> None:
    measured, unreal = clean((1, 2)), emulated_records(110e6)
    assert of(audit(measured), "emulated") == []
    (note,) = of(audit(unreal), "emulated")
    assert note.severity == "note" and "All results are emulated: 'link 1 Gbit/s'" in note.evidence
    assert audit(unreal).trustworthy
    (error,) = of(audit(measured + unreal), "emulated")
    assert (
        error.severity == "error"
        and "Emulated results (6 of 12: 'link 1 Gbit/s')" in error.evidence
    )
    asleep = emulated_records(110e6, compute=Compute(emulated="measured"))
    (warning,) = of(audit(unreal + asleep), "emulated")
    assert warning.severity == "warning" and "2 different emulations" in warning.evidence


def test_an_emulated_link_is_held_to_its_name() -> None:
    assert of(audit(emulated_records(110e6)), "plausible-bandwidth") == []
    (slow,) = of(audit(emulated_records(30e6), calibration=0.03e9), "plausible-bandwidth")
    assert (
        slow.severity == "warning"
        and "24 % of the emulated link (1 Gbit/s, 0.125 GB/s)" in slow.evidence
    )
    (fast,) = of(audit(emulated_records(300e6)), "plausible-bandwidth")
    assert fast.severity == "error" and "more than the link carries" in fast.evidence


def test_ranks_that_are_slower_with_more_work_are_told_with_their_work() -> None:
    batch = {"global_batch_size": None, "micro_batch_size": 16}
    records = [
        record(run(size, **batch), repeat, step_time=time)
        for size, time in ((1, 0.1), (2, 0.25))
        for repeat in range(3)
    ]
    observed = from_records(records, scaling="weak", baseline={"world_size": 1})
    (found,) = [one for one in apply_rules(observed).findings if one.rule == "fixed-overhead"]
    assert "speedup 0.80" in found.evidence
    assert "100.00 ms against 250.00 ms for 2 times the work." in found.evidence


def test_a_forward_pass_that_waits_for_activations_is_not_called_overhead() -> None:
    phases = {"forward": 0.09, "backward": 0.05, "data": 0.0, "optimizer": 0.0, "other": 0.0}
    split = {"strategy": "tensor_parallel"}
    one = record(run(1, **split), step_time=0.14, phases=phases)
    two = record(run(2, **split), step_time=0.14, phases=phases, communication=(0.06, 0.05))
    for waited, noted in ((0.0, True), (0.05, False)):
        assert two.communication is not None
        sent = two.communication.model_copy(update={"exposed_in": {"forward": waited}})
        made = [one, two.model_copy(update={"communication": sent})]
        observed = from_records(made, scaling="strong", baseline={"world_size": 1})
        found = [fault.evidence for fault in apply_rules(observed).findings]
        assert any("Forward takes" in text for text in found) == noted


def test_batch_sizes_of_inference_are_no_further_configurations() -> None:
    points = [point(2, 1e-3, 2e-3), point(8, 1.1e-3, 2.2e-3)]
    names = ("bf16", "int8_dynamic")
    runs = [run(task="inference", quantization=name, batch_sizes=[2, 8]) for name in names]
    once = audit([inferred(one, points) for one in runs])
    assert evidence(once, "repeats").startswith("2 of 2 configurations were measured only once")
    twice = audit([inferred(runs[0], points, repeat) for repeat in range(2)])
    assert evidence(twice, "repeats").startswith("1 of 1 configuration has only 2 repeats")


def test_runs_that_accumulate_differently_are_not_repeats_of_one() -> None:
    times = {(1, 1): 0.1, (1, 2): 0.3, (2, 1): 0.06, (2, 2): 0.4}
    made = [
        record(run(size, grad_accum=accum), repeat, step_time=time)
        for (size, accum), time in times.items()
        for repeat in range(3)
    ]
    observed = from_records(made, scaling="strong", baseline={"world_size": 1})
    assert {curve.label for curve in observed.curves} == {"accumulation 1", "accumulation 2"}
    slower = [one.evidence for one in apply_rules(observed).findings if "slower" in one.evidence]
    assert len(slower) == 1 and "speedup 0.75" in slower[0]


def test_steps_of_unknown_work_are_not_compared() -> None:
    script = {"model": {"kind": "script", "command": "train.py"}, "global_batch_size": None}
    records = [
        record(run(size, **script), repeat, step_time=time, phases={"forward": 0.04})
        for size, time in ((1, 0.1), (2, 0.15))
        for repeat in range(3)
    ]
    result = apply_rules(from_records(records, scaling="none", baseline={"world_size": 1}))
    lacks = {one.rule: " ".join(one.lacks) for one in result.not_checked}
    assert lacks["fixed-overhead"] == "the batch, or whether scaling is strong or weak"
    assert "the batch" in lacks["super-linear"]
    # Without their study, nothing declares a kind of scaling.
    assert "fixed-overhead" in unchecked(audit(records))
    result = apply_rules(from_records(records, scaling="strong", baseline={"world_size": 1}))
    assert "speedup 0.67" in evidence(result, "fixed-overhead")


def test_repeats_that_learn_the_same_other_thing_are_told_once_by_name() -> None:
    half = run(precision="bf16")
    records = [record(run())]
    records += [record(half, nth, loss=losses(30, floor=4.0)) for nth in range(3)]
    (found,) = of(audit(records), "same-learning")
    assert found.evidence.count("% apart") == 1 and len(found.records) == 4
    assert f" in {run().id}/0 and " in found.evidence and half.id in found.evidence


@pytest.mark.parametrize("count", [1, 8])
def test_ranks_that_end_with_different_models_are_an_error(count: int) -> None:
    records = clean()[:count]
    apart = records[-1].model_copy(update={"checks": {"same_parameters": False}})
    (found,) = of(audit([*records[:-1], apart]), "same-learning")
    assert found.severity == "error" and f"In 1 of {count} repeats" in found.evidence
    assert not of(audit(records), "same-learning")


def test_same_learning() -> None:
    records = clean()
    strays = [
        altered(item, "quality", loss=losses(30, floor=4.0)) if item.run.world_size == 4 else item
        for item in records
    ]
    assert "% apart" in evidence(audit(strays), "same-learning")
    table = "gpus,global_batch,step_ms,accuracy\n1,64,100,91.0%\n2,64,60,{}"
    assert "7.0 points apart" in evidence(audit(frame(table.format("84.0%"))), "same-learning")
    assert not of(audit(frame(table.format("90.8%"))), "same-learning")
    untold = of(
        audit(frame("gpus,epoch_s,test_acc\n1,100,91.2\n2,51,91.3\n4,26,71.0")), "same-learning"
    )
    assert [item.severity for item in untold] == [
        "note"
    ] and "20.3 points apart at batches" in untold[0].evidence
    assert not of(
        audit(frame("gpus,epoch_s,test_acc\n1,100,91.2\n2,51,91.3\n4,26,91.0")), "same-learning"
    )


@pytest.mark.parametrize("precision", get_args(PrecisionName))
def test_losses_may_differ_more_where_products_are_rounded(precision: str) -> None:
    ways = [
        record(run(2, 64), loss=losses(30, floor=2.0)),
        record(run(2, 64, precision=precision), loss=losses(30, floor=2.06)),
    ]
    gap = abs(np.mean(ways[0].quality.loss[-7:]) / np.mean(ways[1].quality.loss[-7:]) - 1)
    assert 0.02 < gap < 0.05
    assert bool(of(audit(ways), "same-learning")) == (precision == "fp32")


def test_learning_that_depends_on_the_split_is_compared_between_equal_splits() -> None:
    ways = [
        record(run(2, 64, strategy="vanilla_data_parallel"), loss=losses(30)),
        record(run(2, 64), loss=losses(30, floor=4.0)),
    ]
    assert of(audit(ways), "same-learning")
    reason = "each rank draws its own dropout"
    assert not of(
        audit([altered(item, "quality", depends_on_split=reason) for item in ways]), "same-learning"
    )
    again = [ways[0], record(ways[0].run, 1, loss=losses(30, floor=4.0))]
    assert of(
        audit([altered(item, "quality", depends_on_split=reason) for item in again]),
        "same-learning",
    )


def test_baseline() -> None:
    assert "no run at world size 1" in evidence(
        audit(frame("gpus,step_ms\n2,60\n4,35\n8,20")), "baseline"
    )
    settings = audit(frame("gpus,precision,step_ms\n1,fp32,100\n2,bf16,40\n4,bf16,22"))
    assert "precision is fp32 at world size 1" in evidence(settings, "baseline")
    quoted = audit(frame("gpus,step_ms,speedup\n1,100,1\n2,60,1.67\n4,40,3.8"))
    assert "3.80x is quoted on 4 ranks, but the table's own times give 2.50x" in evidence(
        quoted, "quoted-against-own"
    )
    lame = audit(frame("gpus,speedup,efficiency\n1,1,100%\n4,3.0,95%"))
    assert (
        "efficiency of 95 % on 4 ranks is quoted beside a speedup of 3.00x, which is 75 %"
        in evidence(lame, "quoted-against-own")
    )
    rates = audit(frame("gpus,images/sec,efficiency (%)\n1,219,100\n32,6640,94.7\n512,96000,91"))
    assert "91 % is quoted on 512 ranks, but the table's own numbers give 86 %" in evidence(
        rates, "quoted-against-own"
    )
    assert len(of(rates, "quoted-against-own")) == 1
    assert not of(
        audit(frame("gpus,time_s,efficiency\n1,100,1.0\n4,104,0.96\n16,110,0.91")), "baseline"
    )
    assert of(audit([item for item in clean() if item.run.world_size > 1]), "baseline")
    compressed = [
        record(run(2, compression="powersgd", bucket_cap_mb=100.0), repeat, step_time=0.17)
        for repeat in range(3)
    ]
    assert not of(audit([*clean(), *compressed]), "baseline"), "on one rank nothing is compressed"
    of_seed = [record(run(2, seed=3), repeat, step_time=0.16) for repeat in range(3)]
    assert "no run at world size 1 for seed 3;" in evidence(audit([*clean(), *of_seed]), "baseline")


def test_too_regular() -> None:
    same = [item for item in clean() if item.run.world_size == 1][:1] * 3
    same = [item.model_copy(update={"repeat": number}) for number, item in enumerate(same)]
    assert "3 measurements at world size 1 are all" in evidence(audit(same), "too-regular")
    assert "exactly the number of ranks" in evidence(
        audit(frame("gpus,epoch_s\n1,80\n2,40\n4,20\n8,10")), "too-regular"
    )
    amdahl = "gpus,epoch_s\n" + "\n".join(
        f"{n},{100 * (0.05 + 0.95 / n):.4f}" for n in (1, 2, 4, 8)
    )
    assert "Amdahl's law with a serial fraction of 0.05" in evidence(
        audit(frame(amdahl)), "too-regular"
    )
    two = "gpus,speedup\n2,1.0\n4,1.97083\n8,3.82855"  # of two speedups one makes the law
    assert "too-regular" not in {finding.rule for finding in audit(frame(two)).findings}
    varied = "gpus,repeat,epoch_s\n" + "\n".join(
        f"{n},{k},{100 * (0.05 + 0.95 / n) * (1 + 0.01 * k)}"
        for n in (1, 2, 4, 8)
        for k in (-1, 0, 1)
    )  # of measurements, whose medians meet it by chance
    assert "too-regular" not in {finding.rule for finding in audit(frame(varied)).findings}
    flat = "gpus,epoch_s\n" + "\n".join(
        f"{n},{100 / (1 if n == 1 else 0.9 * n):.5f}" for n in (1, 2, 4, 8)
    )
    assert "The efficiency is 0.9 at every world size" in evidence(
        audit(frame(flat)), "too-regular"
    )
    sizes = "message_bytes,gpus,time_us\n" + "\n".join(
        f"{2**k},4,{20 + 2**k * 1e-3:.6f}" for k in range(14, 22)
    )
    assert "exactly linear in the message size" in evidence(audit(frame(sizes)), "too-regular")


def test_fixed_overhead() -> None:
    table = "gpus,global_batch,step_ms,compute_ms,comm_ms\n1,64,50,50,0\n2,64,{0},{1},4\n"
    assert "does not depend on the work" in evidence(
        audit(frame(table.format(51, 47))), "fixed-overhead"
    )
    assert not of(audit(frame(table.format(31, 27))), "fixed-overhead")
    batches = audit(frame("gpus,global_batch,step_ms\n1,32,48\n1,64,50\n2,32,45\n2,64,46"))
    assert "half the work saves 4 %" in evidence(batches, "fixed-overhead")
    longer = audit(frame("gpus,global_batch,step_ms\n1,32,54\n1,64,50\n2,32,45\n2,64,46"))
    assert "half the work adds 8 %" in evidence(longer, "fixed-overhead")
    noisy = (
        "gpus,global_batch,repeat,step_ms\n1,32,0,{}\n1,32,1,45\n1,64,0,{}\n1,64,1,48\n2,32,0,30"
    )
    assert of(audit(frame(noisy.format(46, 50))), "fixed-overhead")
    assert not of(audit(frame(noisy.format(46, 64))), "fixed-overhead"), "ranges that permit half"
    repeats = (
        "gpus,global_batch,repeat,step_ms,forward_ms\n1,64,0,50,40\n1,64,1,52,40\n1,64,2,{},40\n"
        "2,64,0,44,36\n2,64,1,46,36\n2,64,2,48,36"
    )
    assert "Forward takes" in evidence(audit(frame(repeats.format(54))), "fixed-overhead")
    assert not of(audit(frame(repeats.format(95))), "fixed-overhead"), "noise as large as the gain"


# What it is for people and programs


def test_an_audit_reads_well_and_is_data() -> None:
    result = audit(TABLES / "gpt2_stages.csv")
    assert str(result).startswith("Checked 5 of 21 rules: 1 error, 1 warning, 1 note.")
    keys = {"findings", "not_checked", "checked", "reading", "assumptions"}
    assert set(result.model_dump(mode="json")) == keys
    assert result.reading == {"stage": "strategy", "train_s": "time"}
    assert set(result.model_dump(mode="json")["findings"][0]) == {
        "rule",
        "severity",
        "records",
        "evidence",
        "advice",
    }
    page = Audit(
        findings=(of(result, "super-linear")[0].model_copy(update={"evidence": "<b>"}),),
        not_checked=(),
    )._repr_html_()
    assert "&lt;b&gt;" in page and "<b>" not in page


def test_a_source_that_is_nothing() -> None:
    with pytest.raises(InputError, match="no such study"):
        audit("no-such-study-anywhere")
    with pytest.raises(InputError, match="No such file"):
        audit("missing.csv")
    with pytest.raises(InputError, match="cannot be of type int"):
        audit([1])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["result.csv", "results.tsv", "results.xlsx", "results.cvs"])
def test_a_misspelt_file_is_answered_with_the_nearest_in_its_folder(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "results.csv").write_text("gpus,step_ms\n1,100\n")
    with pytest.raises(InputError, match=r"No such file or directory; did you mean 'results.csv'"):
        audit(tmp_path / name)


COLUMNS = (
    "gpus rank epoch step batch global_batch_size per_gpu_batch epoch_s step_ms compute_s comm_s "
    "exposed_comm_s data_s speedup efficiency params bytes busbw loss acc host run std model "
    "strategy num_workers cpus nodes 1gpu_s 2gpu_s ddp_s b64_s b128_s warmup x"
)
HEADERS = st.sampled_from(COLUMNS.split())
CELLS = st.one_of(
    st.sampled_from(
        [
            "",
            "NA",
            "-",
            "mean",
            "0",
            "1",
            "2",
            "4",
            "-1",
            "nan",
            "inf",
            "1e308",
            "95%",
            "1,384.6",
            "12 ms",
            "serial",
            "mpi",
            "±",
        ]
    ),
    st.floats().map(str),
    st.integers(-3, 10**6).map(str),
    st.text(max_size=5),
)


@pytest.mark.parametrize(
    "columns",
    [
        {
            "epoch_s": ["mean", "1", "1e308"],
            "gpus": ["", "1", "4048045066146212"],
            "speedup": ["", "", "1.0"],
        },
        {"nodes": ["", "1", "2"], "step_ms": ["mean", "2.3e-309", "900719925474000.0"]},
    ],
)
def test_a_speedup_too_small_for_a_number_breaks_no_rule(columns: dict[str, list[str]]) -> None:
    assert isinstance(str(audit(pd.DataFrame(columns))), str)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_table_breaks_a_rule(data: st.DataObject) -> None:
    headers = data.draw(st.lists(HEADERS, min_size=1, max_size=8, unique=True))
    rows = data.draw(
        st.lists(st.lists(CELLS, min_size=len(headers), max_size=len(headers)), max_size=8)
    )
    try:
        result = audit(pd.DataFrame(rows, columns=headers))
    except InputError:
        return
    assert {finding.rule for finding in result.findings} | unchecked(result) <= NAMES
    assert "nan" not in " ".join(
        finding.evidence.lower().replace("'nan'", "")
        for finding in result.findings
        if finding.rule == "slowest-rank"
    )
    assert str(result) and result._repr_html_()


def test_thousands_of_rows_are_no_trouble() -> None:
    noise = np.random.default_rng(1)
    sizes = np.repeat([1, 2, 4], 2000)
    table = pd.DataFrame(
        {
            "gpus": sizes,
            "step": np.tile(np.arange(2000), 3),
            "step_time_s": 0.1 / sizes**0.9 * noise.normal(1, 0.01, 6000),
        }
    )
    result = audit(table)
    assert not of(result, "two-writers") and not of(result, "super-linear")
    assert all(math.isfinite(len(finding.records)) for finding in result.findings)


@pytest.mark.parametrize(("foreign_cpu", "severity"), [(0.0, "error"), (0.5, "warning")])
def test_a_disturbed_baseline_explains_a_part_of_a_gain(foreign_cpu: float, severity: str) -> None:
    base = record(run(1), step_time=0.4, foreign_cpu=foreign_cpu, cpus_granted=[[0]])
    pair = record(run(2), step_time=0.1, foreign_cpu=0.0, cpus_granted=[[0], [1]])
    result = audit([base, pair])
    assert [finding.severity for finding in of(result, "super-linear")] == [severity]
    disturbance_named = "other processes took 50 % of the ranks' cores" in evidence(
        result, "super-linear"
    )
    assert disturbance_named == bool(foreign_cpu)


def of_peak(flops: float) -> list[Record]:
    """Three repeats of one training, with a peak that was measured anew in each."""
    made = []
    for item, peak in zip(clean((1,)), (3.0e12, 3.3e12, 2.7e12), strict=True):
        assert item.timing is not None and item.timing.samples_per_second is not None
        reached = flops * item.timing.samples_per_second / 200
        known = {"mfu": reached / peak, "peak_flops_per_second": peak, "flops_per_second": reached}
        made.append(item.model_copy(update={"timing": item.timing.model_copy(update=known)}))
    return made


def test_records_that_exceed_their_peak_are_impossible() -> None:
    rate = statistics.median(
        item.timing.samples_per_second or 0 for item in clean((1,)) if item.timing
    )
    (finding,) = of(audit(of_peak(2.9e12 * 200 / rate)), "impossible-mfu")
    assert finding.severity == "error" and len(finding.records) == 1
    result = audit(of_peak(2.5e12 * 200 / rate))
    assert not result.findings and unchecked(result).isdisjoint(
        {"impossible-mfu", "mfu-consistent"}
    )


def test_a_table_of_measured_peaks_has_no_constant_mfu() -> None:
    measured = table(of_peak(2.5e12))
    assert "mfu-consistent" in unchecked(audit(measured))
    assert of(audit(measured.assign(device="cuda")), "mfu-consistent")


@pytest.mark.parametrize("calibration", [-1, 0, math.nan, math.inf, {2: -5e9}, {2: "5e9"}])
def test_an_impossible_bandwidth_is_refused(calibration: Any) -> None:
    table = frame("gpus,step_ms\n1,100\n4,60")
    with pytest.raises(InputError, match=r"calibration.*give a positive number of bytes/s"):
        audit(table, calibration=calibration)


def test_a_number_is_only_for_the_tables_of_a_text() -> None:
    with pytest.raises(InputError, match="number: is only for the tables of a text"):
        audit(frame("gpus,step_ms\n1,100\n4,60"), number=2)
