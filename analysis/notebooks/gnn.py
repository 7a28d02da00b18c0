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
# # Full-graph training: neighbours' embeddings through the kernel
#
# An exchange brings each rank the sums over neighbours that other ranks own. This notebook splits an
# epoch and counts what is sent. `RUNS` may be any run or pattern; set it here, or in the environment.

# %%
import os

from analysis import breakdown, cdf, load, speedup, spread

RUNS = os.environ.get("NOTEBOOK_RUNS", "../examples/gnn")
runs = load(RUNS)
runs.groupby(["run", "backend"])["epoch"].nunique()

# %% [markdown]
# ## Where an epoch goes

# %%
breakdown(runs, of="epoch")

# %% [markdown]
# ## Where communication goes
# Piece by piece, by the wall clock; docs/analysis.md says what pieces are.

# %%
breakdown(runs, of="communication")

# %%
breakdown(runs)

# %% [markdown]
# ## Against the best exchange over sockets
# The epoch, and the exchanges alone, without waiting for the last rank.

# %%
speedup(runs)

# %%
speedup(runs, metric="exchange_time")

# %% [markdown]
# ## What is sent
# By one rank in an epoch: the mean over ranks, the median over epochs.

# %%
metrics = ["wire_bytes", "packets", "retransmissions"]
found = [metric for metric in metrics if metric in set(runs["metric"])]
{metric: spread(runs, metric)["median"].to_dict() for metric in found}

# %% [markdown]
# Crossings from user to kernel are system calls and page faults within the collectives.

# %%
spread(runs, "crossings") if "crossings" in set(runs["metric"]) else None

# %%
cdf(runs, "epoch_time")
