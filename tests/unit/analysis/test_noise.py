"""What is believed of configurations that other processes disturbed, and the strip that says so."""

from __future__ import annotations

import pytest
from factories import record, repeats, run, study

from lab.analysis.answer import answer
from lab.analysis.audit import Audit, Finding
from lab.analysis.findings import findings
from lab.analysis.noise import judge
from lab.analysis.scaling import summary
from lab.records.schema import GpuState
from lab.records.table import table

QUIET = repeats(run(1), [0.19, 0.20, 0.21])


def two_ranks(*foreign: float | None, times=(0.11, 0.10, 0.12)):
    return [
        record(run(2), repeat, step_time=time, foreign_cpu=cpu)
        for repeat, (time, cpu) in enumerate(zip(times, foreign, strict=False))
    ]


def noise_of(records, made=None):
    frame = summary(table(records), baseline={"world_size": 1}, scaling="strong")
    return judge(records, frame, study=made), frame


@pytest.mark.parametrize(
    ("foreign", "believed"),
    [
        ((0.0, 0.02, 0.1), True),
        ((0.9, 0.0, 0.0), True),  # the median over repeats bears one of three
        ((0.9, 0.9, 0.0), False),
        ((0.9, None, None), False),  # the one that was judged
        ((None, None, None), True),
        ((0.9, 0.0), True),
    ],
)
def test_a_configuration_is_believed_unless_most_repeats_were_disturbed(foreign, believed):
    noise, frame = noise_of(QUIET + two_ranks(*foreign))
    assert noise.trustworthy([run(1).id])
    assert noise.trustworthy([run(2).id]) == noise.trustworthy([run(1).id, run(2).id]) == believed
    assert set(noise.quiet(frame)["world_size"]) == ({1, 2} if believed else {1})
    assert bool(noise.sentence) != believed


def test_without_a_quiet_baseline_nothing_is_concluded_beyond_it():
    loud = [record(run(1), repeat, foreign_cpu=0.9) for repeat in range(3)]
    noise, frame = noise_of(loud + two_ranks(0, 0, 0))
    assert noise.trustworthy([run(2).id]) and noise.quiet(frame).empty


def test_a_single_configuration_is_named_in_the_singular():
    noise, _ = noise_of(two_ranks(0.9, 0.9, 0.9))
    assert "in most repeats of 1 of 1 configuration: " in noise.sentence


def test_one_disturbed_repeat_of_three_is_most_of_those_whose_load_is_known():
    noise, _ = noise_of(two_ranks(0.9, None, None))
    assert "in most repeats whose load is known of 1 of 1 configuration: " in noise.sentence


def test_instead_of_explaining_it_names_what_to_measure_again(tmp_path):
    records = QUIET + two_ranks(0.76, 0.9, 0.0)
    made = study(tmp_path / "mine", [run(1), run(2)])
    frame = summary(table(records), baseline={"world_size": 1}, scaling="strong")
    noise = judge(records, frame, study=made)
    text, more = answer(made, frame, records), findings(made, frame, records, noise)
    assert text.startswith("There is no answer yet. Too noisy to explain: other processes took up")
    assert "up to 45 % of the ranks' cores" in text and "1 of 2 configurations" in text
    assert "configurations: x2 (repeats 0, 1); lab run" in text
    assert "lab run mine --repeat-disturbed measures them again." in text
    assert not [sentence for sentence in more if "2 CPU processes" in sentence]
    quiet = QUIET + two_ranks(0.0, 0.0, 0.0)
    noise = judge(quiet, frame, study=made)
    text, more = answer(made, frame, quiet), findings(made, frame, quiet, noise)
    assert "a step is 1.8" in text and [line for line in more if "2 CPU processes" in line]


def finding(severity, rule):
    return Finding(rule=rule, severity=severity, records=(), evidence="", advice="")


@pytest.mark.parametrize(
    ("finding_arguments", "said"),
    [
        ((), "audit: no warning"),
        ((("note", "mixed-environment"),), "audit: no warning"),
        ((("warning", "repeats"), ("note", "baseline")), "audit: warning repeats"),
        ((("error", "equal-work"), ("warning", "repeats")), "audit: error equal-work and 1 more"),
    ],
)
def test_the_strip_ends_with_the_worst_that_the_audit_found(finding_arguments, said):
    noise, _ = noise_of(QUIET)
    found = tuple(finding(*one) for one in finding_arguments)
    audit = Audit(findings=found, not_checked=(), checked=("equal-work", "repeats", "baseline"))
    assert noise.strip(audit) == (
        f"3 repeats · interval ±5.0 % · other processes took less than 1 % of the ranks' cores · {said}"
    )


def test_the_strip_does_not_call_an_audit_clean_that_checked_next_to_nothing():
    noise, _ = noise_of(QUIET)
    little = Audit(findings=(), not_checked=(), checked=("repeats",))
    assert noise.strip(little).endswith("audit: too little to say")


def test_the_strip_of_some_and_of_few():
    noise, _ = noise_of(QUIET + two_ranks(0.9, times=[0.1]))
    assert noise.strip() == (
        "1 to 3 repeats · intervals up to ±5.0 % · "
        "other processes took at most 45 % of the ranks' cores"
    )
    assert noise.strip(run_ids=[run(2).id]).startswith("1 repeat · no interval · other")
    unknown, _ = noise_of(two_ranks(None, times=[0.1]))
    assert unknown.strip().endswith("load from other processes not known")
    assert noise_of([record(run(1), status="oom")])[0].strip() == "no completed repeat"


def gpu(**fields):
    content = {"samples": 9, "sm_clock": 1700, "sm_clock_low": 1650, "sm_clock_max": 1980}
    return GpuState(**content, **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"other_processes": 0, "reasons": {"sw_power_cap": 1.0}}, ""),
        ({"other_processes": 1}, "other processes used the ranks' GPUs"),
        (
            {"reasons": {"hw_thermal_slowdown": 0.5}},
            "GPUs were throttled (hw_thermal_slowdown)",
        ),
    ],
)
def test_gpus_that_were_shared_or_throttled_are_not_believed(fields, said):
    states = [gpu(other_processes=0), gpu(**fields)]
    records = repeats(run(2), [0.1, 0.1, 0.1], device="cuda", gpu_states=states)
    noise, _ = noise_of(records)
    assert noise.trustworthy([run(2).id]) == (not said)
    assert (said or "GPUs neither shared nor throttled") in noise.strip()
    limited = "power limited clocks in up to 100 % of samples"
    assert (limited in noise.strip()) == ("sw_power_cap" in fields.get("reasons", {}))
    assert (f"Too noisy to explain: {said} in most repeats of 1 of 1" in noise.sentence) == bool(
        said
    )
