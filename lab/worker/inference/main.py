"""What an inference job runs on each rank: a trained model against its quantized copy, in turn."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist

from lab.config.run import Run
from lab.errors import first_line
from lab.records.schema import ClassificationPoint, Inference, Latency, Memory, Point, Size
from lab.records.statistics import stat
from lab.worker import checkpoint, data
from lab.worker.calibrate import memory_bandwidth
from lab.worker.checkpoint import Checkpoint
from lab.worker.context import Measurement, Progress, RankContext
from lab.worker.data.cache import file_sha256, in_cache, load_or_build
from lab.worker.data.dataset import Batch, Dataset, FastLoader
from lab.worker.distributed import RankJob, all_gather_object, device_of, gather, process_group
from lab.worker.environment import MachineWatch, environment, reset_peak
from lab.worker.inference import quantize
from lab.worker.inference.generate import stream
from lab.worker.inference.quantize import Pair, UnavailableError
from lab.worker.measure.clock import FloatArray, synchronize
from lab.worker.models import build
from lab.worker.models.classifier import Classifier
from lab.worker.models.gpt import GPT, Cache
from lab.worker.optim import DTYPES, set_products
from lab.worker.train import train

# The fields of an inference run that specify how its model is trained.
TRAINING_FIELDS = {
    *("model", "data", "precision", "global_batch_size", "grad_accum", "seed", "eval_batches"),
    *("steps", "warmup_steps", "lr_warmup_steps", "learning_rate", "min_learning_rate"),
    *("weight_decay", "grad_clip"),
}


# This rank's prompts (sequences, tokens), by their length and their number over all ranks.
Prompts = Mapping[tuple[int, int], Tensor]


def infer(
    run: Run, context: RankContext, *, data_root: Path, folder: Path, progress: Progress
) -> Measurement | None:
    """Measure one repeat on this rank; rank 0 gets the measurement, the others None.

    All ranks must call it. Raises InputError for data or a model that cannot be used, LabError for
    a missing device; torch.OutOfMemoryError passes through.
    """
    torch.set_num_threads(context.threads)  # the ranks of a node share its cores
    device = device_of(context)
    dataset = data.prepare(training_run(run), data_root=data_root, progress=progress)
    job = RankJob(run, context, device, dataset, progress)
    # Before the group is formed, as the others would time out while one rank trains.
    trained = trained_model(job)
    set_products("fp32")  # whatever precision it was trained in
    base = load_model(trained, dataset, device=device)
    with process_group(context, device=device, alone=False):
        reset_peak(device)  # of the training, if this rank trained
        watch = MachineWatch(context, device)  # load from others on these cores makes times longer
        inference = _compare(job, base, trained)
        ranks = gather(watch.stop())
    if ranks is None:
        return None
    if run.keep_model:  # the cache may be emptied
        files = {path.name: path.read_bytes() for path in trained.folder.iterdir()}
        checkpoint.write(folder / "checkpoint" / checkpoint.FINAL, files)
    parameters = list(base.parameters())
    errors = inference.output_errors.values()
    return Measurement(
        memory=Memory(
            kind="cuda_allocated" if device.type == "cuda" else "resident",
            peak=[peak for use in ranks for peak in use.peak_memory],
            parameters=sum(parameter.nbytes for parameter in parameters),
        ),
        environment=environment(
            context,
            device=device,
            dataset=dataset,
            parameters=sum(parameter.numel() for parameter in parameters),
            ranks=ranks,
        ),
        checks={"outputs_agree": all(error <= quantize.MAX_OUTPUT_ERROR for error in errors)},
        inference=inference,
    )


def training_run(run: Run) -> Run:
    """The one-process training that produces the model of an inference run."""
    fields = {name: getattr(run, name) for name in TRAINING_FIELDS}
    return Run.model_validate(fields | {"strategy": "single", "keep_model": True})


def trained_model(job: RankJob) -> Checkpoint:
    """The checkpoint of the run's model, cached or trained now; raises the errors of `train`."""
    # One process trains while the others wait for the lock; a process group would time out.
    alone = dataclasses.replace(job.context, rank=0, world_size=1)
    training = dataclasses.replace(job, run=training_run(job.run), context=alone)
    # Different data, torch or kind of device give a different model.
    digest, device = job.dataset.sha256[:16], job.device.type
    folder = in_cache("models", f"{training.run.id}-{digest}-{torch.__version__}-{device}")
    return load_or_build(
        folder,
        lambda: checkpoint.kept_model(folder),
        lambda: train(training, folder=folder),
        # A rank that reports nothing would be considered hung.
        waiting=lambda: job.progress("training", 0, training.run.steps),
    )


def load_model(trained: Checkpoint, dataset: Dataset, *, device: torch.device) -> nn.Module:
    """A checkpoint's model on a device, in evaluation mode; raises the errors of `build`."""
    model = build(trained.run, dataset)
    checkpoint.load_model(model, trained)
    return model.to(device).eval()  # without dropout


def _compare(job: RankJob, base: nn.Module, trained: Checkpoint) -> Inference:
    try:
        fields = _measured(job, base)
    except UnavailableError as error:  # also a result: tables show what a machine lacks, and why
        fields = {"unavailable": str(error)}
    return Inference(
        quantization=job.run.quantization,
        base_size=_size(base.to(DTYPES[job.run.base_precision])),
        arithmetic=_arithmetic(job.device),
        model_sha256=file_sha256(trained.folder / checkpoint.MODEL),
        trained_steps=trained.step,
        **fields,
    )


def _measured(job: RankJob, base: nn.Module) -> dict[str, Any]:
    """Fields of Inference on the quantized copy; UnavailableError for what this machine lacks."""
    run, device, progress = job.run, job.device, job.progress
    progress("quantizing", 0, run.rounds)
    dtype = DTYPES[run.base_precision]
    # Quantized from fp32, whatever the base's precision; `none` is a second base.
    source = base.to(dtype) if run.quantization == "none" else base
    copy = quantize.quantize(source, run.quantization)
    pair = base.to(dtype), copy.model
    if run.compile:
        quantize.compile_alike(*pair)
    # The same inputs for every quantization.
    prompts: dict[tuple[int, int], Tensor] = {}
    batches: dict[int, Tensor] = {}
    if isinstance(base, GPT):
        for length, size in itertools.product(run.prompt_tokens, run.batch_sizes):
            prompts[length, size] = _share(job, size, seed=length)[:, :length]
    else:
        batches = {size: _share(job, size, seed=size) for size in run.batch_sizes}
    progress("comparing", 0, run.rounds)
    errors = _output_errors(pair, prompts, batches, compiled=run.compile)
    fields: dict[str, Any] = {
        "method": copy.method,
        "quantize_time": copy.seconds,
        "size": _size(copy.model),
        "output_errors": errors,
    }
    worst = max(errors, key=lambda shape: errors[shape])
    if errors[worst] > quantize.MAX_OUTPUT_ERROR:
        # A kernel that computes nonsense may be fast, and its time would look like a gain.
        wrong = f"its logits are wrong by {errors[worst]:.2g} of the base's for an input of {worst}"
        fields["unavailable"] = f"{wrong}, so it was not timed"
    elif isinstance(base, GPT):
        gpts = cast("tuple[GPT, GPT]", pair)
        fields |= quantize.compare_language_models(pair, _held_out(job), device=device)
        fields["generated_alike"] = quantize.generated_alike(
            gpts, [*prompts.values()][-1], new_tokens=run.new_tokens
        )
        fields["points"] = time_generation(gpts, prompts, run, progress)
        # The upper limit for decoding, which reads every weight for each token.
        fields["memory_bytes_per_second"] = memory_bandwidth(device).bytes_per_s
    else:
        classifiers = cast("tuple[Classifier, Classifier]", pair)
        fields |= quantize.compare_classifiers(pair, _held_out(job), device=device)
        fields["classifications"] = time_classification(classifiers, batches, run, progress)
    return fields


def _output_errors(
    pair: Pair, prompts: Prompts, batches: Mapping[int, Tensor], *, compiled: bool
) -> dict[str, float]:
    """Errors of the logits by input; raises UnavailableError for compiled kernels that fail."""
    # Generation calls the model with prompts, with one token of each, and with one of one.
    whole = list(prompts.values())
    inputs = [part for one in whole for part in (one, one[:, :1], one[:1, :1])]
    try:
        errors = quantize.output_errors(pair, [*inputs, *batches.values()])
        if compiled and whole:
            # Compiled separately: a kernel correct for whole prompts says nothing about this one.
            gpts = cast("tuple[GPT, GPT]", pair)
            errors["1 after a prompt"] = quantize.cached_error(gpts, whole[-1])
    except RuntimeError as error:  # or one of torch.compile's, which are derived from it
        # Compiled kernels may refuse shapes only when called: int8 products few rows, on a GPU.
        if not compiled or isinstance(error, torch.OutOfMemoryError):
            raise
        raise UnavailableError(f"it fails under torch.compile: {first_line(error)}") from error
    return errors


def _arithmetic(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    bf16 = "in hardware" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "emulated"
    return f"{torch.backends.cpu.get_cpu_capability()}, bf16 {bf16}"


def _size(model: nn.Module) -> Size:
    return Size(memory=quantize.bytes_in_memory(model), disk=quantize.bytes_on_disk(model))


def _share(job: RankJob, batch_size: int, *, seed: int) -> Tensor:
    """This rank's share of `batch_size` held-out inputs, the same at every world size."""
    samples, context = job.dataset.held_out, job.context
    drawn = np.random.default_rng(seed).integers(0, len(samples), size=batch_size)
    inputs, _ = samples.take(drawn.reshape(context.world_size, -1)[context.rank])
    return torch.from_numpy(inputs).to(job.device)


def _held_out(job: RankJob) -> list[Batch]:
    """This rank's share of the evaluation batches, each labelled sample at most once."""
    samples = job.dataset.held_out
    batches = list(FastLoader(samples, run=training_run(job.run), rank=0).evaluation())
    if samples.epochs:
        # A duplicate sample would make the bootstrap's intervals too narrow.
        size = len(batches[0].targets)
        rest = [len(samples) - number * size for number in range(len(batches))]
        batches = [
            Batch(batch.inputs[:remaining], batch.targets[:remaining])
            for batch, remaining in zip(batches, rest, strict=True)
            if remaining > 0
        ]
    return batches[job.context.rank :: job.context.world_size]


def time_generation(
    models: tuple[GPT, GPT], prompts: Prompts, run: Run, progress: Progress
) -> list[Point]:
    """Time base and quantized model generating from each batch; all ranks must call it."""
    shares = list(prompts.values())

    def generate(batch: int, model: int) -> FloatArray:
        tokens = stream(models[model], shares[batch], new_tokens=run.new_tokens)
        return _laps(tokens, shares[batch].device)

    seconds = _in_turn(generate, len(shares), run.rounds, progress)
    points = []
    for number, (length, size) in enumerate(prompts):
        of_base, of_quantized = seconds[:, number, 0], seconds[:, number, 1]
        # The median of each round, as a single late token says nothing about the model.
        inter = [np.median(times[:, 1:], axis=1) for times in (of_base, of_quantized)]
        points.append(
            Point(
                prompt_tokens=length,
                batch_size=size,
                base=_latency(of_base, shares[number], size, models[0]),
                quantized=_latency(of_quantized, shares[number], size, models[1]),
                first_token_ratio=stat(of_quantized[:, 0] / of_base[:, 0]),
                inter_token_ratio=stat(inter[1] / inter[0]),
                total_ratio=stat(of_quantized.sum(axis=1) / of_base.sum(axis=1)),
            )
        )
    return points


def time_classification(
    models: tuple[Classifier, Classifier],
    batches: Mapping[int, Tensor],
    run: Run,
    progress: Progress,
) -> list[ClassificationPoint]:
    """Time base and quantized model on this rank's shares of batches, by the global batch size.

    All ranks must call it.
    """
    shares = list(batches.values())

    def classify(batch: int, model: int) -> FloatArray:
        return _laps(map(models[model].logits, [shares[batch]]), shares[batch].device)

    seconds = _in_turn(classify, len(shares), run.rounds, progress)[..., 0]
    points = []
    for number, size in enumerate(batches):
        base, quantized = seconds[:, number, 0], seconds[:, number, 1]
        point = ClassificationPoint(
            batch_size=size,
            base=stat(base),
            quantized=stat(quantized),
            ratio=stat(quantized / base),  # round by round, so that a slow phase affects both
            base_samples_per_second=size / stat(base).median,
            samples_per_second=size / stat(quantized).median,
        )
        points.append(point)
    return points


def _in_turn(
    work: Callable[[int, int], FloatArray], batches: int, rounds: int, progress: Progress
) -> FloatArray:
    """Seconds (rounds, batches, models, laps) of `work(batch, model)`, each once per round."""
    turns = list(itertools.product(range(batches), range(2)))
    # Kernels are chosen and memory is allocated before anything counts.
    for number, turn in enumerate(turns):
        work(*turn)
        progress("warm-up", number + 1, len(turns))
    seconds: list[list[FloatArray]] = []
    for number in range(rounds):
        # Shuffled in each round, so that no turn always follows the same one; equal on all ranks.
        order = np.random.default_rng(number).permutation(len(turns)).tolist()
        times = {turn: work(*turns[turn]) for turn in order}
        seconds.append([times[turn] for turn in range(len(turns))])
        progress("measuring", number + 1, rounds)
    # A round takes as long as its slowest rank: ranks work independently and only start together.
    ranks = np.stack(all_gather_object(np.array(seconds).reshape(rounds, batches, 2, -1)))
    slowest = ranks.sum(axis=-1).argmax(axis=0)
    return np.take_along_axis(ranks, slowest[None, ..., None], axis=0)[0]


@torch.inference_mode()
def _laps(results: Iterable[Tensor], device: torch.device) -> FloatArray:
    """Seconds to the first result and between the others, started when all ranks are ready."""
    if dist.is_initialized():
        dist.barrier()  # an idle rank would leave its share of the machine to the others
    synchronize(device)
    stamps = [time.perf_counter()]
    for _ in results:
        synchronize(device)  # a token counts when it can be shown
        stamps.append(time.perf_counter())
    return np.diff(stamps)


def _latency(seconds: FloatArray, prompts: Tensor, batch_size: int, model: GPT) -> Latency:
    """One model's latencies from the seconds (rounds, tokens) of a batch over all ranks."""
    sequences, prompt_tokens = prompts.shape
    first, inter = stat(seconds[:, 0]), stat(np.median(seconds[:, 1:], axis=1))
    p50, p90, p99 = (float(value) for value in np.percentile(seconds[:, 1:], [50, 90, 99]))
    # A step reads each weight once for all sequences (the embedding as the head, one row of the
    # positions), and each sequence's cache, which holds half of the new tokens on average.
    weights = quantize.bytes_in_memory(model) - model.positions.weight.nbytes
    width, dtype = model.embedding.embedding_dim, model.norm.weight.dtype
    cached = sequences * (prompt_tokens + seconds.shape[1] / 2)
    read = round(weights + cached * Cache.bytes_per_token(len(model.blocks), width, dtype))
    return Latency(
        first_token=first,
        inter_token=inter,
        p50=p50,
        p90=p90,
        p99=p99,
        total=stat(seconds.sum(axis=1)),
        prefill_tokens_per_second=batch_size * prompt_tokens / first.median,
        decode_tokens_per_second=batch_size / inter.median,
        bytes_per_token=read,
        bytes_per_second=read / inter.median,
    )
