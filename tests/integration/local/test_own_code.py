"""A model and data of the user's own, beside a study: every strategy that can carry them, and every way in which they fail."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

import lab
from lab.config.study import Study
from lab.records.store import Record

EXAMPLE = Path(__file__).parents[3] / "reports" / "own-model"
MODEL = {
    "kind": "python",
    "factory": "unet:UNet",
    "args": {"width": 4, "depth": 2},
    "loss": "unet:dice_and_cross_entropy",
    "blocks": "down",
}
DATA = {"kind": "python", "factory": "unet:cells", "args": {"images": 32, "size": 16}}
BASE = {
    "model": MODEL,
    "data": DATA,
    "global_batch_size": 4,
    "steps": 6,
    "warmup_steps": 2,
    "eval_batches": 1,
}
# As the lab's naive DDP.
STRATEGY = """
from torch import distributed as dist
from lab.worker.strategies.base import Strategy, Wrapper

class Mean(Strategy):
    def wrap(self, model, setup):
        return Wrapper(model)

    def synchronize(self, parallel):
        for parameter in parallel.parameters():
            dist.all_reduce(parameter.grad.div_(dist.get_world_size()))

def nothing_of_the_kind():
    return 3
"""
FAULTS = """
import os
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)

def nothing():
    pass

def broken():
    return 1 / 0

def number():
    return 3

def loss(x, y):
    return (x - y) ** 2

def mean(x, y):
    return ((x - y) ** 2).mean()

def wrong(x, y):
    return {}["pixels"]

def undefined(x, y):
    return ((x - y) ** 2).mean().log() * 0 / 0

def crash(x, y):
    print("corrupted size", flush=True)
    os.abort()

def data():
    return [(torch.ones(4), torch.ones(4))] * 8, [(torch.ones(4), torch.ones(4))] * 8

def empty():
    return [], []

def streams():
    return iter(data()[0]), iter(data()[1])

def leaves():
    raise SystemExit

def interrupts():
    raise KeyboardInterrupt

class Faulty:
    def __init__(self, faulty, samples=99):
        self.faulty, self.samples = faulty, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return self.faulty() if index % 7 == 4 else data()[0][0]

def triples():
    return Faulty(lambda: (1, 2, 3)), data()[1]

def words():
    return Faulty(lambda: (np.array(["a"]), 2)), data()[1]

def shapes():
    return Faulty(lambda: (torch.ones(5), torch.ones(4)), 1000), data()[1]

def fails():
    return Faulty(lambda: {}["pixels"], 1000), data()[1]

def unseeded():
    torch.seed()
    samples = list(zip(torch.randn(8, 4), torch.randn(8, 4)))
    return samples, samples

class Unused(Net):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(4, 4)

class Unequal(Net):
    def __init__(self):
        super().__init__()
        if torch.distributed.get_rank():
            self.spare = nn.Linear(4, 4)
"""
# What a factory or a loss gives, and what the record of the failed run says of it.
MESSAGES = {
    "nothing": ({"factory": "own:nothing"}, {}, "own:nothing returned nothing"),
    "broken": (
        {"factory": "own:broken"},
        {},
        r"own:broken failed in own\.py, line 19: ZeroDivisionError: division by zero",
    ),
    "number": ({"factory": "own:number"}, {}, "own:number returned 'int', not a torch.nn.Module"),
    "loss": (
        {"loss": "own:loss"},
        {},
        r"the loss of own:Net is not a scalar tensor but float32 of shape \(4, 4\)",
    ),
    "wrong": ({"loss": "own:wrong"}, {}, r"^own\.py, line 31: KeyError: 'pixels'$"),
    "undefined": (
        {"loss": "own:undefined"},
        {},
        "the loss is nan at step 0 of 6 .*: nothing was learned before it, so look at the data",
    ),
    "empty": ({}, {"factory": "own:empty"}, "own:empty returned a data set without samples"),
    "leaves": (
        {"factory": "own:leaves"},
        {},
        r"own:leaves failed in own\.py, line \d+: SystemExit",
    ),
    # As none that a signal raises, which is told as the end of the rank.
    "interrupts": (
        {},
        {"factory": "own:interrupts"},
        r"own:interrupts failed in own\.py, line \d+: KeyboardInterrupt by `raise Keyb",
    ),
    "streams": ({}, {"factory": "own:streams"}, "own:streams returned a list_iterator, but a data"),
}


def measured(folder: Path, base: dict[str, object], grids: list[dict[str, object]]) -> list[Record]:
    content = {"title": "Own", "question": "?", "base": base, "grid": grids, "repeats": 1}
    content["baseline"] = {key: values[0] for key, values in grids[0].items()}
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    profile = folder / "local.yaml"
    profile.write_text("executor: local\n")
    return lab.launch(Study.load(folder), str(profile)).wait(progress=False)


def test_strategies_that_can_carry_an_own_model_learn_the_same(tmp_path: Path) -> None:
    shutil.copy2(EXAMPLE / "unet.py", tmp_path)
    carriers = ["ddp", "naive_ddp", "zero1", "fsdp"]
    settings = [{"strategy": ["single"], "world_size": [1]}]
    (tmp_path / "mine.py").write_text(STRATEGY)
    settings += [{"strategy": [*carriers, "mine:Mean"], "world_size": [2]}]
    settings += [
        {"strategy": ["single"], "world_size": [1], "activation_checkpointing": [True]},
        {"strategy": ["single"], "world_size": [1], "precision": ["bf16"]},
        {"strategy": ["single"], "world_size": [1], "loader": ["classic"]},
    ]
    records = measured(tmp_path, BASE, settings)
    assert [record.error for record in records if not record.completed] == []
    single, *others = records
    assert single.quality is not None and single.quality.loss[-1] < single.quality.loss[0]
    for record in others:
        assert record.quality is not None and record.timing is not None
        tolerance = 2e-2 if record.run.precision == "bf16" else 2e-4
        assert record.quality.loss == pytest.approx(single.quality.loss, rel=tolerance)
        assert record.timing.flops_per_second
        assert record.quality.depends_on_split is None
    flops = {
        round(record.timing.flops_per_second / record.timing.samples_per_second)
        for record in records
        if record.timing and record.timing.flops_per_second
    }
    (own,) = (record for record in records if record.run.own_strategy)
    assert own.run.label.startswith("UNet Mean x2") and own.communication is not None
    assert set(own.communication.operations) == {"all_reduce"}
    assert own.checks["same_parameters"]
    assert len(flops) == 1, "what a model computes does not depend on how it is measured"
    (sharded,) = (record for record in records if record.run.strategy == "fsdp")
    assert single.gradients and sharded.communication is not None
    units = {gradient.block for gradient in single.gradients}
    assert len(units) == sharded.communication.operations["reduce_scatter"].calls


@pytest.mark.parametrize(("model", "data", "message"), MESSAGES.values(), ids=MESSAGES)
def test_what_fails_in_own_code_is_told_with_its_line(
    tmp_path: Path, model: dict[str, object], data: dict[str, object], message: str
) -> None:
    (tmp_path / "own.py").write_text(FAULTS)
    own = {
        "model": {"kind": "python", "factory": "own:Net", "loss": "own:mean"} | model,
        "data": {"kind": "python", "factory": "own:data"} | data,
    }
    (record,) = measured(tmp_path, BASE | own, [{"strategy": ["single"]}])
    assert record.status == "failed" and record.error is not None and record.timing is None
    assert record.error.type == "LabError"
    assert re.search(message, record.error.message), record.error.message


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("triples", r"^sample \d+ of own:triples is not a pair of input and target: tuple of 3"),
        ("words", r"^the input of sample \d+ of own:words is of type <U1; return a tensor"),
        ("shapes", "^samples of own:shapes do not make a batch: stack expects"),
        ("fails", r"^own:fails failed in own\.py, line \d+: KeyError: 'pixels'"),
    ],
)
def test_a_wrong_sample_among_many_is_told_by_either_loader(
    tmp_path: Path, factory: str, message: str
) -> None:
    (tmp_path / "own.py").write_text(FAULTS)
    own = {
        "model": {"kind": "python", "factory": "own:Net", "loss": "own:mean"},
        "data": {"kind": "python", "factory": f"own:{factory}"},
    }
    loaders = [{"loader": ["fast"]}, {"loader": ["classic"], "loader_workers": [0, 1]}]
    for record in measured(tmp_path, BASE | own | {"strategy": "single"}, loaders):
        assert record.error is not None and record.error.type == "LabError"
        assert re.search(message, record.error.message), record.error.message
        assert "Traceback" not in record.error.message


@pytest.mark.parametrize(
    ("model", "data", "strategy", "message"),
    [
        ("Net", "unseeded", "ddp", "own:unseeded makes different samples on different ranks: draw"),
        ("Unused", "data", "ddp", r"^spare\.weight, spare\.bias took no part in a step's loss"),
        ("Unequal", "data", "zero1", r"own:Unequal makes another module on rank 1 than on rank 0"),
    ],
)
def test_what_fails_on_several_ranks_alone_is_told(
    tmp_path: Path, model: str, data: str, strategy: str, message: str
) -> None:
    (tmp_path / "own.py").write_text(FAULTS)
    own = {
        "model": {"kind": "python", "factory": f"own:{model}", "loss": "own:mean"},
        "data": {"kind": "python", "factory": f"own:{data}"},
    }
    settings = {"strategy": [strategy], "world_size": [2]}
    (record,) = measured(tmp_path, BASE | own, [settings])
    assert record.error is not None and re.search(message, record.error.message), record.error


def test_a_crash_before_the_first_step_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FAULTS)
    own = {
        "model": {"kind": "python", "factory": "own:Net", "loss": "own:crash"},
        "data": {"kind": "python", "factory": "own:data"},
    }
    (record,) = measured(tmp_path, BASE | own, [{"strategy": ["single"]}])
    assert record.error is not None and record.error.message == (
        "rank 0 was killed by SIGABRT in the phase 'first step'; "
        'the last line of its log is "corrupted size"'
    )


def test_what_is_no_strategy_is_told(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FAULTS)
    (tmp_path / "mine.py").write_text(STRATEGY)
    own = {
        "model": {"kind": "python", "factory": "own:Net", "loss": "own:mean"},
        "data": {"kind": "python", "factory": "own:data"},
    }
    (record,) = measured(tmp_path, BASE | own, [{"strategy": ["mine:nothing_of_the_kind"]}])
    assert record.status == "failed" and record.error is not None
    assert (
        "mine:nothing_of_the_kind returned 'int', not an instance of the lab's Strategy"
        in record.error.message
    )
