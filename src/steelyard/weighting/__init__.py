"""Weightings: a measurement of the domains in, one weight per domain out.

One method, one file. A weighting does not know the model or the probe that measured. Most give weights on the simplex:
none is negative and they sum to 1.
"""

from steelyard.weighting.dirichlet_vote import DirichletVote
from steelyard.weighting.dual_balancing import DualBalancing
from steelyard.weighting.dynamic_weight_average import DynamicWeightAverage
from steelyard.weighting.evidence import Evidence
from steelyard.weighting.famo import FAMO
from steelyard.weighting.fixed import Fixed
from steelyard.weighting.from_gramian import FromGramian
from steelyard.weighting.from_scalarizer import FromScalarizer
from steelyard.weighting.group_dro import GroupDRO
from steelyard.weighting.log_loss import LogLoss
from steelyard.weighting.posterior import DirichletPosterior
from steelyard.weighting.relative_shift import RelativeShift
from steelyard.weighting.uncertainty_weighting import UncertaintyWeighting
from steelyard.weighting.weighting import Weighting

__all__ = [
    "FAMO",
    "DirichletPosterior",
    "DirichletVote",
    "DualBalancing",
    "DynamicWeightAverage",
    "Evidence",
    "Fixed",
    "FromGramian",
    "FromScalarizer",
    "GroupDRO",
    "LogLoss",
    "RelativeShift",
    "UncertaintyWeighting",
    "Weighting",
]
