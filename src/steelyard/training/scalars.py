"""What a balancer measured, as plain numbers that every logger takes."""

import math

from steelyard.training.audit import Audit
from steelyard.training.step_report import StepReport


def log_scalars(report: StepReport | None, audit: Audit, *, prefix: str = "") -> dict[str, float]:
    """Names such as `loss/flair`, `weight/flair`, `share/flair`, `transfer/flair/t1`, and a number for each.

    Transfer that was not measured yet is left out. A flag is 1, such as `flag/flair/noisy labels`; a name without a
    flag is left out, because most domains never have one.

    Args:
        report: of the last call of the balancer; `None` before the first.
        audit: what was measured so far.
        prefix: of every name.
    """
    scalars: dict[str, float] = {}
    if report is not None:
        for name, loss in report.losses.items():
            scalars[f"{prefix}loss/{name}"] = float(loss)
    for entry, changes in zip(audit.domains, audit.transfer, strict=True):
        scalars[f"{prefix}weight/{entry.name}"] = entry.weight
        scalars[f"{prefix}share/{entry.name}"] = entry.share
        for judged, change in zip(audit.domains, changes, strict=True):
            if not math.isnan(change):
                scalars[f"{prefix}transfer/{entry.name}/{judged.name}"] = change
    for flag in audit.flags:
        scalars[f"{prefix}flag/{flag.domain}/{flag.kind}"] = 1.0
    return scalars
