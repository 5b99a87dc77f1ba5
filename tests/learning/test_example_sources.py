"""The audits of two examples name the source with poor labels, and no other source for its labels."""

import runpy
from pathlib import Path

import pytest

import steelyard as sy

EXAMPLES = Path(__file__).parents[2] / "examples"


def noisy(audit):
    return {flag.domain for flag in audit.flags if flag.kind == "noisy labels"}


def test_the_hospital_with_wrong_codes():
    example = runpy.run_path(str(EXAMPLES / "hospitals.py"))
    balancer, loss = example["train"](sy.Evidence(), 0)
    assert noisy(balancer.audit()) == set(example["WRONG"])
    assert balancer.shares["south"] < 0.1
    assert loss < 0.6  # log 2 is that of no model


@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning", "ignore:.*LeafSpec:FutureWarning")
def test_the_careless_clerk():
    pytest.importorskip("lightning")
    example = runpy.run_path(str(EXAMPLES / "poor_source.py"))
    balancer, accuracy = example["train"](sy.Evidence(), 0)
    assert noisy(balancer.audit()) == {example["POOR"]}
    assert accuracy > 0.9
