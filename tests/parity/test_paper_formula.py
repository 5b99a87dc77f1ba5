"""The K-domain core equals the paper's two-domain formula."""

import random

import pytest
import torch

import steelyard as sy


@pytest.mark.parametrize("window", [1, 10, 25])
def test_two_domains_follow_the_beta_formula(window):
    draw, alpha, beta = random.Random(window), 5.0, 3.0
    weighting = sy.DirichletVote("conservative", window=window, prior=[alpha, beta])
    weighting.start(2)
    history = []
    for _ in range(60):
        losses = [draw.random(), draw.random()]
        history.append(losses[0] > losses[1])
        weighting.observe(sy.Measurement.of(torch.tensor(losses, dtype=torch.float64)))
        votes = history[-window:]
        expected = (alpha + sum(votes) - 1) / (alpha + beta + len(votes) - 2)
        assert weighting.weights() == pytest.approx((expected, 1 - expected), abs=1e-15)
