"""What no machine could do, or no job could say of itself, is refused before a job starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from factories import record
from studies import SMALL_STUDY, StudyMaker

import lab
from lab import machine
from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.config.study import Study
from lab.errors import InputError
from lab.launch import launcher, preflight
from lab.launch.plan import obstacle
from lab.perfmodel.calibration import calibration_path
from lab.perfmodel.flops import model_cost
from lab.records.schema import Memory
from lab.records.store import Store, write_record

BASE: Mapping[str, Any] = SMALL_STUDY["base"]  # type: ignore[assignment]
GPT3 = {"kind": "gpt", "layers": 96, "heads": 96, "width": 12288, "block_size": 2048}
LONG_TEXT = {"kind": "gpt", "layers": 1, "heads": 1, "width": 16, "block_size": 1_000_000}
MANY_SAMPLES = {"kind": "synthetic", "samples": 100_000_000}
TOO_LARGE = {
    "model": ({"model": GPT3}, [4], "weights, gradients and optimizer state take 2,7"),
    "batch": ({"model": LONG_TEXT}, [1_000_000_000], "one micro-batch on each rank take"),
    "samples": ({"model": LONG_TEXT, "data": MANY_SAMPLES}, [4], "synthetic samples take 200,000"),
}


@pytest.mark.parametrize(("changes", "sizes", "what"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_what_no_memory_here_can_hold_starts_no_job(
    make_study: StudyMaker, changes: dict[str, Any], sizes: list[int], what: str
) -> None:
    grid = {"global_batch_size": sizes, "world_size": [1]}
    study = Study.load(make_study(base={**BASE, **changes}, grid=grid))
    with pytest.raises(lab.InputError, match=what):
        lab.launch(study)
    assert not study.out.exists()


def test_of_the_state_that_ranks_share_each_needs_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Known answers: 4, 4 and 8 bytes per parameter of weights, gradients and AdamW's moments."""
    model = {"kind": "gpt", "layers": 12, "heads": 8, "width": 512, "block_size": 16}
    settings = {"model": model, "world_size": 2, "global_batch_size": 2}
    shares = {"ddp": 16, "naive_ddp": 16, "zero1": 12, "fsdp": 8}
    split = ("tensor_parallel", "pipeline_parallel")
    runs = {s: Run.model_validate(settings | {"strategy": s}) for s in (*shares, *split)}
    parameters = model_cost(runs["ddp"]).parameters
    known = {name: share * parameters for name, share in shares.items()}
    # A block has 12 w^2 weights in products, 13 w others; all else is whole on a rank of tensor
    # parallelism, and on a pipeline's first stage.
    known["tensor_parallel"] = 16 * (parameters - 12 * 12 * 512**2 // 2)
    known["pipeline_parallel"] = 16 * (parameters - 6 * (12 * 512**2 + 13 * 512))
    assert {name: preflight.state_bytes(run) for name, run in runs.items()} == known
    halves = {"strategy": "fsdp", "world_size": 4, "global_batch_size": 4, "shard_size": 2}
    assert preflight.state_bytes(Run.model_validate(settings | halves)) == 8 * parameters
    own = Run.model_validate(settings | {"strategy": "mine:Sharding"})
    assert preflight.state_bytes(own) is None, "what it shards, its code alone knows"
    monkeypatch.setattr(preflight, "_memory_bytes", lambda run, cluster: 25 * parameters)
    cluster = Cluster(name="here", device="cpu")
    refused = {name for name, run in runs.items() if preflight._too_large(run, cluster)}
    assert refused == {"ddp", "naive_ddp"}
    shares_fit = {"zero1", "fsdp", *split}
    monkeypatch.setattr(Cluster, "memory_bytes_per_rank", 12 * parameters)
    assert {name for name, run in runs.items() if not obstacle(run, cluster, None)} == shares_fit


def test_the_state_of_a_new_strategy_follows_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(STRATEGIES["naive_ddp"], sharded=frozenset({"optimizer"}))
    monkeypatch.setitem(STRATEGIES, "zero9", facts)
    run = Run.model_validate({"strategy": "zero9", "world_size": 8, "global_batch_size": 8})
    assert preflight.state_bytes(run) == (8 + 8 / 8) * model_cost(run).parameters


def test_the_stages_of_a_pipeline_are_not_all_as_large_as_the_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = {"kind": "gpt", "layers": 8, "heads": 2, "width": 64, "block_size": 16}
    settings = {"model": model | {"vocab_size": 60000}, "world_size": 8, "global_batch_size": 8}
    pipeline = Run.model_validate(settings | {"strategy": "pipeline_parallel"})
    state, cluster = 16 * model_cost(pipeline).parameters, Cluster(name="here", device="cpu")
    monkeypatch.setattr(preflight, "_memory_bytes", lambda run, cluster: 2 * state)
    assert (preflight.state_bytes(pipeline) or 0) * 8 > 2 * state
    assert not preflight._too_large(pipeline, cluster)
    monkeypatch.setattr(preflight, "_memory_bytes", lambda run, cluster: state // 2)
    assert preflight._too_large(pipeline, cluster)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a time limit without end": ({"time_limit_min": 10**30}, "time_limit_min"),
    "a patience without end": ({"hang_timeout_s": 10**30}, "hang_timeout_s"),
    "no checkpoint ever": ({"checkpoint_every_min": 1e300}, "checkpoint_every_min"),
    "a NUL in a variable": ({"environment": {"NAME": "a\0b"}}, "environment.NAME"),
    "a NUL in a command": ({"executor": "slurm", "setup": ["true\0"]}, "setup[0]"),
}


@pytest.mark.parametrize(("keys", "where"), REFUSED.values(), ids=REFUSED.keys())
def test_a_profile_that_no_job_could_obey_is_refused(
    tmp_path: Path, keys: dict[str, Any], where: str
) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(keys))
    with pytest.raises(lab.InputError) as refused:
        Cluster.load(path)
    assert [problem.where for problem in refused.value.problems] == [where]


@pytest.mark.parametrize("option", ["parsable", "test-only", "test_only", "wait", "version"])
def test_options_that_change_what_sbatch_does_are_refused(tmp_path: Path, option: str) -> None:
    path = tmp_path / "site.yaml"
    keys = {"executor": "slurm", "device": "cpu", "cores_per_node": 2, "extra": {option: True}}
    path.write_text(yaml.safe_dump(keys))
    with pytest.raises(lab.InputError, match=f"extra.{option}: this option changes what sbatch"):
        Cluster.load(path)


def test_an_interface_that_is_not_there_is_refused_with_the_nearest(make_study: StudyMaker) -> None:
    cluster = Cluster(name="here", device="cpu", network_interface="loo")
    with pytest.raises(lab.InputError, match="network_interface: no 'loo' here; did you mean 'lo'"):
        lab.launch(Study.load(make_study()), cluster)


def test_a_folder_that_is_taken_for_a_pattern_is_refused(make_study: StudyMaker) -> None:
    study = Study.load(make_study("50%j"))
    cluster = Cluster(name="site", executor="slurm", device="cpu", cores_per_node=2)
    with pytest.raises(lab.InputError, match="with '%' in its name; rename it"):
        lab.launch(study, cluster)
    with pytest.raises(lab.InputError, match="with '%j' in its name; rename it"):
        lab.launch(study)
    assert not study.out.exists()


def test_a_record_that_could_not_be_read_back_is_no_record(tmp_path: Path) -> None:
    broken = record(Run(global_batch_size=4)).model_copy(
        update={"memory": Memory.model_construct(kind="resident", peak=["much"], parameters=1)}
    )
    with pytest.raises(lab.LabError, match=r"memory\.peak\.0 cannot be read back"):
        write_record(broken, tmp_path)
    assert not list(tmp_path.iterdir())


def test_two_profiles_of_one_name_are_told_apart_by_their_files(
    make_study: StudyMaker, tmp_path: Path
) -> None:
    paths = [tmp_path / folder / "site.yaml" for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_text("executor: local\ndevice: cpu\n")
    here, other = map(Cluster.load, paths)
    assert here.name == other.name == "site" and here.file == str(paths[0])
    study = Study.load(make_study())
    folder = Store(study.out).folder(study.tasks[0])
    write_record(record(study.runs[0], cluster="site", cluster_file=here.file), folder)
    missing = study.tasks[1:]
    preflight.check(study, here, missing, fresh=False)
    preflight.check(study, other, missing, fresh=True)
    with pytest.raises(lab.InputError) as refused:
        preflight.check(study, other, missing, fresh=False)
    (problem,) = refused.value.problems
    assert problem.what == f"records here were measured on {here.file}"
    assert problem.advice.endswith(f"--fresh to measure again on {other.file}")
    # A record of an earlier version holds the stem alone.
    write_record(record(study.runs[0], cluster="site"), folder)
    preflight.check(study, other, missing, fresh=False)


def test_a_file_is_not_the_profile_of_the_lab_that_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "local.yaml"
    path.write_text("executor: local\ndevice: cpu\n")
    mine = Cluster.load(path)
    assert mine.file == str(path) and Cluster.load("local").file is None
    assert calibration_path(mine) == tmp_path / "calibration" / "local.json"
    assert calibration_path(mine) != calibration_path("local")
    place = record(
        Run(world_size=1, global_batch_size=8), cluster="local", cluster_file=mine.file
    ).environment
    assert place is not None and place.profile == str(path)


def test_ranks_beyond_a_single_gpu_are_pointed_to_the_cores(
    make_study: StudyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: (machine.Gpu("NVIDIA H200", "570.1", None),))
    grid = {"global_batch_size": [4], "world_size": [1, 2]}
    study = Study.load(make_study(grid=grid))
    with pytest.raises(InputError, match=r"needs 2 ranks; local: 1 GPU.*`--cluster cpu`"):
        preflight.check(study, Cluster.load("local"), study.tasks, fresh=False)
    assert Cluster.load("cpu").device_kind == "cpu"


@pytest.mark.parametrize(
    ("quick", "form"), [(False, {"repeats": 1}), (True, {"repeats": 1}), (False, {})]
)
def test_ranks_beyond_the_cores_are_pointed_to_what_the_study_has_not_tried(
    make_study: StudyMaker, quick: bool, form: dict[str, int]
) -> None:
    grid = {"global_batch_size": [4], "world_size": [1, 2]}
    study = Study.load(make_study(grid=grid, quick=form), quick=quick)
    one = Cluster.load("local").model_copy(update={"device": "cpu", "devices": 1})
    with pytest.raises(InputError, match=r"`--cluster local-8ranks` emulates") as refused:
        preflight.check(study, one, study.tasks, fresh=False)
    assert ("--quick" in str(refused.value)) is (bool(form) and not quick)


def test_a_detached_driver_may_do_all_that_launch_may(
    make_study: StudyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ())
    commands: list[list[str]] = []
    monkeypatch.setattr(
        launcher.subprocess,
        "Popen",
        lambda command, **_: commands.append(command) or SimpleNamespace(pid=7, poll=lambda: 0),
    )
    # Runs that need GPUs are left out here, however many they need.
    grid = {"global_batch_size": [64], "world_size": [1, 64], "needs_device": ["cuda"]}
    study = Study.load(make_study(grid=grid))
    assert launcher.detach(study, "local", fresh=True) == 7
    assert "--fresh" in commands[0] and (study.out / "driver.log").exists()
    everywhere = Study.load(make_study("other", grid=grid | {"needs_device": ["any"]}))
    with pytest.raises(InputError, match="needs 64 ranks"):
        launcher.detach(everywhere, "local")


def test_what_runs_on_cores_beside_gpus_has_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small = machine.Gpu("NVIDIA T1", "570.1", 2**20)
    monkeypatch.setattr(machine, "gpus", lambda: (small,))
    run = Run(global_batch_size=8)
    assert "training state" in obstacle(run, Cluster.load("local"), None)
    on_cores = run.model_copy(update={"needs_device": "cpu"})
    assert obstacle(on_cores, Cluster.load("local"), None) == ""


def test_a_missing_file_hides_no_other_problem(make_study: StudyMaker) -> None:
    data = {"kind": "text", "path": "corpus.text"}
    grid = {"global_batch_size": [10_000], "world_size": [1, 10_000]}
    study = Study.load(make_study(base={**BASE, "data": data}, grid=grid))
    with pytest.raises(InputError) as raised:
        lab.launch(study)
    missing, size = sorted(raised.value.problems, key=lambda one: one.where, reverse=True)
    assert missing.where == "data.path" and "did you mean 'corpus.txt'?" in missing.advice
    assert size.where == "cluster" and "needs 10000 ranks" in size.what
