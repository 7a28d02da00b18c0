"""Pickles as Python 2's cPickle wrote them (protocol 2): bytes are strings in latin-1, and modules
have their old names.
"""

import io
import pickle
from typing import Any

__all__ = ["dumps"]

OLD_NAMES = {
    "numpy._core.multiarray": "numpy.core.multiarray",
    "scipy.sparse._csr": "scipy.sparse.csr",
    "builtins": "__builtin__",
}


# The one in Python, whose methods can be replaced.
PicklerInPython: Any = pickle._Pickler  # type: ignore[attr-defined]  # noqa: SLF001


class Python2Pickler(PicklerInPython):
    dispatch = dict(PicklerInPython.dispatch)

    def save_bytes(self, data: bytes) -> None:
        self.write(pickle.BINSTRING + len(data).to_bytes(4, "little") + data)
        self.memoize(data)

    def save_text(self, text: str) -> None:
        data = text.encode("latin1")
        self.write(pickle.SHORT_BINSTRING + len(data).to_bytes(1, "little") + data)
        self.memoize(text)

    def save_global(self, value: Any, name: str | None = None) -> None:
        module = OLD_NAMES.get(value.__module__, value.__module__)
        self.write(pickle.GLOBAL + f"{module}\n{name or value.__qualname__}\n".encode())
        self.memoize(value)

    dispatch[bytes] = save_bytes
    dispatch[str] = save_text
    dispatch[type] = save_global
    dispatch[type(len)] = save_global  # numpy's _reconstruct is a builtin
    dispatch[type(save_bytes)] = save_global


def dumps(value: Any) -> bytes:
    """Pickle a value."""
    written = io.BytesIO()
    Python2Pickler(written, 2).dump(value)
    return written.getvalue()
