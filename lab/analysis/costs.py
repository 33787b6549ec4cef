"""What a model costs: parameters and floating-point operations."""

from __future__ import annotations

from lab.workloads import GPT


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
