"""Scripts for sbatch: what stands in them, and that values cannot become commands."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from studies import StudyMaker
from submitit.slurm.slurm import _make_sbatch_string
from typer.testing import CliRunner

from lab import cli
from lab.config import slurm
from lab.config.cluster import Cluster
from lab.config.slurm import SBATCH_OPTIONS
from lab.config.study import Study
from lab.errors import InputError
from lab.files import ROOT
from lab.launch.slurm import options

EXAMPLES = ROOT / "slurm" / "examples"
LAUNCH = Path(options.__file__).parents[1]
SLURM_PROFILES = [
    cluster
    for path in sorted((ROOT / "slurm").glob("*.yaml"))
    if (cluster := Cluster.load(path)).executor == "slurm"
]


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
        ({"gpu_flag": "gres", "extra": {"gres": "nvme:100"}}, {"gres": "gpu:4,nvme:100"}),
        ({"gpu_flag": "gpus", "gpu_type": "v100-32"}, {"gpus": "v100-32:8"}),
        ({"gpu_flag": "gpus-per-task"}, {"gpus-per-task": "1"}),
        ({"gpu_flag": "none"}, {}),
        ({"gpus_per_node": 0, "cores_per_node": 8, "cores_per_rank": 2}, {}),
    ],
)
def test_gpus_are_asked_for_as_the_site_wants(
    keys: dict[str, object], expected: dict[str, str]
) -> None:
    requested = options.sbatch_options(cluster(**keys), 8)
    assert {
        key: value for key, value in requested.items() if "gpu" in str(value) or "gpu" in key
    } == expected
    assert (requested["nodes"], requested["ntasks-per-node"]) == (2, 4)


def test_a_task_has_all_devices_of_its_process() -> None:
    site = cluster(gpu_flag="gpus-per-task", cpus_per_gpu=8)
    requested = options.sbatch_options(site, 1, devices=4)
    assert (requested["gpus-per-task"], requested["cpus-per-task"]) == ("4", 32)
    step = ["--kill-on-bad-exit=1", "--cpus-per-task=32"]
    assert options.srun_options(site, 1, devices=4) == step


def test_other_resources_are_asked_for_beside_gpus_of_another_option() -> None:
    requested = options.sbatch_options(cluster(extra={"gres": "tmpfs:200g"}), 4)
    assert (requested["gres"], requested["gpus-per-node"]) == ("tmpfs:200g", "4")


def test_what_sbatch_is_not_told_srun_is() -> None:
    unsaid = {"ntasks_per_node": False, "cpus-per-task": False, "requeue": False}
    site = cluster(extra=unsaid, cpus_per_gpu=8, gpu_flag="gres")
    requested = options.sbatch_options(site, 8)
    assert not {"ntasks-per-node", "cpus-per-task", "requeue"} & requested.keys()
    step = ["--kill-on-bad-exit=1", "--cpus-per-task=8", "--nodes=2", "--ntasks-per-node=4"]
    assert options.srun_options(site, 8) == step
    submitted = _make_sbatch_string("command", "/tmp", **options.submitit_parameters(site, 8))
    assert "ntasks-per-node" not in directives(submitted) and " ".join(step) in submitted


def test_a_job_that_must_not_be_requeued_does_not_ask_for_it() -> None:
    requested = options.sbatch_options(cluster(extra={"no_requeue": True}), 4)
    assert requested["no-requeue"] is True and "requeue" not in requested
    assert options.sbatch_options(cluster(extra={"no-requeue": False}), 4)["requeue"] is True


def test_options_hold_every_key_of_the_profile() -> None:
    named = {option: f"some&{option}" for option in SBATCH_OPTIONS}
    assert {"partition", "account", "qos", "constraint", "reservation"} <= set(named)
    requested = options.sbatch_options(
        cluster(
            **{key: named[option] for option, key in SBATCH_OPTIONS.items()},
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
        "signal": "USR2@42",
        "requeue": True,
        "open-mode": "append",
    }
    assert requested == named | alone | {"exclusive": True, "nice": 5}


def test_every_other_key_is_read_somewhere() -> None:
    readers = [Path(slurm.__file__).with_name("cluster.py"), *LAUNCH.rglob("*.py")]
    nodes = (node for path in readers for node in ast.walk(ast.parse(path.read_text())))
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert set(slurm.SlurmKeys.model_fields) - set(SBATCH_OPTIONS.values()) <= read


CONTAINER = Cluster(
    name="site",
    executor="slurm",
    gpus_per_node=4,
    time_limit_min=5,
    modules=("a", "b"),
    container="apptainer exec 'my image.sif'",
    extra={"exclusive": False, "mail_type": "FAIL", "nice": 0},
    srun={"cpu_bind": "mask_cpu:0xfe,0xfe00", "mpi": "none", "label": True, "overlap": False},
)


def directives(script: str) -> dict[str, str]:
    """The options in a script's header, less those that name its own job and log."""
    pairs = re.findall(r"^#SBATCH --([\w-]+)(?:=(.*?))?(?: +#.*)?$", script, re.MULTILINE)
    return {name: value.strip() for name, value in pairs if name not in {"job-name", "output"}}


@pytest.mark.parametrize("profile", [*SLURM_PROFILES, CONTAINER], ids=lambda profile: profile.name)
def test_scripts_ask_for_what_submitted_jobs_ask_for(
    profile: Cluster, make_study: StudyMaker, tmp_path: Path
) -> None:
    written = tmp_path / "site.yaml"
    content = profile.model_dump(mode="json", exclude_unset=True, exclude={"name", "file"})
    written.write_text(yaml.safe_dump(content, sort_keys=False))
    study = Study.load(make_study(repeats=3))
    run = study.runs[-1]
    script = options.scripts(study, written)[f"study/x{run.world_size}.sbatch"]
    jobs = sum(task.run.world_size == run.world_size for task in study.tasks)
    parameters = options.submitit_parameters(profile, run.world_size, jobs=jobs)
    submitted = _make_sbatch_string("command", tmp_path, map_count=jobs, **parameters)
    assert directives(script) == directives(submitted)
    assert {"signal", "requeue", "array", "cpus-per-task"} <= directives(script).keys()
    if profile.extra.get("exclusive") is False:
        assert "exclusive" not in directives(script)
    for line in options.setup_commands(profile):
        assert f"\n{line}\n" in script and f"\n{line}\n" in submitted
    step = shlex.join(options.srun_options(profile, run.world_size))
    assert f"--cpus-per-task={profile.cpus_per_rank}" in step
    assert f"{step} \\\n" in script and f" {step} command\n" in submitted
    python = options.interpreter(profile, "python")
    assert f"  {python} -m lab.launch.job" in script
    if profile is CONTAINER:
        assert step.endswith("--cpu-bind=mask_cpu:0xfe,0xfe00 --mpi=none --label")
    if profile.container:
        assert python == options.interpreter(profile, "other") == f"{profile.container} python3"


def test_the_script_of_a_study_elsewhere_runs_in_any_folder(make_study: StudyMaker) -> None:
    study = Study.load(make_study())
    text = options.scripts(study, "practice")["x2-batch-4.sbatch"]
    assert f"lab.launch.job {study.folder} " in text
    assert f"--cluster {ROOT / 'slurm' / 'practice.yaml'}" in text and "in any folder" in text


def test_script_readies_the_node_in_order(make_study: StudyMaker, tmp_path: Path) -> None:
    profile = tmp_path / "site.yaml"
    profile.write_text(
        "executor: slurm\ngpus_per_node: 2\nmodules: [cuda/12]\nsetup: ['. ~/env']\n"
        "container: apptainer exec 'my image.sif'\npython: python3.12\n"
        'environment: {GREETING: "it\'s $HOME; `ls` $$5"}\n'
        "extra: {comment: 'a b', exclusive: true}\n"
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
        ["bash", "-c", f'{line}; printf %s "$GREETING"'],
        env={"HOME": "/home/me"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "it's /home/me; `ls` $5"
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_variables_that_srun_or_python_read_are_set_before_the_ranks_start() -> None:
    site = cluster(
        setup=("module load gcc",),
        environment={"NCCL_DEBUG": "INFO", "LD_LIBRARY_PATH": "/ofi:$LD_LIBRARY_PATH"},
    )
    lines = options.submitit_parameters(site, 2)["setup"]
    assert lines == [
        "module load gcc",
        'export LD_LIBRARY_PATH=/ofi:"${LD_LIBRARY_PATH?is not set here}"',
    ]


def test_a_job_ends_without_its_modules() -> None:
    site = cluster(modules=("there/1", "not/2", "there/3"))
    lines = ["module() { echo $2; [[ $2 != not* ]]; }", *options.setup_commands(site), "echo ran"]
    ended = subprocess.run(
        ["bash"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == ["there/1", "not/2", "module load not/2 failed"]


@pytest.mark.parametrize(
    ("interfaces", "command"),
    [
        ("", 'scontrol show hostnames "$SLURM_JOB_NODELIST"'),
        ("network_interface: lo,ib1", "ip -4 -oneline address show lo "),
    ],
)
def test_ranks_meet_on_the_network_of_the_profile(
    make_study: StudyMaker, tmp_path: Path, interfaces: str, command: str
) -> None:
    profile = tmp_path / "site.yaml"
    profile.write_text(f"executor: slurm\ngpus_per_node: 2\n{interfaces}\n")
    text = options.scripts(Study.load(make_study()), profile)["x2-batch-4.sbatch"]
    line = next(line for line in text.splitlines() if line.startswith("MASTER_ADDR="))
    assert command in line
    if "lo," in interfaces and shutil.which("ip"):
        shown = subprocess.run(
            ["bash", "-c", f"{line}; echo $MASTER_ADDR"], capture_output=True, text=True, check=True
        )
        assert shown.stdout == "127.0.0.1\n"


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
    with pytest.raises(InputError, match="executor 'local' does not use sbatch"):
        options.scripts(study, "local")
    with pytest.raises(InputError, match="2 problems") as caught:
        options.scripts(study, "slurm")
    assert "3 ranks do not fill" in str(caught.value) and "6 ranks do not fit" in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        options.write_scripts(Study.load(make_study("other")), "slurm", str(tmp_path / "file"))


def test_command_writes_them(make_study: StudyMaker, tmp_path: Path) -> None:
    result = CliRunner().invoke(
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
    assert result.exit_code == 0
    names = {
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.sbatch")
    }
    assert names == {"x1-batch-4.sbatch", "x2-batch-4.sbatch", "study/x1.sbatch", "study/x2.sbatch"}
