"""Where the best weighting is known, learned weights end closer to it than equal ones (the README's picture)."""

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "noisy_labels.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def learned(example, noise, seeds):
    runs = [example["train"](noise, "greedy", seed) for seed in seeds]
    return [run.weights[example["STEPS"] // 2 :].mean(0) for run in runs]


def test_two_domains_end_closer_to_the_best_weights_than_equal_ones(example):
    noise = example["TWO"]
    best = torch.tensor(example["best_weights"](noise))
    equal = torch.tensor([0.5, 0.5])
    for weights in learned(example, noise, seeds=(0, 1)):
        assert (weights - best).norm() < 0.6 * (equal - best).norm()


def test_three_domains_are_ranked_by_how_clean_they_are(example):
    (weights,) = learned(example, example["THREE"], seeds=(0,))
    best = torch.tensor(example["best_weights"](example["THREE"]))
    assert weights[0] > weights[1] > weights[2]
    assert (weights - best).norm() < 0.6 * (torch.full((3,), 1 / 3) - best).norm()
