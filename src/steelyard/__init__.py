"""Train one model that serves several domains well, by learning how much each domain's loss should weigh.

>>> import torch, steelyard as sy
>>> balancer = sy.Balancer(domains=("flair", "t1"), loss=torch.nn.functional.mse_loss)
>>> balancer.weights
{'flair': 0.5, 't1': 0.5}
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard.batches import Samples, split_by_domain
    from steelyard.measurement import Measurement, Outcome, Scores, Statistic, Update
    from steelyard.probing import Finding, FirstOrder, Gramian, InnerLoop, Losses, Probe, Shared
    from steelyard.sampling import DomainBatch, DomainLoader
    from steelyard.training import Audit, Balancer, StepReport, paper_balancer
    from steelyard.weighting import (
        FAMO,
        DirichletPosterior,
        DirichletVote,
        DualBalancing,
        DynamicWeightAverage,
        Evidence,
        Fixed,
        FromGramian,
        FromScalarizer,
        GroupDRO,
        LogLoss,
        RelativeShift,
        UncertaintyWeighting,
        Weighting,
    )

    __version__: str

__all__ = [
    "FAMO",
    "Audit",
    "Balancer",
    "DirichletPosterior",
    "DirichletVote",
    "DomainBatch",
    "DomainLoader",
    "DualBalancing",
    "DynamicWeightAverage",
    "Evidence",
    "Finding",
    "FirstOrder",
    "Fixed",
    "FromGramian",
    "FromScalarizer",
    "Gramian",
    "GroupDRO",
    "InnerLoop",
    "LogLoss",
    "Losses",
    "Measurement",
    "Outcome",
    "Probe",
    "RelativeShift",
    "Samples",
    "Scores",
    "Shared",
    "Statistic",
    "StepReport",
    "UncertaintyWeighting",
    "Update",
    "Weighting",
    "paper_balancer",
    "split_by_domain",
]

# The modules that the public names come from. They need torch and nothing else.
_MODULES = ("batches", "measurement", "probing", "sampling", "training", "weighting")


def __getattr__(name: str) -> Any:
    """Import the library when one of its names is first used; Python calls this for names not yet defined here.

    `import steelyard` alone imports nothing, because torch takes seconds to import and the command line must handle
    signals before that. The imports under `TYPE_CHECKING` tell type checkers and editors the same names.
    """
    if name == "__version__":
        from importlib.metadata import version

        return version("steelyard")
    if name in _MODULES:
        return import_module(f"steelyard.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'steelyard' has no attribute {name!r}")
    _import_public_names()
    return globals()[name]


def _import_public_names() -> None:
    """Define all public names in this module, so that `__getattr__` is not called for them again."""
    for module_name in _MODULES:
        module = import_module(f"steelyard.{module_name}")
        for public_name in __all__:
            if hasattr(module, public_name):
                globals()[public_name] = getattr(module, public_name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
