"""lab bench training with real loops, one of them from a file with nanoGPT's names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml
from studies import SMALL_STUDY

MODEL = """
from dataclasses import dataclass
import torch
from lab.config import models
from lab.worker.models import gpt

@dataclass
class GPTConfig:
    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True

class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        print("number of parameters: some")
        sizes = {"layers": config.n_layer, "heads": config.n_head, "width": config.n_embd}
        architecture = models.GPT(**sizes, block_size=config.block_size)
        self.model = gpt.GPT(architecture, vocab_size=config.vocab_size)

    def forward(self, idx, targets=None):
        return None, self.model(idx, targets)

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), lr=learning_rate, betas=betas)
"""


def test_the_lab_is_timed_beside_a_plain_loop_and_one_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    base = {**SMALL_STUDY["base"], "precision": "bf16"}  # type: ignore[dict-item]
    study = SMALL_STUDY | {"base": base, "quick": {"repeats": 1}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    command = [sys.executable, "-m", "lab", "bench", "training", str(tmp_path), "--quick", "--json"]
    command += ["--nanogpt", str(tmp_path / "model.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # With 0 the lab was no slower; of steps of a millisecond either may come out.
    assert done.returncode in {0, 1}, done.stderr
    plain, other = json.loads(done.stdout)
    assert (plain["loop"], other["loop"]) == ("plain", "nanoGPT")
    for comparison in (plain, other):
        assert comparison["rounds"] == 20 and comparison["device"] == "cpu"
        assert comparison["run"]["precision"] == "bf16"
        assert min(comparison["lab_s"], comparison["loop_s"]) > 0
