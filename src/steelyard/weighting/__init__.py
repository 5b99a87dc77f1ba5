"""One number per domain in, weights on the simplex out. A weighting knows no model."""

from steelyard.weighting.dirichlet_vote import DirichletVote
from steelyard.weighting.fixed import Fixed
from steelyard.weighting.posterior import DirichletPosterior
from steelyard.weighting.relative_shift import RelativeShift
from steelyard.weighting.weighting import Weighting

__all__ = ["DirichletPosterior", "DirichletVote", "Fixed", "RelativeShift", "Weighting"]
