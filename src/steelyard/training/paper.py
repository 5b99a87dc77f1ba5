"""The paper's setting, under one name."""

from collections.abc import Mapping, Sequence

from steelyard.probing import InnerLoop
from steelyard.training.balancer import Balancer
from steelyard.training.domain_losses import Loss
from steelyard.weighting import DirichletVote
from steelyard.weighting.dirichlet_vote import Choice


def paper_balancer(
    domains: Sequence[str],
    *,
    loss: Loss | Mapping[str, Loss],
    choice: Choice = "conservative",
    window: int = 25,
    prior: float = 5.0,
) -> Balancer:
    """A balancer as in the paper: exact votes, judged by the loss, counted by the mode of a Dirichlet posterior.

    Args:
        domains: the names of the domains.
        loss: one for all, or a mapping of domain name to loss.
        choice: `conservative` or `greedy`.
        window: how many of the last votes count.
        prior: α of the Dirichlet prior.

    Reference: Sicilia et al., Multi-Domain Learning by Meta-Learning, ISBI 2021.

    >>> import torch
    >>> paper_balancer(("flair", "t1"), loss=torch.nn.functional.mse_loss).weights
    {'flair': 0.5, 't1': 0.5}
    """
    weighting = DirichletVote(choice, window=window, prior=prior)
    return Balancer(domains, loss=loss, weighting=weighting, probe=InnerLoop(), judge="loss")
