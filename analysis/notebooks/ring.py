# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # All-reduce in the kernel beside sockets
#
# Where an epoch's time goes with each backend, and what moving the all-reduce into the kernel saves.
# `RUNS` may be any run, sweep, or pattern such as `runs/*`; set it here, or in the environment.

# %%
import os

from analysis import breakdown, cdf, load, speedup, spread, throughput

RUNS = os.environ.get("NOTEBOOK_RUNS", "../examples/ring")
runs = load(RUNS)
runs.groupby("run")[["backend", "hosts", "trial", "epoch"]].nunique()

# %% [markdown]
# Each row is one measurement, with its unit.

# %%
runs[["run", "backend", "trial", "rank", "epoch", "metric", "value", "unit"]].head()

# %% [markdown]
# ## Where an epoch goes
# A thin bar is where the median is with a confidence of 95 %.

# %%
breakdown(runs, of="epoch")

# %% [markdown]
# ## Where communication goes
# Piece by piece, by the wall clock; docs/analysis.md says what pieces are.

# %%
breakdown(runs, of="communication")

# %% [markdown]
# The CPU time of all hosts and switches by class, if the run was made with `--telemetry`.

# %%
breakdown(runs)

# %% [markdown]
# ## Against sockets
# Above 1 is faster; where a thin bar reaches 1, neither can be called faster.

# %%
speedup(runs)

# %%
speedup(runs, metric="exchange_time")

# %%
throughput(runs)

# %% [markdown]
# ## How much times vary

# %%
cdf(runs, "communication_time")

# %%
spread(runs, "epoch_time")
