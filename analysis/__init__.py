"""Tables, figures and reports made from results, and a small library for notebooks::

from analysis import breakdown, cdf, load, speedup, throughput

runs = load("runs/*")
speedup(runs, baseline="tcp-ring").save("speedup")
"""

import analysis.mpl  # noqa: F401  # first
from analysis.charts import Chart, breakdown, cdf, speedup, spread, throughput, trend
from analysis.loading import load

__all__ = ["Chart", "breakdown", "cdf", "load", "speedup", "spread", "throughput", "trend"]
