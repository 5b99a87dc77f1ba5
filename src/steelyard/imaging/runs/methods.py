"""Ways to weigh the domains, by the names the paper gives them."""

import re
from collections.abc import Callable, Sequence
from typing import cast, get_args

from steelyard.errors import UserError
from steelyard.probing import FirstOrder, InnerLoop
from steelyard.probing.vote_probe import MetaTest, VoteProbe
from steelyard.weighting import (
    FAMO,
    DirichletVote,
    DynamicWeightAverage,
    Fixed,
    GroupDRO,
    RelativeShift,
    UncertaintyWeighting,
    Weighting,
)

PAPER = (
    "F50-T50",
    "F10-T90",
    "F90-T10",
    "Simple-G",
    "Simple-C",
    "Ours-G-25",
    "Ours-G-100",
    "Ours-C-25",
    "Ours-C-100",
    "flair-only",
    "t1-only",
)
"""The paper's rows."""

_CHOICES = {"G": "greedy", "C": "conservative"}
_FORMS = (
    "F50-T50 (any two percentages), equal, fixed-0.2-0.3-0.5 (one weight per domain), Simple-G, Simple-C, Ours-G-25, "
    "Ours-C-25 (any window), GroupDRO, DWA, UW, FAMO, flair-only, t1-only; methods that vote also with +first-order, "
    "+eval, +batch or +every-4 (any number) after their name"
)


def trained_domains(method: str, domains: Sequence[str]) -> tuple[str, ...]:
    """Return the domains a method trains on: all, or the one that `NAME-only` names.

    >>> trained_domains("t1-only", ("flair", "t1"))
    ('t1',)
    """
    if not method.endswith("-only"):
        return tuple(domains)
    name = method.removesuffix("-only")
    if name not in domains:
        raise UserError(f"method {method}: the domains are {', '.join(domains)}; there is no {name}.")
    return (name,)


def make_weighting(method: str, domains: Sequence[str], *, prior: float = 5.0) -> Weighting:
    """Return how a method weighs its domains.

    Args:
        method: One of `PAPER`, or of the same form with other weights or another window.
        domains: Their names, in the order of the weights.
        prior: The Dirichlet prior of Ours.

    Raises:
        UserError: There is no such method, or it does not fit the number of domains.
    """
    plain, ways = _ways(method)
    if ways and not votes(method):
        raise UserError(f"method {method}: {plain} does not vote, so there is no way to vote to choose.")
    for pattern, make in _MAKERS.items():
        if found := re.fullmatch(pattern, plain):
            if make is _percentages and [name.partition("@")[0] for name in domains] != ["flair", "t1"]:
                raise UserError(f"method {method} weighs flair and t1, in this order; the domains are {list(domains)}.")
            try:
                weighting = make(found.groups(), prior)
                weighting.start(len(domains))
            except (ValueError, RuntimeError, OverflowError) as error:
                raise UserError(f"method {method}: {str(error).splitlines()[0]}") from error
            return make(found.groups(), prior)
    raise UserError(f"method must be of the form {_FORMS}; got {method!r}.")


def votes(method: str) -> bool:
    """Whether a method asks the inner loop."""
    return method.startswith(("Ours-", "Simple-"))


def make_probe(method: str, *, meta_test: MetaTest = "eval", every: int = 1) -> VoteProbe | None:
    """Return how a method asks for votes; `None` if it asks for none.

    Args:
        method: Its name; what follows a plus in it counts for more than the arguments.
        meta_test: How a step is judged.
        every: On which steps is asked.

    >>> probe = make_probe("Ours-C-25+first-order+every-4")
    >>> type(probe).__name__, probe.every
    ('FirstOrder', 4)
    """
    if not votes(method):
        return None
    _, ways = _ways(method)
    probe = FirstOrder if "first-order" in ways else InnerLoop
    for way in ways:
        if way in get_args(MetaTest):
            meta_test = cast("MetaTest", way)
        elif way.startswith("every-"):
            every = int(way.removeprefix("every-"))
    return probe(meta_test=meta_test, every=every)


def amortised(method: str) -> tuple[str, int]:
    """Return the method that asks in the same way on every step, and on each how manieth step this one asks.

    >>> amortised("Ours-C-25+first-order+every-4")
    ('Ours-C-25+first-order', 4)
    """
    plain, ways = _ways(method)
    every = [int(way.removeprefix("every-")) for way in ways if way.startswith("every-")]
    return "+".join([plain, *(way for way in ways if not way.startswith("every-"))]), every[0] if every else 1


def _ways(method: str) -> tuple[str, list[str]]:
    """Return a method's plain name and what follows each plus."""
    plain, *ways = method.split("+")
    kinds = [way if way == "first-order" else "meta-test" if way in get_args(MetaTest) else way[:6] for way in ways]
    known = all(re.fullmatch(r"first-order|eval|batch|every-[1-9]\d{0,5}", way) for way in ways)
    if not known or len(set(kinds)) < len(kinds):
        raise UserError(f"method must be of the form {_FORMS}; got {method!r}.")
    return plain, ways


def _percentages(groups: Sequence[str], prior: float) -> Weighting:
    del prior
    return Fixed([int(group) / 100 for group in groups])


def _numbers(groups: Sequence[str], prior: float) -> Weighting:
    del prior
    return Fixed([float(number) for number in groups[0].removeprefix("-").split("-")])


def _simple(groups: Sequence[str], prior: float) -> Weighting:
    del prior
    return RelativeShift(gamma=0.1 if groups[0] == "C" else -0.1)


def _ours(groups: Sequence[str], prior: float) -> Weighting:
    return DirichletVote(_CHOICES[groups[0]], window=int(groups[1]), prior=prior)  # type: ignore[arg-type]


_MAKERS: dict[str, Callable[[Sequence[str], float], Weighting]] = {
    r"F(\d{1,3})-T(\d{1,3})": _percentages,
    r"fixed((?:-\d*\.?\d+)+)": _numbers,
    r"equal|.+-only": lambda _groups, _prior: Fixed(),
    r"GroupDRO": lambda _groups, _prior: GroupDRO(),
    r"DWA": lambda _groups, _prior: DynamicWeightAverage(),
    r"UW": lambda _groups, _prior: UncertaintyWeighting(),
    r"FAMO": lambda _groups, _prior: FAMO(),
    r"Simple-([GC])": _simple,
    r"Ours-([GC])-(\d{1,6})": _ours,
}
