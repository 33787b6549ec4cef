"""What a column of a table is, guessed from its name: a canonical quantity, its unit, and what statistic of it."""

from __future__ import annotations

import re
from typing import NamedTuple

from lab.analysis.audit.values import BYTE_UNITS, COUNT_UNITS, TIME_UNITS

TIMES = (
    "time",
    "data",
    "h2d",
    "forward",
    "backward",
    "compute",
    "optimizer",
    "communication",
    "exposed",
    "other",
)
PHASES = TIMES[1:]
NUMERIC = (
    *TIMES,
    *(
        "world_size",
        "nodes",
        "per_node",
        "global_batch_size",
        "micro_batch_size",
        "batch",
        "grad_accum",
        "samples",
        "steps",
        "warmup",
    ),
    *(
        "rate",
        "speedup",
        "efficiency",
        "bytes",
        "parameters",
        "algbw",
        "busbw",
        "loader_workers",
        "cpus",
        "accuracy",
        "loss",
    ),
    *("epoch", "step", "repeats", "std", "low", "high", "time_mean", "communication_mean"),
)
ENVIRONMENT = ("host", "version", "commit", "threads", "clock", "driver", "gpu", "cpu")
TEXT = (
    *(
        "rank",
        "repeat",
        "seed",
        "model",
        "strategy",
        "precision",
        "dataset",
        "compile",
        "link",
        "device",
        "emulated",
    ),
    *ENVIRONMENT,
)
CANONICAL = (*NUMERIC, *TEXT)
MEANS, SPREADS, MOSTS = (
    {"mean", "avg", "average"},
    {"std", "stdev", "stddev", "sd", "stderr", "sem"},
    {"max", "slowest"},
)
STATISTICS = MEANS | SPREADS | MOSTS | {"median"}
BANDWIDTHS = {
    "gb_per_s": 1e9,
    "gbs": 1e9,
    "mb_per_s": 1e6,
    "gib_per_s": 2.0**30,
    "gbps": 1e9 / 8,
    "gbit_per_s": 1e9 / 8,
}
THINGS = "samples?|images?|imgs?|tokens?|examples?|sequences?|seqs?|items?|records?|sentences?|words?|frames?"

# Names that are no time, by the whole stem, in this order.
PLAIN = (
    (
        "rank",
        r"(global_)?rank(_id)?|gpu_(id|index)|proc(ess)?(_id)?|device_(id|index)|worker_id|pe",
    ),
    (
        "per_node",
        r"((n|num|number_of)_?)?(gpus?|ranks?|proc(esse)?s?|tasks?|devices?|accelerators?|cards?)_per_(node|host|machine|server)|ppn|gpn",
    ),
    (
        "world_size",
        r"world(_?size)?|((n|num|nr|no|number_of|total|count_of)_?)?(gpus|ranks|procs|processes|devices|accelerators|tasks|cards)"
        r"(_(total|count))?|(n|num)_?(gpu|proc|rank)|(gpu|rank|process|device)_count|nprocs?|np|n|p|gpu|workers|mpi_(ranks|size)"
        r"|parallelism_degree|dp(_size|_degree)",
    ),
    ("nodes", r"((n|num|number_of)_?)?(nodes)|nnodes|node_count"),
    ("global_batch_size", r"(global|total|effective|overall)_(mini_?)?(batch(_?size)?|bs)|gbs"),
    (
        "micro_batch_size",
        r"((per|local|micro|device|gpu|rank)_)+(device_|gpu_|rank_|worker_)?(train_)?(batch(_?size)?|bs)|micro_?batch(_?size)?|mbs"
        r"|(batch(_?size)?|bs)_(per|on_each|local)(_[a-z]+)?|microbatch",
    ),
    ("batch", r"(mini_?|train_?)?batch(_?size)?|bs|(.*_)?batch(_size)?"),
    ("grad_accum", r"(grad(ient)?_)?accum(ulation)?(_steps)?|ga"),
    ("samples", r"((n|num|total|train|training)_)*samples|dataset_size|(n|num)_examples"),
    ("steps", r"((n|num|total|optimizer)_)*(steps|iterations|iters)"),
    ("warmup", r"warm_?up(_(steps|iters|iterations|epochs))?"),
    ("speedup", r"(.*_)?speed_?up(_.*)?|scaling_factor"),
    ("efficiency", r"(.*_)?(efficiency|eff)"),
    ("rate", rf"(.*_)?({THINGS})_per_(s|sec|second)|(.*_)?throughput(_.*)?|ips|qps|tps"),
    ("algbw", r"(alg|algorithm)_?(bw|bandwidth)"),
    ("busbw", r"(bus_?(bw|bandwidth))|bandwidth|bw"),
    (
        "loader_workers",
        r"(data_?)?(loader|load)_?(workers|processes)(_per_[a-z]+)?|num_workers(_per_[a-z]+)?|n_workers",
    ),
    ("cpus", r"((n|num)_)?(cpus|cpu_cores|cores)(_per_[a-z]+)?|cpu_count|cpus_granted"),
    ("parameters", r"((n|num|total|model|trainable)_)*(params?|parameters)|model_size"),
    (
        "bytes",
        r"(message|msg|grad(ient)?s?|comm(unication)?|bucket|payload|transfer|buffer)(_(size|volume|bytes))?|bytes|size",
    ),
    ("accuracy", r"(.*_)?(acc|accuracy|top_?1|f1)(_.*)?"),
    ("loss", r"(.*_)?loss(_.*)?"),
    ("epoch", r"epochs?|epoch_(id|index|number)"),
    ("step", r"(global_)?(step|iter|iteration)(_(id|index|number))?|it"),
    (
        "repeats",
        r"(n|num|number_of)_(runs|repeats|trials|repetitions)|repeats|runs|trials|repetitions",
    ),
    (
        "repeat",
        r"(repeat|run|trial|rep|replicate|repetition|job|job_id)(_?(id|idx|index|no|number))?",
    ),
    ("seed", r"(random_)?seed"),
    ("host", r"host(_?name)?s?|node(_?(name|list))?|machine|server"),
    ("version", r"(py)?torch(_version)?|(.*_)?version|commit_date"),
    ("commit", r"(git_?)?(commit|sha|hash|rev|revision)|git"),
    ("threads", r"(omp_)?(num_)?threads(_per_[a-z]+)?"),
    ("clock", r"(gpu_|sm_|cpu_)?(clock|freq|frequency)(_m?g?hz)?|mhz|ghz"),
    ("driver", r"(cuda_|gpu_)?driver"),
    ("gpu", r"gpu(_?(model|name|type))|gpu|accelerator|device_name"),
    ("cpu", r"cpu(_?(model|name|type))?|processor"),
    ("device", r"device(_type)?|platform|hardware"),
    ("emulated", r"(is_)?emulat(ed|ion)(_.*)?"),
    ("link", r"link|network|interconnect|nic|fabric"),
    ("model", r"model(_?name)?|arch|architecture|net"),
    (
        "strategy",
        r"strategy|method|mode|stage|variant|impl|implementation|parallel(ism)?|config(uration)?|setup|setting|approach|backend",
    ),
    ("precision", r"precision|dtype|amp|data_?type"),
    ("dataset", r"data_?set|data|task|corpus"),
    ("compile", r"compiled?|torch_compile"),
    ("low", r"(ci_?)?(low|lower)(_bound)?|ci_?l"),
    ("high", r"(ci_?)?(high|upper)(_bound)?|ci_?u"),
)
# Parts of a step, by a word in the stem of a name that speaks of a time.
PARTS = (
    ("exposed", r"exposed|non_?overlap|unoverlapped"),
    ("compute", r"comput|calc|kernel|(fwd|forward)_?(and_)?(bwd|backward)"),
    ("communication", r"comm|all_?reduce|nccl|sync|allgather|reduce_scatter|mpi"),
    ("h2d", r"h2d|h_2_d|host_to|memcpy|copy|to_gpu|to_device|transfer"),
    ("data", r"data|load|input|(^|_)io(_|$)|fetch|batch_wait"),
    ("forward", r"forward|fwd"),
    ("backward", r"backward|bwd"),
    ("optimizer", r"optim|(^|_)opt(_|$)|update"),
    ("other", r"other|misc|idle|overhead"),
)
NOT_TRAINING = r"inference|eval|valid|(^|_)val(_|$)|test|setup|warm|checkpoint|save|start|compil|timestamp|generat"
BARE = r"(t|comm|communication|compute|computation|forward|fwd|backward|bwd|optimi[sz]er|h2d|data_?load(ing)?|all_?reduce|exposed_.*)"
CLOCKED = r"time|duration|latency|runtime|elapsed|wall|seconds|makespan"
GOALS = "time_to_(train|solution|accuracy|target)"
WHOLE = rf"({GOALS}|total|train|training|run|exec|execution|fit|job|wall|clock|t|end_to_end|{CLOCKED})(_(time|duration|clock|runtime|total|s))*"


class Name(NamedTuple):
    """A column's name taken apart: its stem, the family and factor of its unit, a statistic."""

    stem: str
    family: str | None = None
    factor: float = 1.0
    statistic: str | None = None


class Guess(NamedTuple):
    """What a column holds: canonical name, factor to base units (None: no unit named), `per` of a time (step, epoch, total)."""

    canonical: str
    factor: float | None
    per: str | None = None


def normal(name: str) -> str:
    """A name in lower snake case, `#` as n, `/` as per, `%` as percent."""
    text = (
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name).strip())
        .lower()
        .replace("µ", "u")
        .replace("μ", "u")
    )
    text = re.sub(
        r"[\[(]\s*min\.?\s*[\])]$", " minutes", text
    )  # without its brackets it may be the least
    text = text.replace("%", " percent ").replace("#", " n ").replace("/", " per ")
    return re.sub(r"[^a-z0-9]+", "_", text).strip("_")


def take_apart(name: str) -> Name:
    """Stem, unit and statistic of a column's name."""
    text = normal(name)
    for unit, factor in BANDWIDTHS.items():
        if text.endswith(unit) and re.search(r"bw|bandwidth", text):
            return Name(text.removesuffix(unit).strip("_"), "bandwidth", factor)
    found = re.fullmatch(r"(?P<unit>[a-z]+)_per_(?P<what>step|iter|iteration|it|epoch|batch)", text)
    if found and found["unit"] in TIME_UNITS:
        return Name(f"{found['what']}_time", "time", TIME_UNITS[found["unit"]])
    words = text.split("_")
    statistic = next(
        (
            word
            for word in (words[0], words[-1], words[-2] if len(words) > 1 else "")
            if word in STATISTICS
        ),
        None,
    )
    words = [word for word in words if word != statistic]
    family, factor = None, 1.0
    if words and (len(words) < 2 or words[-2] != "per"):
        for kind, units in (
            ("time", TIME_UNITS),
            ("bytes", BYTE_UNITS),
            ("count", COUNT_UNITS),
            ("percent", {"percent": 0.01, "pct": 0.01}),
        ):
            if words[-1] in units and not (
                kind == "bytes" and words[-1] in {"bytes", "b"} and len(words) == 1
            ):
                family, factor = kind, units[words.pop()]
                break
    return Name("_".join(words), family, factor, statistic)


def guess(name: str) -> Guess | None:
    """The canonical quantity that a column's name stands for; None where it says nothing known."""
    if normal(name) in {"s", "h", "b", "k", "m"}:
        return None  # a letter alone is a symbol, such as S for the speedup, and no unit
    whole = take_apart(name)
    stem = whole.stem
    timely = (
        whole.family == "time" or re.search(CLOCKED, stem) is not None or whole.statistic in SPREADS
    )
    if timely or re.fullmatch(BARE, stem):
        found = _time(whole)
        if found:
            return found
    for canonical, pattern in PLAIN:
        if re.fullmatch(pattern, stem) and not (
            canonical in {"batch", "epoch", "step"} and whole.family == "time"
        ):
            if whole.statistic in SPREADS:
                return None
            known = whole.family is not None or canonical not in {"algbw", "busbw", "bytes"}
            return Guess(canonical, whole.factor if known else None)
    return None


def _time(name: Name) -> Guess | None:
    stem, factor = name.stem, name.factor if name.family == "time" else None
    if re.search(NOT_TRAINING, stem) or re.search(r"_per_(s|sec|second)$|bandwidth|bw$", stem):
        return None
    part = next((canonical for canonical, pattern in PARTS if re.search(pattern, stem)), None)
    per = next(
        (
            per
            for per, pattern in (("epoch", "epoch"), ("step", "step|iter|batch|^it_"))
            if re.search(pattern, stem)
        ),
        None,
    )
    if part is not None:
        return Guess(part, factor, per) if name.statistic not in SPREADS else None
    if per is None and stem and not re.fullmatch(WHOLE, stem):
        return None
    if name.statistic in SPREADS:
        return Guess("std", factor, per)
    return Guess("time", factor, per or "total")
