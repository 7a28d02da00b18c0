"""Edges as a sparse matrix of ones, for products with rows of embeddings."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["matrix_of_ones"]


def matrix_of_ones(indptr: NDArray[np.int64], indices: NDArray[Any]) -> Tensor:
    """Return a square sparse matrix with a one for each edge, repeated edges apart.

    :param indptr: Shape (n + 1,): row v has ones in the columns
        ``indices[indptr[v]:indptr[v + 1]]``.
    """
    n = len(indptr) - 1
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(indptr.astype(np.int32)),
            torch.from_numpy(indices.astype(np.int32)),
            torch.ones(len(indices)),
            (n, n),
            check_invariants=False,  # they forbid repeated edges, which are summed correctly
        )
