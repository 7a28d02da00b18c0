"""Imports matplotlib, whatever MPLBACKEND names: figures here are drawn without a backend, so one
that matplotlib does not know must not matter.
"""

import contextlib
import os

_named = os.environ.pop("MPLBACKEND", None)
import matplotlib  # noqa: E402

if _named is not None:
    os.environ["MPLBACKEND"] = _named
    with contextlib.suppress(ValueError):
        matplotlib.rcParams["backend"] = _named
