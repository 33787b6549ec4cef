"""Inputs that nobody should write, in great number and from a seed: each ends in a sentence.

No traceback, nothing longer than LONGEST_S, no job from bad input, no record lost, and no exit status but those that are
documented. `LAB_FUZZ_SEED` and `LAB_FUZZ_COUNT` (a factor) try others.
"""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import openpyxl
import pyarrow as pa
import pytest
import yaml
from factories import record
from pyarrow import parquet
from studies import SMALL_STUDY

from lab import cli
from lab.config.study import Study
from lab.launch import local
from lab.records.store import Store, write_record

SEED = int(os.environ.get("LAB_FUZZ_SEED", "16"))
FACTOR = float(os.environ.get("LAB_FUZZ_COUNT", "1"))
LONGEST_S = 10
STATUSES = {0, 1, 2, 130}

# Values of YAML and JSON that a field may meet.
ODD: list[Any] = [
    *(None, True, False, "", " ", "no", "[/red]", "{}", "../..", "/dev/null", "x" * 300, "ä" * 300),
    *(0, -1, 1, 2, 17, 10**6, 10**18, 10**30, 0.5, -0.0, 1e-300, 1e300, 1e308),
    *(float("inf"), float("-inf"), float("nan")),
    *("017", "1:30", "1e400", "0x" + "f" * 4300, "\0", "\x1b[31mred", "a\nb", "\ud7ff\u202e"),
    *("https://x.example/<img src=x onerror=alert(1)>", "$HOME", "$(touch /tmp/x)", "%j", "`id`"),
    *([], [[]], {}, {"kind": "gpt"}, {"": ""}, {"kind": "python", "factory": "os:system"}),
    *([1, 2], [1, 1], ["a"], [None], list(range(80)), {"a": {"b": {"c": {}}}}),
]
# Pieces of YAML that no dumper writes.
RAW = [
    *("!!bool maybe", "!!timestamp x", "!!bool '[/red]'", "!!int a", "!!binary x", "!!set {a}"),
    *("!!python/object:os.system x", "&a [*a]", "*a", "<<: {}", "1e400", "-.inf", ".nan", "0o17"),
    *("017", "1:30", "[[[[", "}", "? ", "- - -", "|\n x", ">", "@x", "%x", "\t", "'", '"', "#"),
    *("0x" + "f" * 4300, "9" * 5000, "[" * 30 + "]" * 30, "{a: " * 30, "2026-11-22", "~", "--- \n"),
]
PROFILE = {
    "executor": "local",
    "device": "cpu",
    "devices": 1,
    "cores_per_rank": 1,
    "time_limit_min": 5,
    "hang_timeout_s": 20,
    "environment": {"NAME": "value"},
    "network_interface": "lo",
}
SLURM = {
    "executor": "slurm",
    "device": "cpu",
    "cores_per_node": 4,
    "nodes": 2,
    "mem_gb": 4,
    "partition": "debug",
    "setup": ["true"],
    "modules": ["gcc"],
    "extra": {"exclusive": True},
    "environment": {"NAME": "value"},
}
TABLES = [
    "world_size,step_time,global_batch_size\n1,1.0,64\n2,0.6,64\n4,0.4,64\n",
    "| gpus | time | speedup |\n|---|---|---|\n| 1 | 10 | 1 |\n| 2 | 6 | 1.7 |\n",
    "rank\tepoch\tstep\tloss\n0\t1\t1\t2.0\n0\t1\t2\t1.5\n1\t1\t1\t2.0\n",
    "#       size         count      type   redop     time   algbw   busbw\n 1048576 262144 float sum 10 1 1\n",
]
CELLS = [
    *("", "nan", "inf", "-1", "0", "1e400", "1e-400", "x", "ä" * 50, "1,5", "1.5 ms", "12%", "NaN"),
    *("\0", "=1+1", "<script>alert(1)</script>", "\x1b[31m", "9" * 500, "01:12:30", "1/0", "None"),
    *(
        '"',
        "'",
        "|",
        ",,,,",
        "\t\t",
        "\n\n",
        "\r",
        "\ufeff",
        "1e5",
        "0x10",
        "1_000",
        "٣",
        "--",
        "&",
        "\\",
    ),
]

# Values of a column of Parquet, by their kind.
CELL_LISTS: dict[str, list[Any]] = {
    "numbers": [1.0, 0.0, -1.0, 1e308, 5e-324, float("inf"), float("nan"), None],
    "integers": [1, 2, 4, 0, -1, 2**63 - 1, -(2**63), None],
    "texts": [*CELLS, "ä" * 300, "https://x.example/<img src=x>", "[/red]", None],
    "bytes": [b"", b"\xff\0", b"1.5", None],
    "truths": [True, False, None],
    "lists": [[], [1, 2], [None], None],
    "structs": [{"a": 1}, {"a": None}, None],
    "dates": [datetime(1, 1, 1), datetime(9999, 12, 31), None],
    "nothing": [None],
}


DEEP = ["[" * 50_000, '{"a":' * 50_000]
KEPT_CALIBRATION = (
    Path(__file__).parents[2] / "reports/quickstart/kept/slurm/calibration/local.json"
)


@dataclass(frozen=True)
class Case:
    """One input: the words of the command, and what must exist for it."""

    words: list[str]
    good: bool = False  # whether it may start a job


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder with one study, of which one repeat is measured and another is not."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.chdir(folder)
        patch.setenv("LAB_CACHE", str(folder / "cache"))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("PATH", str(folder / "no-programs"))  # a Slurm of this machine is not asked
        yield folder


def fresh(place: Path, draw: random.Random) -> Study:
    """A study as it should be, in a folder of its own."""
    folder = place / f"study{draw.getrandbits(64):x}"
    folder.mkdir()
    write(folder / "study.yaml", yaml.safe_dump(SMALL_STUDY | {"repeats": 2}))
    write(folder / "corpus.txt", "text")
    study = Study.load(folder)
    run = study.runs[0]
    write_record(record(run, cluster="local"), Store(study.out).folder(study.tasks[0]))
    return study


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)


def places_in(content: Any) -> list[tuple[Any, Any]]:
    """Every container and key of a nested value."""
    keys = (
        content
        if isinstance(content, dict)
        else range(len(content))
        if isinstance(content, list)
        else ()
    )
    places = [(content, key) for key in keys]
    return [*places, *(place for key in keys for place in places_in(content[key]))]


def mutated(content: Any, draw: random.Random) -> Any:
    """A nested value with one to three faults: another value, a missing key, a new one."""
    content = copy.deepcopy(content)
    for _ in range(draw.randint(1, 3)):
        container, key = draw.choice(places_in(content))
        match draw.randrange(6):
            case 0 if isinstance(container, dict):
                container.pop(key, None)
            case 1 if isinstance(container, dict):
                container[f"{key}{draw.choice(['x', '', ' ', '.', '[0]'])}"] = draw.choice(ODD)
            case _:
                if isinstance(container, dict) or key < len(container):
                    container[key] = copy.deepcopy(draw.choice(ODD))
        if not places_in(content):
            break
    return content


def garbled(text: str, draw: random.Random, pieces: list[str]) -> bytes:
    """Text with some bytes changed, cut off, or replaced by odd pieces."""
    content = text.encode()
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(content) + 1)
        match draw.randrange(5):
            case 0:
                content = content[:at]
            case 1:
                content = content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
            case 2:
                lines = content.split(b"\n")
                draw.shuffle(lines)
                content = b"\n".join(lines)
            case _:
                piece = draw.choice(pieces).encode("utf-8", "replace")
                content = content[:at] + piece + content[at + draw.randrange(9) :]
    return content


def yaml_text(content: Any, draw: random.Random) -> bytes:
    if draw.random() < 0.7:
        return yaml.safe_dump(mutated(content, draw), allow_unicode=True).encode("utf-8", "replace")
    text = yaml.safe_dump(content)
    if draw.random() < 0.5:
        lines = text.splitlines()
        at = draw.randrange(len(lines))
        lines[at] = f"{lines[at].partition(':')[0]}: {draw.choice(RAW)}"
        return "\n".join(lines).encode()
    return garbled(text, draw, RAW)


def study_file(place: Path, draw: random.Random) -> Case:
    study = fresh(place, draw)
    content = {**SMALL_STUDY, "quick": {"base": {"steps": 3}, "repeats": 1}}
    write(study.folder / "study.yaml", yaml_text(content, draw))
    verb = draw.choice(["plan", "plan", "status", "audit", "predict", "cancel", "run"])
    return Case([verb, str(study.folder), *draw.choice([[], [], ["--quick"], ["--json"]])])


def profile(place: Path, draw: random.Random) -> Case:
    study = fresh(place, draw)
    path = study.folder / "site.yaml"
    write(path, yaml_text(draw.choice([PROFILE, SLURM]), draw))
    words = draw.choice(
        [["plan"], ["predict"], ["run"], ["plan", "--sbatch", str(study.folder / "jobs")]]
    )
    return Case([words[0], str(study.folder), "--cluster", str(path), *words[1:]], good=True)


def table(place: Path, draw: random.Random) -> Case:
    text = draw.choice(TABLES)
    path = (
        place / f"table{draw.getrandbits(64):x}.{draw.choice(['csv', 'tsv', 'md', 'txt', 'tex'])}"
    )
    write(path, garbled(text, draw, CELLS))
    extra = draw.choice(
        [[], [], ["--json"], ["--column", f"world_size={draw.choice(['gpus', '', 'x'])}"]]
    )
    return Case(["audit", str(path), *extra])


def parquet_file(place: Path, draw: random.Random) -> Case:
    """A table of any columns and values, often with bytes changed or cut off."""
    path = place / f"table{draw.getrandbits(64):x}.parquet"
    names = ["world_size", "step_time", "rank", "step", "loss", "speedup", "", "host", "\0"]
    columns = {
        name: pa.array([draw.choice(CELL_LISTS[kind]) for _ in range(4)])
        for name in draw.sample(names, draw.randint(0, 5))
        for kind in [draw.choice(list(CELL_LISTS))]
    }
    parquet.write_table(pa.table(columns), path)
    return _often_damaged(path, draw)


def spreadsheet(place: Path, draw: random.Random) -> Case:
    """Sheets of any cells, often with bytes changed or cut off."""
    path = place / f"table{draw.getrandbits(64):x}.xlsx"
    book = openpyxl.Workbook()
    cells = [*CELL_LISTS["integers"], *CELL_LISTS["dates"], *CELL_LISTS["truths"], "gpus", "time"]
    cells += [cell for cell in CELLS if cell.isprintable()] + ["=1/0", "#DIV/0!", 0.5, 1e300]
    for sheet in [book.worksheets[0], *(book.create_sheet() for _ in range(draw.randint(0, 2)))]:
        for _ in range(draw.randint(0, 6)):
            sheet.append(draw.choices(cells, k=draw.randint(0, 5)))
        for row in sheet.iter_rows():
            for cell in row:
                cell.number_format = draw.choice(["General", "0.0%", "[h]:mm:ss", "mm-dd-yy"])
    book.save(path)
    return _often_damaged(path, draw)


def _often_damaged(path: Path, draw: random.Random) -> Case:
    if draw.random() < 0.7:
        content = bytearray(path.read_bytes())
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content[: draw.choice([len(content), draw.randrange(len(content))])])
    return Case(["audit", str(path), *draw.choice([[], ["--json"]])])


def record_file(place: Path, draw: random.Random) -> Case:
    study = fresh(place, draw)
    path = Store(study.out).folder(study.tasks[0]) / "record.json"
    text = path.read_text()
    match draw.randrange(9):
        case 0:
            path.unlink()
            path.mkdir()
        case 8:
            path.unlink()
            os.mkfifo(path)
        case 1:
            path.unlink()
            path.symlink_to("record.json")
        case 2 | 3:
            path.write_bytes(garbled(text, draw, [*DEEP, *map(json.dumps, ODD)]))
        case _:
            path.write_text(json.dumps(mutated(json.loads(text), draw)))
    verbs = ["plan", "status", "audit", "predict", "cancel", "clean", "clean --yes"]
    verb, *options = draw.choice(verbs).split()
    return Case([verb, str(study.folder), *options])


def job_file(place: Path, draw: random.Random) -> Case:
    study = fresh(place, draw)
    folder = Store(study.out).folder(study.tasks[1])
    local_job = {"executor": "local", "cluster": "local", "job_id": "1", "pid": 2**22 + 1}
    jobs = [
        local_job | {"began": 1.0, "host": "", "submitted_at": 1.0},
        {"executor": "slurm", "cluster": "s", "array": "../../../arrays/lab-x", "index": 0}
        | {"submitted_at": 1.0},
    ]
    job = draw.choice(jobs)
    progress = {"phase": "measuring", "step": 3, "steps": 10, "loss": 1.0, "time": 1.0}
    write(folder / "job.json", json.dumps(mutated(job, draw)))
    write(folder / "progress.json", json.dumps(mutated(progress, draw)))
    if draw.random() < 0.3:
        write(folder / "job.json", garbled(json.dumps(job), draw, [*DEEP, *CELLS]))
    rank = {"host": "x", "pid": 2**22 + 1, "began": 1.0}
    write(folder / "log" / "1.rank0.pid", json.dumps(mutated(rank, draw)))
    write(study.out / "arrays" / "lab-x" / "job_id", draw.choice(CELLS))
    verb, *options = draw.choice(["status", "cancel", "plan", "clean --yes"]).split()
    return Case([verb, str(study.folder), *options])


def calibration_file(place: Path, draw: random.Random) -> Case:
    study = fresh(place, draw)
    path = study.folder / "site.yaml"
    write(path, yaml.safe_dump(PROFILE))
    text = KEPT_CALIBRATION.read_text()
    content = garbled(text, draw, [*DEEP, *CELLS])
    if draw.random() < 0.7:
        content = json.dumps(mutated(json.loads(text), draw)).encode("utf-8", "replace")
    write(study.folder / "calibration" / "site.json", content)
    return Case([draw.choice(["plan", "predict"]), str(study.folder), "--cluster", str(path)])


def replay_file(place: Path, draw: random.Random) -> Case:
    study = fresh(place, draw)
    path = study.folder / "replay-site.yaml"
    row = {"micro_batch_size": 4, "world_size": 1, "steps": 4, "step_s": 0.5}
    reduced = {"world_size": 2, "bytes": 2**20, "seconds": 0.01}
    table = {"source": "a table", "gpu": "a GPU", "rows": [row], "all_reduce": [reduced]}
    write(path, yaml_text({"executor": "replay", "device": "cuda", "published": table}, draw))
    verb = draw.choice(["plan", "run", "predict"])
    return Case([verb, str(study.folder), "--cluster", str(path)])


def course_folder(place: Path, draw: random.Random) -> Case:
    """Lessons with a student's study, or what students handed in, with odd files in them."""
    folder = place / f"course{draw.getrandbits(64):x}"
    lesson = draw.choice(["03-data-parallel", "x", "ä" * 60])
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
    for name in ("ada", "\udcff", "[red]", "a b"):
        if draw.random() < 0.7:
            text = json.dumps(mutated(book, draw))
            write(folder / name / lesson / "book.ipynb", garbled(text, draw, [*DEEP, *CELLS]))
            study = folder / name / lesson / "studies" / "one" / "study.yaml"
            write(study, yaml_text(SMALL_STUDY, draw))
    folder.mkdir(exist_ok=True)
    collect = ["collect", str(folder), "--into", str(folder / "in")]
    words = draw.choice([["budget", str(folder)], collect])
    return Case(["course", *words])


OPTIONS = [
    *(
        "--quick",
        "--json",
        "--cluster",
        "--world-size",
        "--machine",
        "--best",
        "--sbatch",
        "--column",
    ),
    *("--help", "--fresh", "--", "--nothing", "-x", "--repeats", "--all", "--prompt", "--top-k"),
]


def arguments(place: Path, draw: random.Random) -> Case:
    study = fresh(place, draw)
    verbs = [
        "plan",
        "status",
        "audit",
        "predict",
        "cancel",
        "compare",
        "generate",
        "init",
        "course",
        "clean",
    ]
    values = [
        str(study.folder),
        "local",
        "0",
        "-1",
        "9" * 5000,
        "1,2,x",
        "h100x8",
        "",
        "a\nb",
        "x" * 300,
    ]
    values += [
        "/dev/null",
        "/",
        ".",
        "~",
        "$HOME",
        "[/red]",
        "world_size=",
        "=",
        "\ud7ff",
        "study.yaml",
    ]
    words = [draw.choice([*verbs, "bench", "x", ""]), *draw.sample(values, draw.randint(0, 2))]
    words += [draw.choice([*OPTIONS, *values]) for _ in range(draw.randint(0, 3))]
    if words[0] == "bench":  # which measures for long
        words[1:2] = ["nothing"]
    return Case(words)


Maker = Callable[[Path, random.Random], Case]
FAMILIES: dict[Maker, int] = {
    study_file: 500,
    profile: 250,
    table: 200,
    parquet_file: 100,
    spreadsheet: 100,
    record_file: 200,
    job_file: 150,
    calibration_file: 100,
    replay_file: 100,
    course_folder: 50,
    arguments: 150,
}


class TooLongError(BaseException):
    """A case took too long; not an Exception, which code under test might catch."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLongError


class JobStartedError(BaseException):
    """An input would have started a job."""


def outcome(case: Case, capsys: pytest.CaptureFixture[str]) -> str:
    """What is wrong with how a command ended; empty where nothing is."""
    sys.argv = ["lab", *case.words]
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        cli.main()
        status: object = 0
    except SystemExit as ended:
        status = ended.code or 0
    except TooLongError:
        return f"took longer than {LONGEST_S} s"
    except JobStartedError:
        capsys.readouterr()
        return "" if case.good or _is_good(case) else "a job was started"
    except BaseException as error:  # noqa: BLE001 whatever it is, it is a finding
        return f"raised {type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    answer = capsys.readouterr()
    if "error in the lab itself" in answer.err or "Traceback" in answer.err:
        return answer.err.strip()[:300]
    return "" if status in STATUSES else f"ended with status {status!r}"


def _is_good(case: Case) -> bool:
    try:
        Study.load(case.words[1], quick="--quick" in case.words)
    except Exception:  # noqa: BLE001
        return False
    return True


@pytest.mark.parametrize("make", FAMILIES, ids=lambda make: make.__name__)
def test_every_odd_input_ends_in_a_sentence(
    make: Maker,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise JobStartedError

    monkeypatch.setattr(local.LocalExecutor, "submit", refuse)
    monkeypatch.setattr(sys, "argv", sys.argv)
    earlier = signal.signal(signal.SIGALRM, _too_long)
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    try:
        for number in range(round(FAMILIES[make] * FACTOR)):
            case = make(place, random.Random(f"{SEED} {make.__name__} {number}"))
            kept = _records(place, case)
            problem = outcome(case, capsys)
            if not problem and kept != _records(place, case):
                problem = "a record was lost"
            if problem:
                kind = " ".join(problem.split())[:80]
                kinds[kind] += 1
                examples.setdefault(kind, f"case {number}: lab {' '.join(case.words)}: {problem}")
    finally:
        signal.signal(signal.SIGALRM, earlier)
    listed = "\n".join(f"{count} x {examples[kind]}" for kind, count in kinds.most_common(20))
    assert not kinds, f"seed {SEED}: {kinds.total()} of {FAMILIES[make]} {make.__name__}:\n{listed}"


def _records(place: Path, case: Case) -> dict[Path, bytes]:
    folders = [Path(word) for word in case.words if word.startswith(str(place))]
    return {
        path: path.read_bytes()
        for folder in folders[:1]
        for path in (folder / "out").glob("runs/*/*/record.json")
        if path.is_file()
    }
