"""The methods that trials compare, by name.

A name may also be `evidence:` with settings, so that these can be chosen: `evidence:caution=1,rate=0.1`. Numbers are
arguments of `Evidence`; `judge=` is `loss`, `bounded` or `task`; `probe=` is `exact` or `first-order`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from torch import Tensor

import steelyard as sy
from steelyard.errors import UserError
from steelyard.experiments.problems.problem import DomainData, Problem
from steelyard.files.checks import brief, check_choice, parse_number

Loss = Callable[[Tensor, Tensor], Tensor]
Settings = dict[str, Any]
"""Arguments of `Balancer` beside the domains and the loss."""

BASELINE = "equal"
"""The method that the others are compared with."""

SWEEP = "sweep"
"""Fixed weights of many ratios at three learning rates: one trial for all of them."""
BY_SIZE = "sqrt-n"
"""Each domain's part of a batch is proportional to the root of its size, and every sample counts the same."""

METHODS: dict[str, Callable[[Problem], Settings]] = {
    BASELINE: lambda _: {"weighting": sy.Fixed(), "probe": None},
    # The same weights, with a probe for the audit.
    "equal-audited": lambda _: {"weighting": sy.Fixed(), "probe": sy.FirstOrder()},
    "greedy-25": lambda _: {"weighting": sy.DirichletVote("greedy", window=25), "probe": sy.InnerLoop()},
    "conservative-25": lambda _: {"weighting": sy.DirichletVote("conservative", window=25), "probe": sy.InnerLoop()},
    "evidence": lambda _: {},
    "evidence-loss": lambda _: {"judge": "loss"},
    "evidence-task": lambda problem: {"judge": problem.judge, "probe": _exact_probe()},
    "evidence-exact": lambda _: {"weighting": sy.Evidence(), "probe": sy.InnerLoop()},
    "evidence-no-caution": lambda _: {"weighting": sy.Evidence(caution=0.0)},
    "group-dro": lambda _: {"weighting": sy.GroupDRO()},
    "uw": lambda _: {"weighting": sy.UncertaintyWeighting()},
    "dwa": lambda _: {"weighting": sy.DynamicWeightAverage()},
    "famo": lambda _: {"weighting": sy.FAMO()},
    "inverse-loss": lambda _: {"weighting": sy.LogLoss()},
    "dual-balancing": lambda _: {"weighting": sy.DualBalancing(), "probe": sy.Gramian()},
}
"""What a method gives the balancer; `sqrt-n` and `sweep` need the sizes of the domains, too."""

COMPARED = (
    *(BASELINE, f"{BASELINE}@0.333", f"{BASELINE}@3", BY_SIZE, "greedy-25", "conservative-25"),
    *(
        "evidence",
        "evidence-task",
        "group-dro",
        "uw",
        "dwa",
        "famo",
        "inverse-loss",
        "dual-balancing",
        SWEEP,
    ),
)
"""The methods that are compared by default, in the order of the work."""

_WITH_SETTINGS = "evidence:"
_NUMBERS = ("rate", "caution", "floor", "noisy_share")
_WORDS = {"judge": ("loss", "bounded", "task"), "probe": ("exact", "first-order", "step", "eval", "batch")}


def _exact_probe() -> sy.Probe:
    """A probe that only evaluates the judge, on each fourth step after a warm-up."""
    return sy.InnerLoop(meta_test="step", every=4, warm_up=100, reuse="detect")


def check_method(name: str) -> None:
    """Refuse a name that no method has.

    Raises:
        UserError: There is no such method, or it has no such setting.
    """
    if name.startswith(_WITH_SETTINGS):
        _parse_settings(name)
    else:
        check_choice("method", name, (*METHODS, BY_SIZE, SWEEP))


def build_balancer(method: str, problem: Problem, domains: Mapping[str, DomainData]) -> sy.Balancer:
    """Return a balancer that weighs the domains' losses by a method.

    Raises:
        UserError: There is no such method.
    """
    check_method(method)
    if method.startswith(_WITH_SETTINGS):
        settings = _evidence(_parse_settings(method), problem)
    elif method == BY_SIZE:
        settings = {"weighting": sy.Fixed(_parts_of_batch(problem, domains)), "probe": None}
    else:
        settings = METHODS[method](problem)
    return sy.Balancer(tuple(domains), loss=scaled_losses(problem, domains), **settings)


def batch_sizes(method: str, problem: Problem, domains: Mapping[str, DomainData]) -> dict[str, int]:
    """Return how many samples of each domain are in a batch; of a smaller domain, all of them.

    With `sqrt-n` they are proportional to √n, at least one, and as many together as with other methods.
    """
    sizes = {name: len(data.train.targets) for name, data in domains.items()}
    equal_parts = {name: min(problem.batch_size, size) for name, size in sizes.items()}
    if method != BY_SIZE:
        return equal_parts
    total = sum(equal_parts.values())
    roots = sum(math.sqrt(size) for size in sizes.values())
    parts = {}
    for name, size in sizes.items():
        parts[name] = min(size, max(1, round(total * math.sqrt(size) / roots)))
    return parts


def _parts_of_batch(problem: Problem, domains: Mapping[str, DomainData]) -> dict[str, float]:
    """Return each domain's part of a batch with `sqrt-n`: as weights of mean losses, every sample counts the same."""
    sizes = batch_sizes(BY_SIZE, problem, domains)
    total = sum(sizes.values())
    return {name: size / total for name, size in sizes.items()}


def _parse_settings(name: str) -> dict[str, float | str]:
    """Return the settings in a method's name.

    Raises:
        UserError: One of them cannot be read.
    """
    settings: dict[str, float | str] = {}
    for text in name.removeprefix(_WITH_SETTINGS).split(","):
        key, separator, value = text.partition("=")
        if key in settings or not separator:
            raise UserError(f"method must be like evidence:caution=1,judge=task; got {brief(name)}.")
        check_choice("setting of evidence", key, (*_NUMBERS, *_WORDS))
        if key in _WORDS:
            check_choice(key, value, _WORDS[key])
            settings[key] = value
        else:
            settings[key] = parse_number(key, value)
    return settings


def _evidence(chosen: Mapping[str, float | str], problem: Problem) -> Settings:
    numbers = {key: float(value) for key, value in chosen.items() if key in _NUMBERS}
    settings: Settings = {"weighting": sy.Evidence(**numbers)}
    if "judge" in chosen:
        settings["judge"] = problem.judge if chosen["judge"] == "task" else chosen["judge"]
    if "probe" in chosen:
        settings["probe"] = _probe(str(chosen["probe"]))
    return settings


def _probe(name: str) -> sy.Probe:
    """A probe that votes on every step; the last three names are ways to judge under batch normalisation."""
    if name == "exact":
        return sy.InnerLoop()
    if name == "first-order":
        return sy.FirstOrder()
    return sy.InnerLoop(meta_test=cast("Literal['step', 'eval', 'batch']", name))


def scaled_losses(problem: Problem, domains: Mapping[str, DomainData]) -> Loss | dict[str, Loss]:
    """Return one loss for all domains, or one for each where their factors differ."""
    if all(data.loss_factor == 1 for data in domains.values()):
        return problem.loss
    return {name: _scaled(problem.loss, data.loss_factor) for name, data in domains.items()}


def _scaled(loss: Loss, factor: float) -> Loss:
    return lambda outputs, targets: factor * loss(outputs, targets)
