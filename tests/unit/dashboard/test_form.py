"""The networks that the bench offers: those of this machine first, the others with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.dashboard.form import Network, controls, networks
from lab.launch import netem

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
