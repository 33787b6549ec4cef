"""Transformers as published: the sizes of GPT-like, Llama-like and mixture-of-experts models."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from lab.config.models import GPT

GPT2_VOCABULARY = 50304  # 50,257 filled up to a multiple of 64, as frameworks do


@dataclass(frozen=True)
class Transformer:
    """A decoder: `key_value_heads` as in grouped-query attention, `hidden` the inner MLP width.

    A `gated` MLP has three matrices (SwiGLU) instead of two. Each token passes through `active` of
    the `experts` MLPs in a layer, `shared` ones counted; `dense_layers` have only these. An untied
    head has its own matrix. `projections` are the parameters of latent attention in a layer.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int = GPT2_VOCABULARY
    key_value_heads: int = 0  # 0: as many as heads
    gated: bool = False
    tied: bool = True
    experts: int = 1
    active: int = 1
    shared: int = 0  # experts that all tokens pass through, where they are
    head_width: int = 0  # 0: width / heads; of latent attention the mean of keys and values
    dense_layers: int = 0
    projections: int = 0  # 0: queries, keys, values and output by the widths
    window: int = 0  # tokens that attention sees in every other layer; 0: all

    @classmethod
    def of(cls, model: GPT, vocabulary: int) -> Transformer:
        """The sizes of a GPT of a study, whose MLP is four times as wide as the model."""
        vocabulary = model.vocab_size or vocabulary
        return cls(model.layers, model.width, model.heads, 4 * model.width, vocabulary)

    @property
    def key_value_share(self) -> float:
        """Width of keys or values over that of queries."""
        return (self.key_value_heads or self.heads) / self.heads

    @cached_property
    def _attention(self) -> float:
        if self.projections:
            return float(self.projections)
        queries = self.heads * (self.head_width or self.width / self.heads)
        return 2 * self.width * queries * (1 + self.key_value_share)

    def block(self, *, experts: int = 0) -> float:
        """Parameters of the matrices of a layer with this many experts; 0: with all of them."""
        return self._attention + (experts or self.experts) * self._mlp

    @cached_property
    def _mlp(self) -> float:
        return (3 if self.gated else 2) * self.width * self.hidden

    @property
    def routed(self) -> float:
        """Parameters of a layer's experts, which ranks can share; 0 for a dense model."""
        return self.experts * self._mlp if self.experts > 1 else 0.0

    @property
    def embedding(self) -> float:
        """Parameters of one embedding, and of the head."""
        return float(self.vocabulary * self.width)

    @property
    def parameters(self) -> float:
        """All parameters except biases, norms and positions."""
        dense = self.dense_layers * (self.experts - self.active) * self._mlp
        return self.layers * self.block() - dense + self.embedding * (1 if self.tied else 2)

    def stage_layers(self, stages: int, *, balanced: bool = False) -> tuple[int, int]:
        """Layers of a pipeline's longest stage, and of its last stage, which has the head.

        By default stages have equal layers; `balanced` ones equal parameters, the head's counted.
        """
        longest = math.ceil(self.layers / stages)
        if stages == 1 or not balanced:
            return longest, longest
        head = self.embedding / self.block(experts=self.active)
        # A stage takes one more layer only if it would otherwise lack more than a twentieth.
        longest = min(math.ceil((self.layers + head) / stages - 0.05), self.layers)
        return longest, max(self.layers - longest * (stages - 1), 0)

    def attention_flops(self, tokens: float, sequence: float) -> float:
        """FLOPs of a layer's attention between tokens in its forward pass, without a mask.

        Of a window, which a mask does not halve, they are twice as many.
        """
        keys = (sequence + min(sequence, 2 * self.window)) / 2 if self.window else sequence
        return 4 * tokens * keys * self.heads * (self.head_width or self.width / self.heads)

    def layer_flops(self, tokens: float, sequence: float) -> float:
        """FLOPs of a layer's forward pass: 2 per active parameter, and attention."""
        dense = 2 * tokens * self.block(experts=self.active)
        return dense + self.attention_flops(tokens, sequence)

    def flops_per_token(
        self, sequence: float, *, passes: float = 3.0, masked: bool = False
    ) -> float:
        """Model FLOPs of forward and backward, the numerator of MFU (PaLM, appendix B).

        Four `passes` of the layers are the hardware's FLOPs with full recomputation (Narayanan et
        al. 2021, equation 3). A `masked` attention is half as much.
        """
        layer = self.layer_flops(1, sequence)
        layer -= self.attention_flops(1, sequence) / 2 if masked else 0.0
        return passes * self.layers * layer + 6 * self.embedding


def _llama(
    layers: int, width: int, heads: int, groups: int, hidden: int, vocabulary: int, **others: Any
) -> Transformer:
    """Llama's shape. Of a mixture, `experts` and `active` count the `shared` ones, in units of a
    routed one.
    """
    sizes = {"gated": True, "tied": False} | others
    return Transformer(layers, width, heads, hidden, vocabulary, groups, **sizes)


def _latent(
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    vocabulary: int,
    *,
    queries: int = 1536,
    **mixture: int,
) -> Transformer:
    """DeepSeek's shape: latent attention, shared experts, dense layers as wide as the active ones.

    The latent widths are those of `queries` (0: none) and 512 of keys and values; a head has 128
    values, and 128 + 64 (rotary) in queries and keys.
    """
    latent, rotary, head = 512, 64, 128
    query_width = heads * (head + rotary)
    projections = (width + query_width) * queries if queries else width * query_width
    projections += width * (latent + rotary) + heads * (latent * 2 * head + width * head)
    own = {"head_width": head + rotary // 2, "projections": projections}
    return _llama(layers, width, heads, heads, hidden, vocabulary, **own, **mixture)


def _gpt(layers: int, width: int, heads: int) -> Transformer:
    return Transformer(layers, width, heads, 4 * width)


_NINE = {"active": 9, "shared": 1}  # of GLM, DeepSeek-V3 and Kimi
# Models by name and size; the first matching pattern counts. Sizes from the models' config.json;
# MPT from llm-foundry's; GPT-3 from Brown et al. (2020), table 2.1. nanotron's 1B follows from the
# playbook's own MFU and tokens/s: 9.66e9 FLOPs per token, an embedding of 131,072 tokens.
NAMED: dict[str, Transformer] = {
    r"llama.?3(?!\d).*405b": _llama(126, 16384, 128, 8, 53248, 128256),
    r"llama.?3(?!\d).*70b": _llama(80, 8192, 64, 8, 28672, 128256),
    r"llama.?3(?!\d).*8b": _llama(32, 4096, 32, 8, 14336, 128256),
    r"llama.?3(?!\d).*3b": _llama(28, 3072, 24, 8, 8192, 128256, tied=True),
    r"llama.?3(?!\d).*1b": _llama(16, 2048, 32, 8, 8192, 128256, tied=True),
    r"llama.?4.*scout": _llama(48, 5120, 40, 8, 8192, 202048, experts=17, active=2, shared=1),
    r"llama.?4.*maverick": _llama(
        48, 5120, 40, 8, 8192, 202048, experts=129, active=2, shared=1, dense_layers=24
    ),
    r"llama.*70b": _llama(80, 8192, 64, 8, 28672, 32000),
    r"llama.*65b": _llama(80, 8192, 64, 64, 22016, 32000),
    r"llama.*(30|33)b": _llama(60, 6656, 52, 52, 17920, 32000),
    r"llama.*13b": _llama(40, 5120, 40, 40, 13824, 32000),
    r"llama.*7b": _llama(32, 4096, 32, 32, 11008, 32000),
    r"code.?llama.*34b": _llama(48, 8192, 64, 8, 22016, 32000),
    r"mixtral.*8[x×]22b": _llama(56, 6144, 48, 8, 16384, 32768, experts=8, active=2),
    r"mixtral.*8[x×]7b": _llama(32, 4096, 32, 8, 14336, 32000, experts=8, active=2),
    r"qwen.?3.*235b": _llama(94, 4096, 64, 4, 1536, 151936, experts=128, active=8, head_width=128),
    r"qwen.?3.*30b": _llama(48, 2048, 32, 4, 768, 151936, experts=128, active=8, head_width=128),
    r"qwen.?3.*480b": _llama(62, 6144, 96, 8, 2560, 151936, experts=160, active=8, head_width=128),
    r"qwen.?2.*57b": _llama(28, 3584, 28, 4, 2560, 151936, experts=72, active=16, shared=8),
    r"qwen.?1\.5.?moe": _llama(24, 2048, 16, 16, 1408, 151936, experts=64, active=8, shared=4),
    r"glm.?4\.[56].?air": _llama(
        46, 4096, 96, 8, 1408, 151552, experts=129, head_width=128, dense_layers=1, **_NINE
    ),
    r"glm.?4\.[56](?!\d)": _llama(
        92, 5120, 96, 8, 1536, 151552, experts=161, head_width=128, dense_layers=3, **_NINE
    ),
    r"olmoe": _llama(16, 2048, 16, 16, 1024, 50304, experts=64, active=8),
    r"\bdbrx": _llama(40, 6144, 48, 8, 10752, 100352, experts=16, active=4),
    r"phi.?3\.5.?moe": _llama(32, 4096, 32, 8, 6400, 32064, experts=16, active=2),
    r"\bgrok.?1\b": _llama(64, 6144, 48, 8, 32768, 131072, experts=8, active=2, tied=True),
    r"qwen.?3.*32b": _llama(64, 5120, 64, 8, 25600, 151936, head_width=128),
    r"qwen.?3.*14b": _llama(40, 5120, 40, 8, 17408, 151936),
    r"qwen.?3.*8b": _llama(36, 4096, 32, 8, 12288, 151936),
    r"qwen.?3.*4b": _llama(36, 2560, 32, 8, 9728, 151936, tied=True, head_width=128),
    r"qwen.?3.*1\.7b": _llama(28, 2048, 16, 8, 6144, 151936, tied=True),
    r"qwen.?3.*0\.6b": _llama(28, 1024, 16, 8, 3072, 151936, tied=True, head_width=128),
    r"qwen.?2(\.5)?.*72b": _llama(80, 8192, 64, 8, 29568, 152064),
    r"qwen.?2\.5.*32b": _llama(64, 5120, 40, 8, 27648, 152064),
    r"qwen.?2\.5.*14b": _llama(48, 5120, 40, 8, 13824, 152064),
    r"qwen.?2(\.5)?.*7b": _llama(28, 3584, 28, 4, 18944, 152064),
    r"qwen.?2\.5.*3b": _llama(36, 2048, 16, 2, 11008, 151936, tied=True),
    r"qwen.?2(\.5)?.*1\.5b": _llama(28, 1536, 12, 2, 8960, 151936, tied=True),
    r"qwen.?2(\.5)?.*0\.5b": _llama(24, 896, 14, 2, 4864, 151936, tied=True),
    r"gemma.?2.*27b": _llama(
        46, 4608, 32, 16, 36864, 256000, tied=True, head_width=128, window=4096
    ),
    r"gemma.?2.*9b": _llama(42, 3584, 16, 8, 14336, 256000, tied=True, head_width=256, window=4096),
    r"\byi.*34b": _llama(60, 7168, 56, 8, 20480, 64000),
    r"baichuan.?2.*13b": _llama(40, 5120, 40, 40, 13696, 125696),
    r"phi.?3.*(mini|3\.8b)": _llama(32, 3072, 32, 32, 8192, 32064),
    r"mistral.*nemo|mistral.*12b": _llama(40, 5120, 32, 8, 14336, 131072, head_width=128),
    r"mistral.*24b": _llama(40, 5120, 32, 8, 32768, 131072, head_width=128),
    r"mistral.*(large|123b)": _llama(88, 12288, 96, 8, 28672, 32768),
    r"gpt.?neox.*20b": replace(_gpt(44, 6144, 64), tied=False),
    r"\bbloom\b.*176b": replace(_gpt(70, 14336, 112), vocabulary=250880),
    r"\bopt.*175b": _gpt(96, 12288, 96),
    r"deepseek.?(v?3|r1)(?!\d)": _latent(
        61, 7168, 128, 2048, 129280, experts=257, dense_layers=3, **_NINE
    ),
    r"kimi.?k2": _latent(61, 7168, 64, 2048, 163840, experts=385, dense_layers=1, **_NINE),
    r"deepseek.?v?2.?lite": _latent(
        27, 2048, 16, 1408, 102400, queries=0, experts=66, active=8, shared=2, dense_layers=1
    ),
    r"moonlight": _latent(
        27, 2048, 16, 1408, 163840, queries=0, experts=66, active=8, shared=2, dense_layers=1
    ),
    r"deepseek.?v?2(?!\d)": _latent(
        60, 5120, 128, 1536, 102400, experts=162, active=8, shared=2, dense_layers=1
    ),
    r"gpt.?oss.*120b": _llama(
        36, 2880, 64, 8, 2880, 201088, experts=128, active=4, head_width=64, window=128
    ),
    r"gpt.?oss.*20b": _llama(
        24, 2880, 64, 8, 2880, 201088, experts=32, active=4, head_width=64, window=128
    ),
    r"mistral.*7b": _llama(32, 4096, 32, 8, 14336, 32000),
    r"nanotron.*\b1b": _llama(16, 2048, 32, 32, 8192, 131072, tied=True),
    r"\bmpt.*125m|gpt2?.?(124|125)m|gpt2.?small": _gpt(12, 768, 12),
    r"\bmpt.*350m|gpt2?.?(345|350|355)m|gpt2.?medium": _gpt(24, 1024, 16),
    r"gpt2.?large|gpt2?.?774m": _gpt(36, 1280, 20),
    r"gpt2.?xl|gpt2?.?1\.5b": _gpt(48, 1600, 25),
    r"gpt.?3.*175b": _gpt(96, 12288, 96),
}
# Layers and width of models given only by a parameter count: the usual sizes of the GPT-3 family.
_LADDER = (
    *((12, 768), (24, 1024), (24, 1536), (16, 2048), (24, 2048), (32, 2560), (28, 3072)),
    *((32, 4096), (40, 5120), (48, 7168), (60, 6656), (80, 8192), (96, 12288), (118, 16384)),
)
# "30B-A3B", "8x7B" or "8×7B", or in words; such a model's size alone says little of its work.
_EXPERTS = re.compile(
    r"\d+b.?a\d+b\b|\d+[x×]\d+(\.\d+)?b|moe(?![a-z])|mixtral|deepseek.?(v?[234]|r1)|kimi.?k2",
    re.IGNORECASE,
)
# Models other than decoders of language, by the names of the usual ones.
KINDS = {
    "a diffusion model": r"\bwan[ -]?2\.\d|\b(flux|sdxl|sd[23]|dit|ldm)\b|stable.?diffusion|imagen"
    r"|open.?sora|hunyuan.?video|cogvideo|pixart",
    "a vision model": r"\bvit\b|\b(resnet|convnext|efficientnet|dino|swin|yolo)"
    r"|(?<!grad.)(?<!gradient.)\bclip\b(?!.?(grad|norm|val))",  # not of gradients
    "an encoder-decoder": r"\bm?t5\b|\b(flan|mbart|bart|whisper|ul2|nllb)\b",
    "a state space model": r"mamba|\brwkv|\bjamba|nemotron.?\d*-?h\b",
    "an encoder": r"\b(ro|de|al|distil|mega)?berta?\b|\besm-?2|\belectra\b",
    "a vision-language model": r"llava|intern-?vl|\w-vl\b|\bvlm\b|\bomni\b",
}
# A decoder of as many parameters has nearly their work.
LIKE_DECODERS = ("an encoder", "a vision-language model")
NOMINAL = 0.03  # relative, of what names round: Kimi K2 has 1026B, gpt-oss-120b 117B
_NOT_ZERO = r"(?=[\d.]*[1-9])"
_SIZE = re.compile(
    rf"(?<![\d.x×])(?<![-_ ]a){_NOT_ZERO}(\d+(?:\.\d+)?)\s*([mbt])(?![a-z0-9])", re.IGNORECASE
)
_FACTOR = {"m": 1e6, "b": 1e9, "t": 1e12}
_WHOLE = r".*(?<![\d.])"  # the 7b of "llama 7b", not that of "llama 28.7b"


@lru_cache(maxsize=1000)  # every row of a table names one of a few
def named(text: str, context: str = "") -> Transformer | None:
    """The model named by words such as "Llama-3 8B"; None if it is none of NAMED.

    `context` are words around it, such as the notes of a table whose rows name only sizes; sizes in
    it are then those of other models.
    """
    around = _SIZE.sub("", context) if text else context
    for words in (text, f"{around} {text}"):
        for pattern, model in NAMED.items():
            if re.search(pattern.replace(".*", _WHOLE), words, re.IGNORECASE):
                return model
    return None


def has_experts(text: str) -> bool:
    """Whether words such as "Qwen3 30B-A3B" name a mixture of experts."""
    return bool(_EXPERTS.search(text))


def other_kind(text: str) -> str:
    """What words such as "ViT-G/14" name if it is not a language decoder, else ""."""
    words = text.replace("_", " ")
    kinds = (kind for kind, names in KINDS.items() if re.search(names, words, re.IGNORECASE))
    return next(kinds, "")


def size(text: str) -> float | None:
    """The number of parameters in words such as "7B" or "350m"."""
    match = _SIZE.search(text)
    return float(match[1]) * _FACTOR[match[2].lower()] if match else None


def sizes(text: str) -> set[float]:
    """All numbers of parameters in words."""
    return {float(count) * _FACTOR[unit.lower()] for count, unit in _SIZE.findall(text)}


def mixture_of(count: float) -> Transformer | None:
    """The mixture of experts of NAMED with about this many parameters; None if none is alone."""
    alike = {
        model
        for model in NAMED.values()
        if model.experts > 1 and abs(model.parameters / count - 1) < NOMINAL
    }
    # A name rounds: Qwen3 has 235.1B, DeepSeek-V2 235.7B.
    named_so = {one for one in alike if round(one.parameters / 1e9) == round(count / 1e9)}
    alike = named_so or alike
    return alike.pop() if len(alike) == 1 else None


def of_parameters(count: float, *, vocabulary: int = GPT2_VOCABULARY) -> Transformer:
    """A GPT with about this many parameters, whose MLP makes up for what the usual sizes lack."""

    def gpt(step: tuple[int, int]) -> Transformer:
        layers, width = step
        return Transformer(layers, width, max(width // 128, 1), 4 * width, vocabulary)

    near = min(map(gpt, _LADDER), key=lambda model: abs(model.parameters / count - 1))
    missing = (count - near.parameters) / (2 * near.layers * near.width)
    return replace(near, hidden=max(round(near.hidden + missing), near.width))
