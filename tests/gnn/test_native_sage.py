"""Layers of our own: those of torch-geometric, and their gradients."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from testbed.gnn.full.dropout import Dropout
from testbed.gnn.model import Sage
from testbed.gnn.native_sage import Buffers, Dropped, NativeSage, sage_layer
from testbed.gnn.options import SampledModelSpec
from testbed.gnn.sampling import Block, Rows
from testbed.protocol.rows import pack_bfloat16, unpack_bfloat16


def block_of(rng: np.random.Generator, targets: int, sources: int, most: int) -> Block:
    """Targets draw 0 to `most` senders."""
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, most + 1, targets))])
    senders = rng.integers(0, sources, indptr[-1]).astype(np.int32)
    numbers = rng.permutation(10 * sources)[:sources].astype(np.int32)
    return Block(numbers, targets, indptr.astype(np.int64), senders)


def blocks_of(rng: np.random.Generator, sizes: tuple[int, ...]) -> list[Block]:
    return [block_of(rng, targets, sources, 6) for sources, targets in pairwise(sizes)]


def places_of(x: np.ndarray) -> Rows:
    """Rows in another order, and with others in between."""
    n, dim = x.shape
    order = np.random.default_rng(n).permutation(n)
    memory = np.zeros((n, dim + 3), x.dtype)
    memory[order, :dim] = x
    places = memory.ctypes.data + np.arange(n, dtype=np.uint64) * np.uint64(memory.strides[0])
    return Rows(places, order.astype(np.int32), (memory,))


def weights_of(inputs: int, outputs: int, kind: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(inputs)
    shapes = (outputs, inputs), (outputs,), (outputs, inputs)
    return tuple(torch.randn(shape, dtype=kind, requires_grad=True) for shape in shapes)


def plain(x: torch.Tensor, block: Block, weights: Any) -> torch.Tensor:
    w, b, v = weights
    mean = torch.zeros(block.num_targets, x.shape[1], dtype=x.dtype)
    for target in range(block.num_targets):
        some = block.senders[block.indptr[target] : block.indptr[target + 1]]
        if len(some):
            mean[target] = x[torch.from_numpy(some.astype(np.int64))].mean(0)
    return functional.linear(mean, w, b) + x[: block.num_targets] @ v.t()


@pytest.mark.parametrize("active", [False, True])
def test_gradients_are_those_of_differences(active: bool) -> None:
    rng = np.random.default_rng(1)
    block = block_of(rng, 5, 9, 4)
    x = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    dropped = Dropped(0.4, rng.integers(0, 1 << 32, 5).astype(np.uint32)) if active else None

    def layer(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return sage_layer(x, block, weights, Buffers(), dropped=dropped)

    assert torch.autograd.gradcheck(layer, (x, *weights_of(3, 4, torch.float64)))


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 3), (16, 7), (31, 32), (64, 1), (150, 40)])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_layers_of_all_widths(inputs: int, outputs: int, kind: torch.dtype) -> None:
    block = block_of(np.random.default_rng(inputs), 20, 33, 40)
    x = torch.randn(33, inputs, dtype=kind, requires_grad=True)
    weights = weights_of(inputs, outputs, kind)
    expected = plain(x, block, weights)
    found = sage_layer(x, block, weights, Buffers())
    torch.testing.assert_close(found, expected)
    g = torch.randn(20, outputs, dtype=kind)
    every = (x, *weights)
    for one, other in zip(
        torch.autograd.grad(found, every, g), torch.autograd.grad(expected, every, g), strict=True
    ):
        torch.testing.assert_close(one, other)


SPEC = SampledModelSpec(hidden=48, layers=3, fanout=(4, 3, 2), dropout=0.0)


def models(**types: Any) -> tuple[Sage, NativeSage]:
    torch.manual_seed(1)
    one = Sage(SPEC, 20, 5)
    torch.manual_seed(1)
    return one, NativeSage(SPEC, 20, 5, **types)


def gradients(model: Sage, x: Any, blocks: list[Block]) -> list[torch.Tensor]:
    """Logits, and the gradient of each weight."""
    model.zero_grad()
    logits = model(x, blocks)
    y = torch.arange(len(logits)) % 5
    functional.cross_entropy(logits, y).backward()
    return [logits.detach().clone(), *(each.grad.clone() for each in model.parameters())]


def test_the_model_is_that_of_torch_geometric() -> None:
    """To 1e-6, whatever minibatches have been in its memory before, and wherever features are."""
    rng = np.random.default_rng(2)
    pyg, native = models()
    for sizes in ((90, 60, 40, 20), (400, 300, 200, 100), (50, 30, 20, 10)):
        blocks = blocks_of(rng, sizes)
        x = rng.standard_normal((sizes[0], 20)).astype(np.float32)
        expected = gradients(pyg, torch.from_numpy(x), blocks)
        for features in (torch.from_numpy(x), places_of(x)):
            for one, other in zip(gradients(native, features, blocks), expected, strict=True):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_features_of_16_bits_are_added_in_32() -> None:
    rng = np.random.default_rng(3)
    blocks = blocks_of(rng, (90, 60, 40, 20))
    x = rng.standard_normal((90, 20)).astype(np.float32)
    halves = pack_bfloat16(x)
    pyg, native = models(rows_of=torch.bfloat16)
    expected = gradients(pyg, torch.from_numpy(unpack_bfloat16(halves)), blocks)
    for one, other in zip(gradients(native, places_of(halves), blocks), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_layers_that_compute_in_bfloat16_are_close() -> None:
    rng = np.random.default_rng(4)
    blocks = blocks_of(rng, (90, 60, 40, 20))
    x = rng.standard_normal((90, 20)).astype(np.float32)
    pyg, native = models(rows_of=torch.bfloat16, kind=torch.bfloat16)
    expected = gradients(pyg, torch.from_numpy(x), blocks)
    for one, other in zip(
        gradients(native, places_of(pack_bfloat16(x)), blocks), expected, strict=True
    ):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 0.03


def test_dropout_is_that_of_full_graphs() -> None:
    """What is dropped depends on seed, layer, moment, vertex and column alone."""
    block = block_of(np.random.default_rng(5), 50, 80, 3)
    x, weights = torch.randn(80, 8), weights_of(8, 30, torch.float32)
    targets = block.sources[:50]
    module = Dropout(0.25, 7, 1, targets.astype(np.int64))
    module.epoch = 3
    expected = functional.relu(plain(x, block, weights)) * module.mask(30)
    found = sage_layer(x, block, weights, Buffers(), dropped=Dropped(0.25, module.keys()))
    torch.testing.assert_close(found, expected)


def test_dropout_changes_with_each_step_and_not_in_evaluation() -> None:
    rng = np.random.default_rng(6)
    blocks = blocks_of(rng, (90, 60, 40, 20))
    x = torch.from_numpy(rng.standard_normal((90, 20)).astype(np.float32))
    pyg, native = models()
    native.dropout = 0.5
    found = []
    for moment in (1, 2, 1):
        native.begin(moment)
        found.append(native.train()(x, blocks).detach().clone())
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(native.eval()(x, blocks), pyg.eval()(x, blocks))


def allocated(work: Callable[[], Any]) -> int:
    """Bytes that torch allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    return sum(max(each.self_cpu_memory_usage, 0) for each in found.key_averages())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_nothing_is_allocated_after_the_largest_minibatch(kind: torch.dtype) -> None:
    rng = np.random.default_rng(7)
    _, native = models(kind=kind)
    x = torch.from_numpy(rng.standard_normal((400, 20)).astype(np.float32))
    gradient = torch.ones(100, 5)

    def step(blocks: list[Block]) -> None:
        logits = native(x[: len(blocks[0].sources)], blocks)
        logits.backward(gradient[: len(logits)])

    step(blocks_of(rng, (400, 300, 200, 100)))
    small = blocks_of(rng, (90, 60, 40, 20))
    before = native.allocations
    assert allocated(lambda: step(small)) == 0
    assert native.allocations == before > 0
    pyg, _ = models()
    assert allocated(lambda: pyg(x[:90], small)) > 0


def test_a_gradient_that_comes_too_late_is_refused() -> None:
    block = block_of(np.random.default_rng(8), 5, 9, 4)
    x, weights, buffers = torch.randn(9, 3), weights_of(3, 4, torch.float32), Buffers()
    first = sage_layer(x, block, weights, buffers)
    sage_layer(x, block, weights, buffers)
    with pytest.raises(RuntimeError, match=r"^sage_layer: its buffers have been used again before"):
        first.sum().backward()
