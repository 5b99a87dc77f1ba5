"""From a method to the weighting and the probe that carry it out."""

from collections.abc import Callable, Sequence

from steelyard.imaging.runs.method import Method
from steelyard.imaging.runs.method_kinds import Kind, MetaTest
from steelyard.probing import FirstOrder, Gramian, InnerLoop, Probe
from steelyard.probing.vote_probe import MetaTest as ProbeMetaTest
from steelyard.weighting import (
    FAMO,
    DirichletVote,
    DualBalancing,
    DynamicWeightAverage,
    Evidence,
    Fixed,
    GroupDRO,
    LogLoss,
    RelativeShift,
    UncertaintyWeighting,
    Weighting,
)

_GAMMA = 0.1  # the size of a shift in the paper's Simple-C; its Simple-G shifts the other way

# Cross-entropy minus soft Dice goes down to −1, and in float32 reaches it; the logarithm needs a sum above 0.
_LOG_LOSS_SHIFT = 1.01

_WEIGHTINGS: dict[Kind, Callable[[], Weighting]] = {
    "equal": Fixed,
    "only": Fixed,
    "shift-greedy": lambda: RelativeShift(gamma=-_GAMMA),
    "shift-conservative": lambda: RelativeShift(gamma=_GAMMA),
    "group-dro": GroupDRO,
    "dwa": DynamicWeightAverage,
    "uw": UncertaintyWeighting,
    "famo": FAMO,
    "evidence": Evidence,
    "log-loss": lambda: LogLoss(shift=_LOG_LOSS_SHIFT),
    "dual-balancing": DualBalancing,
}


def make_weighting(method: Method, domains: Sequence[str], *, prior: float = 5.0) -> Weighting:
    """Return the weighting of a method, not yet started.

    Args:
        method: The rule.
        domains: The domains that are trained on, in the order of the weights.
        prior: The Dirichlet prior of `greedy` and `conservative`.

    Raises:
        UserError: The method does not fit these domains.

    >>> make_weighting(Method.parse("fixed-10-90"), ("flair", "t1"))
    Fixed(weights=(0.1, 0.9))
    """
    method.check_domains(domains)
    if method.kind == "fixed":
        return Fixed([percentage / 100 for percentage in method.percentages])
    if method.window is not None:
        choice = method.kind
        assert choice in ("greedy", "conservative")  # noqa: S101
        return DirichletVote(choice, window=method.window, prior=prior)
    return _WEIGHTINGS[method.kind]()


def make_probe(method: Method, *, meta_test: MetaTest = "eval", every: int = 1) -> Probe | None:
    """Return the probe of a method; `None` if its weights follow the losses, or nothing.

    Args:
        method: The rule; its own `meta_test` and `every` take precedence over the arguments.
        meta_test: The mode in which a hypothetical step is judged. `evidence` sums up what is measured, so for it
            `eval` stands for `step`: a change of running statistics that every step makes must not count.
        every: Measured on each n-th step.

    >>> probe = make_probe(Method.parse("conservative-25+first-order+every-4"))
    >>> type(probe).__name__, probe.every
    ('FirstOrder', 4)
    """
    every = method.every or every
    if method.kind == "dual-balancing":
        return Gramian(every=every)
    if not method.is_voting:
        return None
    mode: ProbeMetaTest = method.meta_test or meta_test
    if method.kind == "evidence" and method.meta_test is None and meta_test == "eval":
        mode = "step"
    probe = FirstOrder if method.first_order else InnerLoop
    return probe(meta_test=mode, every=every)
