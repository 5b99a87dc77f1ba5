"""The part of the page that tells who helped whom."""

import re
from collections.abc import Sequence

from steelyard.report.data.runs import RunRecord, by_method, by_setting
from steelyard.report.figures.transfer import transfer_figure
from steelyard.report.html.page import AuditPart
from steelyard.report.tables.audit_table import audit_table, flag_lines, without_flags


def audit_parts(runs: Sequence[RunRecord]) -> list[AuditPart]:
    """Return one part for each setting and method with an audit: that of its first run."""
    first_runs = []
    for group in by_setting(run for run in runs if run.audit is not None).values():
        for method_runs in by_method(group).values():
            first_runs.append(method_runs[0])
    parts = []
    for run in first_runs:
        name = "transfer"
        if len(first_runs) > 1:
            name = re.sub(r"[^\w.@+-]", "-", f"transfer_{run.setting}_{run.method}")
        parts.append(_audit_part(run, name=name))
    return parts


def _audit_part(run: RunRecord, *, name: str) -> AuditPart:
    assert run.audit is not None  # noqa: S101
    return AuditPart(
        title=f"{run.method}, {run.model}, seed {run.seed}",
        flags=flag_lines(run.audit),
        without_flags=without_flags(run.audit),
        table=audit_table(run.audit),
        figure=transfer_figure(run.audit, name=name),
    )
