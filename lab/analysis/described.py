"""A model on a described machine: the profile, memory and links that its published figures give, for nothing measured."""

from __future__ import annotations

from dataclasses import dataclass

from lab.analysis.costs import gpt_flops_per_token, gpt_parameters
from lab.analysis.layouts import Bucket, Layout, Links, Profile
from lab.analysis.links import Collective
from lab.analysis.machines import FLOPS_REACHED, FLOPS_SPREAD, Machine
from lab.analysis.memory import FP32, MIXED, Checkpointing, rank_memory, transformer_activations
from lab.analysis.topology import CollectiveSeconds
from lab.workloads import GPT

# AdamW reads weights, gradients and both moments and writes all but the gradients, in fp32.
OPTIMIZER_BYTES = 28


@dataclass(frozen=True)
class Described:
    """A GPT on a machine that is known by its makers' figures alone."""

    model: GPT
    vocab_size: int
    machine: Machine

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return gpt_parameters(self.model, self.vocab_size)

    def profile(self, *, micro_batch: int, precision: str = "bf16", checkpointing: Checkpointing = "none") -> Profile:
        """One device's step: arithmetic at the share of the peak that training reaches, the optimizer at memory's speed.

        Backward takes twice the forward pass, and the forward pass again where all activations are recomputed. The
        gradients of the layers are ready at even distances, those of the tied embedding at the end.
        """
        tokens = micro_batch * self.model.block_size
        rate = self.machine.gpu.flops[precision] * FLOPS_REACHED
        forward = gpt_flops_per_token(self.model, self.vocab_size) * tokens / 3 / rate
        backward = forward * (3 if checkpointing == "full" else 2)
        optimizer = OPTIMIZER_BYTES * self.parameters / self.machine.gpu.memory_bytes_per_s
        layer = 12 * self.model.width**2 + 13 * self.model.width
        value = 4 if precision == "fp32" else 2
        layers = self.model.layers
        gradients = [Bucket(backward * (nth + 1) / (layers + 1), layer * value) for nth in range(layers)]
        gradients.append(Bucket(backward, (self.parameters - layers * layer) * value))
        basis = f"{FLOPS_REACHED:.0%} of the peak of the {self.machine.gpu.name}"
        return Profile(forward, backward, optimizer, tuple(gradients), spread=0.0, basis=basis)

    def activation_bytes(self, *, micro_batch: int, precision: str, checkpointing: Checkpointing) -> float:
        """Bytes that one micro-batch keeps: the layers' (Korthikanti et al. 2022), the logits and their gradients in fp32."""
        model, value = self.model, 4 if precision == "fp32" else 2
        layers = transformer_activations(
            batch=micro_batch,
            sequence=model.block_size,
            width=model.width,
            heads=model.heads,
            layers=model.layers,
            checkpointing=checkpointing,
            value_bytes=value,
        )
        vocabulary = model.vocab_size or self.vocab_size
        return layers + 2 * 4 * micro_batch * model.block_size * vocabulary

    def memory(self, layout: Layout, *, micro_batch: int, grad_accum: int, precision: str, checkpointing: Checkpointing) -> float:
        """Bytes of a rank at its peak."""
        kept = self.activation_bytes(micro_batch=micro_batch, precision=precision, checkpointing=checkpointing)
        state = FP32 if precision == "fp32" else MIXED
        layer = (12 * self.model.width**2 + 13 * self.model.width) * state.weights
        return rank_memory(
            self.parameters, layout, activation_bytes=kept, grad_accum=grad_accum, state=state, largest_unit=layer
        ).total

    def links(self, layout: Layout) -> Links:
        """The machine's links, each cost computed once."""
        links = self.machine.links(layout)
        return Links(*(_once(cost) for cost in (links.data, links.tensor, links.pipeline)))

    @property
    def memory_limit(self) -> float:
        """Bytes of a GPU that training may take: a tenth stays for the back end and fragments."""
        return 0.9 * self.machine.gpu.memory_bytes

    @property
    def error(self) -> float:
        """Relative standard deviation of the share of the peak that is reached."""
        return FLOPS_SPREAD / FLOPS_REACHED


def _once(cost: CollectiveSeconds) -> CollectiveSeconds:
    known: dict[tuple[Collective, float], float] = {}

    def looked_up(collective: Collective, size: float) -> float:
        if (collective, size) not in known:
            known[collective, size] = cost(collective, size)
        return known[collective, size]

    return looked_up
