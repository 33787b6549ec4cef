from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from factories import SHARES, environment, record, repeats, run, stat, study
from hypothesis import given
from hypothesis import strategies as st

from lab import figures
from lab.analysis.answer import answer
from lab.analysis.findings import advice, findings, holes, limits
from lab.analysis.noise import judge
from lab.analysis.results import StudyResults
from lab.analysis.scaling import summary
from lab.analysis.scaling_curves import Estimate, Row
from lab.analysis.waterfall import CAUSES, Waterfall, waterfalls
from lab.config.emulation import Compute, Emulated, Link
from lab.config.strategies import STRATEGIES
from lab.figures import alt_text
from lab.perfmodel.collectives import efficiency_with_overlap, efficiency_without_overlap
from lab.records.schema import Communication, Environment, Event, Failure
from lab.records.store import RECORD, Record, Store
from lab.records.table import table

SLEEPING = Emulated(compute=Compute(emulated="V100", mfu=0.4))


def findings_of(tmp_path, records, **fields):
    """Answer, findings and holes of a study that asked for the runs of these records."""
    made = study(tmp_path, list({item.run.id: item.run for item in records}.values()), **fields)
    frame = summary(table(records), baseline=made.baseline, scaling=made.scaling)
    found = findings(made, frame, records, judge(records, frame, study=made))
    return answer(made, frame, records), found, holes(made, records)


def pair(base, wide, size=2, **fields):
    return repeats(run(1), base, **fields) + repeats(run(size), wide, **fields)


def test_a_gain_that_the_interval_supports(tmp_path):
    text, more, missing = findings_of(tmp_path, pair([0.20, 0.21, 0.19], [0.11, 0.10, 0.12]))
    assert text.startswith(
        "On 2 CPU processes at batch 64, a step is 1.82 [1.58, 2.10] times as fast as on "
        "1 CPU process (efficiency 91 [79, 105] %), a gain beyond the spread of the repeats."
    )
    assert missing == []
    assert more[0].startswith("On 2 CPU processes at batch 64, a step is 1.8")


@pytest.mark.parametrize(
    ("wide", "verdict"),
    [
        ([0.10, 0.11, 0.12], "a gain beyond the spread of the repeats"),
        ([0.30, 0.31, 0.32], "a loss beyond the spread of the repeats"),
        ([0.17, 0.19, 0.22], "a difference within the spread of the repeats"),
        ([0.10, 0.11], "2 repeats are too few to show how much this varies"),
        ([0.10], "one repeat is too few to show how much this varies"),
    ],
)
def test_the_verdict_follows_the_interval(tmp_path, wide, verdict):
    text, _, _ = findings_of(tmp_path, pair([0.19, 0.20, 0.21], wide))
    assert verdict in text


def test_a_loss_in_weak_scaling_is_no_gain_elsewhere(tmp_path):
    batch = {"global_batch_size": None, "micro_batch_size": 16}
    records = repeats(run(1, **batch), [0.1] * 3) + repeats(run(2, **batch), [0.125] * 3)
    text, more, _ = findings_of(tmp_path, records, scaling="weak")
    assert more[0].startswith(
        "On 2 CPU processes at batch 16 per rank, each rank keeps 80.0 [80.0, 80.0] % of its "
        "pace, a loss beyond the spread of the repeats"
    )
    assert text.startswith(more[0]) and not any("a gain" in one for one in more)


def test_no_answer_and_no_speedup(tmp_path):
    text, more, missing = findings_of(tmp_path, [record(run(2), status="oom")])
    assert text.startswith("There is no answer yet")
    assert more == []
    assert len(missing) == 2  # one repeat failed, two are missing
    text, _, _ = findings_of(tmp_path, repeats(run(2), [0.1] * 3))
    assert text.startswith(
        "No speedup can be stated, because no run of the baseline (world_size 1) has completed. "
        "A step takes 100 [100, 100] ms on 2 CPU processes"
    )
    text, _, _ = findings_of(tmp_path, repeats(run(1), [0.1] * 3))
    assert "because the study has a single configuration. A step takes" in text


def test_holes_name_run_repeats_and_cause(tmp_path):
    cause = Failure(
        type="OutOfMemoryError", message="CUDA out of memory. Tried to\nallocate 2 GiB.", rank=1
    )
    records = [
        *repeats(run(1), [0.1] * 3),
        record(run(4), 0, status="oom", error=cause),
        record(run(4), 1, status="oom", error=cause),
    ]
    _, _, missing = findings_of(tmp_path, records)
    assert missing == [
        "gpt-nano ddp x4, batch 64, fp32, repeats 0 and 1: "
        "out of memory on rank 1: Tried to allocate 2 GiB.",
        "gpt-nano ddp x4, batch 64, fp32, repeat 2: not run yet.",
    ]


def test_one_cause_of_all_failures_is_said_once(tmp_path):
    cause = Failure(type="ValueError", message="no data", rank=0)
    failed = [record(run(n), i, status="failed", error=cause) for n in (1, 2) for i in range(3)]
    _, _, missing = findings_of(tmp_path, failed)
    assert missing == ["All 6 repeats of 2 configurations: failed on rank 0: ValueError: no data."]


def test_a_hole_whose_cause_is_a_question_ends_with_it(tmp_path):
    cause = Failure(type="RankLost", message="killed from outside?", rank=1)
    _, _, missing = findings_of(tmp_path, [record(run(4), status="failed", error=cause)])
    assert missing[0].endswith("killed from outside?")


def test_holes_say_what_cannot_run_and_why(tmp_path):
    gpus = run(2, 4, strategy="data_parallel")
    made = study(tmp_path, [run(4), gpus, run(2, needs_device="cuda")], repeats=1)
    assert holes(made, [], obstacles={run(4).id: "needs 4 ranks, local has 2"}) == [
        "gpt-nano ddp x4, batch 64, fp32, repeat 0: not run: needs 4 ranks, local has 2.",
        "2 configurations (data_parallel x2, batch 4; ddp x2 on CUDA, batch 64), "
        "repeat 0: not run: it needs a cluster with CUDA.",
    ]


def test_a_damaged_record_is_a_hole_of_its_own(tmp_path):
    made = study(tmp_path, [run(1), run(2)], repeats=1)
    folder = Store(made.out).folder(made.tasks[1])
    folder.mkdir(parents=True)
    (folder / RECORD).write_text('{"schema_version": 1, "run_id')
    first, second = holes(made, [])
    assert first.endswith("repeat 0: not run yet.")
    assert second.endswith("repeat 0: its record is damaged.")


def test_a_hole_is_not_blamed_on_the_machine_that_makes_the_report(tmp_path):
    gpu = {"needs_device": "cuda"}
    made = study(tmp_path, [run(1, **gpu), run(2, **gpu)], repeats=1)
    measured = repeats(run(1, **gpu), [0.1], device="cuda")
    here = {item.id: "left out: it needs CUDA, but local has none" for item in made.runs}
    (hole,) = holes(made, measured, obstacles=here)
    assert hole.endswith("repeat 0: not run yet.")
    small = {run(2, **gpu).id: "needs 2 ranks, local has 1"}
    (hole,) = holes(made, measured, obstacles=small)
    assert hole.endswith("repeat 0: not run: needs 2 ranks, local has 1.")


def test_of_many_configurations_the_fastest_and_the_slowest_are_told(tmp_path):
    records = []
    for batch in (8, 16, 32, 64, 128):
        records += repeats(run(1, batch), [0.1] * 3)
        records += repeats(run(2, batch), [0.09 - batch / 5000] * 3)
    _, (best, worst, others, *_), _ = findings_of(tmp_path, records)
    assert best.startswith("At best, on 2 CPU processes at batch 128, a step is 1.55")
    assert worst.startswith("At worst, on 2 CPU processes at batch 8, a step is 1.13")
    assert others == "The speedups of the other 3 configurations lie between these."


def test_serial_fraction_only_where_its_interval_excludes_none(tmp_path):
    exact = {1: 1.0, 2: 0.6, 4: 0.4, 8: 0.3}  # Amdahl with s = 0.2
    _, more, _ = findings_of(
        tmp_path, [item for size, time in exact.items() for item in repeats(run(size), [time] * 3)]
    )
    law = [sentence for sentence in more if "Amdahl" in sentence]
    assert len(law) == 1
    assert "serial fraction of 20" in law[0]
    assert "exceeds a speedup of 5" in law[0]
    records = [item for size, time in exact.items() for item in repeats(run(size), [time] * 3)]
    _, more, _ = findings_of(tmp_path, records, scaling="none")
    assert not [sentence for sentence in more if "Amdahl" in sentence]
    # A law that misses speedups by more than 10 % bounds nothing, although its interval has a low end.
    far = {1: 1.0, 2: 0.75, 4: 0.65, 8: 0.75, 16: 1.0, 32: 1.3}
    _, more, _ = findings_of(
        tmp_path, [item for size, time in far.items() for item in repeats(run(size), [time] * 3)]
    )
    assert not [sentence for sentence in more if "Amdahl" in sentence]
    wild = {1: 1.0, 2: 0.55, 4: 0.26, 8: 0.4}
    _, more, _ = findings_of(
        tmp_path, [item for size, time in wild.items() for item in repeats(run(size), [time] * 3)]
    )
    assert not [sentence for sentence in more if "Amdahl" in sentence]


def test_the_largest_loss_of_the_waterfall_is_named(tmp_path):
    fixed = {"forward": 0.03, "backward": 0.05, "optimizer": 0.02, "data": 0.0, "other": 0.0}
    wide = fixed | {"forward": 0.015, "backward": 0.025}
    records = repeats(run(1), [0.1] * 3, phases=fixed) + repeats(run(2), [0.06] * 3, phases=wide)
    _, more, _ = findings_of(tmp_path, records)
    (sentence,) = [sentence for sentence in more if "is ideal" in sentence]
    assert sentence.startswith("At batch 64 on 2 CPU processes, a step takes 60.0")
    assert (
        "10.0 [10.0, 10.0] ms (16.7 % of the step), is the optimizer; first to change: " in sentence
    )
    _, more, _ = findings_of(tmp_path, pair([0.10, 0.10, 0.10], [0.05, 0.05, 0.05]))
    assert not [sentence for sentence in more if "is ideal" in sentence]


def test_a_step_on_as_many_ranks_is_told_beside_its_baseline(tmp_path):
    slow = {"forward": 0.06, "backward": 0.05, "optimizer": 0.02, "data": 0.0, "other": 0.0}
    records = [
        *repeats(run(1), [0.1] * 3, phases=slow | {"forward": 0.03}),
        *repeats(run(1, compile=True), [0.13] * 3, phases=slow),
    ]
    _, more, _ = findings_of(tmp_path, records, baseline={"compile": False})
    assert any("a step takes 130" in one and "where the baseline takes 100" in one for one in more)
    # It is measured on one rank already: only a look into both steps tells more.
    assert any(one.endswith("both steps with a profiler (trace: true).") for one in more)
    assert not any("one rank at micro-batch" in one for one in more)


def test_without_a_baseline_nothing_is_called_a_loss(tmp_path):
    parts = {"forward": 0.03, "backward": 0.067, "data": 0.0, "other": 0.0, "optimizer": 0.003}
    _, more, _ = findings_of(tmp_path, repeats(run(1), [0.1] * 3, phases=parts))
    assert "At batch 64 on 1 CPU process, compute limits the step: no other part takes" in more[0]
    assert not any("is ideal" in one for one in more)


def test_a_step_that_equals_one_that_waits_is_not_called_one_of_compute(tmp_path):
    waiting = {"forward": 0.02, "backward": 0.02, "data": 0.06, "optimizer": 0.0, "other": 0.0}
    batch = {"global_batch_size": None, "micro_batch_size": 16}
    records = [one for n in (1, 2) for one in repeats(run(n, **batch), [0.1] * 3, phases=waiting)]
    _, more, _ = findings_of(tmp_path, records, scaling="weak")
    assert any(one.endswith("no loss takes more than 5 % of the step.") for one in more)
    assert not any("limits the step" in one for one in more)


def test_samples_of_two_models_are_not_counted_against_each_other(tmp_path):
    small, large = ({"model": f"agnews-{size}", "data": "topics"} for size in ("small", "large"))
    records = repeats(run(1, **small), [0.1] * 3) + repeats(run(1, **large), [0.3] * 3)
    _, more, _ = findings_of(tmp_path / "two", records)
    assert not any("most samples per second" in one for one in more)
    records += repeats(run(1, 128, **small), [0.15] * 3)
    _, more, _ = findings_of(tmp_path / "batches", records)
    (sentence,) = [one for one in more if "most samples per second" in one]
    assert "agnews-large" not in sentence and sentence.endswith("above all others of this model.")


def test_a_better_batch_is_claimed_only_where_intervals_lie_apart(tmp_path):
    apart = repeats(run(1, 64), [0.10, 0.11, 0.12]) + repeats(run(1, 128), [0.13, 0.14, 0.15])
    _, more, _ = findings_of(tmp_path, apart)
    assert any(
        "samples per second are processed at batch 128, 1.57 [1.33, 1.85] times as many as at batch"
        in sentence
        for sentence in more
    )
    _, more, _ = findings_of(tmp_path, [item for item in apart if item.repeat < 2])
    assert not [sentence for sentence in more if "most samples per second" in sentence]
    near = repeats(run(1, 64), [0.10, 0.11, 0.12]) + repeats(run(1, 128), [0.19, 0.195, 0.22])
    _, more, _ = findings_of(tmp_path, near)
    assert not [sentence for sentence in more if "most samples per second" in sentence]


def test_few_repeats_are_a_caveat(tmp_path):
    _, more, _ = findings_of(tmp_path, pair([0.1], [0.05] * 3))
    _, two, _ = findings_of(tmp_path, pair([0.1], [0.05]))
    assert any(sentence.startswith("2 of 2 configurations have fewer") for sentence in two)
    _, enough, _ = findings_of(tmp_path, pair([0.1] * 3, [0.05] * 3))
    assert not any("fewer than" in sentence for sentence in enough)
    assert (
        "1 of 2 configurations has fewer than 3 completed repeats: no difference is claimed for it."
        in more
    )


def test_shared_cores_only_where_the_record_says_so(tmp_path):
    crowded = repeats(run(4), [0.1] * 3, cpus_granted=[[0, 1]] * 4)
    _, more, _ = findings_of(tmp_path, crowded)
    assert (
        "At world size 4, 4 threads of the ranks had 2 cores between them: "
        "times there do not show what a core for each thread would give." in more
    )
    for spacious in (
        repeats(run(4), [0.1] * 3),
        repeats(run(4), [0.1] * 3, cpus_granted=[[0, 1, 2, 3]] * 4),
        repeats(run(4), [0.1] * 3, cpus_granted=[[0, 1]] * 4, hosts=["a", "a", "b", "b"]),
        repeats(run(4), [0.1] * 3, cpus_granted=[[0]] * 4, device="cuda"),
        repeats(run(4), [0.1] * 3, cpus_granted=[[0]] * 4, emulated=SLEEPING),
    ):
        _, more, _ = findings_of(tmp_path, spacious)
        assert not [sentence for sentence in more if "threads of the ranks" in sentence]


def test_an_emulation_is_named(tmp_path):
    emulated = pair([0.1] * 3, [0.06] * 3, emulated=SLEEPING)
    _, more, _ = findings_of(tmp_path, emulated)
    assert more[0].startswith("All results come from an emulation, not from a real machine: ")
    mixed = repeats(run(4), [0.1] * 3, emulated=SLEEPING)
    _, more, _ = findings_of(tmp_path, pair([0.1] * 3, [0.06] * 3) + mixed)
    assert more[0].startswith("Some results come from an emulation")
    failed = [record(run(4), status="failed", emulated=SLEEPING)]
    _, more, _ = findings_of(tmp_path, pair([0.1] * 3, [0.06] * 3) + failed)
    assert not any("emulation" in sentence for sentence in more)


def test_other_load_is_a_caveat(tmp_path):
    calm, loud = (
        repeats(run(1), [0.1] * 3),
        [record(run(2), repeat, foreign_cpu=0.8) for repeat in range(3)],
    )
    _, more, _ = findings_of(tmp_path, calm + loud)
    assert any("other processes took up to 40 % of the ranks' cores" in text for text in more)
    _, more, _ = findings_of(tmp_path, calm)
    assert not [sentence for sentence in more if "other processes" in sentence]


PARALLEL = [name for name, facts in STRATEGIES.items() if facts.splits != "nothing"]


@pytest.mark.parametrize(
    ("r", "without", "overlapped"),
    [(0.0, 0.0, 0.0), (1.0, 0.5, 0.75), (3.0, 0.75, 1.0), (0.5, 1 / 3, 3 / 7)],
)
def test_closed_forms(r: float, without: float, overlapped: float) -> None:
    assert efficiency_without_overlap(r) == pytest.approx(without)
    assert efficiency_with_overlap(r) == pytest.approx(overlapped)


@given(st.floats(0, 1e6))
def test_overlap_never_hurts_and_nothing_exceeds_one(r: float) -> None:
    least, most = efficiency_without_overlap(r), efficiency_with_overlap(r)
    assert 0 <= least <= most + 1e-12 <= 1 + 2e-12


def test_closed_forms_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="negative"):
        efficiency_without_overlap(-1)
    with pytest.raises(ValueError, match="negative"):
        efficiency_with_overlap(-1)


def study_records(*, exposed: float, straggler: float, **fields: Any) -> list[Record]:
    """One rank, and two that are ideal but for what is exposed."""
    own, parts = 0.200, {"exposed": exposed, "straggler": straggler}
    parts["transfer"] = exposed - straggler
    made = [record(run(1), n, step_time=own + 0.0002 * n) for n in range(3)]
    for n in range(3):
        phases = {name: share * own / 2 for name, share in SHARES.items()}
        phases["backward"] += exposed
        step = sum(phases.values()) + 0.0001 * n
        pair = record(
            run(2, **fields), n, step_time=step, phases=phases, communication=(0.04, exposed)
        )
        sent = {name: stat(seconds) for name, seconds in parts.items()}
        assert pair.communication is not None
        communication = pair.communication.model_copy(update=sent)
        made.append(pair.model_copy(update={"communication": communication}))
    return made


def sentences_of(records: list[Record], **study: Any) -> list[str]:
    frame = summary(
        table(records), **({"baseline": {"world_size": 1}, "scaling": "strong"} | study)
    )
    return limits(waterfalls(frame, records))


@pytest.mark.parametrize(
    ("exposed", "straggler", "words"),
    [
        (0.030, 0.002, "the largest loss, 28.0 [28.0, 28.0] ms (21.5 % of the step), is moving"),
        (0.030, 0.026, "is waiting for slower ranks; first to change: equal ranks"),
        (0.001, 0.0, ", no loss takes more than 5 % of the step"),
    ],
)
def test_the_largest_loss_is_named(exposed: float, straggler: float, words: str) -> None:
    sentences = sentences_of(study_records(exposed=exposed, straggler=straggler))
    assert words in sentences[0], sentences
    assert any("R = T_compute / T_communication" in sentence for sentence in sentences)


def test_too_few_repeats_name_nothing() -> None:
    few = [one for one in study_records(exposed=0.03, straggler=0.0) if one.repeat < 2]
    assert not any("loss" in sentence or "limits" in sentence for sentence in sentences_of(few))


def test_repeats_that_disagree_name_nothing() -> None:
    records = study_records(exposed=0.04, straggler=0.0)
    changed = study_records(exposed=0.04, straggler=0.04)
    mixed = [*records[:5], changed[5]]
    assert "the repeats do not show which loss is the largest" in sentences_of(mixed)[0]
    alone = sentences_of(mixed[3:], baseline={})
    assert not any("the repeats do not show" in sentence for sentence in alone)


def test_karp_flatt_is_that_of_the_speedup() -> None:
    sentences = sentences_of(study_records(exposed=0.03, straggler=0.0))
    speedup = 0.2002 / 0.1301
    expected = 100 * (1 / speedup - 1 / 2) / (1 - 1 / 2)
    (sentence,) = [sentence for sentence in sentences if "Karp" in sentence]
    assert f"{expected:.0f}" in sentence


def test_a_serial_fraction_needs_strong_scaling_a_baseline_repeats_and_a_speedup_it_permits() -> (
    None
):
    made = study_records(exposed=0.03, straggler=0.0)
    superlinear = [*repeats(run(1), [0.2] * 3), *repeats(run(2), [0.09, 0.091, 0.092])]
    batch = {"global_batch_size": None, "micro_batch_size": 16}
    weak = [*repeats(run(1, **batch), [0.1] * 3), *repeats(run(2, **batch), [0.12] * 3)]
    # What bf16 gains is no gain of ranks.
    bf16 = [*made[:3], *study_records(exposed=0.03, straggler=0.0, precision="bf16")[3:]]
    assert any("Karp" in sentence for sentence in sentences_of(made))
    for records, kind in (
        (weak, {"scaling": "weak"}),
        (made, {"baseline": {"world_size": 2}}),
        ([one for one in made if one.repeat < 2], {}),
        (superlinear, {}),
        (bf16, {"baseline": {"world_size": 1, "precision": "fp32"}}),
    ):
        sentences = sentences_of(records, **kind)
        assert not any("Karp" in sentence for sentence in sentences), (kind, sentences)


def test_compute_to_communication_is_that_of_gradients_and_measured_against_a_baseline() -> None:
    made = study_records(exposed=0.03, straggler=0.0)
    (ratio,) = [one for one in sentences_of(made) if "R = T_compute" in one]
    assert "; measured: 76.94 [" in ratio
    noisy = made[:3]
    for n, one in enumerate(made[3:], 1):
        assert one.communication is not None
        total = one.communication.model_copy(update={"total": stat(0.02 * n)})
        noisy.append(one.model_copy(update={"communication": total}))
    (ratio,) = [one for one in sentences_of(noisy) if "R = T_compute" in one]
    assert "is 2.1 [1.4, 4.2], which alone would give an efficiency of 68 % without" in ratio
    for baseline in ({"world_size": 2}, {}):
        (ratio,) = [one for one in sentences_of(made[3:], baseline=baseline) if "R = " in one]
        assert ratio.endswith("to hide behind.")
    bf16 = [*made[:3], *study_records(exposed=0.03, straggler=0.0, precision="bf16")[3:]]
    named = {"world_size": 1, "precision": "fp32"}
    (ratio,) = [one for one in sentences_of(bf16, baseline=named) if "R = " in one]
    assert ratio.endswith("to hide behind.")
    activations = study_records(exposed=0.03, straggler=0.0, strategy="tensor_parallel")
    assert not any("R = T_compute" in one for one in sentences_of(activations))


def test_without_a_baseline_no_step_is_called_ideal() -> None:
    sentence = sentences_of(study_records(exposed=0.03, straggler=0.0)[3:], baseline={})[0]
    assert "the largest part besides compute, " in sentence and "ideal" not in sentence
    few = sentences_of(study_records(exposed=0.03, straggler=0.0)[3:5], baseline={})
    assert [one for one in few if "R = T_compute" not in one] == []


def test_without_measured_communication_nothing_is_said_of_it() -> None:
    made = [*repeats(run(1), [0.2, 0.2, 0.2]), *repeats(run(2), [0.11, 0.11, 0.11])]
    sentences = sentences_of(made)
    assert not any("gradient" in one or "T_communication" in one for one in sentences)
    assert "is compute and communication, not told apart" in sentences[0]


def fall(
    cause: str, *, causes: tuple[str, ...] = (), scaling: str = "strong", **fields: Any
) -> Waterfall:
    """A waterfall of two ranks whose largest loss is `cause`; fields of the run or of its place."""
    place = {key: fields.pop(key) for key in list(fields) if key in Environment.model_fields}
    made, none = run(2, **({"global_batch_size": 8} | fields)), Estimate(0.0, 0.0, 0.0)
    return Waterfall(
        row=Row(scaling=scaling, device="cpu", world_size=2),
        run=made,
        environment=environment(2, **place),
        compared=True,
        shared=scaling != "weak",
        alike=False,
        ideal=none,
        losses=dict.fromkeys([cause, *causes], none),
        repeats=3,
        largest=cause,
        supported=True,
    )


TWO_HOSTS = {"hosts": ["node1", "node2"]}
OWN = {name: {"kind": "python", "factory": f"mine:{name}"} for name in ("model", "data")}
GPU = {"device": "cuda"}
SLOW_GPU = {"emulated": Emulated(compute=Compute(emulated="V100", mfu=0.4))}
SLOW_LINK = {"emulated": Emulated(link=Link(bandwidth_gbit=1))}


@pytest.mark.parametrize(
    ("cause", "fields", "given", "withheld"),
    [
        ("transfer", TWO_HOSTS, ["faster link", "bf16 compression", "accumulation"], []),
        (
            "transfer",
            {},
            ["bf16 compression"],
            ["faster link", "stay gathered"],
        ),  # through the memory of one host
        ("transfer", SLOW_LINK, ["faster link"], []),
        ("transfer", SLOW_GPU, [], ["faster link"]),
        ("transfer", GPU, ["faster link"], []),
        ("transfer", {"compression": "bf16"}, ["accumulation"], ["compression"]),
        ("transfer", {"static_graph": True}, ["larger batch"], ["accumulation"]),
        ("transfer", {"strategy": "zero1"}, ["accumulation"], ["compression"]),
        ("transfer", {"strategy": "fsdp"}, ["stay gathered"], ["compression", "accumulation"]),
        ("transfer", {"strategy": "fsdp", "reshard_after_forward": False}, [], ["gathered"]),
        ("transfer", {"strategy": "tensor_parallel"}, ["fewer ranks"], ["gradient", "larger"]),
        ("exchange", {"strategy": "pipeline_parallel"}, ["fewer ranks"], ["gradient"]),
        ("bubble", {"strategy": "pipeline_parallel"}, ["more microbatches"], ["larger"]),
        (
            "bubble",
            {"strategy": "pipeline_parallel", "microbatches": 8},
            ["a larger batch, cut"],
            [],
        ),
        ("straggler", {}, ["equal ranks"], ["core for each"]),
        ("straggler", {"cpus_granted": [[0], [0]]}, ["a core for each thread"], ["equal"]),
        ("straggler", {"cpus_granted": [[0], [0]], **GPU}, ["equal ranks"], ["core for each"]),
        ("data", {}, ["disk"], ["loader"]),
        ("data", {"loader": "classic", "loader_workers": 1}, ["fast loader", "more loader"], []),
        ("data", {"loader": "classic", "loader_workers": 3}, ["fast loader"], ["more loader"]),
        ("data", {"loader": "classic", **OWN}, ["prepared before the run"], ["fast loader"]),
        ("optimizer", {}, ["zero1"], []),
        ("optimizer", {"precision": "fp16"}, ["larger batch"], ["zero1"]),
        ("optimizer", {"strategy": "fsdp"}, ["larger batch"], ["zero1"]),
        ("optimizer", {"strategy": "tensor_parallel"}, ["larger batch"], ["zero1"]),
        ("optimizer", {"strategy": "data_parallel"}, ["larger batch"], ["zero1"]),
        ("launches", {}, ["compile"], []),
        ("launches", {"compile": True}, ["larger batch"], ["compile"]),
        ("host", {}, ["larger batch"], ["compile"]),
        ("h2d", {}, ["smaller samples"], ["pinned"]),
        ("h2d", GPU, ["pinned memory"], []),
        ("compute", {}, ["one rank at micro-batch 4", "lab calibrate --cluster local"], []),
        ("compute", {"scaling": "weak"}, ["lab calibrate"], ["micro-batch"]),
        ("compute", {"causes": ("launches",)}, ["lab calibrate"], ["micro-batch"]),
        ("compute", {"causes": ("batch", "neighbours")}, ["profiler"], ["more work"]),
        ("compute", {"strategy": "tensor_parallel", **GPU}, ["profiler"], ["calibrate"]),
        ("others", {}, ["nothing else runs"], ["profiler"]),
        ("rest", {}, ["profiler (trace: true)"], ["nothing else runs", "calibrate"]),
        ("stolen", {}, ["between exchanges", "spare cores"], []),
        ("stolen", GPU, ["between exchanges"], ["cores"]),
    ],
)
def test_advice_is_what_the_run_and_its_place_permit(
    cause: str, fields: dict[str, Any], given: list[str], withheld: list[str]
) -> None:
    text = advice(fall(cause, **fields))
    assert all(word in text for word in given), text
    assert not any(word in text for word in withheld), text


def test_a_record_without_an_environment_gets_advice_too() -> None:
    for cause in CAUSES:
        assert advice(replace(fall(cause), environment=None)).startswith("first to ")


def test_every_cause_has_a_remedy_and_every_strategy_says_what_it_moves() -> None:
    assert all(advice(fall(cause)).startswith("first to ") for cause in CAUSES)
    names = {name: fall("transfer", strategy=name).name("transfer") for name in PARALLEL}
    assert names["tensor_parallel"] == names["pipeline_parallel"] == "moving activations"
    assert names["ddp"] == "moving gradients"
    assert names["fsdp"] == "moving parameters and gradients"


def test_timeline_and_band_draw_what_was_measured() -> None:
    made = study_records(exposed=0.03, straggler=0.0)
    events = [
        Event(rank=rank, name=name, start=start, end=end, ready=ready, bytes=size)
        for rank in (0, 1)
        for name, start, end, ready, size in (
            ("forward", 0.0, 0.04, None, None),
            ("backward", 0.04, 0.10, None, None),
            ("bucket 0", 0.07, 0.12, 0.069, 4_000_000),
            ("optimizer", 0.12, 0.13, None, None),
        )
    ]
    made = [
        item.model_copy(
            update={"communication": item.communication.model_copy(update={"timeline": events})}
        )
        if item.communication
        else item
        for item in made
    ]
    assert isinstance(made[-1].communication, Communication)
    axes = figures.step_timeline(made)
    assert len(axes.patches) == len(events)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 0 compute",
        "rank 0 link",
        "rank 1 compute",
        "rank 1 link",
    ]
    assert "with 1 bucket on the link" in alt_text("step_timeline", made)
    assert "cycle" not in figures.step_timeline.caption(StudyResults.of(made))
    shown = {"cycle": [0, 0, 0, 4_000_000], "timeline_step": made[-1].run.steps - 4}
    cyclic = [
        item.model_copy(update={"communication": item.communication.model_copy(update=shown)})
        if item.communication
        else item
        for item in made
    ]
    place = f"step {shown['timeline_step']}, number 4 of a cycle of 4 steps, of which 1 sends"
    assert place in alt_text("step_timeline", cyclic)
    assert place in figures.step_timeline.caption(StudyResults.of(cyclic))
    axes = figures.overlap_band(made)
    drawn = [line for line in axes.lines if len(line.get_xdata()) == 1]
    r = (0.131 * (0.30 + 0.55) - 0.03) / 0.04
    assert drawn and drawn[0].get_xdata()[0] == pytest.approx(r, rel=0.1)
