"""What part of a batch each domain should have, and what is refused."""

import re

import pytest
from torch.nn.functional import mse_loss

import steelyard as sy
from steelyard.sampling.shares import is_followed, make_shares

LENGTHS = {"a": 100, "b": 25}


class Weights:
    def __init__(self, **weights):
        self.weights = weights


def normalised(shares):
    return {name: share / sum(shares.values()) for name, share in shares.items()}


@pytest.mark.parametrize(
    ("sampling", "follow", "expected", "followed"),
    [
        ("balanced", None, 0.5, False),
        ("proportional", None, 0.8, False),
        ("sqrt", "loss", 2 / 3, False),
        ({"a": 3, "b": 1}, None, 0.75, False),
        (Weights(a=0.9, b=0.1), None, 0.9, True),
        (Weights(a=0.9, b=0.1), "sampling", 0.9, True),
        (Weights(a=0.9, b=0.1), "both", 0.75, True),
        (Weights(a=0.9, b=0.1), "loss", 0.5, False),
        (Weights(a=9.0, b=1.0, other=5.0), None, 0.9, True),  # weights need not sum to 1, and may be of more domains
        (lambda: {"a": 1.0, "b": 3.0}, None, 0.25, True),
    ],
)
def test_shares(sampling, follow, expected, followed):
    assert is_followed(sampling, follow) == followed
    shares = normalised(make_shares(sampling, follow, LENGTHS)())
    assert shares == pytest.approx({"a": expected, "b": 1 - expected})


def test_weights_are_read_when_a_batch_is_drawn():
    weights = Weights(a=0.5, b=0.5)
    shares = make_shares(weights, None, LENGTHS)
    weights.weights = {"a": 0.2, "b": 0.8}
    assert shares() == {"a": 0.2, "b": 0.8}


def test_a_balancer_can_be_followed_and_its_shares():
    balancer = sy.Balancer(("a", "b"), loss=mse_loss, weighting=sy.Fixed([0.3, 0.7]))
    assert make_shares(balancer, "sampling", LENGTHS)() == balancer.weights
    assert make_shares(lambda: balancer.shares, None, LENGTHS)() == balancer.shares


@pytest.mark.parametrize(
    ("sampling", "follow", "error", "message"),
    [
        ("fair", None, ValueError, "sampling must be 'balanced', .* got 'fair'"),
        (sy.Balancer, None, TypeError, "got the class Balancer"),
        (
            "balanced",
            "both",
            ValueError,
            "follow='both' needs weights to follow: pass sampling=balancer",
        ),
        ("balanced", "all", ValueError, "follow must be 'loss', 'sampling' or 'both'; got 'all'"),
        ({"a": 1}, None, ValueError, "sampling must hold a number for each of ('a', 'b'); got none for 'b'"),
        ({"a": 1, "b": 1, "c": 1}, None, ValueError, "sampling must name domains among ('a', 'b'); got 'c'"),
        ({"a": 1, "b": -1}, None, ValueError, "sampling must be finite, not negative, and above 0 for some domain"),
        ({"a": 0, "b": 0}, None, ValueError, "above 0 for some domain"),
        (Weights(a=float("nan"), b=1.0), None, ValueError, "the weights must be finite"),
        (Weights(a=1.0), None, ValueError, "the weights must hold a number for each of ('a', 'b'); got none for 'b'"),
        (lambda: 3, None, ValueError, "the weights must hold a number for each"),
    ],
)
def test_what_is_refused(sampling, follow, error, message):
    with pytest.raises(error, match=message if ".*" in message else re.escape(message)):
        make_shares(sampling, follow, LENGTHS)


@pytest.mark.parametrize("sampling", ["proportional", "sqrt"])
def test_lengths_that_are_unknown_give_no_shares(sampling):
    with pytest.raises(ValueError, match=f"'{sampling}' needs lengths, and domain 'b' has none: pass a mapping"):
        make_shares(sampling, None, {"a": 3, "b": None})
    assert make_shares("balanced", None, {"a": 3, "b": None})() == {"a": 1.0, "b": 1.0}
