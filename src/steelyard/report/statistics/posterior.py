"""The posterior over the weights after every step of a run, from its votes."""

from collections import deque
from collections.abc import Iterator
from functools import cache

from steelyard.imaging.runs.method import Method
from steelyard.report.data.runs import RunRecord
from steelyard.weighting.posterior import DirichletPosterior


def has_posterior(run: RunRecord) -> bool:
    """Whether the run's weights are the mode of a posterior, and its votes are known."""
    return Method.parse_or_unknown(run.method).window is not None and run.config is not None and run.steps.count > 0


def posteriors(run: RunRecord) -> Iterator[DirichletPosterior]:
    """Yield the posterior after every step, from the votes in steps.csv, and window and prior of the config."""
    assert run.config is not None  # noqa: S101, see `has_posterior`
    window: deque[str] = deque(maxlen=Method.parse_or_unknown(run.method).window)
    for vote in run.steps.votes():
        if vote:
            window.append(vote)
        yield DirichletPosterior(tuple(run.config.prior + window.count(domain) for domain in run.trained))


def credible_band(run: RunRecord, domain: str) -> tuple[list[float], list[float]]:
    """Return the lower and upper edge of the 95 % credible interval of a domain's weight after every step."""
    position = run.trained.index(domain)
    lower, upper = [], []
    for posterior in posteriors(run):
        low, high = _interval(posterior)[position]
        lower.append(low)
        upper.append(high)
    return lower, upper


@cache
def _interval(posterior: DirichletPosterior) -> tuple[tuple[float, float], ...]:
    # A window holds few different counts, and a quantile takes a bisection.
    return posterior.interval(0.95)
