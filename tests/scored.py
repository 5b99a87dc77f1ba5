"""Tables of results with known numbers."""

import itertools

import numpy as np

from steelyard.report.data.results import Results, RunKey, Score, Setting

SETTING = Setting("unet", "8F")


def score(method, fold, repeat, subject, domain, *, setting=SETTING, **metrics):
    return Score(setting=setting, run=RunKey(method, fold, repeat), subject=subject, domain=domain, metrics=metrics)


def tabled(means, *, folds=5, repeats=5, subjects=4, setting=SETTING, seed=0, by_subject=0.05, by_run=0.01):
    """Return results: a method's mean in each domain, and what differs between subjects, runs and both."""
    rng = np.random.default_rng(seed)
    domains = sorted({domain for by_domain in means.values() for domain in by_domain})
    ease = rng.normal(scale=0.05, size=(folds, subjects))
    rows = []
    for method, by_domain in means.items():
        apt = rng.normal(scale=by_subject, size=(folds, subjects))
        luck = rng.normal(scale=by_run, size=(folds, repeats))
        for fold, repeat, subject, domain in itertools.product(range(folds), range(repeats), range(subjects), domains):
            value = by_domain[domain] + ease[fold, subject] + apt[fold, subject] + luck[fold, repeat]
            value = float(np.clip(value + rng.normal(scale=0.005), 0, 1))
            name = f"sub-{fold}{subject}"
            rows.append(score(method, fold, repeat, name, domain, setting=setting, dsc=value, auc=0.5 + value / 2))
    return Results(tuple(rows))
