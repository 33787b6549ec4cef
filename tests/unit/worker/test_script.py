"""Scripts of a user's, measured in this process on one rank: what their hooks see."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import textwrap
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pandas as pd
import pytest
import torch
from torch import distributed
from torch.distributed import rpc

import lab
from lab.config.run import Run
from lab.errors import LabError
from lab.machine import age
from lab.records.schema import PHASES
from lab.worker.context import Measurement, RankContext
from lab.worker.script.main import measure_script
from lab.worker.script.meter import instrument
from lab.worker.script.processes import _call_without_ranks, one_process

HEAD = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(batch, model=model, optimizer=optimizer):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

ENVIRON = os.environ  # its copies are mere dicts


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measure a script on one rank; a failure in it is raised."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for clock in ("perf_counter", "time"):  # put back if the script replaces them
        monkeypatch.setattr(time, clock, getattr(time, clock))
    threads = torch.get_num_threads()
    gc.freeze()  # modules are looked for among all objects, of which a script's process has few

    def measure(
        body: str, *arguments: str, head: str = HEAD, waited_s: float = 0.0, **fields: Any
    ) -> Measurement:
        (tmp_path / "train.py").write_text(head + body)
        model = {"kind": "script", "command": ["train.py", *arguments], "launcher": "python"}
        model |= fields.pop("model", {})
        content = {"steps": 6, "warmup_steps": 2} | fields | {"model": model}
        run = Run.model_validate(content, context={"folder": tmp_path, "digests": {}})
        context = RankContext(
            rank=0,
            world_size=1,
            local_rank=0,
            device="cpu",
            cores=tuple(os.sched_getaffinity(0)),
            threads=threads,
            cluster="local",
            rendezvous=tmp_path / "address",
            waited_s=waited_s,
        )
        # Each measurement is a process of its own elsewhere.
        monkeypatch.chdir(tmp_path)
        measurement = measure_script(
            run, context, data_root=tmp_path, folder=tmp_path, progress=lambda *_: None
        )
        assert measurement is not None
        return measurement

    return measure


def phases(measurement: Measurement) -> set[str]:
    assert measurement.timing is not None
    return set(measurement.timing.phases)


def test_a_plain_loop_tells_all_its_phases_and_is_ended_after_its_steps(
    measured: Any, tmp_path: Path
) -> None:
    body = "for batch in DataLoader(torch.randn(4000, 4), 8):\n    train(batch)\nopen('whole', 'w')"
    measurement = measured(body)
    assert phases(measurement) == set(PHASES) - {"h2d"}
    assert measurement.script.steps == 6 and measurement.script.ended == "by the lab"
    assert not (tmp_path / "whole").exists()
    assert measurement.timing.measured_steps == 4
    # Nobody said how many samples a step has.
    assert measurement.timing.samples_per_second is None and measurement.communication is None
    steps = pd.read_parquet(tmp_path / "steps.parquet")
    parts = steps[["data", "forward", "backward", "optimizer", "other"]].sum(axis=1)
    assert len(steps) == 6 and (abs(parts - steps.step_time) < 1e-9).all()
    assert steps.h2d.isna().all() and steps.loss.isna().all()


def test_phases_that_were_not_seen_are_not_there(measured: Any) -> None:
    assert phases(measured("for _ in range(9): train(torch.randn(8, 4))")) == {
        *("forward", "backward", "optimizer", "other")
    }
    by_hand = """
w = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for _ in range(9):
    w.grad = torch.ones(4)
    optimizer.step()
"""
    assert phases(measured(by_hand)) == {"optimizer"}


def test_a_wrapper_left_in_evaluation_mode_trains_all_the_same(measured: Any) -> None:
    body = """
wrapper = nn.Sequential(model).eval()
model.train()
while True:
    train(torch.randn(8, 4), wrapper)
    with torch.no_grad():
        model(torch.randn(8, 4))
"""
    measurement = measured(body)
    assert measurement.timing.phases["forward"].median > 0
    assert measurement.script.wrappers == ["Sequential"]


def test_a_step_is_one_of_the_optimizer_however_many_passes_it_has(measured: Any) -> None:
    body = """
for step in range(9):
    for _ in range(4):
        (model(torch.randn(8, 4)).mean() / 4).backward()
    optimizer.step()
    with torch.no_grad():
        model(torch.randn(8, 4))  # is not trained on
"""
    measurement = measured(body)
    assert measurement.script.steps == 6 and "forward" in phases(measurement)


def test_of_two_optimizers_the_first_counts_or_the_one_that_the_script_names(
    measured: Any,
) -> None:
    body = """
import lab
critic = nn.Linear(4, 1)
slow = torch.optim.AdamW(critic.parameters())
with {}:
    for step in range(40):
        train(torch.randn(8, 4))
        if step % 3 == 2:
            train(torch.randn(8, 4), critic, slow)
"""
    measurement = measured(body.format("torch.enable_grad()"))
    assert (measurement.script.optimizer, measurement.script.optimizers) == ("SGD", 2)
    named = measured(body.format("lab.instrument(critic, slow, samples_per_step=24)"))
    assert (named.script.optimizer, named.script.samples_per_step) == ("AdamW", 24)
    rate = 24 / named.timing.step.median
    assert named.timing.samples_per_second == pytest.approx(rate)


def test_an_optimizer_made_anew_takes_the_place_of_its_predecessor(measured: Any) -> None:
    body = """
for epoch in range(9):
    trained = model[2] if epoch == 0 else model  # is unfrozen later
    optimizer = torch.optim.AdamW(trained.parameters(), foreach=False)
    for step in range(2):
        train(torch.randn(8, 4), optimizer=optimizer)
"""
    measurement = measured(body)
    script, memory = measurement.script, measurement.memory
    assert (script.steps, script.ended, script.optimizers) == (6, "by the lab", 1)
    # Of the last optimizer alone: two moments, and a number of steps for each parameter.
    assert memory.optimizer == 2 * memory.parameters + 4 * 4


def test_of_two_optimizers_that_share_parameters_one_counts(measured: Any) -> None:
    body = """
other = torch.optim.SGD(model[2].parameters(), lr=0.1)
for step in range(40):
    train(torch.randn(8, 4))
    if step % 4 == 3:
        other.step()
    print(step, file=open("steps", "a"))
"""
    measurement = measured(body, steps=20)
    assert (measurement.script.steps, measurement.script.optimizers) == (20, 2)
    # All but one step, by which it looked as if the second had taken the place of the first.
    assert len(Path("steps").read_text().splitlines()) == 18


def test_an_optimizer_within_another_is_none_of_its_own(measured: Any) -> None:
    body = """
class Wrapper(torch.optim.Optimizer):
    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner
    def step(self):
        self.inner.step()
wrapper = Wrapper(optimizer)
while True:
    train(torch.randn(8, 4), optimizer=wrapper)
"""
    script = measured(body).script
    assert (script.optimizer, script.optimizers) == ("Wrapper", 1)


def test_a_script_may_replace_the_clocks_of_python(measured: Any) -> None:
    body = """
import time
sleep, time.perf_counter, time.time = time.sleep, lambda: 0.0, lambda: 0.0
while True:
    train(torch.randn(8, 4))
    sleep(0.01)
"""
    assert measured(body).timing.phases["other"].median >= 0.01


def test_modules_and_steps_of_every_optimizer_are_seen(measured: Any) -> None:
    body = """
import time
class Critic(nn.Linear):
    def forward(self, batch):
        time.sleep(0.02)
        return super().forward(batch)
class Slow(torch.optim.SGD):
    def step(self):
        time.sleep(0.02)
        super().step()
critic = Critic(4, 1)
slow = Slow(critic.parameters())
for step in range(9):
    train(torch.randn(8, 4))
    if step:
        train(torch.randn(8, 4), critic, slow)
"""
    measurement = measured(body)
    assert measurement.script.wrappers == ["Critic", "Sequential"]
    assert measurement.memory.parameters == 4 * (4 * 8 + 8 + 8 + 1 + 4 + 1)
    timing = measurement.timing
    assert timing.phases["forward"].median >= 0.02 and timing.phases["optimizer"].median >= 0.02
    assert timing.phases["other"].median < timing.step.median - 0.04


def test_the_model_of_an_optimizer_of_copies_is_seen(measured: Any) -> None:
    body = """
import time
class Model(nn.Linear):
    def forward(self, batch):
        time.sleep(0.02)
        return super().forward(batch)
model = Model(4, 1)
copies = [p.detach().clone().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(copies, lr=0.1)
for _ in range(9):
    model(torch.randn(8, 4)).square().mean().backward()
    for copy, parameter in zip(copies, model.parameters()):
        copy.grad = parameter.grad
    optimizer.step()
    with torch.no_grad():
        for copy, parameter in zip(copies, model.parameters()):
            parameter.copy_(copy)
"""
    measurement = measured(body)
    assert measurement.script.wrappers == ["Model"] and measurement.memory.parameters == 4 * 5
    assert measurement.timing.phases["forward"].median >= 0.02


def test_frozen_parameters_beside_trained_ones_are_weights_too(measured: Any) -> None:
    body = """
model[0].requires_grad_(False)
optimizer = torch.optim.Adam(model[2].parameters())
for _ in range(9): train(torch.randn(8, 4), model, optimizer)
"""
    memory = measured(body).memory
    assert memory.parameters == 4 * (4 * 8 + 8 + 8 + 1)
    assert memory.optimizer == 2 * 4 * (8 + 1) + 2 * 4  # of each tensor's own count of steps, too


def test_waiting_for_other_jobs_is_no_setup(measured: Any) -> None:
    waited = age()
    measurement = measured("for _ in range(9): train(torch.ones(8, 4))", waited_s=waited)
    assert 0 < measurement.timing.setup_time < age() - waited


def test_a_phase_that_the_script_marks_holds_all_within(measured: Any) -> None:
    body = """
import lab, time
with lab.instrument(model, optimizer) as meter:
    for _ in range(9):
        with meter.data():
            time.sleep(0.02)
        with meter.forward():
            loss = model(torch.randn(8, 4)).mean()
            time.sleep(0.02)
        with meter.backward():
            loss.backward()
        optimizer.step()
"""
    timing = measured(body).timing
    assert timing.phases["data"].median >= 0.02 and timing.phases["forward"].median >= 0.02
    assert timing.phases["backward"].median < timing.step.median - 0.04


BY_HAND = """
import lab, time
with lab.instrument(model) as meter:
    for _ in range(9):
        model(torch.randn(8, 4)).square().mean().backward()
        with meter.optimizer(), torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        time.sleep(0.02)
        meter.end_step()
"""


def test_a_script_without_an_optimizer_marks_its_steps(measured: Any) -> None:
    measurement = measured(BY_HAND)
    script, memory, timing = measurement.script, measurement.memory, measurement.timing
    assert (script.steps, script.ended) == (6, "by the lab")
    assert (script.optimizer, script.optimizers, script.wrappers) == (None, 0, ["Sequential"])
    assert phases(measurement) == {"forward", "backward", "optimizer", "other"}
    assert timing.phases["other"].median >= 0.02 and timing.measured_steps == 4
    assert (memory.parameters, memory.optimizer) == (4 * (4 * 8 + 8 + 8 + 1), None)


def test_a_script_that_shows_no_pass_has_steps_alone(measured: Any) -> None:
    body = "import lab, time\nwith lab.instrument() as meter:\n    while True:\n"
    measurement = measured(f"{body}        time.sleep(0.02)\n        meter.end_step()")
    assert measurement.timing.step.median >= 0.02 and not phases(measurement)
    assert measurement.script.optimizer is None and measurement.memory.optimizer is None


def test_an_optimizer_and_the_script_do_not_both_end_steps(measured: Any) -> None:
    body = "import lab\nwith lab.instrument() as meter:\n    train(torch.randn(8, 4))\n"
    with pytest.raises(LabError, match="the steps of SGD end those of this one"):
        measured(f"{body}    meter.end_step()")


def test_closures_and_scaled_losses_are_seen(measured: Any) -> None:
    body = """
scaler = torch.amp.GradScaler("cpu")
for step in range(9):
    loss = model(torch.randn(8, 4)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    assert measured(body).script.steps == 6
    body = """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    return loss
for step in range(9):
    optimizer.step(closure)
"""
    assert {"forward", "backward", "optimizer"} <= phases(measured(body))


def test_what_a_closure_does_is_no_work_of_the_optimizer(measured: Any) -> None:
    body = """
import time
def closure():
    time.sleep(0.02)
    loss = (list(model.parameters())[0] + 1).sum()
    loss.backward()
    return loss
for step in range(9):
    optimizer.step({given})
"""
    for given in ("closure", "closure=closure"):
        timing = measured(body.replace("{given}", given)).timing
        assert timing.phases.keys() == {"backward", "optimizer"}  # no forward pass, so no rest
        assert timing.phases["optimizer"].median < timing.step.median - 0.02


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_another_thread_does_is_no_phase_of_the_one_that_trains(measured: Any) -> None:
    body = """
import queue, threading, time
batches = queue.Queue(2)
def load():
    for batch in DataLoader(torch.randn(80, 4), 8):
        model(batch)  # as an actor does that uses the policy
        batches.put(batch)
if {loads}: threading.Thread(target=load, daemon=True).start()
def learn():
    for step in range(6):
        train(batches.get() if {loads} else torch.randn(8, 4))
        time.sleep(0.02)
if {loads}: learn()
else:
    learner = threading.Thread(target=learn)
    learner.start()
    learner.join()
"""
    timing = measured(body.replace("{loads}", "True")).timing
    assert timing.phases.keys() == {"forward", "backward", "optimizer", "other"}
    assert timing.phases["other"].median > 0.02
    # The thread that trains may be another than the first.
    in_thread = measured(body.replace("{loads}", "False"))
    assert phases(in_thread) == set(timing.phases) and in_thread.script.steps == 6


def test_parts_of_a_module_that_is_not_called_itself_are_seen(measured: Any) -> None:
    body = """
class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.networks = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 1), nn.Dropout()])
    def training_step(self, batch):
        for network in self.networks:
            batch = network(batch)
        return batch.square().mean()
module = Module()
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
while True:
    module.training_step(torch.randn(8, 4)).backward()
    optimizer.step()
"""
    measurement = measured(body, steps=9, warmup_steps=4)
    assert phases(measurement) == {"forward", "backward", "optimizer", "other"}
    assert measurement.timing.phases["forward"].median > 0
    assert measurement.script.wrappers == ["Linear"]


def test_a_list_of_layers_beside_a_module_that_is_called_is_a_part_of_the_forward_pass(
    measured: Any,
) -> None:
    body = """
import time
class Layer(nn.Linear):
    def forward(self, hidden):
        time.sleep(0.02)
        return super().forward(hidden)
class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 4)
        self.layers = nn.ModuleDict({"0": Layer(4, 4), "1": Layer(4, 4)})
stage = Stage()
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
while True:
    hidden = stage.embedding(torch.zeros(8, dtype=torch.long))
    for layer in stage.layers.values():
        hidden = layer(hidden)
    hidden.square().mean().backward()
    optimizer.step()
"""
    measurement = measured(body, steps=9, warmup_steps=4)
    assert measurement.timing.phases["forward"].median >= 0.04
    assert measurement.script.wrappers == ["Embedding", "Layer"]


# Of a module that is torch's own, torch compiles nothing in place.
OWN_FORWARD = """
class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(x)
model = Net(*model)
"""
COMPILED = {
    "a module": ("model = torch.compile(model, backend='eager')", "train(BATCH, model)", True),
    "a module in place": (
        OWN_FORWARD + "model.compile(backend='eager')",
        "train(BATCH, model)",
        True,
    ),
    "a module that the script does not name": (
        "fast = torch.compile(model, backend='eager')",
        "train(BATCH, fast)",
        True,
    ),
    "a function that marks its phase": (
        """
@torch.compile(backend="eager")
def loss(x):
    with meter.forward():
        return model(x).square().mean()
""",
        "loss(BATCH).backward(); optimizer.step(); optimizer.zero_grad()",
        False,
    ),
    "a function": (
        "loss = torch.compile(lambda x: model(x).square().mean(), backend='eager')",
        "loss(BATCH).backward(); optimizer.step(); optimizer.zero_grad()",
        False,
    ),
}


@pytest.mark.parametrize(("compiled", "step", "forward_recorded"), COMPILED.values(), ids=COMPILED)
def test_what_is_compiled_stays_one_graph(
    measured: Any, tmp_path: Path, compiled: str, step: str, forward_recorded: bool
) -> None:
    """A forward pass inside a compiled function is not seen; its step is."""
    body = f"""
import lab
from torch._dynamo.utils import counters
torch._dynamo.reset()
counters.clear()
{compiled}
with lab.instrument(model, optimizer) as meter:
    for _ in range(4):
        {step.replace("BATCH", "torch.randn(8, 4)")}
open("graphs", "w").write(f"{{dict(counters['graph_break'])}} {{counters['stats']['unique_graphs']}}")
"""
    assert ("forward" in phases(measured(body))) == forward_recorded
    assert (tmp_path / "graphs").read_text() == "{} 1"


def test_a_compiled_step_of_the_optimizer_is_seen(measured: Any) -> None:
    body = """
step = torch.compile(lambda: optimizer.step(), backend="eager")
for _ in range(9):
    model(torch.randn(8, 4)).square().mean().backward()
    step()
"""
    measurement = measured(body)
    assert measurement.script.steps == 6 and "optimizer" in phases(measurement)


def test_the_compilers_copies_of_a_model_are_no_models(measured: Any) -> None:
    body = """
@torch.compile(backend="eager")
def step(x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
for _ in range(9):
    step(torch.randn(8, 4))
"""
    with warnings.catch_warnings():  # hooks must not be compiled either
        warnings.filterwarnings("error", message="Dynamo does not know how to trace")
        measurement = measured(body)
    assert measurement.script.steps == 6 and measurement.script.wrappers == ["Sequential"]
    assert phases(measurement) == {"backward", "optimizer"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_one_also_where_the_script_catches_it(
    measured: Any, number: signal.Signals
) -> None:
    body = f"""
import os
try:
    while True:
        train(torch.randn(8, 4))
        os.kill(os.getpid(), {number:d})
except KeyboardInterrupt:
    pass
"""
    earlier = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            measured(body)
    finally:
        signal.signal(number, earlier)
    assert caught.value.args == (number,)  # by which the rank's process then ends


def test_a_warning_by_the_scheduler_ends_no_script(measured: Any) -> None:
    body = """
import os, signal
for _ in range(9):
    train(torch.randn(8, 4))
    os.kill(os.getpid(), signal.SIGTERM)
"""
    earlier = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert measured(body).script.steps == 6
    finally:
        signal.signal(signal.SIGTERM, earlier)


def test_a_process_that_a_script_forks_ends_with_its_own_status(
    measured: Any, tmp_path: Path
) -> None:
    body = """
import os
if (child := os.fork()) == 0:
    os._exit(7)
open("status", "w").write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
for _ in range(9): train(torch.randn(8, 4))
"""
    assert measured(body).script.steps == 6
    assert (tmp_path / "status").read_text() == "7"


def test_a_model_that_the_script_copies_or_saves_holds_nothing_of_the_lab(
    measured: Any, tmp_path: Path
) -> None:
    body = """
import copy
for step in range(9):
    trained = copy.deepcopy(model) if step else model  # as the inner loops of meta-learning do
    train(torch.randn(8, 4), trained)
    torch.save(trained, "model.pt")
    torch.load("model.pt", weights_only=False)(torch.randn(8, 4))
"""
    assert {"forward", "backward"} <= phases(measured(body))
    with ZipFile(tmp_path / "model.pt") as file:
        assert b"lab" not in file.read("model/data.pkl")


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "import os; os._exit(0)"])
def test_a_script_may_end_by_itself_after_the_warm_up(measured: Any, end: str) -> None:
    measurement = measured(f"for _ in range(4): train(torch.randn(8, 4))\n{end}")
    assert (measurement.script.steps, measurement.script.ended) == (4, "by itself")
    assert measurement.timing.measured_steps == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("pass", "without a step"),
        ("print('found no GPU', file=sys.stderr)", 'the last line of its log is "found no GPU"'),
        ("train(torch.randn(8, 4))", "ended after 1 step,"),
        ("train(torch.randn(8, 4)); import os; os._exit(0)", "ended after 1 step,"),
        (
            "train(torch.randn(8, 4)); torch.optim.SGD([nn.Parameter(torch.ones(1))]).step()",
            r"1 step of its first optimizer; others made steps too \(lab.instrument",
        ),
        ("sys.exit(3)", "exit status 3"),
        ("import os; os._exit(3)", "exit status 3"),
        ("sys.exit(True)", "exit status 1"),
        ("sys.exit('no data')", "ended by sys.exit: no data$"),
        ("raise KeyboardInterrupt", "failed in line 12: KeyboardInterrupt by `raise"),
        ("raise GeneratorExit('early')", "failed in line 12: GeneratorExit: early"),
        ("train(torch.randn(8, 5))", r"train.py failed in line 9: RuntimeError"),
        ("assert len(sys.argv) > 9", r"failed in line 12: AssertionError by `assert len\(sys"),
        ("import json; json.loads('{')", r"failed in line 12: JSONDecodeError: Expecting"),
        ("import nothing_here", "ModuleNotFoundError"),
        ("raise EOFError('EOF when reading a line')", r"a line\. Nothing is typed or piped into"),
    ],
)
def test_a_script_that_cannot_be_measured_says_why(measured: Any, body: str, message: str) -> None:
    with pytest.raises(LabError, match=message):
        measured(body)


@pytest.mark.parametrize(
    "body",
    [
        'raise RuntimeError("Distributed package doesn\'t have NCCL built in")',
        "torch.cuda.set_device(0)",
        "assert torch.cuda.is_available()",
        "local_rank = 0 % torch.cuda.device_count()",
        "print('This example needs 2 GPUs.', file=sys.stderr)",
        "sys.exit('This example needs 2 GPUs.')",
        "raise ValueError('FSDP is only available on GPU.')",
        "raise RuntimeError('Cannot access accelerator device when none is available.')",
        "raise ValueError('Logging memory stats is not supported on CPU devices')",
        'raise RuntimeError("cpu backend doesn\'t support events.")',
        "raise AttributeError(\"module 'torch.cpu' has no attribute 'empty_cache'\")",
        "raise ModuleNotFoundError(\"No module named 'triton'\")",
    ],
)
def test_a_script_that_wants_a_gpu_is_told_that_there_is_none(measured: Any, body: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    advice = r"[^.]\. The ranks of cluster 'local' train on CPUs: let the script do so, if it can"
    with pytest.raises(LabError, match=advice) as failure:
        measured(body)
    assert "processes that it starts itself" not in str(failure.value)


@pytest.mark.parametrize(
    "text",
    [
        "No sampler is set. All ranks see the same data, which takes the use from multi-GPU runs",
        "not enough CPU memory for a batch of 64",
    ],
)
def test_a_failure_that_only_speaks_of_devices_gets_no_advice_on_them(
    measured: Any, text: str
) -> None:
    with pytest.raises(LabError, match=f"{text}$"):
        measured(f"raise ValueError('{text}')")


def test_a_script_with_a_number_of_ranks_of_its_own_is_told_which_it_gets(measured: Any) -> None:
    lightning = "You set `devices=2`, but the product (2 * 1) does not match the world size (1)."
    with pytest.raises(LabError, match=r"size \(1\)\. It is measured on 1 rank: let it take their"):
        measured(f"raise ValueError({lightning!r})")


def test_a_script_that_starts_a_rank_for_each_of_no_gpus_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "of-the-lab")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    said = r"starts 0 ranks \(no GPU found\?\), but is measured on 2: tell it the number"
    with one_process(), pytest.raises(LabError, match=said):
        torch.multiprocessing.spawn(print, nprocs=0)


@pytest.mark.skipif(not rpc.is_available(), reason="this torch has no RPC")
def test_a_process_that_a_script_starts_does_not_wait_for_others_by_rpc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for owner in (distributed, distributed.distributed_c10d):
        monkeypatch.setattr(owner, "rendezvous", owner.rendezvous)  # put back afterwards
    with pytest.raises(LabError, match="forms a process group, but the lab starts the ranks"):
        _call_without_ranks(rpc.init_rpc, "worker", rank=0, world_size=2)


WORKER = """
class Bad(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, place):
        raise RuntimeError({said!r})

list(DataLoader(Bad(), num_workers=1))
"""


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("bad sample", "$"),
        ("unable to allocate shared memory(shm) for file <x>", ". Loader processes hand over"),
    ],
)
def test_a_failure_of_a_loader_process_is_one_line(
    measured: Any, monkeypatch: pytest.MonkeyPatch, said: str, advice: str
) -> None:
    # torch waits for each process of a loader that failed.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    where = f"RuntimeError: {said} (in DataLoader worker process 0)"
    with pytest.raises(LabError, match=re.escape(where) + advice) as failure:
        measured(WORKER.format(said=said))
    assert "Traceback" not in str(failure.value)
    del failure  # it holds the loader, whose end waits as well
    gc.collect()


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("DATADIR", "$"),
        ("SLURM_PROCID", r"\. The ranks of cluster 'local' are not started by Slurm"),
    ],
)
def test_a_variable_that_is_not_set_is_called_one(
    measured: Any, monkeypatch: pytest.MonkeyPatch, variable: str, advice: str
) -> None:
    monkeypatch.setattr(os, "environ", ENVIRON)
    for name in (variable, "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    said = f"^train.py failed in line 12: the environment variable {variable} is not set{advice}"
    with pytest.raises(LabError, match=said):
        measured(f"import os; os.environ['{variable}']")
    with pytest.raises(LabError, match=f"KeyError: '{variable}'$"):
        measured(f"{{}}['{variable}']")


def test_a_library_is_not_blamed_wherever_it_is_installed(
    measured: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "packages"
    (installed / "torchdata-1.0.dist-info").mkdir(parents=True)
    (installed / "installed_one.py").write_text("def load():\n    raise ValueError('no data')\n")
    monkeypatch.syspath_prepend(str(installed))
    with pytest.raises(LabError, match=r"^train.py failed in line 12: ValueError: no data$"):
        measured("import installed_one; installed_one.load()")


def test_arguments_and_settings_reach_the_script(measured: Any, tmp_path: Path) -> None:
    body = "open('said', 'w').write(' '.join(sys.argv[1:]))\nfor _ in range(9): train(torch.ones(8, 4))"
    arguments = ("--batch={micro_batch_size}", "--lr", "{learning_rate}", "{rank}", "{out}")
    measurement = measured(body, *arguments, micro_batch_size=8, learning_rate=0.5)
    said = (tmp_path / "said").read_text()
    assert said == f"--batch=8 --lr 0.5 0 {tmp_path / 'script'}"
    assert measurement.timing.samples_per_second == 8 / measurement.timing.step.median


def test_a_module_runs_as_in_its_package(measured: Any, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "sizes.py").write_text("batch = 8")
    (tmp_path / "pack" / "train.py").write_text(
        HEAD + "from .sizes import batch\nimport pack.sizes\nopen('said', 'w').write(sys.argv[1])\n"
        "for _ in range(9): train(torch.ones(batch, 4))"
    )
    measurement = measured("", model={"command": ["-m", "pack.train", "{world_size}"]})
    assert measurement.script.steps == 6 and (tmp_path / "said").read_text() == "1"


def test_torch_is_left_as_it_was(measured: Any) -> None:
    from multiprocessing.process import BaseProcess

    from torch.optim import optimizer as optimizers
    from torch.utils.data import DataLoader

    def replaced() -> list[object]:
        return [torch.autograd.backward, DataLoader.__iter__, BaseProcess.start, os._exit]

    before = replaced()
    measured("for _ in range(9): train(torch.ones(8, 4))")
    assert replaced() == before
    assert not optimizers._global_optimizer_post_hooks


def test_without_the_lab_an_instrumented_script_only_runs() -> None:
    with (
        instrument(None, SimpleNamespace(), samples_per_step=8) as meter,
        meter.data(),
        meter.forward(),
        meter.backward(),
        meter.optimizer(),
    ):
        meter.end_step()
    with pytest.raises(ValueError, match="samples_per_step is 0"):
        lab.instrument(samples_per_step=0).__enter__()


SQUARES = "pool = get_context({!r}).Pool(1); pool.map(abs, [-1]); pool.terminate()"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_would_start_itself_again_without_end_is_told(
    measured: Any, method: str
) -> None:
    # The processes need not import torch, which takes longer than all else.
    begin = (
        f"\nfrom multiprocessing import get_context\ndef work():\n    {SQUARES.format(method)}\n"
    )
    told = (
        rf"^train\.py failed in line 4: a process started by {method} imports the script and .*"
        r"put what line 5 does under `if __name__ == \"__main__\":`$"
    )
    with pytest.raises(LabError, match=told):
        measured("work()\n", head=begin)
    guarded = textwrap.indent(f"{HEAD}work()\nfor _ in range(9): train(torch.ones(8, 4))\n", "    ")
    assert measured(f'if __name__ == "__main__":\n{guarded}', head=begin).script.steps == 6


def test_a_forked_pool_needs_no_guard(measured: Any) -> None:
    begin = f"\nfrom multiprocessing import get_context\n{SQUARES.format('fork')}\n"
    assert measured(f"{begin}for _ in range(9): train(torch.ones(8, 4))").script.steps == 6


def test_a_file_within_a_package_is_told_to_be_measured_as_a_module(measured: Any) -> None:
    told = rf"known parent package\. If .* from the folder above, .*: `-m {Path.cwd().name}\.train`"
    for command in (["train.py"], ["-m", "train"]):
        with pytest.raises(LabError, match=told):
            measured("from . import helper", model={"command": command})
    Path("scripts").mkdir()
    Path("scripts/train.py").write_text("from . import helper")
    with pytest.raises(LabError, match=r"known parent package\. To be .* `-m scripts\.train` in"):
        measured("", model={"command": ["scripts/train.py"]})


@pytest.mark.parametrize(
    ("package", "told"),
    [
        ("shapes_of_mine", r"'shapes_of_mine'\. To be found from .* `-m scripts\.train` in place"),
        ("nowhere_to_be_found", r"'nowhere_to_be_found'\. A script runs in the lab's own Python"),
    ],
)
def test_where_a_package_that_is_missing_has_to_be_is_said(
    measured: Any, package: str, told: str
) -> None:
    for folder in ("scripts", "shapes_of_mine"):
        Path(folder).mkdir()
    Path("scripts/train.py").write_text(f"import {package}")
    with pytest.raises(LabError, match=told):
        measured("", model={"command": ["scripts/train.py"]})
