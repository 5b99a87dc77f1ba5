"""Names of networks, methods and domains: their order, and how tables and figures write them."""

import re
from collections.abc import Iterable, Sequence

from steelyard.imaging.runs.method import EQUAL, Method

BASELINE = EQUAL.name
"""The method that others are compared with by default."""

_TITLES = {"flair": "FLAIR", "t1": "T1"}
_INITIALS = {"flair": "F", "t1": "T"}


def canonical_method(text: str) -> str:
    """Return the readable name of a method; a name that is not known stays as it is.

    >>> canonical_method("Ours-C-25"), canonical_method("mine")
    ('conservative-25', 'mine')
    """
    return Method.parse_or_unknown(text).name


def sorted_methods(names: Iterable[str]) -> list[str]:
    """Return each method once, in the order of the paper's tables, others after them by name.

    >>> sorted_methods(["mine", "conservative-25", "equal", "mine"])
    ['equal', 'conservative-25', 'mine']
    """
    return sorted(set(names), key=lambda name: Method.parse_or_unknown(name).order)


def describe_methods(names: Iterable[str]) -> list[str]:
    """Return a line for each method that is known: its name and what it does.

    >>> describe_methods(["equal", "mine"])
    ['equal: equal weights']
    """
    lines = []
    for name in names:
        description = Method.parse_or_unknown(name).description
        if description:
            lines.append(f"{name}: {description}")
    return lines


def natural_order(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a key that sorts numbers within names by value.

    >>> sorted(["a-100", "a-25"], key=natural_order)
    ['a-25', 'a-100']
    """
    key = []
    for part in re.findall(r"\d+|\D+", name):
        if part.isdecimal():
            key.append((False, int(part), part))
        else:
            key.append((True, 0, part))
    return tuple(key)


def domain_title(domain: str) -> str:
    """Return a domain's name as people write it.

    >>> domain_title("flair"), domain_title("flair@a")
    ('FLAIR', 'flair@a')
    """
    return _TITLES.get(domain, domain)


def column_suffixes(domains: Sequence[str]) -> dict[str, str]:
    """Return what marks a domain in a column's heading: F and T as in the paper, else the name.

    >>> column_suffixes(("flair", "t1")), column_suffixes(("flair", "t2"))
    ({'flair': 'F', 't1': 'T'}, {'flair': 'flair', 't2': 't2'})
    """
    if set(domains) <= set(_INITIALS):
        return {domain: _INITIALS[domain] for domain in domains}
    return {domain: domain for domain in domains}


def plotted_domains(domains: tuple[str, ...]) -> tuple[str, ...]:
    """Return the domains whose weights are shown: of two, one is enough, because weights sum to 1.

    >>> plotted_domains(("flair", "t1")), plotted_domains(("a", "b", "c"))
    (('flair',), ('a', 'b', 'c'))
    """
    if len(domains) == 2:
        return domains[:1]
    return domains
