"""Real inference jobs: one trained model, every quantization, one and two ranks, and what the records say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from studies import CORPUS, SMALL_STUDY

import lab
from lab.config.models import GPT as Config
from lab.records.schema import Inference
from lab.records.store import Record
from lab.worker.inference.generate import continuations
from lab.worker.inference.quantize import compile_alike, quantize
from lab.worker.models.gpt import GPT

STUDY = SMALL_STUDY | {
    "kind": "inference",
    "scaling": "none",
    "base": {
        **SMALL_STUDY["base"],  # type: ignore[dict-item]
        "model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 32, "block_size": 16},
        "task": "inference",
        "global_batch_size": 4,
        "prompt_tokens": [4],
        "batch_sizes": [2],
        "new_tokens": 4,
        "rounds": 5,
        "keep_model": True,
    },
    "grid": {"quantization": ["none", "int8_dynamic", "fp8"], "world_size": [1]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inference")
    for name, grid in {
        "one": STUDY["grid"],
        "two": {"quantization": ["bf16"], "base_precision": ["bf16"], "world_size": [2]},
    }.items():
        (root / name).mkdir()
        (root / name / "study.yaml").write_text(
            yaml.safe_dump(STUDY | {"grid": grid, "baseline": {}})
        )
        (root / name / "corpus.txt").write_text(CORPUS)
    return root


CLASSIFIER = STUDY | {
    "base": {
        "model": {"kind": "cnn", "network": "resnet18", "image_size": 8},
        "data": "digits",
        "task": "inference",
        "global_batch_size": 16,
        "steps": 2,
        "warmup_steps": 1,
        "eval_batches": 20,
        "batch_sizes": [4],
        "rounds": 5,
    },
    "grid": {"quantization": ["int8_dynamic"], "world_size": [2]},
    "baseline": {},
}


@pytest.fixture(scope="module")
def records(folder: Path) -> dict[str, Record]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_CACHE", str(folder / "cache"))
        finished_records = [
            record
            for name in ("one", "two")
            for record in lab.launch(lab.Study.load(folder / name)).wait(progress=False)
        ]
    assert [record.error for record in finished_records] == [None] * 4
    return {record.run.quantization: record for record in finished_records}


def inference(record: Record) -> Inference:
    assert record.inference is not None
    return record.inference


@pytest.mark.parametrize("name", ["none", "int8_dynamic", "bf16"])
def test_a_quantized_model_is_compared_before_it_is_timed(
    records: dict[str, Record], name: str
) -> None:
    comparison = inference(records[name])
    assert comparison.unavailable == "" and records[name].checks == {"outputs_agree": True}
    world_size = records[name].run.world_size
    assert set(comparison.output_errors) == {f"{2 // world_size}x4", f"{2 // world_size}x1", "1x1"}
    assert max(comparison.output_errors.values()) < 0.05
    [point] = comparison.points
    for latency in (point.base, point.quantized):
        assert 0 < latency.p50 <= latency.p90 <= latency.p99
        assert latency.total.median > latency.first_token.median > 0
        assert latency.decode_tokens_per_second == pytest.approx(2 / latency.inter_token.median)
    assert point.inter_token_ratio.interval is not None
    assert (
        comparison.perplexity_ratio is not None
        and comparison.base_perplexity is not None
        and comparison.perplexity is not None
    )
    assert comparison.perplexity_ratio.value == pytest.approx(
        comparison.perplexity / comparison.base_perplexity
    )
    assert (
        comparison.memory_bytes_per_second is not None and comparison.memory_bytes_per_second > 1e8
    )


def test_a_second_copy_of_the_base_is_the_base(records: dict[str, Record]) -> None:
    comparison = inference(records["none"])
    assert set(comparison.output_errors.values()) == {0.0}
    assert comparison.perplexity_ratio is not None and comparison.perplexity_ratio.value == 1.0
    assert (
        comparison.same_tokens is not None
        and comparison.same_tokens.value == comparison.generated_alike == 1.0
    )
    assert comparison.size == comparison.base_size


def test_a_base_in_bf16_is_the_quantized_model_itself(records: dict[str, Record]) -> None:
    measured = inference(records["bf16"])
    assert set(measured.output_errors.values()) == {0.0} and measured.size == measured.base_size
    assert measured.base_size.memory < 0.6 * inference(records["none"]).base_size.memory


def test_what_the_machine_has_not_is_told(records: dict[str, Record]) -> None:
    if records["fp8"].environment is not None and records["fp8"].environment.device == "cuda":
        pytest.skip("fp8 may be there")
    comparison = inference(records["fp8"])
    assert (
        comparison.unavailable.startswith("fp8 matrix products need a GPU")
        and comparison.points == []
    )


def test_all_start_from_one_trained_model(records: dict[str, Record], folder: Path) -> None:
    assert len({inference(record).model_sha256 for record in records.values()}) == 1
    assert len(list((folder / "cache" / "models").glob("*/checkpoint/final"))) == 1


def test_a_quantized_classifier_is_compared_by_its_accuracy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_CACHE", str(folder / "cache"))
    (folder / "classifier").mkdir()
    (folder / "classifier" / "study.yaml").write_text(yaml.safe_dump(CLASSIFIER))
    [record] = lab.launch(lab.Study.load(folder / "classifier")).wait(progress=False)
    assert record.error is None and record.checks == {"outputs_agree": True}
    comparison = inference(record)
    assert comparison.method.endswith("1 of 1 linear layers, 0 of 20 convolutions")
    assert set(comparison.output_errors) == {"2x1x8x8"}
    assert (
        comparison.held_out_samples == 180
    )  # all that are held out, each once, though 20 batches of 16 were asked for
    assert (
        comparison.base_accuracy is not None
        and comparison.accuracy is not None
        and comparison.accuracy_change is not None
    )
    assert comparison.accuracy_change.value == pytest.approx(
        comparison.accuracy - comparison.base_accuracy
    )
    [point] = comparison.classifications
    assert point.batch_size == 4 and point.ratio.interval is not None and comparison.points == []


def test_the_command_generates_from_it(
    records: dict[str, Record], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_CACHE", str(folder / "cache"))
    run = records["none"].run_id
    options = [
        "--prompt",
        "def ",
        "--prompt",
        "x",
        "--new-tokens",
        "6",
        "--temperature",
        "0.8",
        "--json",
    ]
    command = [sys.executable, "-m", "lab", "generate", str(folder / "one"), run, *options]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [text["prompt"] for text in answer] == ["def ", "x"]
    assert all(text["text"] for text in answer)


def test_the_report_tells_of_it(records: dict[str, Record], folder: Path) -> None:
    made = lab.report(lab.Study.load(folder / "one"))
    html = made.html.read_text()
    assert "fp8 matrix products need a GPU" in html
    assert "int8_dynamic" in html
    assert made.pdf.stat().st_size > 10_000


@pytest.mark.parametrize("name", ["none", "int8_weight_only"])
def test_compiled_blocks_generate_the_same_with_few_graphs(name: str) -> None:
    torch.manual_seed(0)
    model = GPT(Config(layers=2, heads=2, width=64, block_size=32), vocab_size=300).eval()
    copy = quantize(model, name).model
    assert isinstance(copy, GPT)
    prompts = torch.randint(300, (3, 9), generator=torch.Generator().manual_seed(0))

    def results() -> list[torch.Tensor]:
        tokens = [continuations(copy, part, new_tokens=4) for part in (prompts, prompts[:1, :5])]
        with torch.inference_mode():
            return [*tokens, copy(prompts), copy(prompts[:, :1]), copy(prompts[:1, :1])]

    expected = results()
    torch._dynamo.utils.counters.clear()
    compile_alike(copy, backend="eager")
    for output, right in zip(results(), expected, strict=True):
        assert torch.equal(output, right)
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] <= 12
