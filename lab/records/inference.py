"""What an inference run measured: times, sizes, and the quality of the quantized model."""

from __future__ import annotations

from lab.config.base import Quantization
from lab.records.schema import Section, Stat


class Share(Section):
    """A mean over held-out samples with its paired bootstrap 95 % interval."""

    value: float
    low: float | None
    high: float | None


class Latency(Section):
    """How fast one model generates at one point; times in s, of the slowest rank, over rounds."""

    first_token: Stat  # prefill: from the prompt to the first token
    inter_token: Stat  # decode: the median time between tokens of each round
    p50: float  # of the time between two tokens, over all rounds
    p90: float
    p99: float
    total: Stat  # from the prompt to the last token
    prefill_tokens_per_second: float
    decode_tokens_per_second: float  # of all sequences on all ranks
    # Weights and cache that a rank reads for one token, in the middle of decoding.
    bytes_per_token: int
    # Of one rank in decoding: bytes_per_token over the median inter-token time.
    bytes_per_second: float


class Point(Section):
    """One prompt length and batch size; ratios are quantized over base: below 1 is faster."""

    prompt_tokens: int
    batch_size: int
    base: Latency
    quantized: Latency
    first_token_ratio: Stat
    inter_token_ratio: Stat
    total_ratio: Stat


class ClassificationPoint(Section):
    """One batch size of a classifier: s for a batch on the slowest rank, over rounds."""

    batch_size: int
    base: Stat
    quantized: Stat
    ratio: Stat  # round by round: below 1 is faster
    base_samples_per_second: float
    samples_per_second: float


class Size(Section):
    """Bytes of a model's weights."""

    memory: int
    disk: int


class Inference(Section):
    """What an inference run measured; no points where the quantization is unavailable or wrong."""

    quantization: Quantization
    method: str = ""
    unavailable: str = ""  # why this machine cannot, or why no time was taken
    quantize_time: float | None = None  # s
    base_size: Size
    size: Size | None = None
    output_errors: dict[str, float] = {}  # of logits, relative to the base, by shape of the input
    base_perplexity: float | None = None  # on held-out samples
    perplexity: float | None = None
    perplexity_ratio: Share | None = None  # quantized over base, paired by sample
    same_tokens: Share | None = None  # share of held-out positions with the same likeliest token
    generated_alike: float | None = None  # share of greedily generated tokens that are the same
    held_out_samples: int | None = None  # that both classifiers classified
    base_accuracy: float | None = None  # share of held-out samples that are classified right
    accuracy: float | None = None
    accuracy_change: Share | None = None  # quantized less base, paired by sample
    same_classes: Share | None = None  # share of held-out samples that both put into one class
    points: list[Point] = []
    classifications: list[ClassificationPoint] = []
    memory_bytes_per_second: float | None = None  # of a rank, measured in the job by copying
    arithmetic: str = ""  # vector instructions of a CPU, or the GPU's name
    model_sha256: str = ""  # of the base model's file
    trained_steps: int = 0
