"""The example of a script of one's own, on one and two ranks: its record, its report, its failures."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
import pytest
from typer.testing import CliRunner

import lab
from lab.cli import app
from lab.records.schema import Operation
from lab.records.store import Record
from lab.report.execute import shared_kernels
from lab.report.study_sections import environment_rows
from lab.worker.script.processes import OWN_RANKS

EXAMPLE = Path(__file__).parents[3] / "reports" / "own-script"
# FSDP and a collective of its own; of its first attempt a rank is killed.
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from torch import distributed as dist, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
out, first, rank = Path(sys.argv[1]), not Path("tried").exists(), dist.get_rank()
assert not list(out.iterdir()), "left by the first attempt"
dist.barrier()
mesh = init_device_mesh("cpu", (2,))
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_gather([torch.empty(100) for _ in range(2)], torch.ones(100))
    (out / f"{rank}.pt").touch()
    if step == 7 and first and rank == 1:
        Path("tried").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
# Two ranks of its own, started in the way that its argument names, at an address that it sets.
STARTS_RANKS = """
import os, sys
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import init_process_group

def train(rank, ranks, url=None):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571")
    init_process_group("gloo", url, rank=rank, world_size=ranks)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    if sys.argv[1] == "by-spawn":
        mp.spawn(train, args=(2,), nprocs=2)
    elif sys.argv[1] == "by-spawn-at":
        mp.spawn(train, args=(2, "tcp://127.0.0.1:29572"), nprocs=2)
    elif sys.argv[1] == "by-start":
        mp.start_processes(train, args=(2,), nprocs=2, start_method="fork")
    else:
        context = mp.get_context(sys.argv[1])
        processes = [context.Process(target=train, args=(rank, 2)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
"""
# Has processes that are no ranks, and a loop that no exception ends.
ENDLESS = """
import torch
import torch.multiprocessing as mp
from torch import distributed as dist, nn
from torch.utils.data import DataLoader

def prepare(index):
    print(f"prepared {index}\\n", end="", flush=True)  # in one write, as two processes print

if __name__ == "__main__":
    mp.spawn(prepare, nprocs=2)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        try:
            for batch in DataLoader(torch.randn(800, 64), 8, num_workers=1):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
        except:
            print("once more", flush=True)
"""

# Leaves the choice of the backend to torch, averages a copy of its DDP, and saves all of it.
KEEPS = """
import copy, io, torch
from torch import distributed as dist, nn

dist.init_process_group()
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    average = copy.deepcopy(model)
    torch.save(model, io.BytesIO())
"""
# Updates its parameters by hand, and leaves the choice of the backend to torch.
BY_HAND = """
import lab, torch
from torch import distributed as dist, nn

dist.init_process_group()
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 2))
with lab.instrument() as meter:
    while True:
        model(torch.randn(8, 64)).square().mean().backward()
        with meter.optimizer(), torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        meter.end_step()
"""
# Leaves a fork, a background process of a shell, one in a session of its own, and a process of
# multiprocessing that uses shared memory, for whose end Python itself would wait.
LEAVES = """
import multiprocessing, os, signal, subprocess, sys, time, torch
from multiprocessing.shared_memory import SharedMemory

def use(name, pids):
    memory = SharedMemory(name)
    pids.put(os.getpid())
    time.sleep(600)

if __name__ == "__main__":
    memory = SharedMemory(create=True, size=64)
    context = multiprocessing.get_context("spawn")
    pids = context.Queue()
    context.Process(target=use, args=(memory.name, pids)).start()
    left = [pids.get()]
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    left += [child, subprocess.Popen(["sleep", "600"], start_new_session=True).pid]
    left.append(int(subprocess.check_output("sleep 600 >/dev/null 2>&1 & echo $!", shell=True)))
    open("left", "w").write(" ".join(map(str, [memory.name, *left])))
    w = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([w])
    while True:
        (w + 1).sum().backward()
        optimizer.step()
        if sys.argv[1:]:
            os.kill(os.getpid(), signal.SIGKILL)
"""


# As Lightning without torchrun's variables, with a command instead of multiprocessing.
STARTS_ANOTHER = """
import os, socket, subprocess, sys, torch
from torch import distributed as dist
if "RANK" not in os.environ:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    other = subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": "1"})
    os.environ["RANK"] = "0"
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(9):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    with shared_kernels():
        yield


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> lab.Study:
    folder = tmp_path_factory.mktemp("script") / "own-script"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("out"))
    return lab.Study.load(folder, quick=True)


@pytest.fixture(scope="module")
def records(study: lab.Study) -> list[Record]:
    return lab.launch(study).wait(progress=False)


def folder_of(study: lab.Study, record: Record) -> Path:
    return study.out / "runs" / record.run_id / "0"


def test_a_plain_script_yields_ordinary_records(study: lab.Study, records: list[Record]) -> None:
    assert [record.status for record in records] == ["completed", "completed"]
    alone, both = records
    assert alone.timing and both.timing and alone.communication is None and both.communication
    for record in records:
        assert set(record.timing.phases) == {"data", "forward", "backward", "optimizer", "other"}
        assert record.script and record.script.steps == 20
    # 8 -> 16 -> 32 channels of 3 x 3, and a layer of 10 classes: all gradients in one bucket.
    parameters = (3 * 9 + 1) * 8 + (8 * 9 + 1) * 16 + (16 * 9 + 1) * 32 + 33 * 10
    assert both.communication.buckets == [4 * parameters] and both.communication.exposed
    assert both.environment and both.environment.backend == "gloo"
    assert alone.timing.flops_per_second is None and alone.quality is None


def test_steps_take_what_the_script_itself_prints(study: lab.Study, records: list[Record]) -> None:
    for record in records:
        # By its job, as a disturbed attempt leaves a log too.
        assert record.environment is not None
        name = f"{record.environment.job_id}_0_log.out"
        log = (folder_of(study, record) / "log" / name).read_text()
        printed = [float(ms) / 1e3 for ms in re.findall(r"step \d+: .*?, ([\d.]+) ms", log)]
        steps = pd.read_parquet(folder_of(study, record) / "steps.parquet")
        ours = steps[steps["rank"] == 0].step_time.to_numpy()
        # It is ended within its last step. The same intervals, however loaded the machine is.
        assert len(printed) == 19 and len(ours) == 20
        ratios = ours[1:19] / printed[1:]
        assert abs(float(pd.Series(ratios).median()) - 1) < 0.02


def test_the_report_tells_what_was_seen_and_nothing_else(
    study: lab.Study, records: list[Record]
) -> None:
    page = lab.report(study).html.read_text()
    page = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page, flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", " ", page)
    assert "Where the time of a step goes" in text and "measured by hooks of torch" in text
    for absent in ("not measured", "h2d", "MFU", "last loss", "unknown", "None", "nan"):
        assert not re.search(rf"\b{absent}\b", text), absent
    assert all(state.state == "completed" for state in lab.status(study))


def test_a_killed_rank_is_named_and_the_same_command_measures_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sharded.py").write_text(KILLED)
    arguments = [
        "measure",
        "--ranks",
        "2",
        "--repeats",
        "1",
        "--steps",
        "12",
        "--warmup-steps",
        "3",
    ]
    arguments += ["--", "sharded.py", "{out}"]
    result = CliRunner().invoke(app, arguments)
    assert "failed on rank 1: RankLost: rank 1 was killed by SIGKILL" in str(result.exception)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    (record,) = lab.load_records("reports/sharded")
    assert record.memory and record.communication and record.communication.exposed
    # The first layer is gathered in both passes, what is left at the root in one of them.
    layer, root = 64 * 65, 2 * 65
    gathered = Operation(calls=2 + 1 + 1, bytes=4 * (2 * layer + root) + 2 * 400)
    scattered = Operation(calls=2, bytes=4 * (layer + root))
    operations = {"all_gather": gathered, "reduce_scatter": scattered}
    assert record.communication.operations == operations
    assert record.memory.parameters == 4 * (layer + root) / 2


def test_a_script_that_trains_alone_or_fails_on_two_ranks_is_a_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alone.py").write_text(
        "import torch\nw = torch.zeros(1, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([w])\n"
        "while True:\n    (w + 1).sum().backward()\n    optimizer.step()\n"
    )
    small = "executor: local\ndevice: cpu\ntime_limit_min: 60\nbudget: {core_hours: 0.5}\n"
    (tmp_path / "small.yaml").write_text(small)
    arguments = ["measure", "--repeats", "1", "--steps", "20", "--cluster", "small.yaml"]
    refused = CliRunner().invoke(app, [*arguments, "--ranks", "2", "--", "alone.py"])
    assert "use --yes to run it all the same" in str(refused.exception)
    assert not list(tmp_path.glob("reports/alone/out/runs/*"))
    arguments.append("--yes")
    result = CliRunner().invoke(app, [*arguments, "--ranks", "2", "--", "alone.py"])
    assert "so each trains alone" in str(result.exception)
    # The same script on one rank is ended after its steps.
    result = CliRunner().invoke(app, [*arguments, "--ranks", "1", "--", "alone.py"])
    assert result.exit_code == 0 and "1 of 1 run completed" in result.output
    record = lab.load_records("reports/alone")[-1]
    assert record.timing and record.timing.samples_per_second is None


def measured(
    name: str, content: str, *arguments: str, ranks: int, cluster: str = "local"
) -> Record:
    """The record of a script in the working directory, measured once, for 12 steps."""
    Path(f"{name}.py").write_text(content)
    study = lab.script_study(
        [f"{name}.py", *arguments], ranks=[ranks], steps=12, warmup_steps=3, repeats=1
    )
    (record,) = lab.launch(study, cluster).wait(progress=False)
    return record


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("by-spawn", "line 20: the script itself starts 2 ranks, but is measured on 1: tell it"),
        ("spawn", f"^ranks.py ended without a step: {re.escape(OWN_RANKS)}$"),
        ("fork", f"^ranks.py ended without a step: {re.escape(OWN_RANKS)}$"),
    ],
)
def test_a_script_that_starts_ranks_itself_is_told_who_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    record = measured("ranks", STARTS_RANKS, way, ranks=1)
    assert record.error and re.search(message, record.error.message), record.error
    if way != "by-spawn":  # the script does not look at how they end
        assert "call the training function itself" in record.error.log


def test_a_script_that_trains_with_ranks_of_its_own_is_no_run_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pair.py").write_text(STARTS_ANOTHER)
    study = lab.script_study(
        ["pair.py"], ranks=[1], steps=6, warmup_steps=2, repeats=1, launcher="python"
    )
    (record,) = lab.launch(study).wait(progress=False)
    assert record.error and "a process group of 2 ranks, but is measured on 1" in str(record.error)


@pytest.mark.parametrize("way", ["by-spawn", "by-spawn-at", "by-start"])
def test_as_many_ranks_as_the_script_itself_starts_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    record = measured("ranks", STARTS_RANKS, way, ranks=2)
    assert record.completed, record.error
    assert record.communication and record.communication.buckets == [4 * 2 * 65]


def test_a_script_that_no_exception_ends_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = measured("endless", ENDLESS, ranks=2)
    assert record.completed, record.error
    assert record.script and (record.script.steps, record.script.ended) == (12, "by the lab")
    assert record.communication and record.communication.buckets == [4 * 2 * 65]
    logs = list(tmp_path.glob("reports/endless/out/runs/*/0/log/*_log.out"))
    assert len(logs) == 2
    for log in logs:
        assert "prepared 1" in log.read_text()
        assert "because it catches SystemExit" in log.read_text()


def test_a_script_that_trains_in_a_thread_is_ended_after_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = """
import threading, time, torch
w = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([w])
def learn():
    while True:
        (w + 1).sum().backward()
        optimizer.step()
threading.Thread(target=learn, daemon=True).start()
while w > -1e9:
    time.sleep(0.01)
"""
    record = measured("learner", content, ranks=1)
    assert record.completed and record.script, record.error
    assert (record.script.steps, record.script.ended) == (12, "by the lab")
    (log,) = tmp_path.glob("reports/learner/out/runs/*/0/log/*_log.out")
    assert "ends only the thread in which it trains" in log.read_text()


@pytest.mark.parametrize("hidden", [False, True])
def test_ranks_that_exchange_no_gradients_train_models_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hidden: bool
) -> None:
    """As with accelerate on CPUs; a DDP whose hook is in C++ is not seen either."""
    monkeypatch.chdir(tmp_path)
    content = f"""
import torch
from torch import distributed as dist, nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(64, 2)
if {hidden}:
    model = nn.parallel.DistributedDataParallel(model)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
while True:
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if {hidden}:
        dist.all_reduce(torch.ones(1))  # is not all that is sent
"""
    record = measured("lone", content, ranks=2)
    assert record.communication is None and record.checks == {"same_parameters": hidden}
    said = "every rank trained a model of its own"
    assert (said in lab.report("reports/lone").html.read_text()) != hidden


@pytest.mark.parametrize("awaited", [False, True])
def test_all_passes_of_a_step_that_synchronise_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, awaited: bool
) -> None:
    """As in a GAN, whose generator's pass also goes through the discriminator."""
    monkeypatch.chdir(tmp_path)
    content = f"""
import torch
from torch import distributed as dist, nn
dist.init_process_group("gloo")
generator, critic = (nn.parallel.DistributedDataParallel(nn.Linear(64, 64)) for _ in range(2))
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (critic, generator)]
while True:
    for optimizer in optimizers:
        made = generator(torch.randn(8, 64))
        made = made.detach() if optimizer is optimizers[0] else made
        critic(made).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.broadcast(torch.ones(100), 0, async_op={not awaited})
"""
    sent = measured("gan", content, ranks=2).communication
    size = 4 * 64 * 65
    assert sent and sent.buckets == [size] * 3
    if not awaited:  # then nobody knows when the call ended, and DDP's buckets are told alone
        assert sent.bytes == 3 * size and sent.calls == 3
        assert sent.exposed and sent.exposed_in.keys() == {"backward"}
        return
    assert sent.bytes == 3 * size + 400
    assert sent.calls == 4 and sent.operations == {
        "all_reduce": Operation(calls=3, bytes=3 * size),
        "broadcast": Operation(calls=1, bytes=400),
    }
    assert sent.exposed and sent.total and 0 < sent.exposed.median <= sent.total.median
    assert sent.exposed_in.keys() == {"backward", "other"} and min(sent.exposed_in.values()) > 0
    assert {"bucket 0", "broadcast"} <= {event.name for event in sent.timeline}
    text = lab.report("reports/gan").html.read_text()
    assert "in 3 buckets and 1 call" in text and "Other bars on the link are calls." in text


def test_a_script_may_copy_and_save_a_whole_ddp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = measured("keeps", KEEPS, ranks=2)
    assert record.completed, record.error
    assert record.communication and record.communication.buckets == [4 * 2 * 65]
    assert record.environment and record.environment.backend == "gloo"


def test_a_script_that_updates_by_hand_marks_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = measured("by_hand", BY_HAND, ranks=2)
    assert record.completed, record.error
    assert record.timing and {"forward", "backward", "optimizer"} <= record.timing.phases.keys()
    assert record.script and record.script.optimizer is None
    assert record.communication and record.communication.buckets == [4 * 2 * 65]
    assert record.memory and record.memory.parameters == 4 * 2 * 65
    assert record.environment and record.environment.backend == "gloo"
    assert dict(environment_rows(record))["steps counted"] == "those that the script marks"


def test_a_script_that_neither_ends_nor_trains_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("impatient.yaml").write_text("executor: local\ndevice: cpu\nhang_timeout_s: 10\n")
    content = """
import time, torch
w = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([w])
try:
    while True:
        (w + 1).sum().backward()
        optimizer.step()
except:
    time.sleep(1e6)
"""
    record = measured("waits", content, ranks=1, cluster="impatient.yaml")
    where = "in the phase 'ending the script'; stood in <module> (waits.py:10)"
    assert record.error and where in record.error.message


@pytest.mark.parametrize("how", ["", "killed"])
def test_what_a_script_leaves_running_ends_with_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    record = measured("leaves", LEAVES, *how.split(), ranks=1)
    assert record.completed != bool(how), record.error
    memory, *left = Path("left").read_text().split()
    assert len(left) == 4 and not [pid for pid in map(int, left) if runs(pid)]
    assert not Path("/dev/shm", memory).exists()  # freed by multiprocessing's resource tracker
    (log,) = tmp_path.glob("reports/leaves/out/runs/*/0/log/*_0_log.out")
    assert "the rank left processes running, now ended: " in log.read_text()
    assert "sleep 600" in log.read_text()


def runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_ranks_with_unequal_data_are_told_how_many_steps_all_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = """
import torch
from torch import distributed as dist, nn
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with model.join():
    for step in range(8 + 2 * dist.get_rank()):
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
"""
    record = measured("join", content, ranks=2)
    assert record.error and re.search(
        "took 8 and 10 steps; they must match, so measure no more than 8", record.error.message
    )


@pytest.mark.parametrize(
    ("rank", "step", "done"),
    [(1, "step < 9", "9 steps"), (0, "step < 9", "9 steps"), (1, "step % 2", "12 steps")],
)
def test_ranks_that_take_unequal_steps_are_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, step: str, done: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("impatient.yaml").write_text("executor: local\ndevice: cpu\nhang_timeout_s: 10\n")
    content = f"""
import torch
from torch import distributed as dist, nn
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    steps = dist.get_rank() != {rank} or {step}
    if not steps and "<" in {step!r}:
        break
    model(torch.randn(8, 64)).square().mean().backward()
    if steps:
        optimizer.step()
"""
    record = measured("uneven", content, ranks=2, cluster="impatient.yaml")
    assert record.error and record.error.message.startswith(f"uneven.py finished after {done} on")
    assert record.error.rank == (rank if done == "9 steps" else 0)


def test_the_last_line_of_a_log_says_why_a_script_ended(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from lab.worker.script.main import last_line
print("loading")
sys.stderr.write("usage: train.py --lr LR\\ntrain.py: error: --lr is missing\\n\\n=====\\n")
Path("last").write_text(last_line())
sys.stderr.write("error: " + "too long " * 99)
Path("long").write_text(last_line())
os.dup2(os.pipe()[1], 2)
sys.stderr.write("error: in a pipe that nobody can read again\\n")
Path("unread").write_text(last_line())
"""
    with (tmp_path / "log").open("w") as log:
        subprocess.run(
            [sys.executable, "-u", "-c", code], cwd=tmp_path, stdout=log, stderr=log, check=True
        )
    assert (tmp_path / "last").read_text() == "train.py: error: --lr is missing"
    assert (tmp_path / "long").read_text().startswith("error: too long too long ")
    assert len((tmp_path / "long").read_text()) == 200
    assert (tmp_path / "unread").read_text() == ""
