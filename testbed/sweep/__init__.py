"""Many runs of one scenario or bench: a grid over its keys, resumable. See docs/sweeps.md."""

from testbed.sweep.grid import Cell, Trial
from testbed.sweep.ledger import Ledger
from testbed.sweep.player import Place, Player, play
from testbed.sweep.sweep_file import Sweep, load_sweep

__all__ = ["Cell", "Ledger", "Place", "Player", "Sweep", "Trial", "load_sweep", "play"]
