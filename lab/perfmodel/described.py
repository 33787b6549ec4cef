"""A GPT on a machine known from vendor figures and from published results on similar ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

from lab.config.datasets import vocab_size_of
from lab.config.models import GPT
from lab.config.run import Run, value_bytes
from lab.errors import LabError
from lab.perfmodel import layout_law
from lab.perfmodel.flops import block_parameters, gpt_parameters
from lab.perfmodel.hardware import Machine
from lab.perfmodel.layout import Bucket, Candidate, Layout, Links, Profile
from lab.perfmodel.layout_law import Case, LayoutLaw
from lab.perfmodel.memory import FP32, MIXED, USABLE, transformer_memory
from lab.perfmodel.simulate import Conditions
from lab.perfmodel.transformer import Transformer

# Relative standard deviation of a step that is not based on any measured row: between the values
# for published A100s and H100s (`lab bench public --fit 0`).
ERROR = 0.3


@dataclass(frozen=True)
class Described:
    """A GPT on a machine known only from vendor figures."""

    model: GPT
    vocab_size: int
    machine: Machine

    @classmethod
    def of(cls, run: Run, machine: Machine) -> Described:
        """A run's model there; raises LabError for models other than GPT."""
        if not isinstance(run.architecture, GPT):
            kind = run.architecture.kind
            raise LabError(f"a described machine trains models of kind gpt, not {kind}")
        return cls(run.architecture, vocab_size_of(run.architecture, run.dataset), machine)

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return gpt_parameters(self.model, self.vocab_size)

    @cached_property
    def law(self) -> LayoutLaw:
        """The law of layouts as expected on this GPU."""
        return layout_law.expected(self.machine.gpu.name)

    def profile(self, candidate: Candidate) -> Profile:
        """One device's step: products, memory and launches by the law of layouts.

        With tensor parallelism the passes are those of all the candidate's ranks together, each
        slowed by its smaller products and its launches. The gradients of the layers become ready at
        even intervals, those of the tied embedding at the end.
        """
        tensor, model = candidate.layout.tensor, Transformer.of(self.model, self.vocab_size)
        case = Case(model, self.model.block_size, candidate, self.machine)
        parts = self.law.parts(case)
        forward = tensor * parts["compute"] / case.passes
        backward = tensor * parts["compute"] - forward
        layers, layer = self.model.layers, block_parameters(self.model.width)
        value = value_bytes(candidate.precision)
        gradients = [
            Bucket(backward * (nth + 1) / (layers + 1), layer * value) for nth in range(layers)
        ]
        gradients.append(Bucket(backward, (self.parameters - layers * layer) * value))
        return Profile(
            forward,
            backward,
            tensor * parts["optimizer"],
            tuple(gradients),
            other_s=parts["constant"],
            basis=f"{self.machine.gpu.name} by the law of layouts",
        )

    def conditions(self, ranks: int) -> Conditions:
        """The conditions of a step on this many ranks: a cost per node, and the law's error."""
        nodes = math.ceil(ranks / self.machine.gpus_per_node) if ranks > 1 else 0
        return Conditions(model_error=ERROR, call_s=nodes * self.law.coefficients["nodes"])

    def memory(self, candidate: Candidate) -> float:
        """Peak bytes of a rank: state, activations of the layers, logits."""
        model = Transformer.of(self.model, self.vocab_size)
        state = FP32 if value_bytes(candidate.precision) == 4 else MIXED
        return transformer_memory(model, self.model.block_size, candidate, state=state).total

    def links(self, layout: Layout) -> Links:
        """The machine's links, each cost computed once."""
        links = self.machine.links(layout)
        return Links(cache(links.data), cache(links.tensor), cache(links.pipeline))

    @property
    def memory_limit(self) -> float:
        """Bytes of a GPU that training may use; the rest is left to the back end."""
        return USABLE * self.machine.gpu.memory_bytes
