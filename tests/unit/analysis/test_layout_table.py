"""Tables of layouts as published, and as people paste them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import lab
from lab.analysis.layout_table import read_layouts
from lab.errors import InputError
from lab.files import SHARED

TABLES = SHARED / "docs" / "tables"
EMPTY = ("", "-", "n/a", float("nan"), pd.NA)


def frame(**columns: object) -> pd.DataFrame:
    rows = {
        "GPUs": 16, "TP": 2, "PP": 2, "MBS": 2, "GBS": 64, "Sequence Length": 4096,
        "Model": "Llama3 8B", "System": "DGX-H100", "Tokens / sec / GPU": 8000.0,
    }  # fmt: skip
    content = {**rows, **columns}
    return pd.DataFrame({name: [value] for name, value in content.items() if value is not None})


def test_a_row_as_people_write_it() -> None:
    (row,) = read_layouts(frame()).rows
    candidate, layout = row.case.candidate, row.case.candidate.layout
    assert (layout.data, layout.tensor, layout.pipeline) == (4, 2, 2)
    assert (candidate.micro_batch, candidate.grad_accum) == (2, 8)
    assert row.step_s == pytest.approx(64 * 4096 / 16 / 8000)
    assert row.case.machine.gpu.name == "h100" and row.case.model.key_value_heads == 8
    assert row.case.passes == 3.5  # nothing is said of recomputation


def test_a_rank_without_a_pipeline_has_one_stage() -> None:
    rows = frame(GPUs=8, PP=1)
    rows.attrs["notes"] = ["Megatron-LM 2024"]
    table = read_layouts(rows)
    assert table.rows[0].case.candidate.layout.interleave == 1
    assert not any("interleaved" in one for one in table.assumptions)


@pytest.mark.parametrize(
    ("columns", "passes"),
    [
        ({"Activation Checkpointing": "True"}, 4),
        ({"recompute": "none"}, 3),
        ({"Activation Ckpt": "TRUE"}, 4),
        ({"AC": "No AC"}, 3),
        ({"Remat Policy": "full"}, 4),
        ({"Remat Policy": "minimal_flash"}, 3),
        ({"Activation Checkpointing": "Selective AC"}, 3),
        ({"recompute": "norm, act"}, 3),
        ({"recompute": "mlp"}, 4),
    ],
)
def test_recomputation_is_read(columns: dict[str, str], passes: float) -> None:
    assert read_layouts(frame(**columns)).rows[0].case.passes == passes


@pytest.mark.parametrize(
    ("columns", "sharing"),
    [
        ({"zero": 1}, "zero1"),
        ({"Sharding Strategy": "FULL_SHARD"}, "fsdp"),
        ({"FSDP": 4}, "fsdp"),
        ({"FSDP": 0}, "ddp"),
        ({"ZeRO": 1}, "zero1"),
        ({"ZeRO stage": "3"}, "fsdp"),
        ({"ZS": "ZeRO-2"}, "zero2"),
        ({"Zero1": -1}, "zero1"),
        ({"Zero1": "False"}, "ddp"),
        ({"Strategy": "ZeRO-1"}, "zero1"),
        ({"Sharding Strategy": "HSDP"}, "fsdp"),
    ],
)
def test_sharding_is_read(columns: dict[str, object], sharing: str) -> None:
    assert read_layouts(frame(**columns)).rows[0].case.candidate.layout.sharing == sharing


HSDP = {"GPUs": 64, "TP": None, "PP": None, "GBS": 512}


@pytest.mark.parametrize(
    ("columns", "sharing", "replicas", "shards"),
    [
        ({"dp_replicate": 4, "dp_shard": 16}, "fsdp", 4, 16),
        ({"GPUs": None, "dp_replicate": 4, "dp_shard": 16}, "fsdp", 4, 16),
        (
            {"data_parallel_replicate_degree": 4, "data_parallel_shard_degree": -1, "CP": 2},
            *("fsdp", 4, 16),
        ),
        ({"dp_replicate": 2, "dp_shard": 16, "CP": 2, "GPUs": None}, "fsdp", 2, 32),
        ({"dp": 8, "FSDP": 8}, "fsdp", 8, 8),
        ({"dp": 64, "shard degree": 16}, "fsdp", 4, 16),
        ({"Config": "HSDP, dp_replicate=2, dp_shard=32"}, "fsdp", 2, 32),
        ({"Config": "HSDP (4, 16)"}, "fsdp", 4, 16),
        ({"Config": "HSDP 2x32 + compile"}, "fsdp", 2, 32),
        ({"Sharding Strategy": "HYBRID_SHARD"}, "fsdp", 8, 8),
        ({"Sharding Strategy": "HSDP", "TP": 2}, "fsdp", 8, 4),
        ({"Sharding Strategy": "HSDP", "TP": 8}, "fsdp", 1, 8),
        ({"dp_replicate": 64, "dp_shard": 1}, "ddp", 1, 64),
    ],
)
def test_groups_of_hybrid_sharding_are_read(
    columns: dict[str, object], sharing: str, replicas: int, shards: int
) -> None:
    table = read_layouts(frame(**{**HSDP, **columns}))
    layout = table.rows[0].case.candidate.layout
    assert (layout.sharing, layout.replicas, layout.shards) == (sharing, replicas, shards)
    assert layout.world_size == 64
    assumed = any("HSDP shards within a node" in note for note in table.notes)
    assert assumed == ("Sharding Strategy" in columns)


def test_groups_that_do_not_divide_the_ranks_are_refused() -> None:
    with pytest.raises(InputError, match="64 data-parallel ranks cannot be sharded in groups of"):
        read_layouts(frame(**HSDP, dp_replicate=3))


@pytest.mark.parametrize(
    ("system", "precision", "read", "peak"),
    [
        ("DGX-A100", "TF32", "tf32", 156e12),
        ("DGX-A100", "tf-32", "tf32", 156e12),
        ("DGX-A100", "FP32", "fp32", 19.5e12),
        ("DGX-A100", None, "bf16", 312e12),
        ("V100", "TF32", "tf32", 15.7e12),
    ],
)
def test_a_precision_is_read_with_its_own_peak(
    system: str, precision: str | None, read: str, peak: float
) -> None:
    slow = {"Tokens / sec / GPU": 100.0}
    case = read_layouts(frame(System=system, Precision=precision, **slow)).rows[0].case
    assert case.candidate.precision == read
    assert case.machine.gpu.fastest(read) == peak


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"GPUs": 6}, "not a multiple"),
        ({"Sequence Length": None}, "no sequence length"),
        ({"GBS": 4}, "smaller than a micro-batch"),
        ({"Tokens / sec / GPU": None}, "no step time"),
        ({"GBS": 20}, "a global batch of 20 is not a multiple of micro-batch x replicas = 8"),
        ({"Tokens / sec / GPU": -8000.0}, "no step time"),
        ({"Tokens / sec / GPU": None, "MFU": "156%"}, "an MFU of 156 %, more than the peak"),
        ({"Model": None, "Layers": 32}, "layers, but no width"),
        ({"Model": "our own"}, "unknown model our own; give its parameters"),
        ({"Model": "our 30B-A3B"}, "unknown mixture of experts our 30B-A3B"),
        ({"System": "TPU"}, "unknown GPU TPU; name one such as h100"),
        ({"System": "h1000"}, "unknown GPU h1000; did you mean 'h100'?"),
        (
            {"Model": "Ling 1T", "EP": 8},
            "unknown mixture of experts Ling 1T: no layers, width, hidden, experts, active",
        ),
        ({"Layers": 32, "Hidden": 4096, "FFN": 1024, "Experts": 8}, "no active"),
        ({"GBS": None, "MBS": None, "Batch size": 64}, "name its column global_batch or micro_"),
    ],
)
def test_what_a_row_lacks_is_named(columns: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_layouts(frame(**columns))


@pytest.mark.parametrize(
    ("quoted", "accumulated", "batch"),
    [(64, 8, 64), (256, 8, 64), (8, 4, 8), (None, 4, 32), (64, None, 64)],
)
def test_what_ran_counts_whatever_batch_is_quoted(
    quoted: int | None, accumulated: int | None, batch: int
) -> None:
    """Four replicas with micro-batches of 2, which may hold all that is accumulated."""
    table = read_layouts(frame(GBS=quoted, GA=accumulated))
    (row,) = table.rows
    candidate = row.case.candidate
    assert candidate.micro_batch * candidate.grad_accum * candidate.layout.data == batch
    assert row.step_s == pytest.approx(batch * 4096 / 16 / 8000)
    other_batch_assumed = any("a batch other" in assumption for assumption in table.assumptions)
    assert other_batch_assumed == (quoted == 256)


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("memory", 1e9),
        ("peak_memory_gb", 1e9),
        ("Peak memory (GiB)", 2**30),
        ("mem_gib", 2**30),
        ("max memory [MiB]", 2**20),
        ("memory_mb", 1e6),
        ("peak memory (bytes)", 1),
    ],
)
def test_memory_is_read_in_its_columns_unit(column: str, unit: float) -> None:
    (row,) = read_layouts(frame(**{column: 40})).rows
    assert row.memory_bytes == 40 * unit


@pytest.mark.parametrize(
    ("notes", "checkpointing", "passes"),
    [
        ("our own", "selective", 3.5),
        ("nanotron", "none", 3.0),
        ("NeMo", "none", 3.0),
        ("NeMo AutoModel", "full", 4.0),
    ],
)
def test_memory_agrees_with_the_recomputation_that_is_assumed(
    notes: str, checkpointing: str, passes: float
) -> None:
    rows = frame()
    rows.attrs["notes"] = [notes]
    (row,) = read_layouts(rows).rows
    assert (row.case.candidate.checkpointing, row.case.passes) == (checkpointing, passes)
    said = frame(Recompute="none")
    said.attrs["notes"] = [notes]
    assert read_layouts(said).rows[0].case.candidate.checkpointing == "none"


@pytest.mark.parametrize(
    ("cell", "passes"),
    [("none", 3), ("full", 4), (True, 4), (False, 3), *[(cell, 3.5) for cell in EMPTY]],
)
def test_an_empty_cell_does_not_say_whether_activations_are_recomputed(
    cell: object, passes: float
) -> None:
    (row,) = read_layouts(frame(recompute=cell)).rows
    assert row.case.passes == passes


def test_a_mixture_of_experts_is_read_by_its_sizes_or_its_name() -> None:
    sizes = {"NLAYERS": 32, "NHIDDEN": 4096, "NHEADS": 64, "FFN size": 1024, "EP": 4}
    (row,) = read_layouts(frame(Model="our own", experts=8, top_k=2, **sizes)).rows
    model = row.case.model
    assert (model.width, model.heads, model.experts, model.active) == (4096, 64, 8, 2)
    (row,) = read_layouts(frame(Model="Qwen3 MoE 30B", EP=8)).rows
    assert row.case.model.experts == 128


def test_a_dispatcher_that_sends_tokens_once_is_read() -> None:
    rows = frame()
    assert not read_layouts(rows).rows[0].case.framework.dispatches_once
    rows.attrs["notes"] = ["our own loop with DeepEP"]
    others = [frame(**{name: "DeepEP"}) for name in ("Optimizations", "Notes", "Dispatcher")]
    for table in (rows, *others):
        assert read_layouts(table).rows[0].case.framework.dispatches_once


@pytest.mark.parametrize("column", ["VPP", "ETP", "EDP"])
def test_acronyms_tell_megatron_core(column: str) -> None:
    (row,) = read_layouts(frame(**{column: 1})).rows
    assert row.case.framework.name == "megatron-core"
    assert not read_layouts(frame(**{column: 1}, System="A100")).rows[0].case.framework.name


@pytest.mark.parametrize(("size", "layers"), [("235B", 94), ("30B-A3B", 48)])
def test_a_mixture_of_experts_may_be_known_by_its_size_alone(size: str, layers: int) -> None:
    read = read_layouts(frame(Model=size, EP=8))
    assert read.rows[0].case.model.layers == layers and read.rows[0].case.model.experts == 128
    assert "1 row: the only mixture of experts that is known of that size" in read.notes
    for other in ("50B", f"Nemotron {size}"):
        with pytest.raises(InputError, match="unknown mixture of experts"):
            read_layouts(frame(Model=other, EP=8))


def test_ranks_that_share_experts_and_layers_send_their_own_tokens() -> None:
    mixture = frame(Model="Qwen3 30B-A3B", EP=8)
    assert read_layouts(mixture).rows[0].case.candidate.layout.sequence_parallel
    without = read_layouts(mixture.assign(SP="off")).rows[0]
    assert not without.case.candidate.layout.sequence_parallel


@pytest.mark.parametrize(
    ("name", "cell"), [("TP/PP/CP", "4/2/2"), ("Strategy (TP, PP, CP)", "(4, 2, 2)")]
)
def test_settings_may_be_listed_in_one_column(name: str, cell: str) -> None:
    rows = frame(TP=None, PP=None, MBS=None, GBS=None, **{name: cell, "MBS/GBS/SL": "1/64/8k"})
    rows = rows.drop(columns="Sequence Length")
    case = read_layouts(rows).rows[0].case
    layout = case.candidate.layout
    assert (layout.tensor, layout.pipeline, layout.context, layout.data) == (4, 2, 2, 1)
    assert (case.candidate.micro_batch, case.candidate.grad_accum, case.sequence) == (1, 64, 8192)
    words = {"Parallelism": "TP4 PP2 CP2 ETP1", "Batch / Seq": "MBS1 GBS64 SL8192"}
    (row,) = read_layouts(rows.drop(columns=[name, "MBS/GBS/SL"]).assign(**words)).rows
    layout = row.case.candidate.layout
    assert (layout.tensor, layout.pipeline, layout.context, row.case.sequence) == (4, 2, 2, 8192)
    assert row.case.candidate.grad_accum == 64 and row.case.framework.name == "megatron-core"
    assert read_layouts(frame(**{"TP/PP": "see text"})).rows[0].case.candidate.layout.tensor == 2


def test_headings_between_rows_and_empty_cells_are_no_rows() -> None:
    heading = pd.DataFrame([{"Model": "Across nodes"}])
    rows = pd.concat([heading, frame(), heading], ignore_index=True)
    read = read_layouts(rows.drop(columns="System"))
    assert len(read.rows) == 1 and not read.left_out


@pytest.mark.parametrize("column", ["Model size", "Size", "Params", "Model Size (B)"])
def test_a_size_in_words_is_a_model_and_no_width(column: str) -> None:
    cell = 22 if "(B)" in column else "22B"
    (row,) = read_layouts(frame(Model=None, **{column: cell})).rows
    assert row.case.model.parameters == pytest.approx(22e9, rel=0.02)
    sized = frame(Model=None, **{column: cell, "Layers": 48, "Hidden size": 6144})
    assert read_layouts(sized).rows[0].case.model.width == 6144
    assert read_layouts(sized).rows[0].quoted_parameters == 22e9


@pytest.mark.parametrize(("column", "cell"), [("Sequence Length (K)", 8), ("Seq Len", "8K")])
def test_k_of_a_sequence_length_is_1024(column: str, cell: object) -> None:
    (row,) = read_layouts(frame(**{"Sequence Length": None, column: cell})).rows
    assert row.case.sequence == 8192


@pytest.mark.parametrize("column", ["TGS", "TPS/GPU"])
def test_tokens_per_gpu_and_second_are_read_by_their_abbreviations(column: str) -> None:
    (row,) = read_layouts(frame(**{"Tokens / sec / GPU": None, column: 8000})).rows
    assert row.step_s == pytest.approx(64 * 4096 / 16 / 8000)


@pytest.mark.parametrize(
    ("columns", "micro", "accum"),
    [
        ({"Batch size": 64}, 2, 8),  # next to MBS
        ({"MBS": None, "Batch size": 2}, 2, 1),  # of four replicas
        ({"MBS": None, "Batch size": 4, "GPUs": 2, "PP": 1, "Model": "350M"}, 4, 1),  # one replica
        ({"MBS": None, "Micro Bsz": 2, "Micro Num": 3}, 2, 3),
    ],
)
def test_a_plain_batch_size_is_told_by_the_other_columns(
    columns: dict[str, object], micro: int, accum: int
) -> None:
    (row,) = read_layouts(frame(GBS=None, **columns)).rows
    assert (row.case.candidate.micro_batch, row.case.candidate.grad_accum) == (micro, accum)


@pytest.mark.parametrize(
    ("notes", "precision"),
    [
        ("pre-training performance at FP8 precision", "fp8"),
        ("in fp16 or BF16", "bf16"),
        ("with fp32 master weights", "bf16"),
        ("at FP32 precision", "fp32"),
    ],
)
def test_a_precision_in_the_notes_counts_if_there_is_only_one(notes: str, precision: str) -> None:
    rows = frame(**{"Tokens / sec / GPU": 100.0})
    rows.attrs["notes"] = [notes]
    assert read_layouts(rows).rows[0].case.candidate.precision == precision


@pytest.mark.parametrize(
    ("notes", "framework"),
    [
        ("Narayanan et al. 2021: Megatron-LM on A100", "megatron-lm"),
        ("Megatron-LM, paper of 2022", "megatron-lm"),
        ("Megatron-LM 2024", "megatron-core"),
        ("Megatron-LM", "megatron-core"),  # on H100, by its column
        ("a paper of 2021", ""),
    ],
)
def test_old_versions_of_megatron_do_not_fuse_attention(notes: str, framework: str) -> None:
    rows = frame()
    rows.attrs["notes"] = [notes]
    assert read_layouts(rows).rows[0].case.framework.name == framework


def test_all_that_rows_lack_is_named_at_once_with_what_can_be_assumed() -> None:
    rows = pd.DataFrame({"Techniques": ["FSDP"], "TPS/GPU": [5762], "Nodes": [4]})
    with pytest.raises(InputError) as caught:
        read_layouts(rows)
    message = str(caught.value)
    lacking = "no GPUs per node, no model and no model sizes, no sequence length, no batch size;"
    assert lacking in message
    assert "--assume per_node=8 --assume model=llama3-8b --assume sequence=4096" in message
    given = {"per_node": 8, "model": "llama3-8b", "sequence": 8192, "micro_batch": 2}
    (row,) = read_layouts(rows, assume=given).rows
    assert row.step_s == pytest.approx(2 * 8192 / 5762)
    assert row.case.candidate.layout.sharing == "fsdp"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"GPUs": None}, "no number of GPUs"),
        ({"System": ""}, "no GPU; add a column for it, or assume .* --assume gpu=h100"),
        ({"MBS": 0.5}, "less than one sequence for each replica"),
        ({"MBS": None, "PP": 1, "GBS": 4}, "less than one sequence for each replica"),
        ({"MBS": None}, "no micro-batch size for a pipeline"),
        ({"DP": 2}, "dp x tp x pp x cp make 8 GPUs, not 16"),
        ({"DP": 8}, "dp x tp x pp x cp make 32 GPUs, not 16"),
        ({"Task": "LoRA"}, "LoRA trains adapters only"),
        ({"Model": "Mixtral 8x7B", "PP": 1, "EP": 32}, "32 ranks cannot share experts where only"),
    ],
)
def test_rows_that_would_be_misread_are_refused(columns: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_layouts(frame(**columns))


def test_a_cell_of_settings_counts_where_no_column_gives_them() -> None:
    words = {"Configuration": "tp4, pp1, mbs=1, recompute=full", "TP": None, "PP": None}
    (row,) = read_layouts(frame(**words, MBS=None)).rows
    layout = row.case.candidate.layout
    assert (layout.tensor, layout.pipeline, layout.data) == (4, 1, 4)
    assert (row.case.candidate.micro_batch, row.case.passes) == (1, 4)
    (row,) = read_layouts(frame(Configuration="tp4")).rows
    assert row.case.candidate.layout.tensor == 2


@pytest.mark.parametrize(("cell", "gpus"), [("8x A100", 8), ("2x8 H100", 16), ("1x RTX 4090", 1)])
def test_the_number_of_gpus_may_stand_before_their_name(cell: str, gpus: int) -> None:
    (row,) = read_layouts(frame(GPUs=None, TP=1, PP=1, System=cell)).rows
    assert row.case.candidate.layout.world_size == gpus


def test_a_batch_may_be_quoted_in_tokens_or_per_replica() -> None:
    (row,) = read_layouts(frame(GBS=None, MBS=2, **{"Batch size (tokens)": "0.25M"})).rows
    assert row.case.candidate.grad_accum == 8  # of 64 sequences on four replicas
    (row,) = read_layouts(frame(GBS=None, MBS=2, **{"Batch per DP": 16})).rows
    assert row.case.candidate.grad_accum == 8


def test_a_quoted_batch_that_time_and_rate_confirm_is_what_ran() -> None:
    """As where accumulation counts batches of several micro-batches."""
    batch = {"GBS": 8192, "MBS": 1, "GA": 4, "GPUs": 1024, "TP": 1, "PP": 4}
    measured = {"Time per Global Step (s)": 37.87, "Tokens / sec / GPU": 865}
    (row,) = read_layouts(frame(**batch, **measured)).rows
    assert row.case.candidate.grad_accum == 32 and row.quoted_batch is None


def test_a_rate_is_that_of_each_gpu_if_flops_or_mfu_say_so() -> None:
    rate = {"Tokens / sec / GPU": None, "Tokens per second": 8000}
    total = read_layouts(frame(**rate))
    own = [read_layouts(frame(**rate, **more)) for more in ({"TFLOPs": 400}, {"MFU": "41%"})]
    for table in own:
        assert table.rows[0].step_s == pytest.approx((total.rows[0].step_s or 0) / 16)
        assert any("rate is that of each GPU" in note for note in table.notes)


def test_a_rate_that_would_use_nothing_of_all_gpus_is_that_of_each() -> None:
    rate = {"Tokens / sec / GPU": None, "Tokens per second": 8000, "GPUs": 512, "GBS": 2048}
    table = read_layouts(frame(**rate))
    assert table.rows[0].step_s == pytest.approx(2048 * 4096 / 512 / 8000)
    assert any("use almost nothing of them" in note for note in table.notes)


def test_a_row_that_gives_its_own_layout_does_not_have_that_of_the_notes_too() -> None:
    rows = frame(TP=None, PP=None, Parallelism="tp4pp2dp2")
    rows.attrs["notes"] = ["TP=2, CP=8 unless stated"]
    layout = read_layouts(rows).rows[0].case.candidate.layout
    assert (layout.tensor, layout.pipeline, layout.context, layout.data) == (4, 2, 1, 2)


def test_settings_count_in_any_column_without_a_meaning_of_its_own() -> None:
    rows = frame(TP=None, PP=None, Model=None, **{"Sequence Length": None})
    rows["What we changed"] = ["Llama3 8B: TP8, PP2, seq 8192, gradient checkpointing: on"]
    rows["Model"] = ["Llama3 8B"]
    case = read_layouts(rows).rows[0].case
    assert (case.candidate.layout.tensor, case.candidate.layout.pipeline) == (8, 2)
    assert (case.sequence, case.passes) == (8192, 4)


def test_columns_that_say_nothing_of_a_layout_are_listed() -> None:
    notes = read_layouts(frame(Setup="VP 2", Kernels="VP 2", Days=7, Owner="me")).notes
    assert "2 columns not used: 'Days'; 'Owner'" in notes
    assert not any("not used" in note for note in read_layouts(frame()).notes)
    assert any("1 column not used" in note for note in read_layouts(frame(Days=7)).notes)


def test_a_batch_follows_from_time_and_rate() -> None:
    measured = {"Step time (s)": 64 * 4096 / 16 / 8000}
    table = read_layouts(frame(GBS=None, **measured))
    assert table.rows[0].case.candidate.grad_accum == 8  # of 64 sequences on four replicas
    assert "1 row: the batch follows from time and rate" in table.notes
    with pytest.raises(InputError, match="no batch size"):
        read_layouts(frame(GBS=None, MBS=None, PP=None, **{"Step time (s)": 0.08}))  # 2.5


def test_the_largest_micro_batch_that_fits_is_assumed_if_only_that_of_a_step_is_known() -> None:
    split = {"TP": None, "PP": None, "MBS": None, "Strategy": "FSDP", "AC": "full"}
    table = read_layouts(frame(GBS=2048, **split))
    (row,) = table.rows
    assert row.divided and 1 < row.case.candidate.micro_batch < 128
    assert row.case.candidate.micro_batch * row.case.candidate.grad_accum == 128
    assert any("the largest that fits is assumed" in note for note in table.notes)
    (row,) = read_layouts(frame(GBS=2048, GA=4, **split)).rows
    assert not row.divided and row.case.candidate.micro_batch == 32


def test_a_plain_batch_of_too_many_tokens_is_that_of_a_step() -> None:
    rows = {"TP": None, "PP": None, "MBS": None, "GBS": None, "Batch size (sequences)": 2048}
    table = read_layouts(frame(**rows))
    candidate = table.rows[0].case.candidate
    assert candidate.micro_batch * candidate.grad_accum == 2048 / 16
    assert any("is that of a whole step" in note for note in table.notes)


@pytest.mark.parametrize(
    ("column", "cell", "seconds"),
    [("Step", "2.05 s", 2.05), ("Iteration", "2050 ms", 2.05), ("Step", "2050", None)],
)
def test_a_column_of_steps_is_their_time_if_its_cells_have_a_unit(
    column: str, cell: str, seconds: float | None
) -> None:
    (row,) = read_layouts(frame(**{column: cell})).rows
    assert row.step_s == pytest.approx(seconds or 64 * 4096 / 16 / 8000)


@pytest.mark.parametrize("column", ["MFU (vs 989 TFLOP/s)", "BF16 MFU", "MFU (%)"])
def test_mfu_alone_gives_the_time(column: str) -> None:
    table = read_layouts(frame(**{"Tokens / sec / GPU": None, column: "40%"}))
    (row,) = table.rows
    flops = row.case.model.flops_per_token(4096) * 64 * 4096 / 16
    assert row.step_s == pytest.approx(flops / (0.4 * 989.4e12), rel=0.001)
    assert any("step times follow from MFU" in note for note in table.notes)


def test_flops_that_are_the_quoted_mfu_are_those_of_the_model() -> None:
    rate = {"Tokens / sec / GPU": None, "TFLOPs": 400, "MFU": "40.4%"}
    (row,) = read_layouts(frame(**rate)).rows
    flops = row.case.model.flops_per_token(4096) * 64 * 4096 / 16
    assert row.step_s == pytest.approx(flops / 400e12)
    with pytest.raises(InputError, match="without saying whether there are any"):
        read_layouts(frame(**rate | {"MFU": "30%"}))


def test_sequence_parallelism_without_tensor_parallelism_is_context_parallelism() -> None:
    words = {"TP": None, "PP": None, "Sequence Parallel World Size": 4}
    table = read_layouts(frame(**words))
    assert table.rows[0].case.candidate.layout.context == 4
    assert any("counted as context parallelism" in note for note in table.notes)


def test_a_size_around_a_table_is_not_that_of_its_rows() -> None:
    rows = frame(Model=None, Size="7B")
    rows.attrs["notes"] = ["on Llama-like models, 7B and 70B"]
    assert read_layouts(rows).rows[0].case.model.parameters == pytest.approx(6.74e9, rel=0.01)


@pytest.mark.parametrize(
    ("notes", "columns", "sharing"),
    [
        ("NeMo 25.11", {}, "zero1"),
        ("Megatron-Bridge", {"FSDP": 0}, "zero1"),
        ("Megatron-Bridge", {"FSDP": 4}, "fsdp"),
        ("Megatron-Bridge", {"ZeRO": 2}, "zero2"),
        ("our own", {}, "ddp"),
    ],
)
def test_a_framework_shares_state_as_it_does_unless_the_table_says_otherwise(
    notes: str, columns: dict[str, object], sharing: str
) -> None:
    rows = frame(**columns)
    rows.attrs["notes"] = [notes]
    layout = read_layouts(rows).rows[0].case.candidate.layout
    assert layout.sharing == sharing
    assert layout.sequence_parallel == (notes != "our own")


def test_a_table_without_a_gpu_has_one_that_is_fast_enough_for_it() -> None:
    slow, fast = (
        read_layouts(frame(System=None, **{"Tokens / sec / GPU": rate})) for rate in (4000, 9000)
    )
    assert slow.rows[0].case.machine.gpu.name == "a100"
    assert fast.rows[0].case.machine.gpu.name == "h100"
    assert any("A100s are too slow for its rows" in note for note in fast.notes)
    rows = frame(System=None, **{"Tokens / sec / GPU": 9000})
    untimed = rows.drop(columns="Tokens / sec / GPU")
    predicted = lab.fit_layouts(rows).predict(untimed)["step_s"].iloc[0]
    assert predicted == pytest.approx(fast.rows[0].step_s, rel=0.2)
    assert read_layouts(frame(System="A100")).rows[0].case.machine.gpu.name == "a100"


def test_crashed_rows_have_no_time_and_stay_known() -> None:
    (row,) = read_layouts(frame(status="OOM")).rows
    assert row.failed and row.step_s is None


def table(**columns: list[object]) -> pd.DataFrame:
    """Rows that differ in these columns."""
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return pd.concat([frame(**row) for row in rows], ignore_index=True)


MIXTURE = "Qwen3 MoE 30B"


@pytest.mark.parametrize("cell", EMPTY)
@pytest.mark.parametrize("name", ["TP", "PP", "CP", "EP"])
def test_a_degree_of_parallelism_that_only_other_rows_give_is_unknown(
    name: str, cell: object
) -> None:
    degrees: dict[str, list[object]] = {"TP": [1] * 2, "PP": [1] * 2, "CP": [1] * 2, "EP": [8, 8]}
    degrees[name] = [2, cell]
    read = read_layouts(table(Model=[MIXTURE] * 2, **degrees))
    assert [row.place for row in read.rows] == [0]
    (note,) = [note for note in read.notes if "left out" in note]
    assert note.startswith("1 row left out: no ") and "which other rows give: write 1" in note


def test_a_degree_of_parallelism_is_one_where_nothing_else_is_possible() -> None:
    dense = read_layouts(table(Model=["Llama3 8B", MIXTURE], EP=["-", 8]))
    assert [row.case.candidate.layout.expert for row in dense.rows] == [1, 8]
    split = read_layouts(table(PP=["n/a", 2], DP=[8, 4]))
    assert [row.case.candidate.layout.pipeline for row in split.rows] == [1, 2]
    assert len(read_layouts(table(PP=["none", 2])).rows) == 2  # "none" is no gap
    assert len(read_layouts(table(PP=["-", "-"])).rows) == 2
    assumed = read_layouts(table(Model=[MIXTURE] * 2, EP=["-", 4]), assume={"expert": 2})
    assert [row.case.candidate.layout.expert for row in assumed.rows] == [2, 4]


def test_experts_that_no_row_shares_are_an_assumption() -> None:
    notes = [read_layouts(frame(Model=MIXTURE, EP=cell)).notes for cell in (None, "-", 8)]
    said = ["each rank has all experts" in " ".join(some) for some in notes]
    assert said == [True, True, False]


@pytest.mark.parametrize(
    ("columns", "used"),
    [
        ({"SP": "True"}, True),
        ({"SP": 2}, True),
        ({"Sequence Parallel": "no"}, False),
        ({"sequence_parallel": 0}, False),
        ({"sequence_parallel": 1}, True),
        ({"Strategy": "ZeRO-1, TP2+SP"}, True),
        ({"Notes": "with sequence parallelism"}, True),
        ({"Comments": "without sequence parallelism"}, False),
        ({"Parallelism": "TP=2, SP=2, PP=2"}, True),
        ({"Config": "TP2 SP1"}, False),
        ({"Notes": "spot instances"}, False),
    ],
)
def test_sequence_parallelism_is_read(columns: dict[str, object], used: bool) -> None:
    (row,) = read_layouts(frame(**columns)).rows
    assert row.case.candidate.layout.sequence_parallel == used


def test_numbers_above_one_in_a_column_of_sequence_parallelism_are_degrees() -> None:
    read = read_layouts(table(SP=[1, 2]))
    assert [row.case.candidate.layout.sequence_parallel for row in read.rows] == [False, True]
    with pytest.raises(InputError, match="over 4 ranks, but tensor parallelism over 2"):
        read_layouts(frame(SP=4))


@pytest.mark.parametrize(
    ("notes", "used"),
    [
        ("Megatron-LM with sequence parallelism", True),
        ("nanotron without sequence parallelism", False),
        ("with sequence parallelism, and without sequence parallelism", False),
        ("TP: tensor parallelism, SP: sequence parallelism", False),
    ],
)
def test_notes_that_say_so_count_for_all_rows(notes: str, used: bool) -> None:
    rows = frame()
    rows.attrs["notes"] = [notes]
    assert read_layouts(rows).rows[0].case.candidate.layout.sequence_parallel == used


def by_flops(notes: str = "", **columns: object) -> pd.DataFrame:
    """Row 4 of table 1 in Narayanan et al. (2021), with its FLOP/s as the only rate."""
    row: dict[str, object] = {
        "GPUs": 512, "TP": 8, "PP": 2, "MBS": 4, "GBS": 1536, "Sequence Length": 2048,
        "Layers": 48, "Hidden size": 8192, "Heads": 64, "Vocab size": 51200, "GPU": "A100",
    }  # fmt: skip
    rows = pd.DataFrame([row | columns])
    rows.attrs["notes"] = [notes]
    return rows


OF_2021, PER_GPU = "Megatron-LM, 2021", "Achieved teraFLOP/s per GPU"


def equation_3(passes: int) -> float:
    """FLOPs of a step of `by_flops` by equation 3 of that paper, which counts four passes."""
    batch, length, layers, width, words = 1536, 2048, 48, 8192, 51200
    each = 24 * passes * batch * length * layers * width**2
    return each * (1 + length / (6 * width)) + 6 * batch * length * width * words


@pytest.mark.parametrize(
    ("notes", "columns", "passes"),
    [
        (OF_2021, {PER_GPU: 138}, 4),
        (OF_2021, {PER_GPU: 138, "recompute": "none"}, 3),
        (OF_2021, {PER_GPU: "138 TFLOP/s"}, 4),
        (OF_2021, {"Achieved aggregate petaFLOP/s": 138 * 0.512}, 4),
        ("", {"Model TFLOP / sec / GPU": 138}, 3),
        ("", {"Model TFLOP / sec / GPU": 138, "recompute": "full"}, 3),
        ("", {"Hardware TFLOPs/GPU": 138, "recompute": "full"}, 4),
        ("", {"TFLOPS": 138, "recompute": "none"}, 3),
        ("Megatron-Core", {"TFLOPS": 138, "recompute": "full"}, 3),
        ("Megatron-Core", {"Hardware TFLOPs/GPU": 138, "recompute": "full"}, 4),
    ],
)
def test_flops_give_the_time_by_the_formula_that_counts_them(
    notes: str, columns: dict[str, object], passes: int
) -> None:
    read = read_layouts(by_flops(notes, **columns))
    assert read.rows[0].step_s == pytest.approx(equation_3(passes) / 512 / 138e12)
    assert any("step times follow from FLOP/s" in note for note in read.notes)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"TFLOPS": 138}, "without saying whether there are any"),
        ({"TFLOPS": 138, "recompute": "full"}, "name them 'model TFLOP/s' or 'hardware TFLOP/s'"),
        ({"HFU TFLOPs": 138}, "without saying whether there are any"),
        ({"Model TFLOP/s": 70000}, "more FLOP/s than the 312 TFLOP/s of an A100"),
        ({"Percentage of theoretical peak FLOP/s": "44%"}, "no step time and no rate"),
        ({"Model TFLOPs per iteration": 138}, "no step time and no rate"),
    ],
)
def test_flops_that_give_no_time_are_refused(columns: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_layouts(by_flops(**columns))


def test_flops_of_nemo_omit_the_masked_half_of_attention() -> None:
    masked, whole = (
        read_layouts(by_flops(notes, **{"Model TFLOP / sec / GPU": 138})).rows[0].step_s or 0.0
        for notes in ("NeMo, BF16", "BF16")
    )
    half = 24 * 3 * 1536 * 2048**2 * 48 * 8192 / 12  # of equation 3's term
    assert whole - masked == pytest.approx(half / 512 / 138e12)


def test_a_rate_of_tokens_counts_before_flops() -> None:
    (row,) = read_layouts(frame(**{"Model TFLOP / sec / GPU": 400})).rows
    assert row.step_s == pytest.approx(64 * 4096 / 16 / 8000)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("Peak memory (GB)", "OOM"),
        ("Peak memory (GB)", "80 (OOM)"),
        ("Tokens / sec / GPU", "OOM"),
        ("Tokens / sec / GPU", "CUDA out of memory"),
        ("MFU", "crashed"),
        ("TFLOP/s/GPU", "OOM"),
    ],
)
def test_a_crash_in_the_place_of_a_measurement_means_that_the_row_did_not_run(
    column: str, cell: str
) -> None:
    read = read_layouts(table(**{column: [40, cell]}))
    assert [row.failed for row in read.rows] == [False, True]
    assert read.rows[1].step_s is None and read.rows[1].memory_bytes is None
    assert "1 row crashed or ran out of memory" in read.notes


def test_an_error_beside_a_number_is_no_crash() -> None:
    (row,) = read_layouts(frame(**{"step time (s)": "1.5 (standard error)"})).rows
    assert row.step_s == 1.5 and not row.failed


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("Params (B)", ["22", "1.7", "175"]),
        ("Number of parameters (billion)", ["22", "1.7", "175"]),
        ("#params", ["22", "1.7", "175B"]),
        ("Model size", ["22", "1.7B", "175 B"]),
        ("Size", ["22", "1.7b", "175"]),
    ],
)
def test_counts_without_a_unit_have_that_of_their_column_or_of_the_other_cells(
    column: str, cells: list[object]
) -> None:
    rows = read_layouts(table(Model=[None] * 3, **{column: cells})).rows
    sizes = [row.quoted_parameters for row in rows]
    assert sizes == pytest.approx([22e9, 1.7e9, 175e9])
    models = [row.case.model.parameters for row in rows]
    assert models == pytest.approx(sizes, rel=0.02)


@pytest.mark.parametrize("column", ["#params", "Model size"])
def test_counts_whose_unit_nothing_tells_are_refused(column: str) -> None:
    with pytest.raises(InputError, match="a model of 22 parameters lacks the unit: write 22B"):
        read_layouts(frame(Model=None, **{column: 22}))
    sized = frame(Model=None, **{column: 22, "Layers": 48, "Hidden size": 6144})
    assert read_layouts(sized).rows[0].quoted_parameters is None


def test_the_published_tables_are_read_as_what_they_are() -> None:
    vtrain = read_layouts(TABLES / "vtrain_a100_single_node.csv")
    mpt = read_layouts(TABLES / "mpt_a100_40gb.csv")
    playbook = read_layouts(TABLES / "playbook_1b_h100.csv")
    assert [len(table.rows) for table in (vtrain, mpt, playbook)] == [1440, 78, 808]
    assert sum(row.failed for row in playbook.rows) == 283
    assert not any(table.left_out for table in (vtrain, mpt, playbook))
    first = mpt.rows[0].case
    assert (first.model.width, first.candidate.layout.sharing, first.passes) == (8192, "fsdp", 4)
    assert playbook.rows[0].memory_bytes == 50.2e9
    assert {row.case.framework.name for row in playbook.rows} == {"nanotron"}
    assert sum(row.quoted_batch is not None for row in playbook.rows) == 14
    assert {row.case.sequence for row in playbook.rows} == {4096}


def test_rows_without_a_time_are_predicted() -> None:
    times = [f"{seconds}" for seconds in (8.0, 4.1, 2.2)]
    rows = pd.concat([frame(GPUs=gpus, time=None) for gpus in (16, 32, 64)], ignore_index=True)
    untimed = rows.drop(columns="Tokens / sec / GPU")
    fitted = lab.fit_layouts(untimed.assign(**{"step time (s)": times}))
    assert len(fitted.predict(untimed)) == 3
    assert fitted.predict(untimed).equals(fitted.predict(rows))


def test_assumptions_fill_in_what_a_table_lacks_and_are_checked() -> None:
    bare = frame().drop(columns=["Model", "System"])
    (row,) = read_layouts(bare, assume={"model": "mixtral 8x7b", "gpu": "h200", "zero": 1}).rows
    assert (row.case.model.experts, row.case.machine.gpu.name) == (8, "h200")
    assert row.case.candidate.layout.sharing == "zero1"
    with pytest.raises(InputError) as caught:
        read_layouts(bare, assume={"leyers": 24, "sequence": "long"})
    assert "did you mean 'layers'?" in str(caught.value)
    assert "'long' is not a number" in str(caught.value)
    short = {"model": "llama3-8b", "gpu": "h100", "tp": 4, "mbs": 1}
    bare = frame(Model=None, System=None, TP=None, MBS=None)
    candidate = read_layouts(bare, assume=short).rows[0].case.candidate
    assert (candidate.layout.tensor, candidate.micro_batch) == (4, 1)


def test_layouts_are_fitted_and_predicted_from_any_table() -> None:
    path = TABLES / "vtrain_a100_single_node.csv"
    fitted = lab.fit_layouts(path, assume={"recomputed": "full"})
    table = fitted.predict(path)
    assert len(table) == 1440
    assert ((table["low_s"] < table["step_s"]) & (table["step_s"] < table["high_s"])).all()
    parts = table.drop(columns=["step_s", "low_s", "high_s"]).sum(axis=1)
    assert parts.to_numpy() == pytest.approx(table["step_s"].to_numpy())
    measured = fitted.table.step_s
    assert abs(table["step_s"].to_numpy() / measured - 1).mean() < 0.07


def test_cards_with_a_letter_for_pieces() -> None:
    rows = frame(GPUs=None, 卡数="16p")
    assert read_layouts(rows).rows[0].case.candidate.layout.world_size == 16


def test_letters_of_formulas() -> None:
    names = {"TP": "$t$", "PP": "$p$", "GBS": "$B$", "MBS": "$b$"}
    (row,) = read_layouts(frame().rename(columns=names)).rows
    layout = row.case.candidate.layout
    assert (layout.tensor, layout.pipeline, layout.data, row.case.candidate.grad_accum) == (
        2,
        2,
        4,
        8,
    )
    alone = read_layouts(frame(**{"$t$": 9})).rows[0].case.candidate.layout
    assert alone.tensor == 2


@pytest.mark.parametrize(
    ("notes", "columns"),
    [
        ("Recipes for TPUs", {}),
        ("Sweep on Fugaku", {}),
        ("Nodes of Aurora, torch.xpu", {}),
        ("", {"Instance": "trn1.32xlarge"}),
        ("", {"NPU model": "x"}),
    ],
)
def test_other_chips_are_not_taken_for_gpus(notes: str, columns: dict[str, str]) -> None:
    rows = frame(System=None, **columns)
    rows.attrs["notes"] = [notes]
    with pytest.raises(InputError, match="whose speed is unknown"):
        read_layouts(rows)
    assert read_layouts(rows, assume={"gpu": "h100"}).rows
    rows.attrs["notes"] = [notes, "As fast on 16 H100s"]
    assert read_layouts(rows).rows[0].case.machine.gpu.name == "h100"


@pytest.mark.parametrize(
    ("model", "notes", "kind"),
    [
        ("Wan 2.1 14B", "", "a diffusion model"),
        (None, "Stable Diffusion Test Case", "a diffusion model"),
        ("ViT-G/14 1.85B", "", "a vision model"),
        (None, "### ViT-G/14", "a vision model"),
        ("T5-v1.1-xl 3B", "", "an encoder-decoder"),
        ("Nemotron5-H-56B", "", "a state space model"),
    ],
)
def test_what_is_no_decoder_of_language_is_said_to_be_so(
    model: str | None, notes: str, kind: str
) -> None:
    rows = frame(Model=model)
    rows.attrs["notes"] = [notes]
    with pytest.raises(InputError, match=f"the model is {kind}, not a decoder of language"):
        read_layouts(rows)
    sized = read_layouts(rows, assume={"layers": 40, "width": 5120})
    assert f"1 row: {kind} is predicted as a decoder of its size or sizes" in sized.assumptions
    assert sized.rows[0].case.model.layers == 40


def test_a_model_named_as_a_decoder_is_one_whatever_else_the_notes_name() -> None:
    rows = frame()
    rows.attrs["notes"] = ["Towards ViT-G/14 and T5"]
    assert not read_layouts(rows).rows[0].kind
    (seeing,) = read_layouts(frame(Model="LLaVA 1.5 7B")).rows
    assert seeing.kind == "a vision-language model" and seeing.case.model.parameters > 6e9


def test_attention_without_a_mask_counts_whole() -> None:
    """cuDNN's skips the masked half, which no encoder has, and NeMo's FLOPs omit it."""
    columns = {"Tokens / sec / GPU": None, "Model TFLOP / sec / GPU": 300.0, "Model": None}
    sizes = {"layers": 40, "width": 5120, "heads": 40}
    rows = frame(**{**columns, "GPUs": 64, "PP": 1, "Sequence Length": 32768}, **sizes)
    rows.attrs["notes"] = ["NeMo"]
    (masked,) = read_layouts(rows).rows
    (whole,) = read_layouts(rows, assume={"model": "DiT"}).rows
    model = masked.case.model
    halves = [model.flops_per_token(32768, masked=half) for half in (True, False)]
    assert masked.step_s and whole.step_s == pytest.approx(
        masked.step_s * halves[1] / halves[0], rel=1e-3
    )
    laws = [row.case.framework.coefficients["attention"][0] for row in (masked, whole)]
    assert laws[1] == 2 * laws[0]


@pytest.mark.parametrize(
    ("methods", "framework"),
    [
        (("Megatron-LM", "Megatron-LM"), "megatron-core"),
        (("nanotron", "nanotron v2"), "nanotron"),
        (("Megatron-LM", "ours"), ""),
        (("NeMo", "nanotron"), ""),
    ],
)
def test_a_column_may_name_the_framework_of_all_rows(
    methods: tuple[str, str], framework: str
) -> None:
    rows = pd.concat([frame(Method=method) for method in methods], ignore_index=True)
    rows.attrs["notes"] = ["A comparison of 2024"]
    assert read_layouts(rows).rows[0].case.framework.name == framework


def test_rows_that_no_gpu_computes_in_fp32_are_in_tf32() -> None:
    for rate, precision in ((3500.0, "tf32"), (500.0, "fp32")):
        table = read_layouts(frame(Precision="fp32", **{"Tokens / sec / GPU": rate}))
        assert table.rows[0].case.candidate.precision == precision
        assert any("tf32 instead of fp32" in one for one in table.assumptions) == (rate > 1000)


@pytest.mark.parametrize(
    ("notes", "fused"),
    [
        ("Megatron-DeepSpeed, FlashAttention 2", True),
        ("Megatron-DeepSpeed without flash-attn", False),
    ],
)
def test_attention_is_fused_where_the_notes_say_so(notes: str, fused: bool) -> None:
    rows = frame()
    rows.attrs["notes"] = [notes]
    framework = read_layouts(rows).rows[0].case.framework
    assert framework.name == "megatron" and ("scores" not in framework.coefficients) == fused


def test_a_cell_with_two_numbers_is_named_where_a_row_lacks_a_rate() -> None:
    rows = frame(**{"Tokens / sec / GPU": "8000 / 9000"})
    with pytest.raises(InputError, match="'Tokens / sec / GPU' holds '8000 / 9000', which is not"):
        read_layouts(rows)


def test_gpus_follow_from_the_rates_of_all_and_of_each() -> None:
    rows = frame(GPUs=None, **{"PP": 1, "Aggregate TPS": 63_970.0})
    table = read_layouts(rows)
    assert table.rows[0].case.candidate.layout.world_size == 8
    assert "1 row: the GPUs are the total rate over that of one" in table.assumptions
    with pytest.raises(InputError, match="no number of GPUs"):
        read_layouts(frame(GPUs=None, **{"PP": 1, "Aggregate TPS": 60_000.0}))


def test_recomputation_that_every_row_names_is_not_assumed() -> None:
    for run, assumed in (("ours, full AC", 0), ("ours", 1)):
        notes = read_layouts(frame(run=run)).assumptions
        assert sum("activations are recomputed" in note for note in notes) == assumed


WIDE = """# Llama 3.1 with NeMo

sequence length = 8192, in BF16 or FP8

| Llama 3.1 8b FP8 (TP=1, PP=1, CP=2, MBS=1) | Throughput on 8x H100 GPUs (GBS=128) | Throughput on 16x H100 GPUs (GBS=256) |
|---|:---:|:---:|
| Training step time (seconds per step) | 9.67 | 9.73 |
| Throughput in tokens per second | 108436 | 215535 |
| Model flops utilization | 39.63% | 39.39% |
"""


def test_a_row_for_each_quantity_and_a_column_for_each_layout(tmp_path: Path) -> None:
    path = tmp_path / "recipe.md"
    path.write_text(WIDE)
    table = read_layouts(path)
    assert "each column after the first is read as a layout" in table.assumptions
    assert table.step_s.tolist() == [9.67, 9.73]
    for row, gpus, batch in zip(table.rows, (8, 16), (128, 256), strict=True):
        candidate = row.case.candidate
        assert (candidate.layout.world_size, candidate.global_batch) == (gpus, batch)
        assert (candidate.layout.context, candidate.micro_batch) == (2, 1)
        assert (candidate.precision, row.case.machine.gpu.name) == ("fp8", "h100")
        assert row.case.model.parameters == pytest.approx(8.03e9, rel=0.01)
        assert row.quoted_mfu == pytest.approx(0.395, abs=0.002)


SPEEDS = """Qwen2.5-14B with 8K context length, on an eight-GPU A800 node, global batch size 16:

|                  | Megatron-LM | Deepspeed-ZeRO2 | Deepspeed-ZeRO3 |
| ---------------- | ----------- | --------------- | --------------- |
| Training Speed   | 9.04s/it    | 10.32s/it       | 10.56s/it       |
| GPU Memory Usage | 8\\*64GB     | 8\\*80GB         | 8\\*58GB         |
"""


def test_a_row_of_speeds_is_known_by_its_cells(tmp_path: Path) -> None:
    path = tmp_path / "speeds.md"
    path.write_text(SPEEDS)
    table = read_layouts(path)
    assert table.step_s.tolist() == [9.04, 10.32, 10.56]
    assert [row.case.candidate.layout.world_size for row in table.rows] == [8, 8, 8]
    assert [row.case.candidate.layout.sharing for row in table.rows][1:] == ["zero2", "fsdp"]


def test_a_column_of_changes_is_no_layout(tmp_path: Path) -> None:
    path = tmp_path / "changes.md"
    path.write_text("""Llama-3 8B, 8 H100, mbs 1, sequence length 8192, global batch 64:

| metric | before | after | after vs before |
|---|---:|---:|---:|
| step time (ms) | 4000 | 3500 | **−12.5%** |
| tokens/s/GPU | 16384 | 18725 | +14.3 % |
| GPU memory (GB) | 60 | 60 | — |
""")
    assert read_layouts(path).step_s.tolist() == [4.0, 3.5]


def test_a_named_model_cut_to_fewer_layers(tmp_path: Path) -> None:
    path = tmp_path / "recipe.md"
    path.write_text(f"{WIDE}| Layers | 32 | 8 |\n")
    whole, cut = (row.case.model for row in read_layouts(path).rows)
    assert (whole.layers, cut.layers, cut.width) == (32, 8, 4096)
    assert read_layouts(frame(Layers=8)).rows[0].case.model.layers == 8


def test_a_first_column_of_strategies_is_not_turned() -> None:
    rows = pd.DataFrame({"": ["TP", "Time"], "GPUs": [8, 8], "Step time (s)": [1.0, 2.0]})
    with pytest.raises(InputError, match="2 rows: no model"):
        read_layouts(rows)


@pytest.mark.parametrize(
    ("columns", "notes", "sharing"),
    [
        ({}, "", "fsdp"),
        ({"Model": "Llama 1B"}, "", "ddp"),
        ({}, "with DDP", "ddp"),
        ({"zero": 1}, "", "zero1"),
        ({"TP": 4}, "", "ddp"),
    ],
)
def test_replicas_whose_copies_would_not_fit_share_their_state(
    columns: dict[str, object], notes: str, sharing: str
) -> None:
    rows = frame(**{"TP": 1, "PP": 1, "Model": "Llama2 70B", **columns})
    rows.attrs["notes"] = [notes]
    table = read_layouts(rows)
    assert table.rows[0].case.candidate.layout.sharing == sharing
    assert any("FSDP is assumed" in one for one in table.notes) == (sharing == "fsdp")


def test_a_sequence_that_no_gpu_holds_alone_is_shared_by_some() -> None:
    row = {"GPUs": 8, "PP": None, "GBS": 8, "MBS": 1, "Sequence Length": "1M"}
    with pytest.raises(InputError, match="too long for one GPU"):
        read_layouts(frame(TP=None, **row))
    assert read_layouts(frame(TP=None, CP=8, **row)).rows


def test_a_mixture_of_experts_of_which_notes_give_only_the_size() -> None:
    rows = frame(EP=8, PP=1, TP=1, Model=None)
    rows.attrs["notes"] = ["Qwen-235B"]
    assert read_layouts(rows).rows[0].case.model.experts == 128


def test_stages_of_a_rank_that_layers_do_not_fill() -> None:
    """32 ranks of three stages hold 94 layers, an embedding and a head."""
    row = frame(GPUs=32, TP=1, PP=32, VP=3, EP=1, Model="Qwen3 235B-A22B", MBS=1)
    assert read_layouts(row).rows[0].case.candidate.layout.interleave == 3


def test_virtual_pipelines_are_megatrons() -> None:
    assert read_layouts(frame(VP=2)).rows[0].case.framework.name == "megatron-core"
    assert read_layouts(frame()).rows[0].case.framework.name == ""


@pytest.mark.parametrize(
    ("precision", "rate", "gpu"),
    [("BF16", 2_000.0, "a100"), ("BF16", 9_000.0, "h100"), ("FP8", 37_556.0, "b200")],
)
def test_the_first_usual_gpu_that_is_fast_enough(precision: str, rate: float, gpu: str) -> None:
    rows = frame(System=None, Precision=precision, **{"Tokens / sec / GPU": rate})
    table = read_layouts(rows)
    assert table.rows[0].case.machine.gpu.name == gpu
    assert sum("names no GPU" in text for text in table.assumptions) == 1


def test_a_gpu_that_no_usual_one_equals_is_the_next() -> None:
    table = read_layouts(frame(System=None, **{"Tokens / sec / GPU": 90_000.0}))
    assert table.inferred == {"gpu": "h100"}


def test_flops_below_the_name_of_teraflops() -> None:
    (row,) = read_layouts(frame(**{"Model TFLOP/s": 2.846055e14})).rows
    assert row.quoted_flops == pytest.approx(284.6e12, rel=1e-3)


def test_the_batch_of_time_and_rate_where_degrees_make_the_gpus() -> None:
    rows = frame(GPUs=None, GBS=None, PP=1, TP=1, DP=4, MBS=2, **{"Step time (s)": 4.096})
    table = read_layouts(rows)
    assert table.rows[0].case.candidate.global_batch == 32
    assert "1 row: the batch follows from time and rate" in table.assumptions


def test_a_batch_that_a_sentence_sets() -> None:
    rows = frame(GBS=None, MBS=None, PP=1)
    rows.attrs["notes"] = ["In each run per-device batch size is set to 1."]
    assert read_layouts(rows).rows[0].case.candidate.micro_batch == 1


def test_a_table_may_name_neither_its_gpu_nor_its_precision() -> None:
    rows = frame(System=None, **{"Tokens / sec / GPU": 15_000.0})
    table = read_layouts(rows)
    assert table.inferred == {"gpu": "h100", "precision": "fp8"}
    assert lab.fit_layouts(rows).assume == table.inferred, "rows without times need both"


def test_rows_that_no_gpu_computes_in_16_bits_are_in_8() -> None:
    fast = frame(**{"Tokens / sec / GPU": 15_000.0})  # of Llama 3 8B: 79 % of an H100's peak
    table = read_layouts(fast)
    assert table.rows[0].case.candidate.precision == "fp8"
    assert table.inferred == {"precision": "fp8"}
    assert any(text.startswith("fp8 is assumed") for text in table.assumptions)
    assert read_layouts(frame()).rows[0].case.candidate.precision == "bf16"
    said = read_layouts(fast.assign(Precision="BF16"))
    assert said.rows[0].case.candidate.precision == "bf16"
