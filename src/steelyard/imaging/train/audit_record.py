"""A run's audit as a JSON object, which anybody may have written or changed."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from steelyard.errors import UserError
from steelyard.files.checks import LARGEST, brief, check_choice, check_kind, check_number, check_whole, is_name
from steelyard.training.audit import Audit, DomainAudit, Flag, Kind

_LONGEST_EVIDENCE = 1000  # characters of a flag's evidence; what steelyard writes is a third of that
_MOST_DOMAINS = 1000
_MOST_VOTES = 2**62
# The limits of a domain's numbers; all others may be of any size and sign.
_LIMITS = {"weight": (0.0, LARGEST), "share": (0.0, 1.0), "loss_scale": (0.0, LARGEST), "presence": (0.0, 1.0)}


def describe_audit(audit: Audit) -> dict[str, Any]:
    """Return an audit as JSON stores it: null for a number that is not finite, as there is no NaN in JSON."""
    content = _without_nan(audit.as_dict())
    assert isinstance(content, dict)  # noqa: S101
    return content


def parse_audit(content: Mapping[str, Any]) -> Audit:
    """Return the audit that `describe_audit` or `Audit.as_dict` described; a null becomes NaN.

    Raises:
        UserError: An entry is missing or impossible.
    """
    domains = _entries(content, "domains")
    if not 1 <= len(domains) <= _MOST_DOMAINS:
        raise UserError(f"domains must have 1 to {_MOST_DOMAINS} entries; it has {len(domains)}.")
    flags = _entries(content, "flags")
    return Audit(
        domains=tuple(_parse_domain(entry) for entry in domains),
        transfer=_parse_matrix(content, "transfer", size=len(domains)),
        standard_error=_parse_matrix(content, "standard_error", size=len(domains)),
        flags=tuple(_parse_flag(entry) for entry in flags),
    )


def _without_nan(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _entries(content: Mapping[str, Any], name: str) -> list[Any]:
    """Return the list of this name."""
    entries = content.get(name)
    if not isinstance(entries, list | tuple):
        raise UserError(f"{name} must be a list; got {brief(entries)}.")
    return list(entries)


def _parse_domain(entry: object) -> DomainAudit:
    if not isinstance(entry, Mapping):
        raise UserError(f"domains must be objects; got {brief(entry)}.")
    name = _parse_name(entry.get("name"))
    votes = check_whole(f"votes of {name}", entry.get("votes"), 0, _MOST_VOTES)
    numbers = {}
    for field in fields(DomainAudit):
        if field.name not in ("name", "votes"):
            limits = _LIMITS.get(field.name, (-LARGEST, LARGEST))
            numbers[field.name] = _parse_number(f"{field.name} of {name}", entry.get(field.name, ""), limits)
    return DomainAudit(name=name, votes=votes, **numbers)


def _parse_matrix(content: Mapping[str, Any], name: str, *, size: int) -> tuple[tuple[float, ...], ...]:
    """Return a square matrix with one row and one column for each domain."""
    rows = _entries(content, name)
    matrix = []
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != size:
            raise UserError(f"{name} must have rows of {size} numbers; got {brief(row)}.")
        matrix.append(tuple(_parse_number(name, value, (-LARGEST, LARGEST)) for value in row))
    if len(matrix) != size:
        raise UserError(f"{name} must have {size} rows; it has {len(matrix)}.")
    return tuple(matrix)


def _parse_flag(entry: object) -> Flag:
    if not isinstance(entry, Mapping):
        raise UserError(f"flags must be objects; got {brief(entry)}.")
    kind, evidence = entry.get("kind"), entry.get("evidence")
    check_choice("the kind of a flag", kind, get_args(Kind))
    check_kind("the evidence of a flag", evidence, str)
    evidence = str(evidence)
    if len(evidence) > _LONGEST_EVIDENCE or not evidence.isprintable():
        raise UserError(
            f"the evidence of a flag must be at most {_LONGEST_EVIDENCE} printable characters; got {brief(evidence)}."
        )
    return Flag(domain=_parse_name(entry.get("domain")), kind=kind, evidence=evidence)  # type: ignore[arg-type]


def _parse_name(name: object) -> str:
    if not is_name(name):
        raise UserError(f"a domain must have a name of 1 to 255 printable characters; got {brief(name)}.")
    return str(name)


def _parse_number(name: str, value: object, limits: tuple[float, float]) -> float:
    """Return a number, or NaN for null; `Audit.as_dict` has NaN itself."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return math.nan
    return float(check_number(name, value, *limits))
