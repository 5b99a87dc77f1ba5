"""One number per domain in, weights out, mostly on the simplex. A weighting knows no model."""

from steelyard.weighting.dirichlet_vote import DirichletVote
from steelyard.weighting.dynamic_weight_average import DynamicWeightAverage
from steelyard.weighting.famo import FAMO
from steelyard.weighting.fixed import Fixed
from steelyard.weighting.from_gramian import FromGramian
from steelyard.weighting.from_scalarizer import FromScalarizer
from steelyard.weighting.group_dro import GroupDRO
from steelyard.weighting.posterior import DirichletPosterior
from steelyard.weighting.relative_shift import RelativeShift
from steelyard.weighting.uncertainty_weighting import UncertaintyWeighting
from steelyard.weighting.weighting import Weighting

__all__ = [
    "FAMO",
    "DirichletPosterior",
    "DirichletVote",
    "DynamicWeightAverage",
    "Fixed",
    "FromGramian",
    "FromScalarizer",
    "GroupDRO",
    "RelativeShift",
    "UncertaintyWeighting",
    "Weighting",
]
