"""What part of a batch each domain should have: a fixed composition, or one that follows a balancer's weights."""

import math
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, runtime_checkable

Shares = Callable[[], Mapping[str, float]]
Follow = Literal["loss", "sampling", "both"]

# The power of the weights by which domains are sampled; the loss gets the rest.
_POWERS = {"sampling": 1.0, "both": 0.5}
_FORMS = "'balanced', 'proportional', 'sqrt', a mapping of domain name to number, a balancer, or a function"


@runtime_checkable
class Weighted(Protocol):
    """Whatever has weights by name, as a balancer has."""

    @property
    def weights(self) -> Mapping[str, float]:
        """Each domain's weight now."""
        ...


Sampling = Literal["balanced", "proportional", "sqrt"] | Mapping[str, float] | Weighted | Shares


def is_followed(sampling: Sampling, follow: Follow | None) -> bool:
    """Return whether the composition of batches changes with weights."""
    if follow is not None and follow not in ("loss", *_POWERS):
        raise ValueError(f"follow must be 'loss', 'sampling' or 'both'; got {follow!r}.")
    if isinstance(sampling, type):
        raise TypeError(f"sampling must be {_FORMS}; got the class {sampling.__name__}.")
    changes = isinstance(sampling, Weighted) or callable(sampling)
    if not changes and follow in _POWERS:
        raise ValueError(f"follow={follow!r} needs weights to follow: pass sampling=balancer; got {sampling!r}.")
    return changes and follow != "loss"


def make_shares(sampling: Sampling, follow: Follow | None, lengths: Mapping[str, int | None]) -> Shares:
    """Return a function that says what part of the next batch each domain should have.

    Args:
        sampling: as `DomainLoader` has it.
        follow: as `DomainLoader` has it.
        lengths: the number of samples of each domain; `None` where it is unknown.
    """
    if not is_followed(sampling, follow):
        shares = _fixed_shares(sampling, lengths)
        return lambda: shares
    power = _POWERS[follow or "sampling"]

    def follow_weights() -> dict[str, float]:
        weights = sampling.weights if isinstance(sampling, Weighted) else sampling()  # type: ignore[operator]
        return {name: weight**power for name, weight in _checked("the weights", weights, lengths).items()}

    follow_weights()  # refuses weights of other domains now, not in the first batch
    return follow_weights


def _fixed_shares(sampling: Sampling, lengths: Mapping[str, int | None]) -> dict[str, float]:
    if isinstance(sampling, Mapping):
        if unknown := set(sampling) - set(lengths):
            raise ValueError(f"sampling must name domains among {tuple(lengths)}; got {sorted(unknown)[0]!r}.")
        return _checked("sampling", sampling, lengths)
    if sampling == "balanced" or not isinstance(sampling, str):  # weights that act on the losses alone
        return dict.fromkeys(lengths, 1.0)
    if sampling not in ("proportional", "sqrt"):
        raise ValueError(f"sampling must be {_FORMS}; got {sampling!r}.")
    shares = {}
    for name, length in lengths.items():
        if length is None:
            raise ValueError(f"sampling={sampling!r} needs lengths, and domain {name!r} has none: pass a mapping.")
        shares[name] = float(length) if sampling == "proportional" else math.sqrt(length)
    return shares


def _checked(source: str, numbers: Mapping[str, float], lengths: Mapping[str, int | None]) -> dict[str, float]:
    """The number of each domain; numbers must be finite, not negative, and not all 0."""
    if not isinstance(numbers, Mapping) or (missing := [name for name in lengths if name not in numbers]):
        missing = list(lengths) if not isinstance(numbers, Mapping) else missing
        raise ValueError(f"{source} must hold a number for each of {tuple(lengths)}; got none for {missing[0]!r}.")
    checked = {name: float(numbers[name]) for name in lengths}
    if any(not 0 <= number < math.inf for number in checked.values()) or not any(checked.values()):
        raise ValueError(f"{source} must be finite, not negative, and above 0 for some domain; got {checked}.")
    return checked
