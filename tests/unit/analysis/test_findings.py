from __future__ import annotations

import pytest
from factories import record, repeats, run, study

from lab.analysis.answer import answer
from lab.analysis.findings import findings, holes
from lab.analysis.scaling import summary
from lab.config.emulation import Compute, Emulated
from lab.records.schema import Failure
from lab.records.table import table

SLEEPING = Emulated(compute=Compute(emulated="V100", mfu=0.4))


def findings_of(tmp_path, records, **fields):
    """Answer, findings and holes of a study that asked for the runs of these records."""
    made = study(tmp_path, list({item.run.id: item.run for item in records}.values()), **fields)
    frame = summary(table(records), baseline=made.baseline, scaling=made.scaling)
    return answer(made, frame, records), findings(made, frame, records), holes(made, records)


def pair(base, wide, size=2, **fields):
    return repeats(run(1), base, **fields) + repeats(run(size), wide, **fields)


def test_a_gain_that_the_interval_supports(tmp_path):
    text, more, missing = findings_of(tmp_path, pair([0.20, 0.21, 0.19], [0.11, 0.10, 0.12]))
    assert text.startswith(
        "On 2 CPU processes at batch 64, a step is 1.82 [1.58, 2.10] times as fast as on "
        "1 CPU process (efficiency 91 [79, 105] %), a gain that the interval supports."
    )
    assert missing == []
    assert more[0].startswith("On 2 CPU processes at batch 64, a step is 1.8")


@pytest.mark.parametrize(
    ("wide", "verdict"),
    [
        ([0.10, 0.11, 0.12], "a gain that the interval supports"),
        ([0.30, 0.31, 0.32], "a loss that the interval supports"),
        ([0.17, 0.19, 0.22], "does not distinguish from no change"),
        ([0.10, 0.11], "2 repeats are too few to tell this from chance"),
        ([0.10], "one repeat is too few to tell this from chance"),
    ],
)
def test_the_verdict_follows_the_interval(tmp_path, wide, verdict):
    text, _, _ = findings_of(tmp_path, pair([0.19, 0.20, 0.21], wide))
    assert verdict in text


def test_weak_scaling_compares_throughputs(tmp_path):
    batch = {"global_batch_size": None, "micro_batch_size": 16}
    records = repeats(run(1, **batch), [0.1] * 3) + repeats(run(2, **batch), [0.125] * 3)
    _, more, _ = findings_of(tmp_path, records, scaling="weak")
    assert more[0].startswith(
        "On 2 CPU processes at batch 16 per rank, the throughput is 1.60 [1.60, 1.60] times "
        "that of 1 CPU process (efficiency 80.0 [80.0, 80.0] %)"
    )


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
    assert "because nothing that compares with the baseline (world_size 1) has completed." in text


def test_holes_name_run_repeats_and_cause(tmp_path):
    cause = Failure(type="OutOfMemoryError", message="CUDA out of memory.\nmore", rank=1)
    records = [
        *repeats(run(1), [0.1] * 3),
        record(run(4), 0, status="oom", error=cause),
        record(run(4), 1, status="oom", error=cause),
    ]
    _, _, missing = findings_of(tmp_path, records)
    assert missing == [
        "gpt-nano ddp x4, batch 64, fp32, repeats 0 and 1: "
        "out of memory on rank 1: OutOfMemoryError: CUDA out of memory.",
        "gpt-nano ddp x4, batch 64, fp32, repeat 2: not run yet.",
    ]


def test_holes_say_what_cannot_run_and_why(tmp_path):
    gpus = run(2, 4, strategy="data_parallel")
    made = study(tmp_path, [run(4), gpus, run(2, needs_device="cuda")], repeats=1)
    assert holes(made, [], obstacles={run(4).id: "needs 4 ranks, local has 2"}) == [
        "gpt-nano ddp x4, batch 64, fp32, repeat 0: not run: needs 4 ranks, local has 2.",
        "gpt-nano data_parallel x2, batch 4, fp32, repeat 0: "
        "not run: it needs a cluster with CUDA.",
        "gpt-nano ddp x2 on CUDA, batch 64, fp32, repeat 0: not run: it needs a cluster with CUDA.",
    ]


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


def test_a_better_batch_is_claimed_only_where_intervals_lie_apart(tmp_path):
    apart = repeats(run(1, 64), [0.10, 0.11, 0.12]) + repeats(run(1, 128), [0.13, 0.14, 0.15])
    _, more, _ = findings_of(tmp_path, apart)
    assert any(
        "batch 128 gives the most samples per second, 1.57 times those of batch 64" in sentence
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
        "1 of 2 configurations has fewer than 3 completed repeats: no difference is claimed there."
        in more
    )


def test_shared_cores_only_where_the_record_says_so(tmp_path):
    crowded = repeats(run(4), [0.1] * 3, cpus_granted=[[0, 1]] * 4)
    _, more, _ = findings_of(tmp_path, crowded)
    assert (
        "At world size 4, 4 threads of the ranks had 2 cores between them: "
        "its times do not show what a core per thread would give." in more
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
    assert more[0].startswith("These results come from an emulation, not from a real machine: ")
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
