"""Train one model that serves several domains well, by learning how much each domain's loss should weigh.

>>> import torch, steelyard as sy
>>> balancer = sy.Balancer(
...     domains=("flair", "t1"),
...     loss=torch.nn.functional.mse_loss,
...     weighting=sy.DirichletVote("conservative", window=25, prior=5.0),
...     probe=sy.InnerLoop(),
... )
>>> balancer.weights
{'flair': 0.5, 't1': 0.5}
"""

from importlib.metadata import version

from steelyard.batches import Samples, split_by_domain
from steelyard.measurement import Measurement, Outcome, Statistic, Verdict
from steelyard.probing import Finding, FirstOrder, Gramian, InnerLoop, Losses, Probe, Shared
from steelyard.training import Balancer, StepReport
from steelyard.weighting import (
    FAMO,
    DirichletPosterior,
    DirichletVote,
    DynamicWeightAverage,
    Fixed,
    FromGramian,
    FromScalarizer,
    GroupDRO,
    RelativeShift,
    UncertaintyWeighting,
    Weighting,
)

__version__ = version("steelyard")

__all__ = [
    "FAMO",
    "Balancer",
    "DirichletPosterior",
    "DirichletVote",
    "DynamicWeightAverage",
    "Finding",
    "FirstOrder",
    "Fixed",
    "FromGramian",
    "FromScalarizer",
    "Gramian",
    "GroupDRO",
    "InnerLoop",
    "Losses",
    "Measurement",
    "Outcome",
    "Probe",
    "RelativeShift",
    "Samples",
    "Shared",
    "Statistic",
    "StepReport",
    "UncertaintyWeighting",
    "Verdict",
    "Weighting",
    "split_by_domain",
]
