"""The audit: who helps whom, and which domain needs a look."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from steelyard.training.judging import FEWEST_VOTES
from steelyard.training.noise import Suspects, beyond_doubt
from steelyard.training.transfer import Transfer

Kind = Literal["noisy labels", "harms others", "out of scale", "starved"]

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
        remaining: the part of its first loss that is left.
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
    remaining: float
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
        header = (
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
        rows: list[tuple[str, ...]] = [header]
        for domain in self.domains:
            transfers = [f"{value:+.2e}" for value in (domain.own, domain.given, domain.received)]
            sizes = [f"{domain.weight:.3f}", f"{domain.share:.3f}", f"{domain.loss_scale:.2f}x"]
            sizes.append(f"{domain.remaining:.0%}")
            rows.append((domain.name, *sizes, *transfers, f"{domain.presence:.0%}", str(domain.votes)))
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines = []
        for row in rows:
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join(cells))
        lines += ["", "own, to others, from others: change of the judged score by one step; negative helps."]
        return "\n".join([*lines, *self.conclusions])

    @property
    def conclusions(self) -> list[str]:
        """The flags in words, a line each; and whether there were too few votes to judge transfer."""
        lines = [f"{flag.domain}: {flag.kind}. {flag.evidence}" for flag in self.flags]
        fewest = min((domain.votes for domain in self.domains), default=0)
        if fewest < FEWEST_VOTES:
            lines.append(f"Too few votes to judge all transfer: {fewest} of {FEWEST_VOTES} for some domain.")
        elif not self.flags:
            lines.append("No domain is flagged.")
        return lines


def audit_domains(
    domains: Sequence[str],
    transfer: Transfer,
    suspects: Suspects,
    presences: Sequence[float],
    *,
    weights: Mapping[str, float],
    shares: Mapping[str, float],
) -> Audit:
    """Audit the domains by what was measured so far.

    Args:
        domains: their names.
        transfer: what was measured.
        suspects: how far the losses have fallen, and which domains did not learn.
        presences: for each domain the part of the batches that hold samples of it.
        weights: of the losses now.
        shares: of the update now.
    """
    means, errors = transfer.mean.cpu(), transfer.standard_error.cpu()
    loss_scale = transfer.loss_scale.cpu()
    given, remaining = transfer.given.cpu(), suspects.progress.remaining.cpu()
    entries = []
    for number, name in enumerate(domains):
        others = [index for index in range(len(domains)) if index != number]
        entry = DomainAudit(
            name=name,
            weight=weights[name],
            share=shares[name],
            loss_scale=float(loss_scale[number]),
            remaining=float(remaining[number]),
            own=float(means[number, number]),
            given=float(given[number]),
            received=float(means[others, number].nanmean()),
            presence=presences[number],
            votes=int(transfer.count[number].max()),
        )
        entries.append(entry)
    flags = _noise_flags(entries, suspects)
    flags += _harm_flags(entries, transfer.early.cpu())
    flags += _size_flags(entries)
    return Audit(
        domains=tuple(entries),
        transfer=tuple(map(tuple, means.tolist())),
        standard_error=tuple(map(tuple, errors.tolist())),
        flags=tuple(flags),
    )


def _noise_flags(entries: Sequence[DomainAudit], suspects: Suspects) -> list[Flag]:
    """Domains whose labels look noisy."""
    flags = []
    measured = (suspects.look_noisy, suspects.suspected, suspects.remaining, suspects.own_in_errors)
    columns = (column.tolist() for column in measured)
    for entry, looks_noisy, suspected, remaining, own in zip(entries, *columns, strict=True):
        if not looks_noisy:
            continue
        evidence = (
            f"While the better half of the domains learned, {remaining:.0%} of its first loss remained. "
            f"Its steps were not shown to help other samples of its own ({own:+.1f} standard errors). "
            "Look at its labels; a domain that is much harder than the others looks the same."
        )
        if not suspected:
            evidence += " Its loss has fallen since: it was only hard, or its labels were memorised."
        flags.append(Flag(domain=entry.name, kind="noisy labels", evidence=evidence))
    return flags


def _harm_flags(entries: Sequence[DomainAudit], early: Tensor) -> list[Flag]:
    """Domains whose steps make the others worse, by more than they help themselves.

    Where the steps of most domains do, no domain is to blame but the steps: a learning rate that is too high for one
    domain alone, or batch normalisation on one domain's statistics.
    """
    flags = []
    threshold = beyond_doubt(len(entries))
    to_others, to_all = early.tolist()
    for entry, others, everyone in zip(entries, to_others, to_all, strict=True):
        if entry.votes >= FEWEST_VOTES and others > threshold and everyone > threshold:
            evidence = (
                f"Its steps make the others worse ({others:+.1f} standard errors), by more than they help itself "
                f"({everyone:+.1f} for all together)."
            )
            flags.append(Flag(domain=entry.name, kind="harms others", evidence=evidence))
    return flags if 2 * len(flags) <= len(entries) else []


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
