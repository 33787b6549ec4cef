"""Scripts for sbatch: what stands in them, and that values cannot become commands."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from studies import StudyMaker
from typer.testing import CliRunner

from lab import cli
from lab.config.cluster import Cluster
from lab.config.study import Study
from lab.errors import InputError
from lab.files import ROOT
from lab.launch.slurm import options

EXAMPLES = ROOT / "slurm" / "examples"


def cluster(**keys: object) -> Cluster:
    return Cluster.model_validate(
        {"name": "site", "executor": "slurm", "gpus_per_node": 4, "nodes": 2, **keys}
    )


def test_committed_examples_are_what_the_generator_gives() -> None:
    texts = options.scripts(Study.load("strong-scaling"), "example-gpus-per-node")
    committed = {
        str(path.relative_to(EXAMPLES)): path.read_text() for path in EXAMPLES.rglob("*.sbatch")
    }
    assert committed == texts, (
        "run: lab plan strong-scaling --cluster example-gpus-per-node --sbatch slurm/examples"
    )
    classical = {f"x{gpus}-batch-{batch}.sbatch" for gpus in (1, 2, 4) for batch in (64, 128)}
    assert classical <= set(committed) and not any(str(ROOT) in text for text in committed.values())


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {"gpus-per-node": "4"}),
        ({"gpu_flag": "gres"}, {"gres": "gpu:4"}),
        ({"gpu_flag": "gres", "gpu_type": "h100"}, {"gres": "gpu:h100:4"}),
        ({"gpus_per_node": 0, "cores_per_node": 8, "cores_per_rank": 2}, {}),
    ],
)
def test_gpus_are_asked_for_as_the_site_wants(
    keys: dict[str, object], expected: dict[str, str]
) -> None:
    asked = options.options(cluster(**keys), 8)
    assert {
        key: value for key, value in asked.items() if "gpu" in str(value) or "gpu" in key
    } == expected
    assert (asked["nodes"], asked["ntasks-per-node"]) == (2, 4)


def test_options_hold_every_key_of_the_profile() -> None:
    named = {
        "partition": "gpu",
        "account": "me",
        "qos": "high",
        "constraint": "a&b",
        "reservation": "course",
    }
    asked = options.options(
        cluster(
            **named,
            cpus_per_gpu=6,
            mem_gb=100.0,
            time_limit_min=7,
            extra={"exclusive": True, "nice": 5},
        ),
        1,
    )
    alone = {
        "nodes": 1,
        "ntasks-per-node": 1,
        "cpus-per-task": 6,
        "gpus-per-node": "1",
        "mem": "25600M",
        "time": 7,
    }
    assert asked == named | alone | {"exclusive": True, "nice": 5}


def test_script_readies_the_node_in_order(make_study: StudyMaker, tmp_path: Path) -> None:
    profile = tmp_path / "site.yaml"
    profile.write_text(
        "executor: slurm\ngpus_per_node: 2\nmodules: [cuda/12]\nsetup: ['. ~/env']\ncontainer: apptainer exec 'my image.sif'\n"
        "python: python3.12\nenvironment: {GREETING: \"it's $HOME; `ls`\"}\nextra: {comment: 'a b', exclusive: true}\n"
    )
    text = options.scripts(Study.load(make_study()), profile)["x2-batch-4.sbatch"]
    parts = [
        "#SBATCH --comment='a b'\n#SBATCH --exclusive",
        "module load cuda/12",
        ". ~/env",
        "export GREETING=",
        "srun ",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "apptainer exec 'my image.sif' python3.12 -m lab.launch.job" in text
    line = next(line for line in text.splitlines() if line.startswith("export GREETING"))
    shown = subprocess.run(
        ["bash", "-c", f'{line}; printf %s "$GREETING"'], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "it's $HOME; `ls`"
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_titles_and_paths_cannot_become_commands(make_study: StudyMaker, tmp_path: Path) -> None:
    folder = make_study("a b;touch x", title="Title\n#SBATCH --partition=evil\ntouch y")
    for text in options.scripts(Study.load(folder), "slurm").values():
        directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
        assert not any("evil" in line for line in directives) and not any(
            line.startswith("touch") for line in text.splitlines()
        )
        command = shlex.split(text[text.index("srun --kill") :])
        assert str(folder) in command


def test_every_task_stands_in_one_array_of_its_world_size(make_study: StudyMaker) -> None:
    study = Study.load(
        make_study(grid={"global_batch_size": [4, 8], "world_size": [1, 2]}, repeats=2)
    )
    texts = options.scripts(study, "slurm")
    assert len(texts) == 4 + 2
    for world_size in (1, 2):
        text = texts[f"study/x{world_size}.sbatch"]
        assert "#SBATCH --array=0-3%1" in text
        wanted = [
            f"'{task.run.id} {task.repeat}'"
            for task in study.tasks
            if task.run.world_size == world_size
        ]
        assert [
            line.split("  ")[1] for line in text.splitlines() if line.startswith("  '")
        ] == wanted


def test_what_has_no_script_is_refused(make_study: StudyMaker, tmp_path: Path) -> None:
    study = Study.load(make_study(grid={"global_batch_size": [6], "world_size": [1, 3, 6]}))
    with pytest.raises(InputError, match="'local' knows no sbatch"):
        options.scripts(study, "local")
    with pytest.raises(InputError, match="2 problems") as caught:
        options.scripts(study, "slurm")
    assert "3 ranks do not fill" in str(caught.value) and "6 ranks do not fit" in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        options.write_scripts(Study.load(make_study("other")), "slurm", tmp_path / "file")


def test_command_writes_them(make_study: StudyMaker, tmp_path: Path) -> None:
    told = CliRunner().invoke(
        cli.app,
        [
            "plan",
            str(make_study()),
            "--cluster",
            "slurm",
            "--sbatch",
            str(tmp_path / "out"),
            "--json",
        ],
    )
    assert told.exit_code == 0
    names = {
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.sbatch")
    }
    assert names == {"x1-batch-4.sbatch", "x2-batch-4.sbatch", "study/x1.sbatch", "study/x2.sbatch"}
