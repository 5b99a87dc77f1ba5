"""How much code one step of a first-order vote runs through."""

import sys
from pathlib import Path

import torch
from torch import nn

import steelyard as sy
from toys import balancer, batch, smooth

SOURCE = Path(sy.__file__).parent


def files_run(function):
    """The files of the package in which a call executes code."""
    names = set()

    def trace(frame, event, argument):
        names.add(frame.f_code.co_filename)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return {name for name in names if name.startswith(str(SOURCE))}


def test_a_step_of_a_first_order_vote_runs_code_in_at_most_23_files():
    model = smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    judge = balancer(probe=sy.FirstOrder(), loss=nn.functional.mse_loss)
    for most in (27, 23):  # the first vote compares, audits and yields scores as well
        assert len(files_run(lambda: judge(model, batch(), optimizer).backward())) <= most


def test_probing_has_at_most_14_modules():
    assert len(list((SOURCE / "probing").glob("*.py"))) <= 14
