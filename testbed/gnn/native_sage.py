"""GraphSAGE on sampled blocks with layers of our own, for minibatches that follow one another.

A layer is one function of torch's autograd: the mean of the senders' rows, which are read where
they are, two products, ReLU and dropout (``testbed/native/sage.c``). What it needs is kept and used
again by the next minibatch: `Buffers`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.gnn.full.dropout import row_keys
from testbed.gnn.model import Sage
from testbed.gnn.options import ModelSpec
from testbed.gnn.sampling import Block, Rows
from testbed.kernel.abi import Struct
from testbed.native import load

__all__ = ["Buffers", "Dropped", "NativeSage", "computes_halves", "sage_layer"]

_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
_P, _U32, _U64, _DOUBLE = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_double
_SIGNATURES: dict[str, list[Any]] = {
    "sum": [_P, _P, _P, _P, _U64, _P],
    "copy": [_P, _U64, _P],
    "activate": [_P, _P, _U64, _U64, _U32, _DOUBLE],
    "deactivate": [_P, _P, _U64, _DOUBLE, _P],
    "transpose": [_P, _U64, _P, _P],
}


@cache
def _function(name: str, *types: torch.dtype) -> Any:
    function = getattr(load("sage"), "_".join(["sage", name, *(_NAMES[each] for each in types)]))
    function.restype, function.argtypes = None, _SIGNATURES[name]
    return function


@cache
def computes_halves() -> bool:
    """Whether this CPU multiplies bfloat16 at least as fast as float32."""
    words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    return bool(words & {"avx512_bf16", "amx_bf16"})


class Buffers:
    """Memory of tensors by name, which grows and is never given back.

    :ivar allocations: How often it has grown.
    :ivar uses: Calls of `sage_layer` that have used it.
    """

    def __init__(self) -> None:
        self.allocations = self.uses = 0
        self._found: dict[str, Tensor] = {}

    def take(self, name: str, rows: int, columns: int, kind: torch.dtype) -> Tensor:
        """Return a matrix with any content, which is where the last one of that name was."""
        size, found = rows * columns, self._found.get(name)
        if found is None or len(found) < size or found.dtype != kind:
            self.allocations += 1
            self._found[name] = found = torch.empty(size + size // 8, dtype=kind)
        return found[:size].view(rows, columns)


@dataclass(frozen=True)
class Dropped:
    """What dropout leaves out, after ReLU.

    :param p: Share of elements, 0 <= p < 1.
    :param keys: uint32, of each target: what decides about its elements (`row_keys`).
    """

    p: float
    keys: NDArray[np.uint32]


def sage_layer(
    x: Tensor | Rows,
    block: Block,
    weights: tuple[Tensor, Tensor, Tensor],
    buffers: Buffers,
    *,
    dropped: Dropped | None = None,
    rows_of: torch.dtype | None = None,
    kind: torch.dtype | None = None,
    result: torch.dtype | None = None,
) -> Tensor:
    """Return a layer's output, shape (targets, outputs): ``mean(x[senders]) Wᵀ + b + x[target] Vᵀ``
    (Hamilton, Ying and Leskovec, NeurIPS 2017).

    It is in `buffers`, and so is what its gradient needs: differentiate before the next call with
    these.

    :param x: Rows of the block's sources, shape (sources, inputs).
    :param weights: W and b, for the mean, and V, for the target itself.
    :param dropped: Apply ReLU and dropout.
    :param rows_of: The type of `x` where that is `Rows`; `kind`: what is computed in; default: the
        weights' type, and sums of bfloat16 are formed in float32; `result`: the output's, by
        default what is computed in.
    """
    kind = kind or weights[0].dtype
    rows = x if isinstance(x, Rows) else None
    call = _Call(block, buffers, dropped, kind, result or kind, rows, rows_of or kind)
    dense = torch.empty(0, 0) if isinstance(x, Rows) else x
    made: Tensor = _Layer.apply(dense, *weights, call)  # type: ignore[no-untyped-call]
    return made


@dataclass
class _Call:
    block: Block
    buffers: Buffers
    dropped: Dropped | None
    kind: torch.dtype
    result: torch.dtype
    rows: Rows | None
    rows_of: torch.dtype

    def take(self, name: str, rows: int, columns: int, kind: torch.dtype | None = None) -> Tensor:
        return self.buffers.take(name, rows, columns, kind or self.kind)

    def cast(self, name: str, x: Tensor, kind: torch.dtype | None = None) -> Tensor:
        """Return `x` in another type, by default the one that is computed in."""
        kind = kind or self.kind
        return x if x.dtype == kind else self.take(name, x.shape[0], x.shape[1], kind).copy_(x)

    def sums(self) -> Struct:
        block = self.block
        return Struct(
            "sage_sums",
            indptr=block.indptr.ctypes.data,
            senders=block.senders.ctypes.data,
            count=block.num_targets,
        )

    def input(self, x: Tensor, inputs: int) -> Struct:
        """Where the rows of sources are."""
        rows = self.rows
        if rows is None:
            return _dense(x)
        return Struct(
            "sage_rows",
            places=rows.places.ctypes.data,
            numbers=rows.numbers.ctypes.data,
            dim=inputs,
        )


def _dense(x: Tensor) -> Struct:
    row_bytes = x.element_size() * x.shape[1]
    return Struct("sage_rows", base=x.data_ptr(), row_bytes=row_bytes, dim=x.shape[1])


class _Layer(torch.autograd.Function):
    """The autograd function of `sage_layer`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, v: Tensor, call: _Call) -> Tensor:
        block, inputs, outputs = call.block, w.shape[1], w.shape[0]
        n, kind = block.num_targets, call.kind
        x = call.cast("x", x.contiguous())
        rows, sums = call.input(x, inputs), call.sums()
        types = call.rows_of if call.rows else kind, kind
        mean, own = call.take("mean", n, inputs), x[:n]
        _function("sum", *types)(rows.address, sums.address, None, None, 0, mean.data_ptr())
        if call.rows:
            own = call.take("own", n, inputs)
            _function("copy", *types)(rows.address, n, own.data_ptr())
        w, v = call.cast("w", w), call.cast("v", v)
        bias = call.cast("b", b[None])[0]
        out = torch.addmm(bias, mean, w.t(), out=call.take("out", n, outputs))
        out.addmm_(own, v.t())
        if dropped := call.dropped:
            scale = 1 / (1 - dropped.p)
            threshold = int(dropped.p * 2**32)
            _function("activate", kind, kind)(
                out.data_ptr(), dropped.keys.ctypes.data, n, outputs, threshold, scale
            )
        call.buffers.uses += 1
        ctx.call, ctx.kept, ctx.weights = call, (mean, own, w, v, out), b.dtype
        ctx.use = call.buffers.uses
        return call.cast("result", out, call.result).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        call, (mean, own, w, v, out) = ctx.call, ctx.kept
        kind, weights = call.kind, ctx.weights
        if ctx.use != call.buffers.uses:
            raise RuntimeError("sage_layer: its buffers have been used again before its gradient")
        g = call.cast("gradient", gradients[0].contiguous())
        if dropped := call.dropped:
            scale, active = 1 / (1 - dropped.p), call.take("active", *out.shape)
            _function("deactivate", kind, kind)(
                out.data_ptr(), g.data_ptr(), out.numel(), scale, active.data_ptr()
            )
            g = active
        needs = ctx.needs_input_grad
        found: list[Tensor | None] = [None] * 4
        if needs[1]:
            made = torch.mm(g.t(), mean, out=call.take("gradient w", *w.shape))
            found[1] = call.cast("exact w", made, weights)
        if needs[2]:
            made = call.take("gradient b", 1, w.shape[0])
            torch.sum(g, 0, keepdim=True, out=made)
            found[2] = call.cast("exact b", made, weights)[0]
        if needs[3]:
            made = torch.mm(g.t(), own, out=call.take("gradient v", *v.shape))
            found[3] = call.cast("exact v", made, weights)
        if needs[0]:
            found[0] = _to_sources(call, g, w, v)
        return (*found, None)  # torch casts the first to the type of x


def _to_sources(call: _Call, g: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Return the gradient of sources: each one's of the means that it is in, and a target's of
    itself.
    """
    block, kind = call.block, call.kind
    n, sources, inputs = block.num_targets, len(block.sources), w.shape[1]
    of_mean = torch.mm(g, w, out=call.take("gradient mean", n, inputs))
    of_own = torch.mm(g, v, out=call.take("gradient own", n, inputs))
    exact = torch.float64 if kind == torch.float64 else torch.float32
    factors = call.take("factors", 1, n, exact)
    degrees = np.maximum(np.diff(block.indptr), 1)
    np.divide(1, degrees, out=factors[0].numpy(), casting="same_kind")
    starts = call.take("starts", 1, sources + 2, torch.int64)
    receivers = call.take("receivers", 1, len(block.senders), torch.int32)
    sums, rows = call.sums(), _dense(of_mean)
    _function("transpose")(sums.address, sources, starts.data_ptr(), receivers.data_ptr())
    transposed = Struct(
        "sage_sums", indptr=starts.data_ptr(), senders=receivers.data_ptr(), count=sources
    )
    to = call.take("gradient x", sources, inputs)
    _function("sum", kind, kind)(
        *(rows.address, transposed.address, factors.data_ptr()),
        *(of_own.data_ptr(), n, to.data_ptr()),
    )
    return to


class NativeSage(Sage):
    """`Sage` by `sage_layer`: the same weights, and the same logits up to rounding.

    Dropout is a hash of what `begin` is given, layer, vertex and column (`row_keys`).

    :param kind: What layers compute in; weights are float32.
    :param rows_of: The type of features that `forward` gets as `Rows`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        feature_dim: int,
        num_classes: int,
        kind: torch.dtype = torch.float32,
        rows_of: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(spec, feature_dim, num_classes)
        self.kind, self.rows_of = kind, rows_of
        self.memory = [Buffers() for _ in self.layers]
        self._moment = 0

    @property
    def allocations(self) -> int:
        """How often memory of layers has grown."""
        return sum(each.allocations for each in self.memory)

    def begin(self, moment: int) -> None:
        """Begin a step: `moment` decides, with layer, vertex and column, what is dropped."""
        self._moment = moment

    def forward(self, x: Tensor | Rows, blocks: Sequence[Block]) -> Tensor:
        """See `Sage.forward`; the logits stand in memory that the next call uses again."""
        for depth, block in enumerate(blocks):
            layer: Any = self.layers[depth]
            weights = layer.lin_l.weight, layer.lin_l.bias, layer.lin_r.weight
            x = sage_layer(
                *(x, block, weights, self.memory[depth]),
                dropped=self._dropped(depth, block) if depth + 1 < len(blocks) else None,
                rows_of=self.rows_of,
                kind=self.kind,
                result=self.kind if depth + 1 < len(blocks) else torch.float32,
            )
        assert isinstance(x, Tensor)
        return x

    def _dropped(self, depth: int, block: Block) -> Dropped:
        targets = block.sources[: block.num_targets]
        p = self.dropout if self.training else 0.0
        return Dropped(p, row_keys(depth, self._moment, targets))
