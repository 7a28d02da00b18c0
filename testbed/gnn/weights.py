"""A model's weights as one vector, which ranks sum, update and compare."""

import hashlib

import torch
from torch import Tensor, nn

__all__ = ["digest", "flatten"]


def flatten(model: nn.Module) -> nn.Parameter:
    """Move all parameters into one vector, and all gradients into another that is its ``grad``.

    The model's own parameters and their ``grad`` become views of these, so that backward writes
    into the vector that is summed over ranks, and the optimizer updates one tensor: no copies in
    between.

    :returns: float32, shape (number of parameters,).
    """
    parameters = list(model.parameters())
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


def digest(weights: Tensor) -> str:
    """Return a hash of the bits of weights."""
    return hashlib.blake2b(weights.detach().numpy().tobytes(), digest_size=8).hexdigest()
