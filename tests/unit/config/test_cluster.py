"""Profiles: what they give to a rank, and what can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import machine
from lab.config.cluster import Cluster
from lab.errors import InputError
from lab.files import ROOT


def profile(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_local_profile_gives_each_rank_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: (0, 2, 4, 6))
    monkeypatch.setattr(machine, "gpus", lambda: ())
    cluster = Cluster.load("local")
    assert cluster.device_kind == "cpu" and cluster.capacity == 4
    assert [cluster.cores_of(rank) for rank in range(4)] == [(0,), (2,), (4,), (6,)]
    pairs = cluster.model_copy(update={"cores_per_rank": 2})
    assert pairs.capacity == 2 and pairs.cores_of(1) == (4, 6) and pairs.threads_per_rank == 2
    crowded = cluster.model_copy(update={"cores_per_job": 2})
    assert crowded.capacity == 4 and crowded.threads_per_rank == 1
    assert {crowded.cores_of(rank) for rank in range(4)} == {(0, 2)}


def test_gpus_are_the_devices_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: tuple(range(16)))
    monkeypatch.setattr(
        machine,
        "gpus",
        lambda: tuple(machine.Gpu("NVIDIA H200", "570", 141 * 2**30) for _ in range(4)),
    )
    cluster = Cluster.load("local")
    assert cluster.device_kind == "cuda" and cluster.capacity == 4
    assert cluster.cores_of(1) == (4, 5, 6, 7) and cluster.memory_bytes_per_rank == 141 * 2**30


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_a_rank_has_as_many_cores_at_every_world_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world_size: int
) -> None:
    program = tmp_path / "nvidia-smi"
    rows = "\n".join(f"GPU-{number}, NVIDIA H100, 570.1, 81559 MiB" for number in range(8))
    program.write_text(f"#!/bin/sh\ncat <<END\n{rows}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(machine, "cores", lambda: tuple(range(64)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine.gpus.cache_clear()
    sent = Cluster.load("local").settled.model_dump_json()
    # The job sees the GPUs of its ranks alone.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(world_size))))
    machine.gpus.cache_clear()
    cluster = Cluster.model_validate_json(sent)
    assert len(machine.gpus()) == world_size
    machine.gpus.cache_clear()
    assert [len(cluster.cores_of(rank)) for rank in range(world_size)] == [8] * world_size
    assert cluster.threads_per_rank == 8 and cluster.device_kind == "cuda"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exceutor: local\n", "exceutor: unknown key; did you mean 'executor'?"),
        ("executor: locall\n", "executor: unknown value 'locall'"),
        (
            "executor: local\nenvironment: {LD_PRELOAD: a.so}\n",
            "environment.LD_PRELOAD: it is read before a rank can set it; set it for `lab run`",
        ),
        (
            "environment: {LAB_CAHCE: /data}\n",
            "environment.LAB_CAHCE: the lab reads no such variable; did you mean LAB_CACHE?",
        ),
        ("device: gpu\n", "device: unknown value 'gpu'"),
        ("devices: 100000\n", "devices: 100000, but there are"),
        ("devices: many\n", "devices"),
        ("cores_per_rank: 0\n", "cores_per_rank: input should be greater than or equal to 1"),
        ("cores_per_job: 1024\n", "cores_per_job: 1024, but there are"),
        ("executor: slurm\ncores_per_job: 1\n", "cores_per_job: is only for executor: local"),
        ("hang_timeout_s: 1\n", "hang_timeout_s"),
        ("environment: {A: 1}\n", "environment.A: input should be a valid string"),
    ],
)
def test_bad_profile_says_what_where_and_what_to_do(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        Cluster.load(profile(tmp_path, text))
    assert message in str(caught.value)


def test_nothing_is_measured_twice_where_the_machine_is_said_to_be_never_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text("executor: local\nrepeat_disturbed: true\n")
    monkeypatch.delenv("LAB_REPEAT_DISTURBED", raising=False)
    assert Cluster.load(path).repeat_disturbed
    monkeypatch.setenv("LAB_REPEAT_DISTURBED", "0")
    assert not Cluster.load(path).repeat_disturbed


def test_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'local'"):
        Cluster.load("locla")


def test_cores_are_within_what_this_process_may_use() -> None:
    assert 1 <= len(machine.cores()) <= len(machine.allowed_cpus())
    assert set(machine.cores()) <= set(machine.allowed_cpus())


def test_cpu_quota_limits_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "allowed_cpus", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(machine, "_siblings", lambda cpu: frozenset({cpu}))
    monkeypatch.setattr(machine, "_cpu_quota", lambda: 2.5)
    assert machine.cores() == (0, 1)
    monkeypatch.setattr(machine, "_siblings", lambda cpu: frozenset({cpu % 2, cpu % 2 + 2}))
    monkeypatch.setattr(machine, "_cpu_quota", lambda: None)
    assert machine.cores() == (0, 1)


def test_variables_of_a_script_may_resemble_those_of_the_lab(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("device: cpu\nenvironment: {LAB_DATA: /data, LAB_PATH: /lab}\n")
    assert Cluster.load(path).environment["LAB_DATA"] == "/data"


SLURM = {"executor": "slurm", "gpus_per_node": 4, "nodes": 2}


def slurm(**keys: object) -> Cluster:
    return Cluster.model_validate({"name": "site", **SLURM, **keys})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitions: gpu\n", "partitions: unknown key; did you mean 'partition'?"),
        ("gres: 'gpu:4'\n", "gres: unknown key; use gpus_per_node, gpu_type and gpu_flag: gres"),
        ("exclusive: true\n", "exclusive: unknown key; options of sbatch belong in extra"),
        ("time: 30\n", "time: unknown key; use time_limit_min"),
        ("cpus-per-task: 8\n", "cpus-per-task: unknown key; use cpus_per_gpu or cores_per_rank"),
        ("gpus_per_task: 1\n", "unknown key; use gpus_per_node, gpu_type and gpu_flag"),
        ("partition: gpu debug\n", "partition: 'gpu debug' is not a plain word"),
        ("account: --wrap=x\n", "account: '--wrap=x' is not a plain word"),
        ("nodes: 0\n", "nodes: input should be greater than or equal to 1"),
        ("nodes: two\n", "nodes: input should be a valid integer"),
        ("gpu_flag: gpu\n", "gpu_flag: unknown value 'gpu'"),
        ("devices: 2\n", "devices: is only for executor: local"),
        ("cores_per_node: 8\n", "cores_per_node: given together with gpus_per_node"),
        ("mem_gb: 0\n", "mem_gb: input should be greater than 0"),
        ("modules: [cuda 12]\n", "modules[0]: 'cuda 12' is not a plain word"),
        ("setup: ['echo \"x']\n", "is not a command: no closing quotation"),
        ("container: ''\n", "container: '' is not a command"),
        (
            "environment: {A-B: x}\n",
            "environment.A-B: 'A-B' is not a valid name of an environment variable",
        ),
        ("network_interface: ib0 ib1\n", "network_interface: 'ib0 ib1' is not a plain word"),
        ("extra: {mem: 10G}\n", "extra.mem: the lab sets this option; use mem_gb"),
        ("extra: {ntasks_per_node: 1}\n", "extra.ntasks_per_node: the lab sets this option"),
        ("extra: {outp: x}\n", "extra.outp: sbatch would take it for --output"),
        ("extra: {Nice One: 1}\n", "extra.Nice One: sbatch has no option of this name"),
        ('extra: {comment: "a\\nb"}\n', "extra.comment: 'a\\nb' is not one line"),
        ("extra: {mail-type: [FAIL]}\n", "extra.mail-type: input should be"),
        ("extra: {requeue: true}\n", "extra.requeue: the lab sets this option; leave it out"),
        ("extra: {mem: false}\n", "extra.mem: the lab sets this option; use mem_gb"),
        ("extra: {array: 0-3}\n", "the lab sets this option; use array_limit or submit_limit"),
        ("extra: {export: NONE}\n", "ranks need the environment that they inherit; set variables"),
        ("extra: {clusters: tiny}\n", "must ask the same cluster; set SLURM_CLUSTERS"),
        ("extra: {gres: 'gpu:4'}\n", "extra.gres: the lab asks for the GPUs; use gpus_per_node"),
        ("extra: {gres: 'nvme:1,gpu:a100:4'}\n", "extra.gres: the lab asks for the GPUs"),
        ("extra: {gre: nvme}\n", "extra.gre: sbatch would take it for --gres"),
        ("gpu_flag: none\ngpu_type: a100\n", "gpu_type: gpu_flag: none asks for no GPUs"),
        ("srun: {cpus_per_task: 8}\n", "srun.cpus_per_task: the lab sets this option; use cpus"),
        ("srun: {ntasks-per-node: false}\n", "srun.ntasks-per-node: the lab sets this option"),
        ("srun: {output: log}\n", "srun.output: the lab sets this option; leave it out"),
        ("srun: {pty: true}\n", "srun.pty: this option changes what srun does or prints"),
        ("srun: {kill-on-bad: 1}\n", "srun.kill-on-bad: srun would take it for --kill-on-bad-exit"),
        ("srun: {cpu-bind: $MASKS}\n", "srun.cpu-bind: '$MASKS': variables are expanded only in"),
        ("submit_limit: 0\n", "submit_limit: input should be greater than or equal to 1"),
        ("array_limit: 0\n", "array_limit: input should be greater than or equal to 1"),
        ("setup: module load x\n", "setup: input should be a valid list, found 'module load x'"),
        ("environment: 3\n", "environment: input should be a valid mapping, found 3"),
        ("backend: mpi\n", "backend: unknown value 'mpi'"),
        ("device: cpu\nbackend: nccl\n", "backend: 'nccl', but ranks compute on CPUs"),
        ("checkpoint_every_min: 0\n", "checkpoint_every_min: input should be greater than 0"),
    ],
)
def test_bad_slurm_profile_says_what_where_and_what_to_do(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        Cluster.load(
            profile(
                tmp_path,
                "executor: slurm\ngpus_per_node: 4\n" * ("nodes" not in text)
                + text
                + "time_limit_min: 5\n",
            )
        )
    assert message in str(caught.value)


def test_keys_of_slurm_are_refused_elsewhere_and_nodes_must_have_ranks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="partition: is only for executor: slurm"):
        Cluster.load(profile(tmp_path, "partition: gpu\n"))
    with pytest.raises(InputError, match="gpus_per_node: missing"):
        Cluster.load(profile(tmp_path, "executor: slurm\n"))
    with pytest.raises(InputError, match="cpus_per_gpu: there are no GPUs"):
        Cluster.load(profile(tmp_path, "executor: slurm\ncores_per_node: 8\ncpus_per_gpu: 2\n"))


def test_ranks_fill_a_node_before_the_next() -> None:
    assert [slurm().layout(ranks) for ranks in (1, 3, 4, 8)] == [(1, 1), (1, 3), (1, 4), (2, 4)]
    assert slurm(gpus_per_node=1).layout(2) == (2, 1)
    with pytest.raises(InputError, match=r"6 ranks do not fill nodes of 4.*4 or 8"):
        slurm().layout(6)
    with pytest.raises(InputError, match=r"9 ranks do not fit on 2 nodes of 4.*use at most 8"):
        slurm().layout(9)


@given(slots=st.integers(1, 16), nodes=st.integers(1, 16), ranks=st.integers(1, 300))
def test_layout_holds_every_rank_or_is_refused(slots: int, nodes: int, ranks: int) -> None:
    cluster = slurm(gpus_per_node=slots, nodes=nodes)
    try:
        laid = cluster.layout(ranks)
    except InputError:
        assert ranks > cluster.capacity or ranks % slots
        return
    assert (
        laid.nodes * laid.ranks_per_node == ranks
        and laid.nodes <= nodes
        and laid.ranks_per_node <= slots
    )


def test_cpu_nodes_hold_as_many_ranks_as_their_cores_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ())
    monkeypatch.setattr(machine, "cores", lambda: tuple(range(8)))
    cluster = slurm(gpus_per_node=0, cores_per_node=32, cores_per_rank=8, mem_gb=64.0)
    assert cluster.device_kind == "cpu" and cluster.capacity == 8
    assert cluster.cpus_per_rank == cluster.threads_per_rank == 8
    assert cluster.memory_mb(1) == 16 * 1024 and cluster.memory_bytes_per_rank == 16 * 2**30
    assert cluster.cores_of(3) == tuple(range(8))  # what Slurm gave is taken as it is
    assert slurm().device_kind == "cuda" and slurm().memory_bytes_per_rank is None


def test_network_interface_stands_for_variables_and_yields_to_given_ones() -> None:
    variables = slurm(network_interface="ib0", environment={"NCCL_SOCKET_IFNAME": "eth1"}).variables
    assert variables == {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "eth1"}


def test_several_network_interfaces_are_told_apart() -> None:
    several = slurm(network_interface="hsn0,hsn1")
    assert several.interfaces == ["hsn0", "hsn1"] and slurm().interfaces == []
    assert set(several.variables.values()) == {"hsn0,hsn1"}


def test_a_job_has_its_nodes_to_itself_where_it_says_so_or_asks_for_no_gpus() -> None:
    assert slurm(extra={"exclusive": True}).whole_nodes and slurm(gpu_flag="none").whole_nodes
    assert not slurm(extra={"exclusive": "user"}).whole_nodes and not slurm().whole_nodes
    assert not slurm(gpus_per_node=0, cores_per_node=8, gpu_flag="none").whole_nodes


@pytest.mark.parametrize(
    "name",
    ["slurm", "example-gres", "example-gpus-per-node", "example-whole-nodes", "example-cpu"],
)
def test_example_profiles_load(name: str) -> None:
    cluster = Cluster.load(name)
    assert cluster.executor == "slurm" and cluster.layout(cluster.capacity).nodes == cluster.nodes
    assert Cluster.model_validate_json(cluster.model_dump_json()) == cluster


def test_the_profile_for_a_class_loads() -> None:
    cluster = Cluster.load(ROOT / "slurm" / "site" / "class.yaml")
    assert cluster.budget is not None and cluster.budget.per == "folder"
    assert "LAB_CACHE" in cluster.environment and cluster.python is not None
