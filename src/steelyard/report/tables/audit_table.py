"""What was measured about the domains of a run, in numbers and in words."""

from math import isfinite

from steelyard.report.data.names import domain_title
from steelyard.report.tables.table import PageTable
from steelyard.training.audit import Audit
from steelyard.training.judging import FEWEST_VOTES

_NO_NUMBER = "–"
_HEADINGS = (
    "domain",
    "weight",
    "share",
    "loss scale",
    "loss left",
    "own",
    "to others",
    "from others",
    "present",
    "votes",
)


def audit_table(audit: Audit, *, title: str = "What each domain does") -> PageTable:
    """Return one row per domain: its weight and share, the scale of its loss, and its transfer."""
    rows = []
    for domain in audit.domains:
        cells = [domain_title(domain.name), _number(domain.weight, ".3f"), _number(domain.share, ".3f")]
        cells += [_number(domain.loss_scale, ".2f"), _number(domain.remaining, ".0%")]
        for change in (domain.own, domain.given, domain.received):
            cells.append(_number(change, "+.2e"))
        rows.append([*cells, _number(domain.presence, ".0%"), str(domain.votes)])
    return PageTable(
        title=title,
        headings=_HEADINGS,
        rows=rows,
        note=(
            "Weight: of the loss, at the end of training. Share: of the update. Gradients: their size, relative to the "
            "median domain's. Loss left: the part of its first loss that is left. Own, to others, from others: the "
            "mean change of the judged score by one step, of the domain itself, of the others by its steps, and of the "
            "domain by the others' steps; negative helps. "
            "Present: in this part of the batches. Votes: those in which transfer was measured; a domain with fewer "
            f"than {FEWEST_VOTES} is not flagged for its transfer."
        ),
    )


def flag_lines(audit: Audit) -> list[tuple[str, str]]:
    """Return each flag in words: the domain and what it is flagged for, and the evidence."""
    return [(f"{domain_title(flag.domain)}: {flag.kind}.", flag.evidence) for flag in audit.flags]


def without_flags(audit: Audit) -> str:
    """Return what to say of an audit that flags no domain, and whether that says anything."""
    if max(domain.votes for domain in audit.domains) < FEWEST_VOTES:
        return f"No domain is flagged. There are fewer than {FEWEST_VOTES} votes, too few to judge transfer by."
    return "No domain is flagged."


def _number(value: float, form: str) -> str:
    if not isfinite(value):
        return _NO_NUMBER
    return format(value, form).replace("-", "−")
