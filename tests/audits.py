"""Audits made by hand."""

from math import nan

from steelyard.training.audit import Audit, DomainAudit, Flag


def audit_of(names, transfer, standard_error=1e-4, *, flags=()):
    """An audit with these names and this transfer matrix."""
    domains = []
    for number, name in enumerate(names):
        domain = DomainAudit(
            name=name,
            weight=1 / len(names),
            share=1 / len(names),
            loss_scale=1.0,
            remaining=0.5,
            own=transfer[number][number],
            given=2e-4,
            received=nan,
            presence=1.0,
            votes=160,
        )
        domains.append(domain)
    return Audit(
        domains=tuple(domains),
        transfer=tuple(map(tuple, transfer)),
        standard_error=tuple((standard_error,) * len(names) for _ in names),
        flags=tuple(flags),
    )


def harmful(domain):
    """A flag."""
    return Flag(domain=domain, kind="harms others", evidence="Its steps make the others worse (+2.0e-04).")
