"""The weights while the network learns (the paper's figure 3)."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from steelyard.report.data.runs import RunRecord, by_method
from steelyard.report.figures.bands import draw_band, mean_band, thinned
from steelyard.report.figures.plate import SOFT, Panel, Plate, legend, titled
from steelyard.report.statistics.credibility import credible_band, has_posterior


def weights_plate(runs: Sequence[RunRecord], domain: str, *, tints: Mapping[str, str], name: str = "weights") -> Plate:
    """Show one domain's weight over the steps of training: mean and s.d. over runs, and for Ours the posterior.

    Methods whose weights never move share a panel; where there are no others, there is nothing to show.
    """
    methods = {method: held for method, held in by_method(runs).items() if len(held[0].config.trained) > 1}
    still = {method: held for method, held in methods.items() if not _moves(held, domain)}
    panels = [
        Panel(title=method, draw=lambda axes, held=held, tint=tints[method]: _draw(axes, held, domain, tint))  # type: ignore[misc]
        for method, held in methods.items()
        if method not in still
    ]
    if still and panels:
        panels.append(Panel(title="fixed weights", draw=lambda axes: _draw_still(axes, still, domain, tints)))
    return Plate(
        name=name,
        title=f"The weight of {titled(domain)} while the network learns",
        caption=(
            "After each step. The line is the mean over runs and the band one standard deviation over them (none for a "
            "single run). Of Ours, the line is the mode of the posterior over the last votes, and the grey band its "
            "95 % credible interval, each edge the mean over runs. Dotted: equal weights."
        ),
        panels=tuple(panels),
    )


def _moves(runs: Sequence[RunRecord], domain: str) -> bool:
    return any(len(set(run.weights(domain))) > 1 for run in runs)


def _draw(axes: Axes, runs: Sequence[RunRecord], domain: str, tint: str) -> None:
    _frame(axes, runs[0])
    draw_band(axes, [run.weights(domain) for run in runs], colour=tint, label=f"mean of {len(runs)} {_runs(runs)}")
    if all(has_posterior(run) for run in runs):
        bands = [credible_band(run, domain) for run in runs]
        low, high = (mean_band([band[side] for band in bands])[0] for side in (0, 1))
        at = thinned(len(low))
        axes.fill_between(at + 1, low[at], high[at], color=SOFT, alpha=0.16, lw=0, label="95 % credible", zorder=1)
    legend(axes)


def _draw_still(axes: Axes, methods: Mapping[str, Sequence[RunRecord]], domain: str, tints: Mapping[str, str]) -> None:
    _frame(axes, next(iter(methods.values()))[0])
    for method, runs in methods.items():
        draw_band(axes, [run.weights(domain) for run in runs[:1]], colour=tints[method], label=method)
    legend(axes)


def _frame(axes: Axes, run: RunRecord) -> None:
    axes.set_ylim(0, 1)
    axes.set_xlabel("step")
    axes.axhline(1 / len(run.config.trained), color=SOFT, lw=0.9, ls=":")


def _runs(runs: Sequence[RunRecord]) -> str:
    return "run" if len(runs) == 1 else "runs"
