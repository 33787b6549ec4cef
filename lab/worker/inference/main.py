"""What an inference job runs on each rank: a trained model and its quantized copy, compared first and timed then."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.config.run import Run
from lab.records.inference import Inference, Size
from lab.records.schema import Memory
from lab.worker import checkpoint, data
from lab.worker.calibrate import memory_bandwidth
from lab.worker.checkpoint import Checkpoint
from lab.worker.context import Measurement, Progress, RankContext
from lab.worker.data.dataset import Dataset
from lab.worker.data.loader import Batch, FastLoader
from lab.worker.distributed import device_of, gather, process_group
from lab.worker.environment import background_cpu, cpu_use, environment, peak_memory, reset_peak
from lab.worker.inference.latency import Asked, measure_classifications, measure_points
from lab.worker.inference.model import rebuilt, recipe_of, sha256, trained_model
from lab.worker.inference.quality import WRONG, agreement, fidelity, generated_alike, output_errors
from lab.worker.inference.quantize import UnavailableError, bytes_in_memory, bytes_on_disk, quantize
from lab.worker.models.classifier import Classifier
from lab.worker.models.gpt import GPT


def infer(
    run: Run, place: RankContext, *, data_root: Path, folder: Path, progress: Progress
) -> Measurement | None:
    """Measure one repeat of an inference run on this rank; rank 0 gets the measurement, the others None.

    All ranks must call it. Raises InputError for data or a model that cannot be used, LabError for a device that is
    not there; torch.OutOfMemoryError passes through.
    """
    torch.set_num_threads(place.threads)
    device = device_of(place)
    dataset = data.prepare(recipe_of(run), data_root=data_root, progress=progress)
    found = trained_model(run, place, device=device, dataset=dataset, progress=progress)
    base = rebuilt(found, dataset, device=device)
    with process_group(place, device=device) if place.world_size > 1 else nullcontext():
        reset_peak(device)
        before = cpu_use(place.cores)
        measured = _compare(
            run, place, base, found, device=device, dataset=dataset, progress=progress
        )
        use = cpu_use(place.cores).since(before)
        ranks = gather((socket.gethostname(), place.cores, use, peak_memory(device)))
    if ranks is None:
        return None
    if run.keep_model:
        checkpoint.copy(found, folder / "checkpoint" / checkpoint.FINAL)
    return Measurement(
        timing=None,
        communication=None,
        memory=Memory(
            kind="cuda_allocated" if device.type == "cuda" else "resident",
            peak=[peak for *_, peaks in ranks for peak in peaks],
            parameters=sum(parameter.nbytes for parameter in base.parameters()),
        ),
        quality=None,
        environment=environment(
            place,
            device=device,
            dataset=dataset,
            parameters=sum(parameter.numel() for parameter in base.parameters()),
            hosts=[host for host, *_ in ranks],
            cores=[cores for _, cores, *_ in ranks],
            foreign_cpu=background_cpu((host, use) for host, _, use, _ in ranks),
        ),
        checks={"outputs_agree": all(error <= WRONG for error in measured.output_errors.values())},
        inference=measured,
    )


def _compare(
    run: Run,
    place: RankContext,
    base: nn.Module,
    found: Checkpoint,
    *,
    device: torch.device,
    dataset: Dataset,
    progress: Progress,
) -> Inference:
    about = Inference(
        quantization=run.quantization,
        base_size=_size(base),
        arithmetic=_arithmetic(device),
        model_sha256=sha256(found.folder / checkpoint.MODEL),
        trained_steps=found.step,
    )
    progress("quantizing", 0, run.rounds)
    try:
        made = quantize(base, run.quantization)
    except UnavailableError as error:
        return about.model_copy(update={"unavailable": str(error)})
    quantized = made.model
    held_out = _held_out(run, place, dataset)
    asked = _prompts(run, place, dataset, device) if isinstance(base, GPT) else []
    batches = {size: _share(dataset, size, place, device, seed=size) for size in run.batch_sizes}
    inputs = _shapes(asked) if isinstance(base, GPT) else list(batches.values())
    progress("comparing", 0, run.rounds)
    errors = output_errors(base, quantized, inputs)
    worst = max(errors, key=lambda shape: errors[shape])
    about = about.model_copy(
        update={
            "method": made.method,
            "quantize_time": made.seconds,
            "size": _size(quantized),
            "output_errors": errors,
        }
    )
    if errors[worst] > WRONG:
        told = f"its logits are wrong by {errors[worst]:.2g} of the base's for an input of {worst}: no time was taken"
        return about.model_copy(update={"unavailable": told})
    if isinstance(base, GPT) and isinstance(quantized, GPT):
        measured = _generation(
            run, base, quantized, held_out, asked, device=device, progress=progress
        )
    else:
        assert isinstance(base, Classifier) and isinstance(quantized, Classifier)
        measured = _classification(
            run, base, quantized, held_out, batches, device=device, progress=progress
        )
    return about.model_copy(update=measured)


def _generation(
    run: Run,
    base: GPT,
    quantized: GPT,
    held_out: Sequence[Batch],
    asked: Sequence[Asked],
    *,
    device: torch.device,
    progress: Progress,
) -> dict[str, Any]:
    quality = fidelity(base, quantized, held_out, device=device)
    return {
        "base_perplexity": quality.base_perplexity,
        "perplexity": quality.perplexity,
        "perplexity_ratio": quality.ratio,
        "same_tokens": quality.same_tokens,
        "generated_alike": generated_alike(
            base, quantized, asked[-1].prompts, new_tokens=run.new_tokens
        ),
        "points": measure_points(
            base, quantized, asked, new_tokens=run.new_tokens, rounds=run.rounds, progress=progress
        ),
        "memory_bytes_per_second": memory_bandwidth(device).bytes_per_s,
    }


def _classification(
    run: Run,
    base: Classifier,
    quantized: Classifier,
    held_out: Sequence[Batch],
    batches: Mapping[int, Tensor],
    *,
    device: torch.device,
    progress: Progress,
) -> dict[str, Any]:
    quality = agreement(base, quantized, held_out, device=device)
    return {
        "held_out_samples": quality.samples,
        "base_accuracy": quality.base_accuracy,
        "accuracy": quality.accuracy,
        "accuracy_change": quality.change,
        "same_classes": quality.same_classes,
        "classifications": measure_classifications(
            base, quantized, batches, rounds=run.rounds, progress=progress
        ),
    }


def _arithmetic(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return (
        f"{torch.backends.cpu.get_cpu_capability()}, bf16 {'in hardware' if bf16 else 'emulated'}"
    )


def _size(model: nn.Module) -> Size:
    return Size(memory=bytes_in_memory(model), disk=bytes_on_disk(model))


def _share(
    dataset: Dataset, batch_size: int, place: RankContext, device: torch.device, *, seed: int
) -> Tensor:
    """This rank's share of as many held-out inputs, the same at every world size."""
    drawn = np.random.default_rng(seed).integers(0, len(dataset.held_out), size=batch_size)
    inputs, _ = dataset.held_out.take(drawn.reshape(place.world_size, -1)[place.rank])
    return torch.from_numpy(inputs).to(device)


def _prompts(run: Run, place: RankContext, dataset: Dataset, device: torch.device) -> list[Asked]:
    return [
        Asked(length, size, _share(dataset, size, place, device, seed=length)[:, :length])
        for length in run.prompt_tokens
        for size in run.batch_sizes
    ]


def _shapes(asked: Sequence[Asked]) -> list[Tensor]:
    """Prompts in each shape in which generation calls the model."""
    return [
        shaped
        for point in asked
        for shaped in (point.prompts, point.prompts[:, :1], point.prompts[:1, :1])
    ]


def _held_out(run: Run, place: RankContext, dataset: Dataset) -> list[Batch]:
    """This rank's share of the batches that a training evaluates on, labelled samples once at most: a bootstrap counts each."""
    batches = list(FastLoader(dataset.held_out, run=recipe_of(run), rank=0).evaluation())
    if dataset.held_out.epochs:
        size = len(batches[0].targets)
        left = [len(dataset.held_out) - number * size for number in range(len(batches))]
        batches = [
            Batch(batch.inputs[:rest], batch.targets[:rest])
            for batch, rest in zip(batches, left, strict=True)
            if rest > 0
        ]
    return batches[place.rank :: place.world_size]
