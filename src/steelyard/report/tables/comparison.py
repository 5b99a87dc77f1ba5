"""What a few runs reached, in plain numbers: a table of means and a sentence."""

from collections.abc import Collection, Sequence
from math import isinf, isnan
from statistics import fmean

from steelyard.report.data.kinds import BASELINES, column_suffixes, weights_that_tell
from steelyard.report.data.runs import RunRecord, by_method, by_setting, mean_and_spread
from steelyard.report.figures.plate import titled
from steelyard.report.html.page import Table

_SUFFIXES = "-F: judged on FLAIR, -T: on T1. "
_METRICS = (("dsc", "DSC", 3), ("auc", "AUC", 3), ("lesion_f1", "lesion F1", 3))
_OF_A_SUBJECT = (*_METRICS, ("hd95", "HD95", 1))


def means_table(runs: Sequence[RunRecord], *, title: str = "Means over the test subjects") -> Table:
    """Return one row per method: each metric's mean in each domain, and its s.d. over runs if there are several."""
    domains = runs[0].config.domains
    return Table(
        title=title,
        headings=["method", "runs", *_scored(_METRICS, domains), *map(_weight, weights_that_tell(domains))],
        rows=[_row(method, held) for method, held in by_method(runs).items()],
        note=f"{_SUFFIXES if set(domains) == {'flair', 't1'} else ''}±: one standard deviation over all runs.",
    )


def subjects_table(runs: Sequence[RunRecord], *, title: str = "Every test subject") -> Table:
    """Return one row per subject and method: each metric in each domain, its mean if several runs were tested on it."""
    domains = runs[0].config.domains
    rows = []
    for subject in sorted({subject for run in runs for subject in run.subjects}):
        for method, held in by_method(run for run in runs if subject in run.subjects).items():
            cells = [subject, method]
            for metric, _, digits in _OF_A_SUBJECT:
                for domain in domains:
                    scores = [run.score(subject, domain, metric) for run in held]
                    cells.append(_number(_mean_of([score for score in scores if not isnan(score)]), digits))
            rows.append(cells)
    note = "HD95 in mm, over the whole volume; ∞ where nothing was found."
    return Table(title=title, headings=["subject", "method", *_scored(_OF_A_SUBJECT, domains)], rows=rows, note=note)


def answer(runs: Sequence[RunRecord]) -> list[str]:
    """Say how the best method's mean Dice compares with the baseline's in each setting, and how little that shows."""
    lines = []
    settings = by_setting(run for run in runs if run.metrics)
    for setting, held in settings.items():
        methods = by_method(held)
        base = baseline_of(methods)
        others = rivals(held, base)
        start = f"{setting}: " if len(settings) > 1 else ""
        if not others:
            lines.append(f"{start}{base}, mean Dice: {_said(methods[base])}.")
            continue
        best = best_method(held, others)
        gains = ", ".join(
            f"{titled(domain)} {_mean(methods[best], domain) - _mean(methods[base], domain):+.3f}"
            for domain in held[0].config.domains
        )
        lines.append(f"{start}{best} against {base}, mean Dice: {gains} ({_said(methods[best])}).")
    return [*lines, _caution(runs)] if lines else ["No run here has been evaluated yet."]


def baseline_of(methods: Collection[str]) -> str:
    """Return what the others are compared with: F50-T50 or equal weights, else the first."""
    return next((name for name in BASELINES if name in methods), next(iter(methods)))


def rivals(runs: Sequence[RunRecord], base: str) -> list[str]:
    """Return the other methods; those that trained on one domain only count if there are no others."""
    others = {method: held[0] for method, held in by_method(runs).items() if method != base}
    whole = [method for method, run in others.items() if len(run.config.trained) > 1]
    return whole or list(others)


def best_method(runs: Sequence[RunRecord], methods: Sequence[str]) -> str:
    """Return the method with the highest mean Dice, over domains."""
    held = by_method(runs)
    return max(methods, key=lambda method: fmean(_mean(held[method], domain) for domain in runs[0].config.domains))


def _caution(runs: Sequence[RunRecord]) -> str:
    subjects = len({subject for run in runs for subject in run.subjects})
    most = max(len(held) for setting in by_setting(runs).values() for held in by_method(setting).values())
    if most == 1:
        return f"One run each and {subjects} test subjects show that everything works, not which method is better."
    return (
        f"Differences of means over up to {most} runs a method and {subjects} test subjects, nothing tested; the best "
        "of several methods looks better than it is."
    )


def _said(runs: Sequence[RunRecord]) -> str:
    return ", ".join(f"{titled(domain)} {_mean(runs, domain):.3f}" for domain in runs[0].config.domains)


def _mean(runs: Sequence[RunRecord], domain: str) -> float:
    held = [mean_and_spread(scores)[0] for run in runs if (scores := run.scores(domain))]
    known = [value for value in held if not isnan(value)]
    return fmean(known) if known else float("-inf")


def _row(method: str, runs: Sequence[RunRecord]) -> list[str]:
    cells = [method, str(len(runs))]
    for metric, _, digits in _METRICS:
        for domain in runs[0].config.domains:
            means = [mean_and_spread(scores)[0] for run in runs if (scores := run.scores(domain, metric))]
            mean, spread = mean_and_spread(means)
            cells.append(_number(mean, digits) + ("" if isnan(spread) else f" ± {spread:.{digits}f}"))
    for domain in weights_that_tell(runs[0].config.domains):
        ends = [weights[-1] for run in runs if (weights := run.weights(domain))]
        cells.append(f"{fmean(ends):.2f}" if ends and len(runs[0].config.trained) > 1 else "–")
    return cells


def _scored(metrics: Sequence[tuple[str, str, int]], domains: tuple[str, ...]) -> list[str]:
    return [f"{title}-{suffix}" for _, title, _ in metrics for suffix in column_suffixes(domains).values()]


def _weight(domain: str) -> str:
    return f"weight of {titled(domain)} at the end"


def _mean_of(values: Sequence[float]) -> float:
    return fmean(values) if values else float("nan")


def _number(value: float, digits: int) -> str:
    if isinf(value):
        return "∞"
    return "–" if isnan(value) else f"{value:.{digits}f}"
