"""Graph data sets, models and data-parallel training."""
