"""What a model costs: parameters, floating-point operations, and the activations that wait for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from lab.analysis import networks
from lab.analysis.layers import Device, Trace, first_trainable
from lab.study import Run
from lab.workloads import CNN, GPT, DistilBERT, TextClassifier, vocab_size_of


@dataclass(frozen=True)
class ModelCost:
    """Parameters of the whole model; FLOPs of one sample; bytes that one micro-batch keeps for its backward pass.

    What is frozen is not trained, and no gradient goes further back than the first layer that trains. Activations are
    those of fused attention, parameters and their copies in low precision left out.
    """

    parameters: int
    trainable: int
    forward_flops: int
    backward_flops: int
    activation_bytes: int


def model_cost(run: Run, *, device: Device = "cpu") -> ModelCost:
    """The cost of a run's model on its data, counted layer by layer."""
    trainable = getattr(run.architecture, "trainable", "all")
    head = networks.DISTILBERT_HEAD if isinstance(run.architecture, DistilBERT) else 1
    sizes = _traced(run, device, frozen=0).sizes
    frozen = first_trainable(sizes, trainable, head=head)
    trace = _traced(run, device, frozen=frozen)
    return ModelCost(sum(sizes), sum(sizes[frozen:]), trace.forward, trace.backward, trace.activation_bytes)


def _traced(run: Run, device: Device, frozen: int) -> Trace:
    trace = Trace(samples=run.micro_batch_size, precision=run.precision, device=device, frozen=frozen)
    model, data = run.architecture, run.dataset
    classes, vocab_size = int(getattr(data, "classes", 0)), vocab_size_of(model, data)
    match model:
        case GPT():
            networks.gpt(trace, model, vocab_size)
        case TextClassifier():
            networks.text_classifier(trace, model, vocab_size, classes)
        case DistilBERT():
            networks.distilbert(trace, model, classes)
        case CNN():
            networks.cnn(trace, model, int(getattr(data, "channels", 0)), classes)
    return trace


def flops_per_sample(run: Run) -> int:
    """FLOPs of forward and backward of one sample, the numerator of MFU: by the published formula for a GPT, else as counted."""
    model = run.architecture
    if isinstance(model, GPT):
        return model.block_size * gpt_flops_per_token(model, vocab_size_of(model, run.dataset))
    cost = model_cost(run)
    return cost.forward_flops + cost.backward_flops


def gpt_parameters(config: GPT, vocab_size: int) -> int:
    """Trainable parameters of a GPT with a tied head: V d + T d + L (12 d^2 + 13 d) + 2 d, T the block size.

    A vocabulary that the configuration names goes before `vocab_size`, that of the data.
    """
    width, vocabulary = config.width, config.vocab_size or vocab_size
    block = 12 * width**2 + 13 * width
    return (vocabulary + config.block_size) * width + config.layers * block + 2 * width


def gpt_flops_per_token(config: GPT, vocab_size: int) -> int:
    """FLOPs of forward and backward per token: 6 N + 12 L T d, N without position embeddings and with the tied head.

    Chowdhery et al. (2022), PaLM, appendix B. What is computed twice to save memory does not count.
    """
    active = gpt_parameters(config, vocab_size) - config.block_size * config.width
    return 6 * active + 12 * config.layers * config.block_size * config.width
