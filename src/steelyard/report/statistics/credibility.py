"""What the votes of a run say of its weights: the posterior at every step."""

from collections import deque
from collections.abc import Iterator
from functools import cache

from steelyard.imaging.train.weighing import make_weighting
from steelyard.report.data.runs import RunRecord
from steelyard.weighting import DirichletVote
from steelyard.weighting.posterior import DirichletPosterior


def has_posterior(run: RunRecord) -> bool:
    """Whether the run's weights are the mode of a posterior."""
    return isinstance(_weighting(run), DirichletVote)


def posteriors(run: RunRecord) -> Iterator[DirichletPosterior]:
    """Yield the posterior after every step, from the votes in steps.csv, and window and prior of the config."""
    weighting = _weighting(run)
    assert isinstance(weighting, DirichletVote)  # noqa: S101
    domains = run.config.trained
    weighting.start(len(domains))
    window: deque[str] = deque(maxlen=weighting.window)
    for vote in run.steps.votes():
        if vote:
            window.append(vote)
        yield DirichletPosterior(
            tuple(alpha + window.count(domain) for alpha, domain in zip(weighting.prior, domains, strict=True))
        )


def credible_band(run: RunRecord, domain: str) -> tuple[list[float], list[float]]:
    """Return the lower and upper edge of the 95 % credible interval of a domain's weight after every step."""
    place = run.config.trained.index(domain)
    edges = [_interval(posterior)[place] for posterior in posteriors(run)]
    return [low for low, _ in edges], [high for _, high in edges]


@cache
def _interval(posterior: DirichletPosterior) -> tuple[tuple[float, float], ...]:
    # A window holds few different counts, and a quantile takes a bisection.
    return posterior.interval(0.95)


def _weighting(run: RunRecord) -> object:
    return make_weighting(run.config.method, run.config.trained, prior=run.config.prior)
