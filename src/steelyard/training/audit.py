"""The audit: who helps whom, and which domain needs a look."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

from torch import Tensor

from steelyard.training.transfer import Transfer

Kind = Literal["noisy labels", "harms others", "out of scale", "starved"]

FEWEST_VOTES = 100  # before transfer says anything
_LEVEL = 0.01  # of an error, for all domains and both flags about transfer together
_OUT_OF_SCALE = 10.0  # times the median size of gradients, or a tenth of it
_RARE = 0.2  # part of the batches that a domain is present in
_SMALL_SHARE = 0.2  # of an equal share of the update


@dataclass(frozen=True, kw_only=True)
class Flag:
    """Something about a domain that deserves a look.

    Attributes:
        domain: its name.
        kind: what it is.
        evidence: what was measured, in words.
    """

    domain: str
    kind: Kind
    evidence: str


@dataclass(frozen=True, kw_only=True)
class DomainAudit:
    """What was measured about one domain. Transfer is a change of judged scores by a step; negative helps.

    Attributes:
        name: of the domain.
        weight: of its loss now.
        share: of the update now.
        loss_scale: the largest size of its gradients relative to the median, by which the units of its loss show.
        own: what its steps do to itself, on samples that the step was not taken from.
        given: what its steps do to the others, weighted by importance.
        received: what the others' steps do to it, on average.
        presence: the part of the batches that hold samples of it.
        votes: the number of votes with a step for it.
    """

    name: str
    weight: float
    share: float
    loss_scale: float
    own: float
    given: float
    received: float
    presence: float
    votes: int


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What a balancer measured about its domains; `print` shows it as a table.

    Attributes:
        domains: one entry for each domain.
        transfer: entry (i, j) is the mean change of the judged score of domain j by a step for domain i, or NaN.
        standard_error: of these means.
        flags: what deserves a look, with the evidence.
    """

    domains: tuple[DomainAudit, ...]
    transfer: tuple[tuple[float, ...], ...]
    standard_error: tuple[tuple[float, ...], ...]
    flags: tuple[Flag, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        header = ("domain", "weight", "share", "loss scale", "own", "to others", "from others", "present", "votes")
        rows: list[tuple[str, ...]] = [header]
        for domain in self.domains:
            transfers = [f"{value:+.2e}" for value in (domain.own, domain.given, domain.received)]
            numbers = [f"{domain.weight:.3f}", f"{domain.share:.3f}", f"{domain.loss_scale:.2f}x", *transfers]
            rows.append((domain.name, *numbers, f"{domain.presence:.0%}", str(domain.votes)))
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines = []
        for row in rows:
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join(cells))
        lines += ["", "own, to others, from others: change of the judged score by one step; negative helps."]
        for flag in self.flags:
            lines.append(f"{flag.domain}: {flag.kind}. {flag.evidence}")
        if not self.flags:
            lines.append("No domain is flagged.")
        return "\n".join(lines)


def audit_domains(
    domains: Sequence[str],
    transfer: Transfer,
    *,
    weights: Mapping[str, float],
    shares: Mapping[str, float],
    presences: Sequence[float],
) -> Audit:
    """Audit the domains by what was measured so far.

    Args:
        domains: their names.
        transfer: what was measured.
        weights: of the losses now.
        shares: of the update now.
        presences: for each domain the part of the batches that hold samples of it.
    """
    means, errors = transfer.mean.cpu(), transfer.standard_error.cpu()
    loss_scale = transfer.loss_scale.cpu()
    given = transfer.given.cpu()
    entries = []
    for number, name in enumerate(domains):
        others = [index for index in range(len(domains)) if index != number]
        entry = DomainAudit(
            name=name,
            weight=weights[name],
            share=shares[name],
            loss_scale=float(loss_scale[number]),
            own=float(means[number, number]),
            given=float(given[0, number]),
            received=float(means[others, number].nanmean()),
            presence=presences[number],
            votes=int(transfer.count[number].max()),
        )
        entries.append(entry)
    own_votes = transfer.count.diagonal().tolist()
    flags = _transfer_flags(entries, own_votes, own_errors=errors.diagonal(), given_errors=given[1])
    flags += _size_flags(entries)
    return Audit(
        domains=tuple(entries),
        transfer=tuple(map(tuple, means.tolist())),
        standard_error=tuple(map(tuple, errors.tolist())),
        flags=tuple(flags),
    )


def _transfer_flags(
    entries: Sequence[DomainAudit], own_votes: Sequence[int], *, own_errors: Tensor, given_errors: Tensor
) -> list[Flag]:
    """Domains whose steps do not help themselves as others' do, or harm the others.

    Transfer is compared in standard errors, so that losses in other units and votes of any number can be compared.
    """
    # One-sided, and corrected for two questions about each domain (Bonferroni).
    threshold = NormalDist().inv_cdf(1 - _LEVEL / (2 * len(entries)))
    own: dict[str, float] = {}  # in standard errors, of domains that were judged often enough by their own steps
    flags = []
    for entry, votes, own_error, given_error in zip(
        entries, own_votes, own_errors.tolist(), given_errors.tolist(), strict=True
    ):
        if votes >= FEWEST_VOTES and own_error > 0:
            own[entry.name] = entry.own / own_error
        if entry.votes >= FEWEST_VOTES and entry.given > threshold * given_error:
            evidence = f"Its steps make the others worse ({entry.given / given_error:+.1f} standard errors)."
            flags.append(Flag(domain=entry.name, kind="harms others", evidence=evidence))
    return flags + _noise_flags(own, threshold)


def _noise_flags(own: Mapping[str, float], threshold: float) -> list[Flag]:
    """Domains whose own transfer, in standard errors, is not shown to help, and shown to be worse than the best."""
    best = min(own, key=lambda name: own[name], default="")
    flags = []
    for name, errors in own.items():
        # The difference of two means has √2 times the standard error of one.
        if errors > -threshold and (errors - own[best]) / math.sqrt(2) > threshold:
            evidence = (
                f"Its steps are not shown to help itself on other samples of its own ({errors:+.1f} standard errors), "
                f"while those of {best} help itself ({own[best]:+.1f}). "
                "Look at its labels, and whether it has very few samples."
            )
            flags.append(Flag(domain=name, kind="noisy labels", evidence=evidence))
    return flags


def _size_flags(entries: Sequence[DomainAudit]) -> list[Flag]:
    """Domains with gradients of another size, few batches or a small share of the update."""
    flags = []
    for entry in entries:
        if not 1 / _OUT_OF_SCALE <= entry.loss_scale <= _OUT_OF_SCALE:
            ratio = f"{entry.loss_scale:.3g} times as large as the median domain's"
            evidence = f"Its gradients are {ratio}. Look at the units of its loss."
            flags.append(Flag(domain=entry.name, kind="out of scale", evidence=evidence))
        if entry.presence < _RARE:
            evidence = f"It is present in {entry.presence:.0%} of the batches."
            flags.append(Flag(domain=entry.name, kind="starved", evidence=evidence))
        elif entry.share < _SMALL_SHARE / len(entries):
            evidence = f"Its share of the update is {entry.share:.1%}, and an equal one {1 / len(entries):.1%}."
            flags.append(Flag(domain=entry.name, kind="starved", evidence=evidence))
    return flags
