"""The audit: who helps whom, and which domain needs a look."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from steelyard.training.transfer import Transfer

Kind = Literal["noisy labels", "harms others", "out of scale", "starved"]


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
    """What was measured about one domain."""

    name: str
    weight: float
    share: float
    scale: float
    given: float
    received: float
    own: float
    presence: float


@dataclass(frozen=True, kw_only=True)
class Audit:
    domains: tuple[DomainAudit, ...]
    flags: tuple[Flag, ...]
    transfer: tuple[tuple[float, ...], ...]
    standard_error: tuple[tuple[float, ...], ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def audit_domains(
    domains: Sequence[str],
    transfer: Transfer,
    *,
    weights: Mapping[str, float],
    shares: Mapping[str, float],
    presences: Sequence[float],
) -> Audit:
    return Audit(domains=(), flags=(), transfer=(), standard_error=())
