"""What is emulated is told wherever it shows, and never taken for what was measured."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
import pytest
from factories import environment, record, repeats, run, study

import lab
from lab import figures
from lab.analysis import comparison
from lab.analysis.answer import answer
from lab.analysis.findings import findings
from lab.analysis.noise import judge
from lab.analysis.scaling import summary
from lab.analysis.scaling_curves import curves
from lab.analysis.tables import classical_tables
from lab.config.cluster import Cluster
from lab.config.emulation import Compute, Emulated, Link, Way
from lab.config.study import Study
from lab.errors import InputError
from lab.figures import StudyResults, alt_text
from lab.launch import netem, preflight
from lab.launch.doctor import doctor
from lab.records.store import Record, write_record
from lab.report import sections
from lab.report.study_sections import environment_rows

SLOW = Emulated(link=Link(bandwidth_gbit=0.1), way="namespaces")
LABEL = "emulated link 100 Mbit/s"


def records(*, emulated: Emulated | None, two: float = 0.15) -> list[Record]:
    """Three repeats of one and two ranks; a step of two takes `two` s, 0.1 s of it exposed."""
    cluster = "local-100m" if emulated else "local"
    noise = (-0.001, 0.0, 0.001)
    return [
        *repeats(run(1), [0.1 + late for late in noise], emulated=emulated, cluster=cluster),
        *(
            record(
                run(2),
                repeat,
                step_time=two + late,
                phases={"backward": 0.12},
                communication=(0.11, 0.1),
                emulated=emulated,
                cluster=cluster,
            )
            for repeat, late in enumerate(noise)
        ),
    ]


def stored(folder: Path, measured: list[Record]) -> Study:
    made = study(folder, [run(1), run(2)])
    for one in measured:
        write_record(one, made.out / "runs" / one.run_id / str(one.repeat))
    return made


@pytest.mark.parametrize(
    ("emulated", "label"),
    [
        (Emulated(link=Link(bandwidth_gbit=10)), "link 10 Gbit/s"),
        (Emulated(link=Link(bandwidth_gbit=0.1, latency_ms=2.5)), "link 100 Mbit/s, 2.5 ms"),
        (Emulated(compute=Compute(emulated="measured")), "compute (times of one rank)"),
        (
            Emulated(link=Link(bandwidth_gbit=1), compute=Compute(emulated="A100", mfu=0.4)),
            "link 1 Gbit/s and compute (A100 at 40 % of its peak)",
        ),
    ],
)
def test_labels(emulated: Emulated, label: str) -> None:
    assert emulated.label == label


def test_the_way_is_told_and_belongs_not_to_the_label() -> None:
    ways: tuple[Way, ...] = ("namespaces", "switch", "pacing")
    emulations = [SLOW.model_copy(update={"way": way}) for way in ways]
    assert (
        len({emulation.description for emulation in emulations}) == 3
        and len({emulation.label for emulation in emulations}) == 1
    )


def test_the_table_says_it_and_holds_nothing_where_all_was_real() -> None:
    assert set(lab.table(records(emulated=SLOW))["emulated"]) == {"link 100 Mbit/s"}
    assert lab.table(records(emulated=None))["emulated"].isna().all()


def test_measured_and_emulated_points_are_never_on_one_curve() -> None:
    points = summary(
        lab.table(records(emulated=None, two=0.06) + records(emulated=SLOW)),
        baseline={"world_size": 1},
        scaling="strong",
    )
    lines = curves(points)
    assert [line.label for line in lines] == ["batch 64", f"batch 64, {LABEL}"]
    assert [line.points["speedup"].round(2).tolist() for line in lines] == [
        [1.0, 1.67],
        [1.0, 0.67],
    ]
    assert points["repeats"].tolist() == [3, 3, 3, 3]


def test_figures_and_tables_carry_the_label() -> None:
    emulated = records(emulated=SLOW)
    results = StudyResults(emulated)
    for name, draw in figures.FIGURES.items():
        panels = draw(results).get_figure().axes  # of several the first one has the title
        assert LABEL in {panel.get_title(loc="left") for panel in panels}, name
        assert LABEL in alt_text(name, results)
    both = figures.speedup(records(emulated=None) + emulated)
    assert not both.get_title(loc="left") and any(
        LABEL in " ".join(text.get_text().split()) for text in both.texts
    )
    for _, frame in classical_tables(
        summary(lab.table(emulated), baseline={"world_size": 1}, scaling="strong")
    ):
        assert LABEL in frame.to_string()


def test_the_report_says_it_in_its_sentences_and_tables(tmp_path: Path) -> None:
    results = StudyResults(stored(tmp_path, records(emulated=SLOW)))
    assert LABEL in sections.answer(results).markdown
    assert (
        "results come from an emulation, not from a real machine: link 100 Mbit/s, by a network namespace"
        in sections.findings(results).markdown
    )
    assert set(sections.every_repeat(results).frame["emulated"]) == {"link 100 Mbit/s"}
    assert "emulated: link 100 Mbit/s" in sections.learning(results).caption
    assert "Emulated link 100 Mbit/s: a step takes" in sections.outcome(results).markdown
    assert "--cluster local-100m" in sections.reproduce(results).markdown
    assert dict(environment_rows(records(emulated=SLOW)[0]))["emulated"] == SLOW.description


def test_findings_name_communication_as_the_cause() -> None:
    emulated = records(emulated=SLOW)
    frame = summary(lab.table(emulated), baseline={"world_size": 1}, scaling="strong")
    made = study(Path(), [run(1), run(2)])
    sentences = findings(made, frame, emulated, judge(emulated, frame))
    assert any("a loss beyond the spread of the repeats" in sentence for sentence in sentences)
    (named,) = [sentence for sentence in sentences if "the largest loss" in sentence]
    assert "is transfer and waiting for other ranks; first to change: a faster link," in named


def test_an_answer_from_both_is_that_of_the_measured() -> None:
    mixed = records(emulated=None, two=0.06) + records(emulated=SLOW, two=0.01)
    both = summary(lab.table(mixed), baseline={"world_size": 1}, scaling="strong")
    assert "emulated" not in answer(study(Path(), [run(1), run(2)]), both, mixed)


def test_machines_are_named_by_what_was_emulated(tmp_path: Path) -> None:
    made = [
        stored(tmp_path / name, records(emulated=emulation))
        for name, emulation in (("slow", SLOW), ("real", None))
    ]
    compared = comparison.compare(made)
    assert list(compared.studies) == [LABEL, "Model CPU"]
    assert [line.label for line in curves(compared.summary)] == [
        "batch 64, Model CPU",
        f"batch 64, {LABEL}",
    ]
    elsewhere = [
        item.model_copy(update={"environment": environment(1, cpu="Other CPU")})
        for item in records(emulated=None)
    ]
    stored(tmp_path / "real", elsewhere)
    assert list(comparison.compare(made).studies) == [f"Model CPU, {LABEL}", "Other CPU"]


def test_records_of_another_link_do_not_stand_for_this_one(tmp_path: Path) -> None:
    made = stored(tmp_path, records(emulated=SLOW))
    slow = Cluster(name="local-100m", device="cpu", link=Link(bandwidth_gbit=0.1))
    preflight.check_emulation(made, slow)
    for other in (
        Cluster(name="local", device="cpu"),
        slow.model_copy(update={"link": Link(bandwidth_gbit=1.0)}),
    ):
        with pytest.raises(
            InputError, match=r"measured on local-100m \(emulated: link 100 Mbit/s\)"
        ) as caught:
            lab.launch(made, other)
        assert "lab compare" in str(caught.value)


def test_only_ranks_with_the_whole_model_can_sleep(tmp_path: Path) -> None:
    asleep = Cluster(
        name="local-8ranks", device="cpu", devices=8, compute=Compute(emulated="measured")
    )
    made = study(tmp_path, [run(2), run(2, strategy="fsdp")])
    with pytest.raises(
        InputError,
        match=r"fsdp x2.*its compute cannot be emulated.*train with one of single, naive_ddp, ddp",
    ) as caught:
        preflight.check(made, asleep, made.tasks, fresh=False)
    assert len(caught.value.problems) == 1


def test_sleeping_ranks_do_not_share_cores() -> None:
    crowded = {"cpus_granted": [[0], [0]], "threads_per_rank": 1}
    asleep = Emulated(compute=Compute(emulated="measured"))
    both = []
    for crowd in ([record(run(2), **crowded)], [record(run(2), emulated=asleep, **crowded)]):
        frame = summary(lab.table(crowd), baseline={"world_size": 2}, scaling="strong")
        both.append(findings(study(Path(), [run(2)]), frame, crowd, judge(crowd, frame)))
    assert [any("between them" in sentence for sentence in sentences) for sentences in both] == [
        True,
        False,
    ]


def test_a_table_that_mixes_both_is_found_by_the_audit() -> None:
    frame = lab.table(records(emulated=None) + records(emulated=SLOW))[
        ["world_size", "global_batch_size", "step_time", "emulated"]
    ]
    text = pd.read_csv(
        pd.io.common.StringIO(frame.to_csv(index=False)), dtype=str, keep_default_na=False
    )
    emulated = [finding for finding in lab.audit(text).findings if finding.rule == "emulated"]
    assert [finding.severity for finding in emulated] == ["error"]
    assert "Emulated results (6 of 12: 'link 100 Mbit/s')" in emulated[0].evidence


def test_a_network_of_two_ranks_in_commands() -> None:
    slow = netem.script(Link(bandwidth_gbit=0.1), 2, "namespaces").splitlines()
    assert (
        "tc -n rank1 qdisc add dev eth0 root tbf rate 100000000bit burst 16384 latency 50ms" in slow
    )
    assert "ip -n rank0 address add 10.77.0.1/16 dev eth0" in slow
    assert sum("master hub" in line for line in slow) == 2 and not any(
        "netem" in line for line in slow
    )
    late = netem.script(Link(bandwidth_gbit=10, latency_ms=2), 2, "namespaces").splitlines()
    assert "tc qdisc add dev port0 root netem delay 2000us limit 100000" in late
    assert any("burst 262144" in line for line in late)
    assert "hub" not in netem.script(Link(bandwidth_gbit=1, latency_ms=2), 2, "switch")


def test_a_switch_is_started_from_an_environment_whose_path_has_spaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(netem.sys, "executable", "/my envs/bin/python")
    command = netem._holder(Link(bandwidth_gbit=1, latency_ms=2), 3, "switch")
    execute, python, *_, ports, seconds = shlex.split(command)
    assert (execute, python, ports, seconds) == ("exec", "/my envs/bin/python", "3", "0.002")


def test_addresses_of_many_ranks_differ_and_are_hosts() -> None:
    addresses = [netem.address(rank) for rank in range(600)]
    assert (
        len(set(addresses)) == 600 and addresses[0] == "10.77.0.1" and addresses[255] == "10.77.1.0"
    )


@pytest.fixture
def nothing_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        netem, "_spaces_obstacle", lambda: "namespaces are not permitted (unshare: not allowed)"
    )
    monkeypatch.setattr(netem, "_pacing_obstacle", lambda: "")


@pytest.mark.usefixtures("nothing_permitted")
def test_the_next_way_is_taken_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain, late = Link(bandwidth_gbit=1), Link(bandwidth_gbit=1, latency_ms=5)
    assert netem.way_for(plain) == "pacing" and netem.way_for(late) is None
    (tmp_path / "late.yaml").write_text(
        "executor: local\ndevice: cpu\nlink: {bandwidth_gbit: 1, latency_ms: 5}\n"
    )
    with pytest.raises(
        InputError,
        match=r"not permitted.*paced sockets add no latency"
        r".*leave out latency_ms: 1 Gbit/s without it works",
    ):
        preflight.usable(tmp_path / "late.yaml")
    checks = {check.name: check for check in doctor()}
    assert checks["emulated links"].present and "pacing" in checks["emulated links"].found
    assert not checks["emulated latency"].present and not checks["emulated latency"].needed
    monkeypatch.setattr(netem, "_pacing_obstacle", lambda: "the kernel does not pace sockets")
    assert (
        "published tables" in netem.advice(plain)
        and netem.obstacle(plain).count("not permitted") == 1
    )


@pytest.mark.usefixtures("nothing_permitted")
@pytest.mark.parametrize("name", sorted(path.stem for path in Path("slurm").glob("local-*.yaml")))
def test_the_profiles_that_come_with_the_lab_are_valid(name: str) -> None:
    cluster = Cluster.load(name) if "ms" not in name else None
    assert cluster is None or (
        cluster.emulates and "emulated" in cluster.description and cluster.device_kind == "cpu"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "link: {bandwith_gbit: 1}",
            "link.bandwith_gbit: unknown key; did you mean 'bandwidth_gbit'?",
        ),
        ("link: {bandwidth_gbit: 0}", "link.bandwidth_gbit: input should be greater than 0"),
        (
            "link: {bandwidth_gbit: 1, latency_ms: -1}",
            "link.latency_ms: input should be greater than or equal to 0",
        ),
        (
            "compute: {emulated: A1000}",
            "compute.emulated: unknown value 'A1000'; did you mean 'A100'?",
        ),
        (
            "compute: {emulated: A100, mfu: 2}",
            "compute.mfu: input should be less than or equal to 1",
        ),
        ("device: cuda\nlink: {bandwidth_gbit: 1}", "set device: cpu"),
        (
            "executor: slurm\ncores_per_node: 2\nlink: {bandwidth_gbit: 1}",
            "link: is only for executor: local",
        ),
        ("devices: 17\ncompute: {emulated: measured}", "devices: 17, but there are 16 here"),
    ],
)
def test_every_key_is_checked(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(text + "\n")
    with pytest.raises(InputError) as caught:
        Cluster.load(tmp_path / "mine.yaml")
    assert message in str(caught.value)


def test_more_ranks_than_cores_only_where_they_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.machine, "cores", lambda: (0, 1))
    (tmp_path / "mine.yaml").write_text("device: cpu\ndevices: 8\ncompute: {emulated: measured}\n")
    assert Cluster.load(tmp_path / "mine.yaml").capacity == 8
    (tmp_path / "mine.yaml").write_text("device: cpu\ndevices: 8\n")
    with pytest.raises(InputError, match="devices: 8, but there are 2 here"):
        Cluster.load(tmp_path / "mine.yaml")


def test_a_study_of_a_slow_and_of_a_fast_link_have_equal_runs() -> None:
    slow, fast = Study.load("slow-network"), Study.load("fast-network")
    assert [task.run.id for task in slow.tasks] == [task.run.id for task in fast.tasks]
