"""The head's loss against torch's own cross-entropy: values, gradients, and what it keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lab.perfmodel.flops import HEAD_CHUNK
from lab.worker.models import gpt
from lab.worker.models.gpt import linear_cross_entropy

TOKENS, WIDTH = 50, 24
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 3e-3,
}


@pytest.fixture(params=[TOKENS, 64, 7], ids=["one chunk", "a larger chunk", "chunks"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HEAD_CHUNK, "cpu", request.param)


def tensors(words: int = 70, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, dtype=dtype)
    weight = 0.3 * torch.randn(words, WIDTH, dtype=dtype)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(words, (TOKENS,))


def reference(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight), targets)


def assert_close(actual: Tensor | None, expected: Tensor | None, tolerance: float) -> None:
    assert actual is not None and expected is not None
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert (actual - expected).norm() <= tolerance * expected.norm()


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("words", [64, 70])
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
def test_loss_and_gradients_are_those_of_torch(dtype: torch.dtype, words: int) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    results = []
    for loss_of in (linear_cross_entropy, reference):
        hidden, weight, targets = tensors(words, wide)
        targets[::9] = -100
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != wide):
            loss = loss_of(hidden, weight, targets)
            # Twice, as accumulated gradients are.
            for factor in (3.0, 0.5):
                (factor * loss).backward(retain_graph=True)
        results.append((loss.detach(), hidden.grad, weight.grad))
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected, TOLERANCES[dtype])


def test_improbable_targets_and_large_logits_keep_their_digits() -> None:
    hidden, weight, targets = tensors(dtype=torch.float32)
    loss = linear_cross_entropy(200 * hidden, weight, targets)
    wide = (tensor.double() for tensor in (200 * hidden, weight))
    assert loss.item() > 100
    assert loss.item() == pytest.approx(reference(*wide, targets).item(), rel=1e-6)


def test_no_token_that_counts_gives_no_number_as_torch_does() -> None:
    hidden, weight, targets = tensors()
    targets.fill_(-100)
    assert linear_cross_entropy(hidden, weight, targets).isnan()
    assert reference(hidden, weight, targets).isnan()


def test_evaluation_makes_no_gradients() -> None:
    kept: list[Tensor] = []
    hidden, weight, targets = tensors()
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, targets)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(reference(hidden, weight, targets).item(), rel=1e-6)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        linear_cross_entropy(hidden, weight, targets)
    # Instead of the logits.
    assert sorted(t.numel() for t in kept) == [1, TOKENS * WIDTH, 70 * WIDTH]


def test_a_frozen_weight_gets_no_gradient() -> None:
    hidden, weight, targets = tensors()
    linear_cross_entropy(hidden, weight.detach(), targets).backward()
    alone = hidden.grad
    hidden.grad = None
    reference(hidden, weight.detach(), targets).backward()
    assert_close(alone, hidden.grad, 1e-5)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("whole", [0, 2**25], ids=["many logits", "few logits"])
def test_torch_accepts_the_operator_and_compile_looks_into_few_logits_alone(
    monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(gpt, "WHOLE_WHEN_COMPILED", whole)
    hidden, weight, targets = tensors()
    operator = torch.ops.lab.linear_cross_entropy.default
    torch.library.opcheck(operator, (hidden, weight, targets, torch.float32, True))
    constants = hidden.detach(), weight.detach(), targets
    torch.library.opcheck(operator, (*constants, torch.float32, False))
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = torch.compile(linear_cross_entropy, backend=backend, fullgraph=True)
        compiled(hidden, weight, targets)
    called = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert any("linear_cross_entropy" in name for name in called) == (whole == 0)
    assert any("cross_entropy" in name for name in called)
