"""Masks by seed, epoch, layer and vertex."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.gnn.full.dropout import Dropout


@given(st.sets(st.integers(0, 999), min_size=1, max_size=40), st.integers(1, 70), st.integers(0, 3))
def test_a_vertex_has_the_same_mask_wherever_it_is(chosen: set[int], dim: int, epoch: int) -> None:
    vertices = np.array(sorted(chosen))
    part, whole = Dropout(0.5, 3, 1, vertices), Dropout(0.5, 3, 1, np.arange(1000))
    part.epoch = whole.epoch = epoch
    assert torch.equal(part.mask(dim), whole.mask(dim)[vertices])


def test_masks_differ_by_seed_layer_and_epoch() -> None:
    made = []
    for seed, layer, epoch in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)):
        dropout = Dropout(0.5, seed, layer, np.arange(500))
        dropout.epoch = epoch
        made.append(dropout.mask(40) > 0)
    for i, a in enumerate(made):
        for b in made[i + 1 :]:
            assert (a == b).float().mean() == pytest.approx(
                0.5, abs=0.02
            )  # 20,000 independent bits: seven deviations


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_shares_of_rows_and_columns(p: float) -> None:
    kept = Dropout(p, 7, 0, np.arange(4000)).mask(300) > 0
    assert kept.float().mean() == pytest.approx(1 - p, abs=0.002)
    assert (kept.float().mean(0) - (1 - p)).abs().max() < 0.05  # at least five deviations
    assert (kept.float().mean(1) - (1 - p)).abs().max() < 0.2


def test_expectation_is_kept_and_evaluation_drops_nothing() -> None:
    dropout = Dropout(0.25, 1, 0, np.arange(2000))
    x = torch.ones(2000, 50)
    assert set(dropout(x).unique().tolist()) == {0.0, float(np.float32(1 / 0.75))}
    assert dropout.eval()(x) is x
    assert Dropout(0.0, 1, 0, np.arange(2000))(x) is x
