"""Checks of what a balancer is given, and of checkpoints that it loads."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from steelyard.batches import Tree, count_samples
from steelyard.measurement import Statistic
from steelyard.probing import Probe
from steelyard.probing.vote_probe import VoteProbe
from steelyard.weighting import Weighting

FORMAT = 5  # of a balancer's state_dict; to be raised when entries change their names or meanings


def checked_names(domains: Sequence[str]) -> tuple[str, ...]:
    """The names of the domains."""
    if not isinstance(domains, Sequence) or isinstance(domains, str) or not all(isinstance(d, str) for d in domains):
        raise TypeError(f"domains must be a sequence of names; got {domains!r}.")
    if not domains or len(set(domains)) != len(domains):
        raise ValueError(f"domains must be distinct names, at least one; got {domains!r}.")
    return tuple(domains)


def check_kind(name: str, value: object, kind: type) -> None:
    """Refuse a value that is not an instance of a class."""
    if not isinstance(value, kind):
        form = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{name} must be an instance of {kind.__name__}; got {form}.")


def check_fit(weighting: Weighting, probe: Probe) -> None:
    """Refuse a probe that does not provide what the weighting needs."""
    fits = weighting.statistic in (Statistic.NOTHING, probe.statistic)
    if weighting.statistic is Statistic.WORTH:  # which is made of the scores of a vote
        fits = isinstance(probe, VoteProbe)
    if not fits:
        raise ValueError(
            f"{type(weighting).__name__} needs {weighting.statistic.value}; "
            f"{type(probe).__name__} provides {probe.statistic.value}."
        )


def warn_of_no_probe(weighting: Weighting) -> None:
    """Say that the weights of a weighting that needs measurements will not change."""
    warnings.warn(
        f"without a probe the weights of {type(weighting).__name__} stay as they start: "
        "leave probe= out to learn them, or pass weighting=sy.Fixed(…).",
        stacklevel=3,
    )


def checked_importance(importance: Mapping[str, float] | None, domains: Sequence[str]) -> list[float]:
    """ω, each domain's importance divided by the sum; equal by default."""
    if importance is None:
        return [1 / len(domains)] * len(domains)
    if not isinstance(importance, Mapping) or set(importance) != set(domains):
        raise ValueError(f"importance must map each of {tuple(domains)} to a number; got {importance!r}.")
    numbers = [float(importance[name]) for name in domains]
    if any(not 0 <= number < math.inf for number in numbers):
        raise ValueError(f"importance must be finite and not negative; got {dict(importance)}.")
    if sum(numbers) == 0:
        raise ValueError("importance must be above 0 for at least one domain; got 0 for all.")
    return [number / sum(numbers) for number in numbers]


def checked_batch(batch: Mapping[str, Tree], domains: Sequence[str]) -> dict[str, Tree]:
    """The domains that have samples in a batch, in the balancer's order."""
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"a batch must map domain names to samples; got {type(batch).__name__}. "
            "Of one batch per domain, dict(zip(domains, batches)) makes a mapping."
        )
    if unknown := [name for name in batch if name not in domains]:
        raise ValueError(f"a batch must map names among {tuple(domains)} to samples; got {unknown[0]!r}.")
    present = {name: batch[name] for name in domains if name in batch and _has_samples(name, batch[name])}
    if not present:
        raise ValueError(f"the batch holds no sample of any of {tuple(domains)}.")
    return present


def _has_samples(name: str, domain_batch: Tree) -> bool:
    try:
        return count_samples(domain_batch) > 0
    except (TypeError, ValueError) as error:
        raise type(error)(f"domain {name!r}: {error}") from None


def checked_factors(batch: Mapping[str, Tree], domains: Sequence[str]) -> dict[str, float]:
    """What each domain's weight is multiplied by: the attribute `factors` of a batch that has one; otherwise 1."""
    factors = getattr(batch, "factors", {})
    checked = {name: float(factors.get(name, 1.0)) for name in domains}
    if any(not 0 <= factor < math.inf for factor in checked.values()):
        raise ValueError(f"the factors of a batch must be finite and not negative; got {dict(factors)}.")
    return checked


def as_bytes(value: object) -> Tensor:
    """A JSON value as a tensor, so that a checkpoint can hold it."""
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)


def from_bytes(tensor: Tensor) -> Any:
    """Undo `as_bytes`."""
    return json.loads(bytes(tensor.tolist()))


def check_checkpoint(state: Mapping[str, Any], prefix: str, signature: Tensor) -> None:
    """Refuse a checkpoint of another format, of other domains, or of a weighting with other settings."""
    saved_format: int | None = None
    if f"{prefix}_format" in state:
        saved_format = int(state[f"{prefix}_format"])
    if saved_format != FORMAT:
        raise ValueError(f"the checkpoint of a balancer must have the format version {FORMAT}; got {saved_format}.")
    saved_signature = state.get(f"{prefix}_signature")
    if saved_signature is None or torch.equal(saved_signature.cpu(), signature.cpu()):
        return
    saved_domains, saved_weighting, saved_judge, saved_importance = from_bytes(saved_signature)
    domains, weighting, judge, importance = from_bytes(signature)
    if saved_domains != domains:
        raise ValueError(f"the checkpoint weighs the domains {saved_domains}; this balancer {domains}.")
    if saved_weighting != weighting:
        raise ValueError(f"the checkpoint is of {saved_weighting}; this balancer has {weighting}.")
    if saved_judge != judge:
        raise ValueError(f"the checkpoint was judged by {saved_judge}; this balancer judges by {judge}.")
    raise ValueError(f"the checkpoint has the importance {saved_importance}; this balancer {importance}.")
