"""Gaps between measured and expected layouts, each with a planted cause."""

from __future__ import annotations

import pandas as pd
import pytest

import lab
from lab.analysis.explain_layouts import Explanation
from lab.analysis.layout_table import read_layouts
from lab.errors import InputError
from lab.files import SHARED
from lab.perfmodel import layout_law

ROW = {
    "model": "gpt 1.3B", "layers": 24, "hidden size": 2048, "heads": 16, "sequence length": 1024,
    "gpu": "A100 80GB", "gpus": 16, "nodes": 2, "micro batch": 16, "global batch": 256,
    "recompute": "none",
}  # fmt: skip


def explained(factor: float = 1.0, **more: object) -> Explanation:
    """A row that takes `factor` times what is expected of it."""
    row = ROW | more
    frame = pd.DataFrame([row | {"step time (s)": 1.0}])
    case = read_layouts(frame).rows[0].case
    step = float(layout_law.expected("a100").predict([case])[0]) * factor
    return lab.explain_layouts(pd.DataFrame([row | {"step time (s)": step}]))[0]


def test_what_is_as_expected_is_inside_and_its_wait_is_named() -> None:
    one = explained()
    assert one.low_s < one.measured_s < one.high_s
    assert one.reasons[0].startswith("inside the interval")


def test_a_small_part_of_the_step_is_not_named() -> None:
    alone = explained(gpus=1, nodes=1, **{"global batch": 16 * 1000})
    assert alone.reasons == ("inside the interval",)


def test_exchanges_are_named_by_who_needs_them() -> None:
    experts = {"model": "own 13.4B", "experts": 16, "top_k": 2, "ffn": 8192, "ep": 16}
    for one, kind in ((explained(tp=8), "tensor"), (explained(**experts), "expert")):
        assert f"besides compute, most goes to {kind} parallelism" in one.reasons[0]


def test_what_another_layout_would_avoid_is_named() -> None:
    words = "; ".join(explained(pp=4, **{"micro batch": 1, "recompute": "full"}).reasons)
    assert "recomputation takes" in words and "pipeline's idle time" not in words  # 64 at a time
    words = "; ".join(explained(pp=4, **{"micro batch": 4, "global batch": 128}).reasons)
    assert "the pipeline's idle time takes" in words and "recomputation" not in words


def test_the_size_of_one_expert_is_not_that_of_the_model() -> None:
    row = {"model": "Mixtral 8x7B", "gpu": "H100", "gpus": 16, "pp": 2, "ep": 8, "micro batch": 1,
           "global batch": 128, "sequence length": 4096, "step time (s)": 5.4}  # fmt: skip
    (one,) = lab.explain_layouts(pd.DataFrame([row]))
    assert not any("parameters" in reason for reason in one.reasons)


def test_a_name_that_the_sizes_do_not_bear_out() -> None:
    small = {"model": "my 7B", "layers": 12, "hidden size": 768, "heads": 12}
    assert explained(**small).reasons == (
        "width 768 and 12 layers make 124M parameters, but the table says 7B",
    )


@pytest.mark.parametrize(
    ("of_own", "words"), [(0.5, "peak with sparsity, 624"), (1.3, "TFLOP/s dense"), (1.0, "inside")]
)
def test_a_quoted_mfu_is_held_to_the_rows_own(of_own: float, words: str) -> None:
    own = explained().mfu
    reason = explained(MFU=of_own * own).reasons[0]
    assert words in reason
    quoted = f"the MFU is {100 * own:.1f} %, not {100 * of_own * own:.1f} %"
    assert (quoted in reason) == (of_own != 1)


def test_an_mfu_may_count_the_half_of_attention_that_a_mask_leaves() -> None:
    one = explained(**{"sequence length": 8192, "micro batch": 2, "global batch": 32})
    case = (
        read_layouts(pd.DataFrame([ROW | {"sequence length": 8192, "step time (s)": 1}]))
        .rows[0]
        .case
    )
    full, half = (case.model.flops_per_token(8192, masked=masked) for masked in (False, True))
    assert half < 0.9 * full
    more = {"sequence length": 8192, "micro batch": 2, "global batch": 32}
    assert explained(MFU=one.mfu * half / full, **more).reasons[0].startswith("inside")
    assert "own rate" in explained(MFU=0.8 * one.mfu * half / full, **more).reasons[0]


def test_a_slow_link_is_named_with_its_rate() -> None:
    (reason,) = explained(8.0).reasons
    assert reason.startswith("a link of") and "between nodes, not 25 GB/s, would" in reason


def test_delayed_transfers_are_named_where_a_framework_may_have_them() -> None:
    row = ROW | {"notes": "nanotron", "gpu": "H100", "gpus": 128, "nodes": 16, "pp": 4,
                 "micro batch": 1}  # fmt: skip
    case = read_layouts(pd.DataFrame([row | {"step time (s)": 1.0}])).rows[0].case
    law = layout_law.expected("h100", case.framework)
    usual, late = (float(seconds[0]) for seconds in (law.predict([case]), law.delayed([case])))
    frames = [pd.DataFrame([row | {"step time (s)": seconds}]) for seconds in (usual, late)]
    (expected,), (delayed,) = map(lab.explain_layouts, frames)
    assert expected.reasons[0].startswith("inside the interval")
    assert delayed.reasons[0].startswith("delayed transfers would explain it")


def test_what_a_gpu_cannot_do_is_said_first() -> None:
    assert explained(0.1).reasons[0].startswith("no A100 computes this fast")


def test_on_one_gpu_no_link_is_to_blame() -> None:
    one = {"gpus": 1, "nodes": 1, "global batch": 16}
    assert "no link explains it; compute would have to take" in explained(8.0, **one).reasons[0]


def test_the_largest_part_is_said_to_grow_by_all_that_is_missing() -> None:
    one = {"gpus": 1, "nodes": 1, "global batch": 16}
    case = read_layouts(pd.DataFrame([ROW | one | {"step time (s)": 1.0}])).rows[0].case
    parts = layout_law.expected("a100").parts(case)
    times = float(explained(8.0, **one).reasons[0].split(" take ")[1].split()[0])
    whole = times * parts["compute"] + sum(parts.values()) - parts["compute"]
    assert whole == pytest.approx(8 * sum(parts.values()), rel=0.01)


def test_what_was_left_out_or_assumed_is_noted() -> None:
    rows = [ROW | {"step time (s)": 1.0}, ROW | {"step time (s)": "OOM"}]
    rows.append(ROW | {"step time (s)": 1.0, "gpu": "TPU"})
    explanations = lab.explain_layouts(pd.DataFrame(rows))
    assert [one.row for one in explanations] == [1]
    assert "1 row crashed or ran out of memory" in explanations.notes
    assert any("1 row left out: unknown GPU TPU" in note for note in explanations.notes)
    with pytest.raises(InputError, match="none ran: 1 row crashed or ran out of memory; add one"):
        lab.explain_layouts(pd.DataFrame(rows[1:2]))
    with pytest.raises(InputError, match="none ran"):
        lab.fit_layouts(pd.DataFrame(rows[1:2]))


def test_the_playbooks_mfu_is_found_to_count_its_embedding_twice() -> None:
    rows = lab.explain_layouts(SHARED / "docs" / "tables" / "playbook_1b_h100.csv")
    reasons = {one.row - 1: one.reasons[0] for one in rows}
    table = read_layouts(SHARED / "docs" / "tables" / "playbook_1b_h100.csv")
    several = {row.place for row in table.rows if row.case.candidate.layout.pipeline > 1}
    wrong = {place for place, reason in reasons.items() if "by the row's own rate" in reason}
    exact = {row.place for row in table.rows if (row.quoted_mfu or 0) > 0.05}
    assert wrong & exact == several & exact and len(wrong & exact) > 100


def test_per_cent_are_read_as_such_however_small() -> None:
    frame = pd.DataFrame([ROW | {"MFU %": 1.2, "step time (s)": 1.0}])
    assert read_layouts(frame).rows[0].quoted_mfu == pytest.approx(0.012)


def test_flops_that_the_rate_does_not_make_are_named() -> None:
    right = explained(**{"TFLOP/s/GPU": 130})
    assert not any("one of the three" in reason for reason in right.reasons)
    of_all = explained(**{"TFLOP/s": 16 * 130})
    assert not any("one of the three" in reason for reason in of_all.reasons)
    (reason,) = explained(**{"TFLOP/s/GPU": 300}).reasons
    assert "TFLOP/s, not 300: one of the three is wrong" in reason
