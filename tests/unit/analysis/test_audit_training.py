"""Published tables and logs of training: how their columns are named, and what they do not claim."""

from __future__ import annotations

import pytest
from audits import broken, pasted

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
    assert severities(table.format(55, 31), "equal-work") == ["warning"]


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
