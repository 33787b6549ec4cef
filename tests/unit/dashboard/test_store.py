"""From the bench to a study that `lab run` takes."""

from __future__ import annotations

from pathlib import Path

import factories
import pytest

from lab.config.study import Study
from lab.dashboard import store
from lab.dashboard.store import Network, controls, networks
from lab.errors import InputError
from lab.launch import netem


def test_a_sent_configuration_is_a_study_with_its_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = factories.run(4, 16, strategy="fsdp", precision="bf16")
    study = store.send(run, name="mine", reports=Path("reports"))
    assert Study.load("mine") == study and study.repeats == 3
    assert [one.world_size for one in study.runs] == [1, 2, 4] and study.runs[-1] == run
    assert store.command(study, "local-1g") == "lab run mine --cluster local-1g"


def test_elsewhere_the_command_names_the_folder(tmp_path: Path) -> None:
    study = store.send(factories.run(1, 8), name="mine", reports=tmp_path)
    assert store.command(study, "local") == f"lab run {tmp_path.resolve() / 'mine'} --cluster local"


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"global_batch_size": 12, "world_size": 6}, [1, 2, 4, 6]),
        ({"global_batch_size": 6, "world_size": 6}, [1, 2, 6]),
        ({"global_batch_size": 8, "world_size": 1, "strategy": "single"}, [1]),
    ],
)
def test_world_sizes_divide_the_batch(changes: dict[str, object], sizes: list[int]) -> None:
    run = factories.run().model_validate(changes)
    assert store.world_sizes(run) == sizes


@pytest.mark.parametrize("name", ["", "../up", "Big", "a b", ".hidden", "x" * 200])
def test_names_that_are_no_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="invalid study name"):
        store.send(factories.run(), name=name, reports=tmp_path / "reports")
    assert not (tmp_path / "reports").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    run = factories.run(2, 8)
    name = store.suggested(run)
    assert name == "gpt-nano-ddp-x2-batch-8-fp32"
    written = (store.send(run, name=name, reports=tmp_path).folder / "study.yaml").read_bytes()
    with pytest.raises(InputError, match="already exists"):
        store.send(factories.run(1, 8), name=name, reports=tmp_path)
    assert (tmp_path / name / "study.yaml").read_bytes() == written


PROFILES = {
    "local": "executor: local\ndevice: cpu\n",
    "local-mine": "executor: local\ndevice: cpu\nlink: {bandwidth_gbit: 2}\n",
    "local-far": "executor: local\ndevice: cpu\nlink: {bandwidth_gbit: 2, latency_ms: 5}\n",
    "site": "executor: slurm\ndevice: cpu\npartition: nowhere\ncores_per_node: 4\n",
    "broken": "executor: nowhere\n",
}


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Network]:
    """The networks of a machine of two cores with slow links, but no late ones, and no Slurm."""
    monkeypatch.setattr("lab.machine.cores", lambda: (0, 1))
    monkeypatch.setattr(netem, "way_for", lambda link: None if link.latency_ms else "pacing")
    monkeypatch.setattr(netem, "ways", lambda link: {"pacing": "paced sockets add no latency"})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm").mkdir()
    for name, text in PROFILES.items():
        (tmp_path / "slurm" / f"{name}.yaml").write_text(text)
    return {network.name: network for network in networks()}


def test_local_and_emulated_networks_can_be_chosen(offered: dict[str, Network]) -> None:
    assert offered["local"] == Network("local", "local: 2 CPU ranks")
    assert offered["local-mine"] == Network("local-mine", "local-mine: emulated link 2 Gbit/s")
    assert "8 CPU" not in offered["local-8ranks"].label and offered["local-8ranks"].obstacle == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("local-far", "5 ms cannot be emulated here: "),
        ("site", "sinfo is not installed here"),
        ("broken", "nowhere"),
        ("replay-a100", "replays a table that others published"),
    ],
)
def test_the_others_say_why_not(offered: dict[str, Network], name: str, reason: str) -> None:
    assert reason in offered[name].obstacle and offered[name].label == f"{name} (not here)"


def test_what_can_be_served_comes_first(offered: dict[str, Network]) -> None:
    order = [bool(network.obstacle) for network in offered.values()]
    assert order == sorted(order) and next(iter(offered)).startswith("local")
    assert controls(list(offered.values()))["cluster"].value == "local"


def test_choices_are_names_that_a_run_takes(offered: dict[str, Network]) -> None:
    by_field = controls(list(offered.values()))
    assert by_field["precision"].options == ("fp32", "tf32", "bf16", "fp16")
    for field in ("model", "data", "strategy", "precision"):
        assert all(isinstance(choice, str) for choice in by_field[field].options)
