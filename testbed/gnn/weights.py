"""A model's gradients as one vector, which ranks sum; its weights, which they compare; and what
else it has.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from testbed.comm.backend import Backend

__all__ = ["Gradients", "digest", "flatten", "give", "pack", "unpack"]


def flatten(parameters: Iterable[nn.Parameter]) -> nn.Parameter:
    """Move parameters into one vector, and their gradients into another that is its ``grad``.

    The parameters and their ``grad`` become views of these, so that backward writes into the vector
    that is summed over ranks, and the optimizer updates one tensor: no copies in between.

    :returns: float32, shape (number of elements of all parameters,).
    """
    parameters = list(parameters)
    with torch.no_grad():
        flat = nn.Parameter(torch.cat([parameter.reshape(-1) for parameter in parameters]))
        flat.grad = torch.zeros_like(flat)
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            parameter.data = flat.data[start:end].view_as(parameter)
            parameter.grad = flat.grad[start:end].view_as(parameter)
            start = end
    return flat


class Gradients:
    """What ranks sum after each step: the gradients of all parameters as one vector, as torch's DDP
    sums them with ``find_unused_parameters``. Parameters stay where they are.

    :param parameters: float32.
    :param told: Whether ranks also tell one another which parameters a step has used: those that
        none has used keep no gradient, so that the optimizer leaves them alone. Without, all are
        used in each step.
    :ivar vector: float32: the gradients, and a number for each parameter if ranks tell.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], told: bool = False) -> None:
        self.parameters = list(parameters)
        sizes = [each.numel() for each in self.parameters]
        self.vector = torch.zeros(sum(sizes) + told * len(sizes))
        self._sums = self.vector[: sum(sizes)]
        self._used = self.vector[sum(sizes) :]
        self._views = [
            part.view(each.shape)
            for part, each in zip(torch.split(self._sums, sizes), self.parameters, strict=True)
        ]

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        for each in self.parameters:
            each.grad = None

    def collect(self) -> NDArray[np.float32]:
        """Return the vector, with this rank's gradients."""
        for each, view in zip(self.parameters, self._views, strict=True):
            if each.grad is None:
                view.zero_()
            else:
                view.copy_(each.grad.to_dense() if each.grad.is_sparse else each.grad)
        if len(self._used):
            # As large as the largest gradient, which lanes of integers are scaled by.
            mark = float(self._sums.abs().max()) if len(self._sums) else 0.0
            for place, each in enumerate(self.parameters):
                self._used[place] = 0.0 if each.grad is None else mark or 1.0
        vector: NDArray[np.float32] = self.vector.numpy()
        return vector

    def hand_out(self, world: int) -> None:
        """Give parameters the mean of the ranks' gradients: the vector, which has been summed."""
        self._sums.div_(world)
        for place, (each, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            if len(self._used) and not self._used[place]:
                each.grad = None
            elif each.stride() == view.stride():
                each.grad = view
            else:
                each.grad = torch.empty_like(each).copy_(view)


def digest(weights: Tensor) -> str:
    """Return a hash of the bits of weights."""
    return hashlib.blake2b(weights.detach().numpy().tobytes(), digest_size=8).hexdigest()


@torch.no_grad()
def give(backend: Backend, tensors: Sequence[Tensor]) -> None:
    """Give all ranks the tensors of rank 0, bit by bit, as torch's DDP does with parameters and
    buffers (`torch.distributed._broadcast_coalesced`); a collective. Ranks keep their own with a
    backend that has no broadcast.

    :param tensors: Of any types, the same on all ranks.
    :raises CollectiveError: It could not complete.
    """
    packed = pack(tensors)
    if not len(packed) or not backend.broadcasts:
        return
    words = packed.view(np.float32)
    for start in range(0, len(words), backend.spec.capacity):
        backend.broadcast(words[start : start + backend.spec.capacity])
    unpack(packed, tensors)


def pack(tensors: Sequence[Tensor]) -> NDArray[np.uint8]:
    """Return the bytes of tensors, and zeros up to a multiple of 4."""
    raw = [_bytes(tensor) for tensor in tensors]
    size = sum(len(each) for each in raw)
    return np.concatenate([*raw, np.zeros(-size % 4, np.uint8)])


@torch.no_grad()
def unpack(packed: NDArray[np.uint8], tensors: Sequence[Tensor]) -> None:
    """Give tensors the values that `pack` has packed of others of their types and shapes."""
    start = 0
    for tensor in tensors:
        end = start + tensor.numel() * tensor.element_size()
        if end == start:
            continue
        found = torch.from_numpy(packed[start:end].copy()).view(tensor.dtype)
        tensor.copy_(found.reshape(tensor.shape))
        start = end


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    found: NDArray[np.uint8] = (
        (plain if len(plain) else plain.new_empty(0, dtype=torch.uint8)).view(torch.uint8).numpy()
    )
    return found
