"""The interface of all partitioners: vertices arrive in some order, a few or all at a time, and
each is assigned a part.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import SpecError

__all__ = ["Owners", "Partitioner"]

Owners = NDArray[np.int32]
"""Shape (n,): the part that owns each vertex, 0..parts-1."""


class Partitioner(ABC):
    """It is created for one graph, and may keep state about earlier decisions.

    :cvar streams: Whether vertices may arrive a few at a time; otherwise `assign` is called once,
        with all of them.
    :param num_vertices: Vertices of the graph.
    :param parts: Number of parts.
    :param seed: Seed of all draws: the same seed and order give the same owners.
    :ivar training: The vertices that are trained on, where they are known.
    :raises SpecError: There are fewer vertices than parts.
    """

    name: ClassVar[str]
    streams: ClassVar[bool] = True
    training: NDArray[np.integer[Any]] | None = None

    def __init__(self, num_vertices: int, parts: int, seed: int = 0) -> None:
        if not 1 <= parts <= num_vertices:
            raise SpecError(
                f"partitioner {self.name}: {parts} parts of {num_vertices} vertices: must be 1 to"
                " one per vertex"
            )
        self.num_vertices, self.parts, self.seed = num_vertices, parts, seed

    @abstractmethod
    def assign(
        self, vertices: NDArray[np.int64], indptr: NDArray[np.int64], indices: NDArray[np.int32]
    ) -> Owners:
        """Choose the final owners of the next vertices.

        :param vertices: Shape (k,); each vertex of the graph is passed once.
        :param indptr: Shape (k + 1,): the neighbours of ``vertices[i]`` are
            ``indices[indptr[i]:indptr[i + 1]]``, whether or not they have been passed.
        :returns: int32, shape (k,).
        """
