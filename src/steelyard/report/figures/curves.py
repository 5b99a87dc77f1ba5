"""Curves over training: the validation losses, and the weights (the paper's figure 3)."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite

from matplotlib.axes import Axes

from steelyard.report.data.names import domain_title
from steelyard.report.data.runs import RunRecord, by_method
from steelyard.report.figures.figure import (
    SOFT,
    Panel,
    ReportFigure,
    add_legend,
    domain_colour,
    draw_band,
    drawn_points,
    mean_band,
)
from steelyard.report.statistics.posterior import credible_band, has_posterior


def learning_figure(runs: Sequence[RunRecord], *, name: str = "learning") -> ReportFigure:
    """Show the validation loss of every domain over the epochs, one panel a method: mean and s.d. over runs."""
    limits = _loss_limits(runs)
    panels = []
    for method, group in by_method(runs).items():
        if _have_curves(group):
            panels.append(Panel(title=method, draw=partial(_draw_losses, runs=group, limits=limits)))
    return ReportFigure(
        name=name,
        title="Learning curves",
        caption=(
            "Validation loss after each epoch, cross-entropy minus soft Dice; lower is better, −1 is perfect. The line "
            "is the mean over runs, over those that got so far where they ended at different times; the band is one "
            "standard deviation. All panels share one scale; what lies above it is cut."
        ),
        panels=tuple(panels),
    )


def weights_figure(
    runs: Sequence[RunRecord], domain: str, *, tints: Mapping[str, str], name: str = "weights"
) -> ReportFigure:
    """Show one domain's weight over training: mean and s.d. over runs, and the posterior of methods that vote.

    The weights are those after every step, or after every epoch where steps were not kept. Methods whose weights never
    change share a panel; where there are no others, there is nothing to show.
    """
    by_step = all(run.steps.count > 0 for run in runs)
    constant, panels = {}, []
    for method, group in by_method(runs).items():
        if len(group[0].trained) < 2:
            continue
        if _changes(group, domain):
            draw = partial(_draw_weights, runs=group, domain=domain, tint=tints[method], by_step=by_step)
            panels.append(Panel(title=method, draw=draw))
        else:
            constant[method] = group
    if constant and panels:
        draw = partial(_draw_constant, methods=constant, domain=domain, tints=tints, by_step=by_step)
        panels.append(Panel(title="fixed weights", draw=draw))
    return ReportFigure(
        name=name,
        title=f"The weight of {domain_title(domain)} while the network learns",
        caption=_weights_caption(by_step=by_step),
        panels=tuple(panels),
    )


def _weights_caption(*, by_step: bool) -> str:
    line = "The line is the mean over runs and the band one standard deviation over them (none for a single run)."
    if not by_step:
        return f"After each epoch. {line} Dotted: equal weights."
    return (
        f"After each step. {line} Of greedy and conservative methods, the line is the mode of the posterior over the "
        "last votes, and the grey band its 95 % credible interval, each edge the mean over runs. Dotted: equal weights."
    )


def _have_curves(runs: Sequence[RunRecord]) -> bool:
    """Whether any run has a validation loss."""
    for run in runs:
        for domain in run.domains:
            if run.validation(domain):
                return True
    return False


def _loss_limits(runs: Sequence[RunRecord]) -> tuple[float, float]:
    """Return the ends of the scale: the first epochs of some runs are far above all that follows."""
    losses: list[float] = []
    for run in runs:
        for domain in run.domains:
            losses += filter(isfinite, run.validation(domain))
    if not losses:
        return -1.0, 1.0
    losses.sort()
    nearly_highest = losses[min(len(losses) - 1, round(0.98 * len(losses)))]
    return losses[0] - 0.05, nearly_highest + 0.05


def _draw_losses(axes: Axes, *, runs: Sequence[RunRecord], limits: tuple[float, float]) -> None:
    for number, domain in enumerate(runs[0].domains):
        curves = [run.validation(domain) for run in runs]
        if any(curves):
            draw_band(
                axes, list(filter(None, curves)), colour=domain_colour(domain, number), label=domain_title(domain)
            )
    axes.set_ylim(*limits)
    axes.set_xlabel("epoch")
    add_legend(axes)


def _changes(runs: Sequence[RunRecord], domain: str) -> bool:
    """Whether a domain's weight ever changes."""
    for run in runs:
        curve = run.step_weights(domain) or run.epoch_weights(domain)
        if len(set(curve)) > 1:
            return True
    return False


def _weight_curves(runs: Sequence[RunRecord], domain: str, *, by_step: bool) -> list[Sequence[float]]:
    if by_step:
        return [run.step_weights(domain) for run in runs]
    return [run.epoch_weights(domain) for run in runs]


def _draw_weights(axes: Axes, *, runs: Sequence[RunRecord], domain: str, tint: str, by_step: bool) -> None:
    _style_weights(axes, runs[0], by_step=by_step)
    plural = "" if len(runs) == 1 else "s"
    curves = _weight_curves(runs, domain, by_step=by_step)
    draw_band(axes, curves, colour=tint, label=f"mean of {len(runs)} run{plural}")
    if by_step and all(has_posterior(run) for run in runs):
        lower_edges, upper_edges = [], []
        for run in runs:
            low, high = credible_band(run, domain)
            lower_edges.append(low)
            upper_edges.append(high)
        lower, upper = mean_band(lower_edges)[0], mean_band(upper_edges)[0]
        points = drawn_points(len(lower))
        axes.fill_between(
            points + 1, lower[points], upper[points], color=SOFT, alpha=0.16, lw=0, label="95 % credible", zorder=1
        )
    add_legend(axes)


def _draw_constant(
    axes: Axes, *, methods: Mapping[str, Sequence[RunRecord]], domain: str, tints: Mapping[str, str], by_step: bool
) -> None:
    """Draw the weights of methods that never change them; all runs of a method have the same."""
    _style_weights(axes, next(iter(methods.values()))[0], by_step=by_step)
    for method, runs in methods.items():
        draw_band(axes, _weight_curves(runs[:1], domain, by_step=by_step), colour=tints[method], label=method)
    add_legend(axes)


def _style_weights(axes: Axes, run: RunRecord, *, by_step: bool) -> None:
    axes.set_ylim(0, 1)
    axes.set_xlabel("step" if by_step else "epoch")
    axes.axhline(1 / len(run.trained), color=SOFT, lw=0.9, ls=":")
