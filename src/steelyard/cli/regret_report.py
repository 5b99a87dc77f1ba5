"""The report of `steelyard regret`: tables of the trials, figures of the report's style."""

from collections.abc import Mapping, Sequence

from steelyard.experiments.regret.kinds import summarise_kinds
from steelyard.experiments.regret.methods import SWEEP
from steelyard.experiments.regret.page import LEAD, TITLE, summary_tables
from steelyard.experiments.regret.pooling import Pooled, pool_gains
from steelyard.experiments.regret.scores import BEST_RATE, Setting
from steelyard.experiments.regret.statistics import Estimate, gains
from steelyard.experiments.regret.trial import TrialResult
from steelyard.report.figures.figure import ReportFigure
from steelyard.report.figures.gains import Gain, gains_figure, ordered
from steelyard.report.html.page import Report
from steelyard.report.tables.table import PageTable

REPORT = "report.html"
_FEATURED = ("evidence", "evidence-task", "greedy-25", BEST_RATE, SWEEP)
_MOST_METHODS = 5  # in a figure; more would not be told apart
_CAPTION = (
    "Gain over equal weights at the problem's own learning rate, with 95 % intervals over paired seeds (none for a "
    "single seed). equal@best has the best of three learning rates, sweep the best fixed weights and learning rate; "
    "both are chosen on validation samples with right labels, which nobody has in practice."
)


_SHORT_CAPTION = (
    "Gain over equal weights, the mean over problems with a 95 % interval over seeds (none for a single seed). "
    "sweep is the best of many fixed weights, chosen on validation samples with right labels, which nobody has in "
    "practice."
)


def short_figure(results: Sequence[TrialResult]) -> ReportFigure:
    """Return the answer as a picture: a row for each kind of fault; without a row if nothing can be compared."""
    plotted = []
    for summary in summarise_kinds(results, _shown_methods(gains(results))):
        gain = summary.gain
        plotted.append(
            Gain(panel="All problems", row=summary.kind, method=summary.method, mean=gain.mean, reach=gain.reach)
        )
    return gains_figure(plotted, title="Gain by kind of fault", caption=_SHORT_CAPTION, name="in_short")


def regret_report(results: Sequence[TrialResult]) -> Report:
    """Return the page about some trials, at least one."""
    estimates = gains(results)
    figures = []
    if estimates:
        plotted = ordered(map(_gain, estimates, estimates.values()), _shown_methods(estimates))
        figures.append(short_figure(results))
        figures.append(gains_figure(plotted, title="Gain over equal weights", caption=_CAPTION))
    tables = []
    for table in summary_tables(results):
        tables.append(PageTable(title=table.title, headings=table.headings, rows=table.rows, note=table.note))
    return Report(title=TITLE, lead=LEAD, answer=_answer(pool_gains(estimates)), tables=tables, figures=figures)


def _gain(setting: Setting, estimate: Estimate) -> Gain:
    return Gain(
        panel=f"{setting.problem}, {setting.optimizer}, {setting.steps:,} steps",
        row=setting.variant,
        method=setting.method,
        mean=estimate.mean,
        reach=estimate.reach,
    )


def _shown_methods(estimates: Mapping[Setting, Estimate]) -> list[str]:
    """Return the methods of the figure: the featured ones that were tried, or else the first few."""
    tried = list(dict.fromkeys(setting.method for setting in estimates))
    featured = [method for method in _FEATURED if method in tried]
    return featured or tried[:_MOST_METHODS]


def _answer(pooled: Mapping[str, Pooled]) -> list[str]:
    sentences = []
    for method in _FEATURED:
        if method in pooled:
            gain = pooled[method].gain
            problems = "of 1 problem" if gain.count == 1 else f"and interval over {gain.count} problems"
            sentences.append(f"{method}: {gain} over equal weights, the mean {problems}.")
    return sentences or ["No method was compared with equal weights on the same seeds."]
