"""What words say of layouts: the notes around a table, and cells with settings or remarks."""

from __future__ import annotations

import re
from typing import Any

from lab.analysis.audit.columns import WORDS, named_precision
from lab.analysis.audit.values import NODE, number
from lab.analysis.layout_columns import UNITS, meaning
from lab.perfmodel import transformer
from lab.perfmodel.hardware import GPUS, named_gpu
from lab.perfmodel.layout import Sharing
from lab.perfmodel.transformer import Transformer

# GPUs in words: "NVIDIA A100 (80 GB) GPUs", or "H100s" alone, which no model is called.
_NAMES = "|".join(map(re.escape, sorted(GPUS, reverse=True)))
_CARDS = (
    r"(?:nvidia |amd (?:instinct )?)?(?:(?:[a-z]+-?\d{2,4}[a-z]* *)?"
    r"(?:-?\(?\d+ ?GB?(?: \w+)?\)? *)?GPUs?"
    rf"|(?:{_NAMES})s?)\b"
)
_OF, _COUNT = r"(?:[ _]size)?(?: of| (?:is|was)(?: set to)?)?[ =:]*", r"(\d+)\b(?!\.\d)"
NOTED = {
    "sequence": r"(?<![a-z])seq(?:uence)?s?(?:[ _-]?len(?:gth)?s?)?(?: of| is)?(?: set to)?[ =:]*"
    r"(\d{1,3},\d{3}|\d{3,7}|\d+k)\b"
    r"|\b(\d{1,3},\d{3}|\d{4,7}|\d+k)[ -](?:tokens?[ -])?(?:sequence|context)"
    r"|\bcontext(?:[ _-](?:length|window))?(?: of)?[ =:]*(\d{1,3},\d{3}|\d{4,7}|\d+k)\b"
    r"|\$s\s*=\s*(\d{3,7})\$",  # the symbol of papers
    "global_batch": rf"\bglobal[ _-]batch{_OF}{_COUNT}|(?<![\d.,])(\d+) global[ -]batch",
    "micro_batch": rf"\b(?:micro|per[ _-](?:gpu|device))[ _-]?(?:train_)?batch{_OF}{_COUNT}"
    r"|(?<![\d.,])(\d+) micro[ -]?batch[ -]size\b",
    "replica_batch": rf"\blocal[ _-]?batch{_OF}{_COUNT}",
    "per_node": rf"x ?(\d+) per node|(\d+)(?: ?[x×*])? {_CARDS} (?:\([^)]*\) )?per {NODE}"
    rf"|\b{NODE}s? (?:has|have|with|of|x|×)[ :*-]+(\d+)(?: ?[x×*])? ?{_CARDS}"
    rf"|\b\d+ {NODE}s? ?[x×] ?(\d+)\b(?! ?[x×])",
    "nodes": rf"\b(\d+) {NODE}s?\b",
    # Of the whole table: not "4 nodes of 8 GPUs", "8 GPUs per node".
    "gpus": r"(?<!of )(?<!with )(?<!has )(?<!have )(?<![\d.,x])(?<![x×] )"
    rf"\b(\d+|{'|'.join(WORDS)})(?: ?[x×*])?[ -]*{_CARDS}"
    rf"(?! ?(?:\([^)]*\)|\d+ ?GB?)? ?(?:per|/|each|GPU|{NODE}))"
    rf"|\b(?:{_NAMES}) ?[x×*] ?(\d+)\b"
    rf"|\b(?:one|single|an?) (\d+) ?[x×]? ?{_CARDS} {NODE}\b(?!s)"
    r"|(?<![\d.])(\d+) ?卡",
}
SHARED = {"zero", "fsdp", "sharding"}
SIZED = {"model", "size", "parameters", "layers"}
HYBRID = re.compile("hsdp|hybrid", re.IGNORECASE)
# The first matching words count.
SHARINGS: dict[Sharing, str] = {
    "fsdp": r"full_?shard|fsdp|hsdp|hybrid_?shard|zero\W?3",
    "zero2": r"shard_?grad|zero\W?2",
    "zero1": r"zero\W?1",
}
# Notes name fp32 for other things, too, such as master weights.
NOTED_PRECISION = re.compile(
    r"\b((?:mx|nv)?fp-?[48]|float8|[fb]p?f?-?16|[ft][pf]-?32(?= precision))\b", re.IGNORECASE
)
# "TP8+SP", "sp=8", "without sequence parallelism"; a number is the size of its groups.
SEQUENCE_PARALLEL = re.compile(
    r"(\b(?:no|not|without|w/o)\s+)?(?:\bsequence.?parallel(?:ism)?|(?<![a-z])sp)(?![a-z])"
    r"(?:\s*[=:]\s*)?(\d+|off|false|no(?:ne)?\b)?",
    re.IGNORECASE,
)
NOTED_RECOMPUTED = re.compile(
    r"\b(full|selective|no) (?:activation |gradient )?(?:recompute|recomputation|check-?point)",
    re.IGNORECASE,
)
# "with gradient checkpointing", "activation checkpointing: on", "activation recomputation (full)".
_RECOMPUTING = r"(?:activation|gradient)[ -](?:check-?pointing|re-?comput(?:e|ation|ing))"
RECOMPUTED = re.compile(
    rf"(\bw/o|\bwithout|\bwith|\busing|\buses?|w/) {_RECOMPUTING}"
    rf"|{_RECOMPUTING}(?:[ :=]+|\s*\()(full|selective|off|disabled|false|none|on|enabled|true)\b",
    re.IGNORECASE,
)
RECOMPUTES_NOTHING = {"w/o", "without", "off", "disabled", "false", "none"}
ABBREVIATIONS = (
    *("tp", "pp", "cp", "ep", "dp", "vp", "vpp", "mbs", "mbz", "lbs", "gbs", "bs", "ga", "gas"),
    *("sl", "dp_replicate", "dp_shard"),
)
ABBREVIATED = {short: meant for short in ABBREVIATIONS if (meant := meaning(short))}
# "TP8", "tp=8", "PP 4", and in "zero1(dp2)+tp2"; "expert parallelism 8".
SETTING = re.compile(
    rf"(?<![a-z])(?:({'|'.join(ABBREVIATED)})(?:[ _-]?size)?"
    r"|(tensor|pipeline|context|expert|data)[ -]parallel(?:ism)?(?: size| degree)?(?: of)?)"
    r"\s*[=:]?\s*(\d{1,3}(?:,\d{3})+|\d+)(?![\d]|[.,]\d)",
    re.IGNORECASE,
)
SHARDS = re.compile(r"\bfsdp(?:\s*[=:]\s*|\s+)(\d+)\b", re.IGNORECASE)  # FSDP2 is a version
GROUPS = re.compile(r"\bhsdp\W*(\d+)\s*[x×,]\s*(\d+)", re.IGNORECASE)  # replicas, shards
SET_RECOMPUTED = re.compile(
    r"\brecomput\w*\s*[=:]\s*(\w+)|\b(full|selective|no) AC\b", re.IGNORECASE
)
FUSED = re.compile(r"flash[ _-]?att|\bfa[23]\b", re.IGNORECASE)  # of attention
SENT_ONCE = re.compile(r"\b(?:deep|hybrid).?ep\b", re.IGNORECASE)
ADAPTERS = re.compile(r"(?<![a-z])(?:q|do)?lora(?![a-z])", re.IGNORECASE)
DENIED = re.compile(r"\b(?:no|not|without|w/o|instead of)\s+[^\s,;.]+", re.IGNORECASE)
_ACTIVE = re.compile(r"(?<=b)[ -]?a\d+(\.\d+)?b", re.IGNORECASE)  # of "30B-A3B"
OTHER_CHIP = re.compile(
    r"\b(?:tpus?|[nhi]pus?|trainium|trn\d|gaudi|ascend|cerebras|sambanova|a64fx|fugaku"
    r"|xpus?|ponte.?vecchio|aurora)(?![a-z])",
    re.IGNORECASE,
)


def settings(text: str) -> dict[str, Any]:
    """What words such as "tp2, pp32, mbs=1, recompute=full" say; nothing twice or doubtful."""
    values: dict[str, set[Any]] = {name: _noted(name, text) for name in NOTED}
    of_all = re.sub(NOTED["per_node"], " ", text, flags=re.IGNORECASE)
    values["gpus"] = _noted("gpus", of_all)
    values["recomputed"] = {one.lower() or two.lower() for one, two in SET_RECOMPUTED.findall(text)}
    values["recomputed"] |= noted_recomputation(text)
    text = DENIED.sub("", text)
    for short, name, value in SETTING.findall(text):
        meant = ABBREVIATED[short.lower()] if short else name.lower()
        values.setdefault(meant, set()).add(float(value.replace(",", "")))
    for value in SHARDS.findall(text):
        replicas = values.pop("data", {1.0})
        values["data"] = {float(value) * many for many in replicas}
        if replicas != {1.0}:
            values["replicate"] = replicas
    for replicas, shards in GROUPS.findall(text):
        values |= {"replicate": {float(replicas)}, "shard": {float(shards)}}
    values["precision"] = {named_precision(words) for words in NOTED_PRECISION.findall(text)}
    shared = {kind for kind, words in SHARINGS.items() if re.search(words, text, re.IGNORECASE)}
    values["sharding"] = {"hsdp"} if shared and HYBRID.search(text) else shared
    if gpu := named_gpu(text):
        values["gpu"] = {gpu.name}
    return {name: stated.pop() for name, stated in values.items() if len(stated) == 1}


def sharing(words: str) -> Sharing | None:
    """How replicas share a model's state; None if the words do not say."""
    text = words.lower()
    return next((name for name, used in SHARINGS.items() if re.search(used, text)), None)


def noted_model(notes: str) -> Transformer | None:
    """The model that notes name, or one of their only size; None if they give several sizes."""
    text = _ACTIVE.sub("", notes.replace("_", " "))
    text = re.sub(r"\b[\d.]+[BT] tokens|1F1B", "", text, flags=re.IGNORECASE)
    sizes = transformer.sizes(text)
    if len(sizes) > 1:
        return None
    model = transformer.named("", notes)
    return model or (transformer.of_parameters(sizes.pop()) if sizes else None)


def _noted(name: str, text: str) -> set[float]:
    """All that a text gives as this, such as {8.0} GPUs."""
    matches = re.finditer(NOTED[name], text, re.IGNORECASE)
    texts = {next(filter(None, match.groups())).lower() for match in matches}
    return {float(WORDS.get(one) or number(one, units=UNITS.get(name))) for one in texts}


def noted_recomputation(text: str) -> set[str]:
    """The kinds of recomputation that a text names: full, selective, no."""
    kinds = {kind.lower() for kind in NOTED_RECOMPUTED.findall(text)}
    for words in RECOMPUTED.findall(text):
        word = "".join(words).lower()
        kind = word if word in {"full", "selective"} else "full"
        kinds.add("no" if word in RECOMPUTES_NOTHING else kind)
    return kinds
