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
# # A run under faults
#
# Which frames met a fault, what was sent again, and what it cost. `RUNS` is one run with faults;
# set it here, or in the environment.

# %%
import os
from pathlib import Path

import pandas as pd

from analysis import breakdown, cdf, load, spread

RUNS = os.environ.get("NOTEBOOK_RUNS", "../examples/faults")
runs = load(RUNS)
spread(runs, "epoch_time")

# %% [markdown]
# ## Frames that met each rule

# %%
fired = runs[runs["metric"] == "faults_fired"]
(
    fired.pivot_table(index="fault", columns="backend", values="value", aggfunc="sum")
    if len(fired)
    else "no rule has fired"
)

# %% [markdown]
# ## What was sent again
# By one rank in an epoch.

# %%
spread(runs, "retransmissions")

# %%
breakdown(runs, of="epoch")

# %%
cdf(runs, "exchange_time")

# %% [markdown]
# ## The log
# Each frame that met a rule, and each event, with its time since the start of its turn.

# %%
place = Path(RUNS) / "faults.parquet"
log = pd.read_parquet(place) if place.exists() else pd.DataFrame(columns=["backend", "action"])
log.groupby(["backend", "action"]).size()
