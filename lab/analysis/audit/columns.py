"""The content of a column, guessed from its name: canonical quantity, unit, statistic."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import NamedTuple

from lab.analysis.audit.languages import from_european, in_english
from lab.analysis.audit.values import (
    BANDWIDTH_UNITS,
    BYTE_UNITS,
    COUNT_UNITS,
    NODE,
    RANK,
    TIME_UNITS,
)
from lab.formatting import PERIODS
from lab.perfmodel.hardware import GPUS
from lab.records.schema import Period

THINGS = (
    "samp(?:le)?s?|images?|imgs?|tokens?|toks?|examples?|sequences?|seqs?|items?|records?|sentences?"
    "|sents?|words?|frames?|utterances?|utts?|mels?|queries|requests?|instances?|graphs?"
    "|molecules?|pixels?|chars?|characters?|users?|interactions?|packets?|reads?|rows?"
    "|trajs?|trajector(?:y|ies)|[mg]?ops|op|operations?|files?|cells?|particles?|atoms?|events?"
    "|transactions?|(?:anchor_)?updates?|dofs?|zones?"
)
# Of "photons/s"; bytes are a bandwidth, and steps give the time of one.
ANYTHING = (
    r"(?:[a-z]+_){0,2}?(?!\w*(?:bytes|bits|flops|steps|iters|iterations|batches|epochs|errors"
    r"|lups|ops)_)"
    r"[a-z]{3,}s"
)
# What a solver does in a second, of which a step is only a part.
STEPS_OF = "(?:cells?|atoms?|particles?|points?|zones?|sites?|bod(?:y|ies))_(?:steps?|updates?)"
LATTICE = "[kmgt]?lups?"
SECOND = "s|secs?|seconds?"
LONGER = "min|minutes?|h|hrs?|hours?|days?"  # periods of rates
SIMULATED = "(?:(?:[fpnu]s|(?:simulated_)?(?:days|years))_per_(?:d|days?)|s[yd]pd)"
EACH = rf"{RANK}|node"  # of a rate
FLOPS_OF = (
    "((model|achieved|(train(ing)?_)?(throughput|performance|speed))_"
    rf"(per_({RANK})_)?)?"
)
# An efficiency by what it is a share of.
OF_IDEAL = (
    r"linearity|percent_(of_)?(linear|ideal)(_.*)?"
    r"|(.*_)?(efficiency|eff)_(vs|versus|of|over|relative_to)_(linear|ideal)(_.*)?"
)
BATCH = r"(mini_?|train(ing)?_?)?(batch(_?size)?|bsz?)(_(in_)?(sequences|seqs|samples))?"
ZERO, FSDP = r"zero_?[123]?(_?(stage|level))?|zs|ds_zero.*", "fsdp(_size)?"
# Canonical columns and their usual names. NUMBERS and then TEXTS match the whole stem of a name, in
# this order; PARTS of a step (in s) match anywhere in the name of a time.
PARTS = {
    "exposed": "exposed|non_?overlap|unoverlapped",
    "compute": r"(?<!stolen_)comput|calc|kernel|(^|_)comp(_|$)"
    r"|(fwd|forward)_?(and_)?(bwd|backward)",
    "communication": r"comm|all_?reduce|nccl|(?<!a)(?<!no)(?<!no_)sync|allgather|reduce_scatter"
    r"|(?<!memory_)mpi",
    "h2d": "h2d|h_2_d|host_to|memcpy|copy|to_gpu|to_device|transfer",
    "data": "data|load|input|(^|_)i_?o(_|$)|i_per_o|fetch|batch_wait",
    "forward": "forward|fwd",
    "backward": "backward|bwd",
    "optimizer": "optim(?!i[sz](ed|ation))|(^|_)opt(_|$)|update",
    "other": "other|misc|idle|overhead",
}
NUMBERS = {
    "per_node": r"((n|num|number_of)_?)?"
    r"(mpi_)?(gpus?|ranks?|proc(esse)?s?|tasks?|devices?|accelerators?|cards?)(_num|_count)?"
    rf"_per_{NODE}s?|ppn|gpn",
    "world_size": r"world(_?size)?|((n|nb|num|nr|no|number_of|total|count_of|of|physical)_?)*"
    r"((cpu|gpu|mpi|cuda|nvidia|amd)_)?"
    r"(gpus|[hint]pus|ranks|procs|processes|processors|devices|accelerators|tasks|cards|chips|gcds)"
    r"(_(total|count|used|mpi))?|(n|num|number)_of_hardware|n_prs?|n_mpi|(n|num|number_of)_[abghv]\d{1,2}0s?|(n|nb|(n|no)_of|of|num|number_of)_?([ghint]pu|proc|rank|process(es)?)|no_proc(ess)?|(total_)?([ghint]pu|rank|process|device|accelerator|card|chip)s?_?(count|nums?|number|n)|(n_)?n_?procs?|(n_)?np|n|p|[gn]pu"
    r"|(n_|number_of_)?workers|((n|num|number_of)_)?executors|mpi_?((ranks?|tasks?|proc(esse)?s?|process)|size)|parallelism_degree"
    r"|(n_)?pes|ws|[abh]\d{3}s|tpu_cores",
    "nodes": rf"((n|no|num|number|number_of|of)_?)*{NODE}s|{NODE}s?_(count|num)"
    rf"|(n|num|number_of)_{NODE}",
    **{
        name: rf"({name}(_?parallel(ism)?)?|{words}_?((model_)?parallel(ism)?|mp){alone})"
        "(_?(size|degree|world_?size|ways?))?"
        for name, words, alone in (
            ("dp", "data", ""),
            ("tp", "tensor", "|tensor"),
            ("pp", "pip(e(line)?|line)", "|pipeline"),
            ("cp", "context", ""),
            ("ep", "expert", ""),
        )
    },
    "dp_replicate": r"((dp|hsdp|data_parallel)_)?replicat(e|ion)(_(size|degree|groups?))?"
    r"|(outer|hsdp)_dp|num_distributed_optimizer_instances",
    "dp_shard": r"(dp|hsdp|fsdp|data_parallel)_shard(ing)?(_(size|degree|group(_size)?|dim))?"
    r"|(hsdp|fsdp)_(group(_size)?|degree)|inner_fsdp",
    "global_batch_size": r"(glob(al)?|total|effective|overall)_?(train_)?(mini_?)?"
    r"(batch(_?size)?|bsz?)|(batch(_?size)?|bsz?)_(global|total)|gbs",
    "micro_batch_size": r"((per|local|mic(ro)?|device|gpu|rank)_)+(device_|gpu_|rank_|worker_)?"
    r"(train_|micro_?)?(batch(_?size)?|bsz?)"
    rf"|(((device|train)_)*micro_?batch(_?size)?|mbs)(_per_({RANK}))?"
    r"|(batch(_?size)?|bsz?)_(per|on_each|local)(_[a-z]+)?|microbatch"
    rf"|(samples|images|imgs?|ims?|sequences)_per_({RANK})"
    r"|(concat(enated)?_)?(local_)?batch(_size|es)?_per_[a-z]+|local_batch(_size)?|lbs",
    "rank_batch_size": r"accum(ulated|ulation)?_batch(_?size)?_per_[a-z]+",
    "batch": rf"{BATCH}|batchs|(.*_)?batch(_size)?",
    "grad_accum": r"(grad(ient)?s?_?)?accum(ulat(ion|e))?s?(_(steps?|iters|factor))?|gas?"
    r"|grad(ient)?s?_acc(_(steps|iters))?|((n|num)_)?micro_?batches|pp_chunks|micro_num",
    "samples": r"((n|num|total|train|training)_)*samples|dataset_size|(n|num)_examples",
    "steps": r"((n|num|total|optimizer)_?)*(steps|iterations|iters)|n_?iter",
    "warmup": r"warm_?up(_(steps|iters|iterations|epochs))?",
    "efficiency": rf"(.*_)?(efficiency|eff)(_.*)?|{OF_IDEAL}",
    "speedup": r"(.*_)?speed_?ups?(_.*)?|(x_|times_)?faster"
    rf"|(vs|versus|over|relative_to|compared_to)_(1|one|(a_)?single)_({RANK})"
    r"|((.*_)?(strong|weak|multi_gpu)_)?scaling(?!_(param|token|law|loss|step|the))(_.*)?|acceleration(_(rate|ratio|factor))?"
    "|scalability|scale_up",
    "mfu": r"(.*_)?mfu(_.*)?|(.*_)?model_flops?_util(i[sz]ation)?(_.*)?",
    "hfu": r"(.*_)?hfu(_.*)?|(.*_)?hardware_flops?_util(i[sz]ation)?(_.*)?",
    "peak_flops": r"(.*_)?peak_(.*_)?[tp]?flops?(_.*)?|(.*_)?[tp]?flops?_peak(_.*)?",
    "rate_per_rank": rf"(.*_)?[kmg]?({THINGS})_(per_)?({SECOND})_(per_)?({EACH})s?(_.*)?"
    rf"|(.*_)?[kmg]?({THINGS})_(per_)?({EACH})_(per_)?({SECOND})"
    rf"|per_({EACH})_[kmg]?({THINGS})_(per_)?({SECOND})"
    rf"|(.*_)?throughput_(.*_)?per_({EACH})(_.*)?|per_({EACH})_throughput(_.*)?|({THINGS})_per_p_per_s|tgs|tpgps|rate_per_rank"
    rf"|t_per_({SECOND})_per_({RANK})|(tps|ips|qps|{LATTICE})_per_({RANK}|core|thread|node)"
    rf"|(.*_)?({SIMULATED}|({THINGS})_per_({LONGER}))_per_({EACH})",
    "rate": rf"(.*_)?[kmg]?({THINGS})_(per_)?({SECOND})(_.*)?"
    rf"|{ANYTHING}_per_({SECOND})|(.*_)?[kmg]?({THINGS})_per_({LONGER})"
    r"|(.*_)?through?(pu|tu|uthpu|thpu)t(_.*)?"
    rf"|(.*_)?[kmg]?{STEPS_OF}_(per_)?({SECOND})|(total_|aggregate_)?{LATTICE}(_total|_per_({SECOND}))?"
    r"|rate|s_per_s|(total_|aggregate_|global_)?(ips|tps|wps|sps|fom)|(.*_)?(fps|[qr]ps)"
    rf"|(.*_)?{SIMULATED}",
    "flops_per_rank": rf"{FLOPS_OF}[tp]flops?(_(per_)?({SECOND}))?_(per_)?({RANK})s?"
    rf"|per_({RANK})_[tp]flops?(_(per_)?({SECOND}))?",
    "flops": rf"{FLOPS_OF}[tp]flops?(_(per_)?({SECOND}))?",
    "algbw": r"(alg|algorithm)_?(bw|bandwidth)",
    "busbw": r"(bus_?(bw|bandwidth))|bandwidth|bw",
    "loader_workers": r"(data_?)?(loader|load)_?(workers|processes)(_per_[a-z]+)?"
    r"|num_workers(_per_[a-z]+)?",
    "cpus": r"((n|nb|no|num|number|of|total|alloc)_?)*((v_?|virtual_)?cpus|(cpu_)?cores)"
    r"(_(used|count|num))?(_per_[a-z]+)?|core|(n|num|number_of)_core|(cpu|core)_(count|num)|cpus_granted",
    "parameters": r"((n|no|num|number_of|total|model|trainable)_)*(params?|parameters)|model_size",
    "bytes": r"(message|msg|grad(ient)?s?|comm(unication)?|bucket|payload|transfer|buffer)"
    r"(_(size|volume|bytes))?|(n_)?bytes|size",
    "accuracy": r"(.*_)?(acc|accuracy|top_?1|f1)(_.*)?",
    "loss": r"(.*_)?loss(_.*)?",
    "epoch": r"epochs?|epoch_(id|index|number)",
    "step": r"(global_)?(step|iter|iteration)(_(id|index|number))?|it",
    "repeats": r"(n|num|number_of)_(runs|repeats|trials|repetitions)"
    r"|repeats|runs|trials|repetitions",
    "low": r"(ci_?)?(low|lower)(_bound)?|ci_?l",
    "high": r"(ci_?)?(high|upper)(_bound)?|ci_?u",
    "memory": r"(.*_)?(mem|memory|vram|gpu_ram)(_.*)?|(peak_)?reserved(_.*)?",
    "ratio_of_times": "ratio_of_times",
    "ratio_of_rates": "ratio_of_rates",
}
COUNTS = {"world_size", "bytes"}  # of which a share is another quantity
PERCENTILE = r"(^|_)(p\d\d|\d+_percent|percentile)(_|$)"  # of the fastest or slowest
# Not parallel efficiency, nor an accuracy for which a difference of 0.01 means much.
OTHERWISE = {
    "efficiency": r"energy|power|memory|flops?|hardware|compute|cost|model|[cg]pu|util"
    r"|pipeline(?!_parallel)",
    "accuracy": r"perplexity|ppl|bleu|err(or)?(_|$)|loss|wer|mae|rmse|std|improve|gain|drop|delta"
    r"|open_?acc",
    "rate": r"inference|speed_?up|improve|increase|gain|ratio(?!n)|relative"
    rf"|_per_(usd|dollar|watt|w)|[gtp]flops?|{PERCENTILE}",  # what it costs
    "speedup": r"inference|without|_w_o_|block|group|(^|_)ours?(_|$)",  # of a setting or system
    "batch": r"(^|_)tok(en)?s?(_|$)",  # batches are compared in samples
    "loss": r"data|dropped|packet|reduction|improvement|unknown",
    # Not what a rank uses: a rate or a share, another memory, or what a GPU has.
    "memory": r"bandwidth|bw|util|percent|ratio|free|avail|cpu|host|node|system|total|capacity|size"
    r"|limit|saved|reduction|overhead|clock|bound",
}
# Numbers that were measured, although they may recur: no setting of a row.
OUTCOME = re.compile(
    r"util(i[sz]ation)?(_|$)|usage|temp(erature)?(_|$)|power(?!_(cap|limit))|energy|joules"
    r"|occupancy|cost|price|(?:^|_)(?:ttft|tpot|itl)(?:_|$)"
)
# How large a problem is; "Cells per rank" say nothing of the whole.
PROBLEM = re.compile(
    r"(?!.*_per_)(?:(?:n|no|num|number|of|total|global|fluid|solid|mesh|grid|problem|matrix|system)_?)*"
    r"(?:cells?|elem(?:ent)?s?|dofs?|unknowns|atoms|particles|bodies|grid|mesh|points|rows|vertices"
    r"|size|documents|docs|pdfs|files)(?:_size)?"
)
OF_EACH_RANK = re.compile(rf"_per_(?:{RANK}|core|thread|task|slice)$")
# What became of a run, often with marks: no setting either.
VERDICT = re.compile(r"(?:is_)?(?:correct(?:ness)?|verif(?:y|ied)|verification|pass(?:ed)?|ok)")
# Values that were not measured.
IDEAL = (
    r"(^|_)(ideal|linear|perfect|theoretical|expected|predicted|projected|estimated|simulated"
    r"|target)(_|$)"
)
TEXTS = {
    "rank": r"(global_)?rank(_id)?|gpu_(id|index)|proc(ess)?(_id)?|device_(id|index)|worker_id|pe",
    "repeat": r"(repeat|run|trial|rep|replicate|repetition|sample|measurement|job|job_id)"
    r"(_?(id|idx|index|no|number))?",
    "seed": r"(random_)?seed",
    "host": r"host(_?name)?s?|node(_?(name|list))?|machine|server",
    "driver": r"((cuda|gpu|nvidia)_)?driver(_version)?",
    "version": r"((py_?)?torch|cuda|nccl|cu_?dnn|rocm|jax|tensorflow)(_version)?|(.*_)?version"
    r"|commit_date|container(_(image|tag))?",
    "commit": r"(git_?)?(commit|sha|hash|rev|revision)|git",
    # Those of a core are of its hardware.
    "threads": r"((n|nb|no|num|number|of|omp|open_?mp|numba)_?)*threads"
    r"(_(count|used|num|omp|open_?mp|numba))?"
    r"(_per_(?!core)[a-z]+)?|thread_count|(n|num|number_of)_thread|thread_per_(?!core)[a-z]+",
    "clock": r"(gpu_|sm_|cpu_)?(clock|freq|frequency)(_m?g?hz)?|mhz|ghz",
    "gpu": r"gpu(_?(model|name|type|card|config(uration)?))|[gn]pu|accelerator|device_name"
    r"|((dgx|gpu)_)?systems?|dgx",
    "cpu": r"cpu(_?(model|name|type))?|processor",
    "device": r"device(_type)?|platform|hardware",
    "framework": r"((dl|ml|deep_learning)_)?(framework|library)|software|code_?base",
    "recompute": r"(.*_)?(act(ivations?)?|grad(ient)?)_(checkpoint(ing|s)?|ckpt)"
    r"|(act(ivations?)?_|grad(ient)?_)?recompute(d|_.*)?|(.*_)?recomputation"
    r"|remat(erialization)?(_policy)?",
    "sharding": rf"{ZERO}|{FSDP}|shard(ing)?(_?(strategy|stage|level|degree))?",
    "interleave": r"vp|vpp|virtual_(p|stage).*|interleav.*",
    "sequence_parallel": r"(use_)?(sp|seq(uence)?_?parallel(ism)?|ulysses)"
    r"(_?(size|degree|world_?size))?",
    "ratio_over": "ratio_over",
    "emulated": r"(is_)?emulat(ed|ion)(_.*)?",
    "link": "link|network|interconnect|nic|fabric",
    "model": r"((base|pre_?trained)_)?model(_?(name|id))?|arch|architecture|net|backbone",
    "strategy": r"strategy|method|mode|stage|variant|impl|implementation"
    r"|parallel(ism)?(_(type|strategy|mode|method))?"
    r"|config(uration)?|setup|setting|approach|backend|ddp",
    "scaling": r"((type|kind|mode)_of_)?scaling(_(type|kind|mode|regime))?|regime",
    "precision": r"precision|((precision|torch|compute|model|weight|param)_)?dtype|amp|data_?type",
    "sequence_length": r"((max|packed)_?)?(seq(uence)?|context|ctx)(_?(len(gth)?|size|window))?"
    r"(_t(okens)?)?|n_?ctx|cutoff_?len|block_?size|sl"
    r"|tokens_per_(sample|seq(uence)?)",
    "dataset": r"data_?set|data|task|corpus|phase|workload",
    "compile": r"compiled?|torch_compile|xla",
}
PHASES = tuple(PARTS)
TIMES = ("time", *PHASES)
LAYOUT = ("tp", "pp", "cp")  # with `dp`, these multiply to the ranks; experts live on these ranks
# Numbers whose last digit tells how precise their ratios are.
ROUNDED = (
    *("time", "speedup", "efficiency", "rate", "rate_per_rank", "mfu", "hfu"),
    *("flops", "flops_per_rank", "ratio_of_times", "ratio_of_rates"),
)
RATIOS = {"speedup", "efficiency"}
MEASURED = {"time", "rate", "rate_per_rank", *RATIOS}
OF_SPEED = {*TIMES, *ROUNDED}
COUNTED_RANKS = ("world_size", "nodes", "threads", "cpus")  # what programs run on, ranks first
NUMERIC = (*TIMES, "time_mean", "communication_mean", "std", "rate_std", *NUMBERS)
COLUMNS = (*NUMERIC, *TEXTS)

MEANS = {"mean", "avg", "average"}
SPREADS = {"std", "stdev", "stddev", "sd", "stderr", "sem"}
GREEK = {"σ": " std ", "μ": " mean "}
DEVIATION = re.compile(r"±|\b(?:std|standard)[ _-]?dev(?:iation)?\b\.?")
MAXIMA = {"max", "slowest"}
STATISTICS = MEANS | SPREADS | MAXIMA | {"median"}
OF_SAMPLES = STATISTICS | {"min", "minimum", "maximum"}
BANDWIDTHS = {unit.replace("/", "_per_"): factor for unit, factor in BANDWIDTH_UNITS.items()}
BANDWIDTHS |= {"gbs": 1e9, "gbps": 1e9 / 8}
PERCENT = {"percent": 0.01, "pct": 0.01}
UNITS = {"time": TIME_UNITS, "bytes": BYTE_UNITS, "count": COUNT_UNITS, "percent": PERCENT}
# Types of machines in clouds: ml.p4d.24xlarge, Standard_ND96asr_v4, a3-highgpu-8g, hpc7a.
_INSTANCES = (
    r"(?:ml_)?[a-z]{1,3}\d[a-z]{0,4}_(?:\d*_?x?large|metal)"
    r"|(?:standard_)?(?:n[cdvg]|h[bcx])\d+\w*?_v\d"
    r"|nd\d+[a-z]+|a[2-4]_(?:high|mega|ultra)gpu_\d+g|hpc\d[a-z]+"
)
_GPUS = "|".join(sorted({name.split("-")[0] for name in GPUS} - {"rtx"}))
# Words for settings in column names. They distinguish columns of one quantity, and a speedup named
# after one compares programs, not numbers of ranks.
SETTINGS = {
    "precision": r"(?:mixed|mid|full|half|single|reduced)_precision|mixed|(?:amp_)?(?:mx|nv)?"
    r"f(?:p|loat)?_?(?:4|8|16|32|64)(?:_(?:cs|mx|sc))?|tf_?32|bf(?:loat)?_?16|int_?[48]|s8|amp",
    "compile": r"(?:no_|without_|w_o_)?(?:xla|torch_compile|compiled?|eager|flash(?:_attention)?)",
    "framework": r"(?:py_?)?torch|tensor_?flow|mx_?net|one_?flow|paddle(?:_?paddle)?|mind_?spore"
    r"|jax|huge_?ctr|keras|caffe2?|horovod",
    "gpu": rf"{_INSTANCES}"
    rf"|(?:dgx_)?(?:{_GPUS}|b100|h20|a40|a30|a6000|v100s|p100|k80|l40|mi\d{{3}}x?|gaudi_?\d?"
    r"|tpu(?:_?v\d\w?)?)(?:_(?:sxm\d?|pcie|nvl))?(?:_\d+_?gb?)?|dgx_[12]h?|rtx_\w+?",
    "strategy": r"(?:naive_)?ddp|fsdp_?[12]?|hsdp|(?:data|tensor|pipeline)_parallel(?:ism)?"
    r"|(?:deep_?speed_)?zero(?:_stage)?_?\d|deep_?speed",
}
# In words without spaces and signs, of which the first counts.
PRECISIONS = {
    "fp32": "fp32|float32",
    "tf32": "tf32",
    "fp16": "fp16|(?<!b)float16|half|amp(?!bf16|fp8|fp4)",
    "fp8": "fp8|float8",
    "fp4": "fp4",
    "bf16": "bf16|bfloat16|mixed",
}
SETTING = re.compile(
    rf"(?:^|_)(?:{'|'.join(f'(?P<{kind}>{words})' for kind, words in SETTINGS.items())})(?=_|$)"
)
LINKING = r"with|using|and|to|vs|versus|over|for|in|on|w|by|from|of|x|precision"
LINKED = re.compile(rf"^(?:(?:{LINKING})_)+|(?:(?:^|_)(?:{LINKING}))+$|_(?:with|using)(?=_)")
NOT_TRAINING = (
    r"inference|eval|valid|(^|_)val(_|$)|test|setup|warm|checkpoint|save|start|compil|timestamp"
    r"|generat|time_?steps|ops_per_|limit"
)
# Names of times without a word for time, and names of total times.
BARE = (
    r"(t(_[np]|_epoch|_comp|_comm|_calc|_i_?o|_total)?|comm|communication|compute|computation|forward|fwd|backward|bwd|optimi[sz]er|h2d"
    r"|data_?load(ing)?|all_?reduce|exposed_.*)"
)
SPEED = r"((train(ing)?|total|avg|average)_)*(speed|throughput|performance)"
PER = {"epoch": "epoch", "step": "step|iter|batch|^it_|per_tree$"}  # of boosting
OF_SEVERAL = re.compile(  # "Time for 1000 steps" is that of a run, not an average over them
    r"(?:(?:^|_)(?:for|of|per))?(?:^|_)(?<!over_)(?:[2-9]|\d{2,}|\d+k)_(?:time_|scf_)?"
    r"(?:steps|iter(?:ation)?s|epochs)(?=_|$)"
)
CLOCKED = r"times?|timings?|duration|latency|runtime|elapsed|wall|seconds|makespan"
WHOLE = (
    r"(\d+[km]?_(e(pochs?)?_|steps_|iter(ation)?s_)?)?(total_)?(time_to_(train|solution|accuracy|target|convergence)|ttt|real|total|train|training|run|exec|execution|fit|job|loop"
    r"|process(ing)?|solver?|solution|simulation|computing|program"
    r"|wall_?(time|clock)"
    rf"|wall|clock|t(_[np]|_epoch)?|end_to_end|parallel|{CLOCKED})(_(time|duration|clock|wall|run|runtime|total|real|s|taken|elapsed|spent|needed))*"
    r"(_\d+_?e(pochs?)?)?"
)

# Adapters need no gradients of the weights, a third of the FLOPs, and lengths change them.
ADAPTED = re.compile(
    r"\bq?lora|\bdora\b|\bpeft\b|adapter|\bseq(?:_?len(?:gth)?)?\s*=\s*\d", re.IGNORECASE
)

# Ranks in the words of column names and strategies.
WORDS = {"one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "eight": 8, "sixteen": 16}
PARALLEL = (
    r"dp|ddp|[fh]sdp\d?|zero\d?|deepspeed|horovod|mpi|tp|pp|sp|cp|ulysses|parallel|multi|openmp|omp"
    r"|multigpu"
)
NOTHING = re.compile(r"zero[ _-]?(?:copy|shot|bubble|overhead|padding)")  # no sharding
SERIAL = r"serial|single|sequential|one"
SYMBOLS = {"T": "time", "S": "speedup", "E": "efficiency"}  # of textbooks
NO_VARIANT = {"gpu", "gpus", "gpu_s", "baseline", "no", "s", "with", "without", *WORDS}
COUNTED = re.compile(r"\(\d[\d.,]*k? [a-z]+\)\s*$", re.IGNORECASE)
ASIDE = re.compile(  # also of "Time (ms), median (min-max)"
    r"\s*\((?:average|avg|mean|median|best)\b(?:[^()]|\([^()]*\))*\)|(?<=\)), .*", re.IGNORECASE
)
BRACKETED = re.compile(r"\s*\([^()]*\)\s*$")
FOOTNOTE = re.compile(r"<sup>.*?</sup>|(?<=\w)\s*\[\d\]$|<[^<>]*>")
FORMULA = re.compile(r"\$([^$]+)\$")  # of LaTeX
# Of "Speedup S(p)"; "time s" is in seconds.
SYMBOLIZED = re.compile(
    r"^((?:[a-z]+_)?speed_?up(?=_s)|efficiency(?=_e)|time(?=_t))_[set](?:_[np])?$"
)
PLURAL = re.compile(rf"({RANK}|node)\(s\)")  # of "GPU(s)"
# "Threads / Ranks" are one or the other, "GPUs / nodes" are those of a node.
COUNTED_THINGS = "(?:thread|core|rank|proc|processe|task|worker|gpu)s"
EITHER = re.compile(rf"(?<![^_])({COUNTED_THINGS}|nodes)_per_(?:[^_]+_)?{COUNTED_THINGS}(?![^_])")
TOKEN = re.compile(r"[^a-z0-9]+")
_H, _M, _S = r"h(?:h|rs?|ours)?", r"m(?:m|ins|inutes)?", r"s(?:s|ecs?|econds)?"
CLOCK_FORMAT = re.compile(  # of "time (hh:mm:ss)" and "(hrs:mins:secs)"
    rf"(?:^|_)(?:(?:{_H}_)?{_M}_{_S}|(?P<hours>{_H})_{_M})$"
)
# Of "s/it", "train time (s/iter)" and "ms/step @ step 10".
PER_STEP = re.compile(
    rf"(?:^|_)({'|'.join(TIME_UNITS)})_per_"
    r"(step|iter|iteration|it|epoch|batch)(?=_|$)"
)

STEPS_PER_SECOND = re.compile(
    rf"(?:.*_)?(?:it|iters?|iterations?|steps?|batch(?:es)?)_per_(?:{SECOND}|{LONGER})"
)
# What rates count. TGS are tokens per GPU and second, WPS words per second.
THING = re.compile(rf"(?:^|_)[kmg]?({THINGS}|[st]_per_s|tps|tgs|tpgps|wps)(?=_|$)")
SHORT = {"samp": "sample", "s_per_s": "sample", "img": "image", "seq": "sequence"}
SHORT |= dict.fromkeys(("tok", "t_per_s", "tps", "tgs", "tpgps", "wps"), "token")
# Of "k tokens/s", "Ktok/s" and "tokens/s (M)".
MULTIPLE = re.compile(
    rf"(?:^|_)([kmg])_?(?:{THINGS})_(?:per_)?(?:{SECOND}|{LONGER}|{RANK})"
    rf"|_per_(?:{SECOND}|{LONGER})(?:_per_\w+?)?_([kmg])$"
)
MULTIPLES = {"k": 1e3, "m": 1e6, "g": 1e9}
PERIOD_OF: dict[Period, str] = {  # of "tokens/min", "ns/day", and SYPD, which are simulated years
    "min": r"_per_min(?:utes?)?(?=_|$)",
    "h": r"_per_(?:h|hrs?|hours?)(?=_|$)",
    "day": r"_per_(?:days?|(?<=s_per_)d)(?=_|$)|(?:^|_)s[yd]pd(?=_|$)",
}
# What solvers and simulations count: ns, MLUPs of a lattice, GFLOPs, GTEPs of a graph.
SOLVED = re.compile(r"(?:^|_)(?:([fpnu]s)_per_d|([kmgt]?lup|[gm]flop|[kmgt]tep)s?(?=_|$))")
SIMULATED_SPAN = re.compile(r"(?:^|_)(?:s(y|d)pd(?=_|$)|(?:simulated_)?(y|d)(?:ear|ay)s_per_d)")
# Of "photons/s"; "throughput/s" does not say.
COUNTED_AT_RATE = re.compile(rf"([a-z]{{3,}})_per_(?:{SECOND}|{LONGER})(?=_|$)")
WORDS_FOR_RATES = {"throughput", "performance", "speed", "rate", "total", "average", "mean"}
STEPS_OF_MANY = re.compile(rf"(?:^|_)[kmg]?{STEPS_OF}_per_")  # of "atom-steps/s"
# Of "GFLOP/s", "Performance (GFLOPS)" and "GTEPS"; GFLOPs alone may be what a model costs.
SOLVED_RATE = re.compile(
    r"(?:(?:total|aggregate|mean|average|avg|achieved|sustained|measured|performance|perf"
    r"|throughput|speed|compute)_)*"
    rf"(?:[gm]flops?_(?:per_)?(?:{SECOND})|(?<=performance_)[gm]flops|[kmgt]?teps)"
    rf"(?P<each>_per_(?:{RANK}|core|thread|node))?"
)
TIME_SIMULATED = re.compile(r"(?:.*_)?(days|hours)_per_n(?:s|anosecond)(?:_.*)?")
SECONDS_PER_THING = re.compile(  # of "s/kimg", "ns/op" and "Speed (ms/token)"
    rf"(?:(?:.*_)?(?:time|speed)_)?(?P<unit>{SECOND}|[mun]s)_per_(?P<k>k_?)?(?:{THINGS})"
)


BETWEEN = re.compile(r"(?<!\d)(?!1\b)\d+\s*(?:→|->|⇒)\s*\d+")  # of "Scaling (8→16)"
BYTES = (["bytes"], ["b"], ["n", "bytes"])  # the quantity, not its unit; also of "#bytes"


class Name(NamedTuple):
    """A parsed column name: its stem, the family and factor of its unit, a statistic."""

    stem: str
    family: str | None = None
    factor: float = 1.0
    statistic: str | None = None


class Guess(NamedTuple):
    """The content of a column: canonical name, factor to base units (None if no unit is named), and
    what a time is `per` (step, epoch or total). An `inverse` is divided into the factor: it/s."""

    canonical: str
    factor: float | None
    per: str | None = None
    inverse: bool = False


# Of "Model Size (Billion Param)" and "params (millions)".
LARGE_PARAMETERS = re.compile(
    r"(?:model_size_)?(?:in_)?([bm])illions?_(?:of_)?param(?:eter)?s?$"
    r"|(?:model_size|(?:model_)?param(?:eter)?s?)_(?:in_)?([bm])illions?$"
)
# "t / ms" is a time, unlike "steps / s".
OVER_UNIT = re.compile(
    r"((?:^t|time(?:_taken)?|latency|duration|mem(?:ory)?(?:_usage)?"
    r"|_per_(?:step|iter(?:ation)?|epoch))_)"
    r"per_([munµ]?s|sec(?:onds?)?|minutes|h|hours|[gm]i?b)$"
)


@lru_cache(maxsize=10_000, typed=True)
def normal(name: str) -> str:
    """A name in lower snake case, `#` as n, `/` as per, `%` as percent."""
    # Camel case is split, but not "GiB", "ZeRO" and "DoF".
    text = FORMULA.sub(r"\1", in_english(str(name).strip()))
    text = re.sub(r"(?<=[a-z])(?!(?<=[KMGT]i)B|(?<=Ze)RO|(?<=Do)F)(?=[A-Z])", "_", text).lower()
    text = DEVIATION.sub(" std ", text)
    text = re.sub(r"(?<!\S)[σμ](?!\w)", lambda sign: GREEK[sign.group()], text)
    text = FOOTNOTE.sub("", text.replace("µ", "u").replace("μ", "u"))
    text = PLURAL.sub(r"\1s", text)
    # "Accélération" is no "acc", an accuracy.
    text = "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    text = text.replace("ı", "i").replace("œ", "oe").replace("ß", "ss")
    # Without the brackets, "min" would be read as the minimum.
    text = re.sub(r"[\[(]\s*min\.?\s*[\])]$", " minutes", text)
    text = text.rstrip("/ ").replace("%", " percent ").replace("#", " n ").replace("/", " per ")
    text = re.sub(r"(?<![a-z])([gpt])(?:iga|eta|era)[ _-]?(?=flop)", r"\1", text)
    text = re.sub(r"^(\w*seconds|ms|hours|minutes) (elapsed|taken)$", r"\2 \1", text.strip())
    text = text.replace("$", " usd ")
    text = from_european(TOKEN.sub("_", text).strip("_"))
    text = EITHER.sub(r"\1", text) if "/" in str(name) else text
    text = LARGE_PARAMETERS.sub(lambda each: f"parameters_{each[1] or each[2]}", text)
    text = OVER_UNIT.sub(r"\1\2", re.sub("_per_min$", "_per_minutes", text))
    text = re.sub(r"(?<=[a-z])_value$", "", text)  # beside its unit
    return SYMBOLIZED.sub(r"\1", text)


@lru_cache(maxsize=10_000, typed=True)
def parse_name(name: str) -> Name:
    """Stem, unit and statistic of a column's name."""
    text = normal(name)
    for unit, factor in BANDWIDTHS.items():
        if text.endswith(unit) and re.search(r"bw|bandwidth", text):
            return Name(text.removesuffix(unit).strip("_"), "bandwidth", factor)
    if ratio := PER_STEP.search(text):
        what = re.sub(rf"(^|_)(time|{SPEED})$", "", text[: ratio.start()])
        return Name(f"{what}_{ratio[2]}_time".strip("_"), "time", TIME_UNITS[ratio[1]])
    if clock := CLOCK_FORMAT.search(text):
        stem = text[: clock.start()] or "time"
        return Name(stem, "time", TIME_UNITS["h" if clock["hours"] else "s"])
    words = text.split("_")
    statistic = next((word for word in (words[0], *words[:-3:-1]) if word in STATISTICS), None)
    words = [word for word in words if word != statistic]
    family, factor = None, 1.0
    # A unit after "per" belongs to a rate, and "bytes" alone is the quantity.
    if words and (len(words) < 2 or words[-2] != "per") and words not in BYTES:
        family = next((family for family, units in UNITS.items() if words[-1] in units), None)
        factor = UNITS[family][words.pop()] if family else 1.0
        words = words[:-1] if words[-1:] == ["in"] else words  # "time in seconds"
    return Name("_".join(words), family, factor, statistic)


class Setting(NamedTuple):
    """A column's name without its words for settings, and those words by kind, in order."""

    base: str
    words: tuple[tuple[str, str], ...]


@cache
def setting_of(name: str) -> Setting:
    """Parse a column's name: the quantity, and the setting it is for, such as a precision."""
    text = normal(name)
    words = tuple(
        (str(match.lastgroup), match.group().strip("_").replace("_", " "))
        for match in SETTING.finditer(text)
    )
    if not words:
        return Setting(name, ())
    return Setting(LINKED.sub("", SETTING.sub("", text).strip("_")), words)


def named_precision(words: str) -> str | None:
    """The precision that a cell or a sentence names; None if it names none."""
    text = re.sub("[^a-z0-9]", "", words.lower())
    return next((name for name, used in PRECISIONS.items() if re.search(used, text)), None)


def names_gpu(text: str) -> bool:
    """Whether a text names a model of GPU."""
    return any(kind == "gpu" for kind, _ in setting_of(text).words)


@cache
def guess(name: str) -> Guess | None:
    """The meaning of a column's name; None if it is not recognized."""
    if normal(name) in {"s", "h", "b", "k", "m"} or str(name).strip() == "#":
        return None  # a single letter is a symbol, such as S for the speedup; # numbers the rows
    meaning = None if BETWEEN.search(str(name)) else _guess(name)
    base, words = setting_of(name)
    if normal(base) in {"hours", "hrs", "hr", "h", "days"} and "gpu" in dict(words):
        return None  # GPU hours are no time
    if words and (meaning is None or meaning.canonical in {"speedup", "rate"}):
        meaning = _guess(base)
        if meaning and meaning.canonical == "speedup" and is_ratio(name):
            return None
    if meaning is None and (shorter := ASIDE.sub("", str(name))) != str(name):
        meaning = _guess(shorter)  # "Mean time (average of 3 runs) in seconds"
    plain = BRACKETED.sub("", str(name))
    if meaning is None and plain != str(name) and parse_name(name).family is None:
        of_some = {"time"} if COUNTED.search(str(name)) else set()  # "Time (75 frames)"
        letter = len(normal(plain)) == 1  # "p (processes)", but "n (problem size)"
        aside = _guess(str(name)[len(plain) :].strip(" ()") if letter else plain)  # "GPUs (nodes)"
        return aside if aside and aside.canonical in {*COUNTED_RANKS, *of_some} else None
    return meaning


def quantities(names: Iterable[str]) -> set[str]:
    """The canonical names of what columns of these names hold."""
    return {meaning.canonical for name in names if (meaning := guess(name))}


def is_ratio(name: str) -> bool:
    """Whether a column's name denotes a speedup from one setting to another.

    That of a strategy is over fewer ranks.
    """
    base, words = setting_of(name)
    programs = any(kind != "strategy" for kind, _ in words)
    return programs and bool(re.search(r"speed_?up", normal(base)))


def text_guess(name: str) -> str | None:
    """The canonical name of a column that holds words."""
    stem = parse_name(name).stem
    return next((name for name, words in TEXTS.items() if re.fullmatch(words, stem)), None)


def _guess(name: str) -> Guess | None:
    text = normal(name)
    ideal = re.search(IDEAL, re.sub(SIMULATED, "", text)) and not re.fullmatch(OF_IDEAL, text)
    if ideal or re.search("^[Δ∆]|[Δ∆]$", str(name).strip()):
        return None  # a difference is not a measurement
    if STEPS_PER_SECOND.fullmatch(text) and not STEPS_OF_MANY.search(text):
        return Guess("time", PERIODS[period(text)], "step", inverse=True)
    if paid := SECONDS_PER_THING.fullmatch(text):
        return Guess("rate", (1e3 if paid["k"] else 1.0) / TIME_UNITS[paid["unit"]], inverse=True)
    if simulated := TIME_SIMULATED.fullmatch(text):
        return Guess("time", TIME_UNITS["h"] * (24 if simulated[1] == "days" else 1), "total")
    # The unit of a rate would be read as the unit of a time.
    if solved := SOLVED_RATE.fullmatch(text):
        return Guess("rate_per_rank" if solved["each"] else "rate", 1.0)
    rates = ("rate_per_rank", "rate", "flops_per_rank", "flops")
    rated = [canonical for canonical in rates if re.fullmatch(NUMBERS[canonical], text)]
    for canonical in rated:
        other = OTHERWISE.get(canonical.removesuffix("_per_rank"))
        if other is None or not re.search(other, text):
            peta = 1e15 if re.search(r"(^|_)pflop", text) else 1e12
            each = rate_factor(text)
            if (words := {*text.split("_")}) & SPREADS and not words & MEANS:
                return Guess("rate_std", each) if canonical == "rate" else None
            return Guess(canonical, peta if "flops" in canonical else each)
    if rated:
        return None
    stem, family, factor, statistic = parsed = parse_name(name)
    clocked = family == "time" or re.search(rf"{CLOCKED}|^{BARE}$", stem)
    if (clocked and family != "percent") or statistic in SPREADS:
        time = _time(parsed)
        if time:
            return time
    if family == "percent" and re.fullmatch(NUMBERS["flops"], stem):
        return Guess("mfu", factor)  # "TFlops %" is a share of the peak
    for canonical, pattern in (NUMBERS | TEXTS).items():
        if re.fullmatch(pattern, stem) and not _is_misread(canonical, parsed):
            known = family is not None or canonical not in {"algbw", "busbw", "bytes", "memory"}
            billions = canonical == "parameters" and family == "bytes"
            # The most nodes are what a queue allows.
            allowed = canonical in {"world_size", "nodes", "per_node"} and statistic in MAXIMA
            canonical = "steps" if canonical == "step" and statistic in MAXIMA else canonical
            named = Guess(canonical, 1e9 if billions else factor if known else None)
            return None if statistic in SPREADS or allowed else named
    return None


def _is_misread(canonical: str, name: Name) -> bool:
    """Whether the unit or a word of a name shows that it is not the quantity of its stem."""
    stem, family, factor, statistic = name
    other = OTHERWISE.get(canonical)
    return (
        family == "time"  # such as GPU hours
        or bool(other and re.search(other, stem))
        or (canonical == "memory" and family not in {None, "bytes", "count"})  # "(M)" is in MB
        or (canonical in {"version", "rank"} and family is not None)
        or (canonical in COUNTED_RANKS and family == "bytes")  # of "N (MB)"
        or (canonical == "strategy" and statistic is not None and stem != "parallelism")
        or (family == "percent" and canonical in {*TEXTS, *COUNTS})
        # "Model Size (GB)" is what the weights take; "(B)" are billions.
        or (canonical == "parameters" and family == "bytes" and factor != 1.0)
    )


def _time(name: Name) -> Guess | None:
    stem, factor = (
        OF_SEVERAL.sub("", name.stem).strip("_"),
        name.factor if name.family == "time" else None,
    )
    if re.search(rf"{NOT_TRAINING}|_per_(s|sec|second)$|bandwidth|bw$", stem):
        return None
    per = covered_by(stem)
    for part, pattern in PARTS.items():
        if re.search(pattern, stem):
            return Guess(part, factor, per) if name.statistic not in SPREADS else None
    of_sample = name.statistic in SPREADS and stem == "sample"
    if per is None and stem and not of_sample and not re.fullmatch(WHOLE, stem):
        return None
    if name.statistic in SPREADS:
        return Guess("std", factor, per)
    return Guess("time", factor, per or "total")


def covered_by(stem: str) -> str | None:
    """What the time in a column with this stem is per: a step or an epoch; None for neither."""
    one = OF_SEVERAL.sub("", stem)
    return next((per for per, word in PER.items() if re.search(word, one)), None)


def period(name: str) -> Period:
    """The period of the rate in a column of this name."""
    text = normal(name)
    return next((unit for unit, words in PERIOD_OF.items() if re.search(words, text)), "s")


def rate_factor(name: str) -> float:
    """From the unit of the rate in a column of this name to one per second."""
    multiple = MULTIPLE.search(normal(name))
    each = MULTIPLES[multiple[1] or multiple[2]] if multiple else 1.0
    return each / PERIODS[period(name)]


def counted(name: str) -> str:
    """What the rate in a column of this name counts, in the singular; "" if it does not say."""
    text = normal(name)
    if solved := SOLVED.search(text):
        return solved[1] or solved[2].upper()
    if span := SIMULATED_SPAN.search(text):
        return "simulated year" if "y" in span.groups() else "simulated day"
    words = (SHORT.get(word, word.removesuffix("s")) for word in THING.findall(text))
    things = [SHORT.get(word, word) for word in words]
    if not things and (other := COUNTED_AT_RATE.search(text)) and other[1] not in WORDS_FOR_RATES:
        return other[1].removesuffix("s")
    return "token" if "token" in things else (things or [""])[-1]


def is_parallel(strategy: str) -> bool:
    """Whether a word in a strategy's name means that it runs on several ranks."""
    words = NOTHING.sub("", strategy)
    return any(re.fullmatch(PARALLEL, token) for token in TOKEN.split(words))


def is_serial(strategy: str) -> bool:
    """Whether a word in a strategy's name means that it runs on one rank."""
    return any(
        re.fullmatch(rf"{SERIAL}|baseline|base|none", token) for token in TOKEN.split(strategy)
    )


@cache
def residue(strategy: str) -> frozenset[str]:
    """The words in a strategy's name for what it runs on, without the number of ranks."""
    tokens = {token for token in TOKEN.split(strategy.lower()) if token}
    ranks = {token for token in tokens if re.fullmatch(rf"\d+|x\d+|{PARALLEL}|{SERIAL}", token)}
    return frozenset(tokens - ranks - NO_VARIANT)
