"""What a few runs reached, in plain numbers: tables of means, subjects, methods and settings, and a sentence."""

import json
from collections.abc import Collection, Mapping, Sequence
from math import inf, isinf, isnan, nan
from statistics import fmean
from typing import Any

from steelyard.files.records import read_object
from steelyard.imaging.runs.method import Method
from steelyard.imaging.runs.run_folder import ENVIRONMENT
from steelyard.report.data.names import BASELINE, column_suffixes, domain_title, plotted_domains
from steelyard.report.data.runs import RunRecord, by_method, by_setting, mean_and_spread
from steelyard.report.tables.table import PageTable

_NO_NUMBER = "–"
_SUFFIXES = "-F: judged on FLAIR, -T: on T1. "
_METRICS = (("dsc", "DSC", 3), ("auc", "AUC", 3), ("lesion_f1", "lesion F1", 3))  # name, title, decimals
_SUBJECT_METRICS = (*_METRICS, ("hd95", "HD95", 1))


def methods_table(runs: Sequence[RunRecord]) -> PageTable:
    """Return a table that explains the methods' names."""
    rows = []
    for name in by_method(runs):
        method = Method.parse_or_unknown(name)
        # The paper's names are of FLAIR and T1.
        paper_name = method.paper_name if set(runs[0].domains) == {"flair", "t1"} else _NO_NUMBER
        if method.description:
            rows.append([name, paper_name, method.description])
    return PageTable(title="Methods", headings=["method", "in the paper", "weights of the domains"], rows=rows)


def means_table(runs: Sequence[RunRecord], *, title: str = "Means over the test subjects") -> PageTable:
    """Return one row per method: each metric's mean in each domain, and its s.d. over runs if there are several."""
    domains = runs[0].domains
    headings = ["method", "runs", *_score_headings(_METRICS, domains)]
    for domain in plotted_domains(domains):
        headings.append(f"weight of {domain_title(domain)} at the end")
    note = "±: one standard deviation over all runs."
    if set(domains) == {"flair", "t1"}:
        note = f"{_SUFFIXES}{note}"
    return PageTable(
        title=title,
        headings=headings,
        rows=[_means_row(method, group) for method, group in by_method(runs).items()],
        note=note,
    )


def subjects_table(runs: Sequence[RunRecord], *, title: str = "Every test subject") -> PageTable:
    """Return one row per subject and method: each metric in each domain, its mean if several runs were tested on it."""
    domains = runs[0].domains
    runs_of_subject: dict[str, list[RunRecord]] = {}
    for run in runs:
        for subject in run.subjects:
            runs_of_subject.setdefault(subject, []).append(run)
    rows = []
    for subject in sorted(runs_of_subject):
        for method, group in by_method(runs_of_subject[subject]).items():
            rows.append([subject, method, *_subject_cells(subject, group)])
    return PageTable(
        title=title,
        headings=["subject", "method", *_score_headings(_SUBJECT_METRICS, domains)],
        rows=rows,
        note="HD95 in mm, over the whole volume; ∞ where nothing was found.",
    )


def answer(runs: Sequence[RunRecord]) -> list[str]:
    """Return how the best method's mean Dice compares with the baseline's in each setting, and a caution."""
    lines = []
    settings = by_setting(run for run in runs if run.metrics)
    for setting, group in settings.items():
        line = _setting_answer(group)
        if len(settings) > 1:
            line = f"{setting}: {line}"
        lines.append(line)
    if not lines:
        return ["No run here has been evaluated yet."]
    return [*lines, _caution(runs)]


def baseline_of(methods: Collection[str]) -> str:
    """Return the method that the others are compared with: equal weights, else the first."""
    if BASELINE in methods:
        return BASELINE
    return next(iter(methods))


def rivals(runs: Sequence[RunRecord], base: str) -> list[str]:
    """Return the other methods; those that trained on one domain only count if there are no others."""
    others = [method for method in by_method(runs) if method != base]
    several_domains = [method for method in others if not Method.parse_or_unknown(method).is_single]
    return several_domains or others


def best_method(runs: Sequence[RunRecord], methods: Sequence[str]) -> str:
    """Return the method with the highest mean Dice, over domains."""
    groups = by_method(runs)

    def mean_over_domains(method: str) -> float:
        return fmean(_mean_dice(groups[method], domain) for domain in runs[0].domains)

    return max(methods, key=mean_over_domains)


def configuration_tables(runs: Sequence[RunRecord], design: Mapping[str, Any] | None = None) -> list[PageTable]:
    """Return the settings of all runs, the versions they ran on, and a list of the runs.

    Args:
        runs: The runs.
        design: The settings of their experiment, for runs whose own are gone.
    """
    settings, environments = [], []
    for run in runs:
        if run.config is not None:
            settings.append(_flat(run.config.as_dict()))
            # An old run, or one that was stripped before it was sent, has none: nothing depends on it.
            environments.append(_flat(read_object(run.path / ENVIRONMENT)))
    if not settings and design:
        settings = [_flat(design)]
    run_rows = []
    for run in runs:
        name = "/".join(run.path.parts[-3:])
        run_rows.append([name, str(len(run.epochs)), str(run.steps.count), ", ".join(run.subjects)])
    tables = [
        PageTable(title="Settings", headings=["setting", "value"], rows=_setting_rows(settings)),
        PageTable(title="Versions", headings=["what", "value"], rows=_setting_rows(environments)),
        PageTable(title="Runs", headings=["run", "epochs", "steps", "test subjects"], rows=run_rows),
    ]
    return [table for table in tables if table.rows]


def _setting_answer(runs: Sequence[RunRecord]) -> str:
    groups = by_method(runs)
    base = baseline_of(groups)
    others = rivals(runs, base)
    if not others:
        return f"{base}, mean Dice: {_dice_by_domain(groups[base])}."
    best = best_method(runs, others)
    gains = []
    for domain in runs[0].domains:
        gain = _mean_dice(groups[best], domain) - _mean_dice(groups[base], domain)
        gains.append(f"{domain_title(domain)} {gain:+.3f}")
    return f"{best} against {base}, mean Dice: {', '.join(gains)} ({_dice_by_domain(groups[best])})."


def _caution(runs: Sequence[RunRecord]) -> str:
    subjects: set[str] = set()
    for run in runs:
        subjects.update(run.subjects)
    most_runs = 0
    for setting in by_setting(runs).values():
        most_runs = max(most_runs, *map(len, by_method(setting).values()))
    if most_runs == 1:
        return f"One run each and {len(subjects)} test subjects show that everything works, not which method is better."
    return (
        f"Differences of means over up to {most_runs} runs a method and {len(subjects)} test subjects, nothing tested; "
        "the best of several methods looks better than it is."
    )


def _dice_by_domain(runs: Sequence[RunRecord]) -> str:
    return ", ".join(f"{domain_title(domain)} {_mean_dice(runs, domain):.3f}" for domain in runs[0].domains)


def _mean_dice(runs: Sequence[RunRecord], domain: str) -> float:
    """Return the mean over runs of their mean Dice; minus infinity where there is none, so that it never wins."""
    means = []
    for run in runs:
        mean = mean_and_spread(run.scores(domain))[0]
        if not isnan(mean):
            means.append(mean)
    if not means:
        return -inf
    return fmean(means)


def _means_row(method: str, runs: Sequence[RunRecord]) -> list[str]:
    cells = [method, str(len(runs))]
    for metric, _, decimals in _METRICS:
        for domain in runs[0].domains:
            means = [mean_and_spread(run.scores(domain, metric))[0] for run in runs]
            mean, spread = mean_and_spread(means)
            text = _number(mean, decimals)
            if not isnan(spread):
                text += f" ± {spread:.{decimals}f}"
            cells.append(text)
    for domain in plotted_domains(runs[0].domains):
        cells.append(_final_weight(runs, domain))
    return cells


def _final_weight(runs: Sequence[RunRecord], domain: str) -> str:
    """Return the mean over runs of a domain's weight at the end of training."""
    weights = [run.final_weight(domain) for run in runs if domain in run.trained and len(run.trained) > 1]
    return _number(mean_and_spread(weights)[0], 2)


def _subject_cells(subject: str, runs: Sequence[RunRecord]) -> list[str]:
    cells = []
    for metric, _, decimals in _SUBJECT_METRICS:
        for domain in runs[0].domains:
            scores = []
            for run in runs:
                score = run.score(subject, domain, metric)
                if not isnan(score):
                    scores.append(score)
            mean = fmean(scores) if scores else nan  # infinite if one of them is
            cells.append(_number(mean, decimals))
    return cells


def _score_headings(metrics: Sequence[tuple[str, str, int]], domains: Sequence[str]) -> list[str]:
    headings = []
    for _, title, _ in metrics:
        headings += [f"{title}-{suffix}" for suffix in column_suffixes(domains).values()]
    return headings


def _number(value: float, decimals: int) -> str:
    if isinf(value):
        return "∞"
    if isnan(value):
        return _NO_NUMBER
    return f"{value:.{decimals}f}"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as one level, with dots between the names."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str):
            flat[f"{prefix}{name}"] = value
        else:
            flat[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False)
    return flat


def _setting_rows(settings_of_runs: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return each setting once, with every value that some run has for it."""
    values_of_setting: dict[str, dict[str, None]] = {}
    for settings in settings_of_runs:
        for name, value in settings.items():
            values_of_setting.setdefault(name, {})[value] = None
    return [[name, "; ".join(values)] for name, values in values_of_setting.items()]
