"""The loader: what a training loop iterates over."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, final

import torch
from torch import Tensor, distributed
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from steelyard.batches import split_by_domain
from steelyard.sampling.composition import Composer
from steelyard.sampling.domain_batch import DomainBatch
from steelyard.sampling.draws import Draws
from steelyard.sampling.fetching import Batches, Collate, is_stream
from steelyard.sampling.passes import Shard, ShuffledPasses
from steelyard.sampling.shares import Follow, Sampling, is_followed, make_shares
from steelyard.sampling.streams import StreamPositions

_FORMAT = 1  # of a loader's state_dict
# Arguments of torch's DataLoader that are passed on.
_OPTIONS = (
    *("num_workers", "pin_memory", "pin_memory_device", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers"),
)


@final
class DomainLoader:
    """Loads batches of several domains, `{domain: (inputs, targets)}`, which a balancer takes directly.

    The expected gradient of the outer loss is Σ_d λ_d ∇L_d in every mode, where L_d is the mean loss over domain d. A
    batch has a factor f_d for each domain, and the balancer weighs the domain's mean loss by λ_d f_d.

    - `follow="loss"`: all batches are composed alike; λ_d weighs the loss, and f_d = 1.
    - `follow="sampling"`: domain d has n_d samples, in proportion to λ_d on average. With f_d = n_d / E[n_d] the outer
      loss is the plain mean over the samples of the batch, times Σ_d λ_d; domains at their `minimum` are weighted down.
    - `follow="both"`: n_d follows √λ_d, and f_d = n_d / E[n_d]; the loss has the rest of the weight.

    Weights are read when a batch is drawn. Workers draw some batches ahead, so these follow slightly older weights. As
    E[f_d] = 1 whatever a batch was drawn with, the balancer's present weights act on the loss in full.

    Each domain is read in passes over all its samples, each in a new random order. Passes go on over epochs, so a
    shorter domain is repeated and a longer one continues in the next epoch. `set_epoch` is not needed.

    Args:
        datasets: domain name to dataset, with an index or iterable.
        batch_size: the number of samples in a batch, of all domains together; on each rank.
        sampling: the composition of a batch: `balanced`, as many samples of each domain; `proportional` to the lengths
            of the datasets; `sqrt`, to their square roots; a mapping of domain name to number; or a balancer, whose
            weights are followed. A function that returns such a mapping is followed as well. Where losses are in
            different units, follow `lambda: balancer.shares` instead of the weights.
        follow: how a followed weight is realised, see above; default: `sampling`.
        minimum: of samples of each domain in a batch, as far as it has room. A vote needs 2; more make it less noisy.
            With 0, a domain may be absent, and one of weight 0 always is.
        steps: the number of batches in an epoch. Default: as many as have together the number of samples of all
            datasets. Must be given for iterable datasets.
        seed: of everything random, which includes what the datasets draw; or a generator to draw it from.
        rank: of this process. By default it and `world_size` are those of `torch.distributed`. All ranks need the same
            datasets and the same seed. They get different samples, and equally many batches.
        world_size: the number of processes. 1 where each rank brings datasets of its own; then give `steps`, too.
        collate_fn: makes the batch of a domain of a list of its samples; default: torch's.
        options: of torch's `DataLoader`: `num_workers`, `pin_memory`, `persistent_workers`, `prefetch_factor`, ….

    >>> from torch.utils.data import TensorDataset
    >>> datasets = {"a": TensorDataset(torch.arange(6)), "b": TensorDataset(torch.arange(3))}
    >>> loader = DomainLoader(datasets, batch_size=4)
    >>> for batch in loader:
    ...     print({name: samples.tolist() for name, (samples,) in batch.items()})
    {'a': [1, 3], 'b': [2, 1]}
    {'a': [4, 2], 'b': [0, 2]}
    {'a': [5, 0], 'b': [1, 0]}
    """

    def __init__(
        self,
        datasets: Mapping[str, Any],
        batch_size: int,
        *,
        sampling: Sampling = "balanced",
        follow: Follow | None = None,
        minimum: int = 2,
        steps: int | None = None,
        seed: int | torch.Generator = 0,
        rank: int | None = None,
        world_size: int | None = None,
        collate_fn: Collate = default_collate,
        **options: Any,
    ) -> None:
        _check_at_least("batch_size", batch_size, 1)
        _check_at_least("minimum", minimum, 0)
        _check_options(options)
        self._lengths = _lengths(datasets)
        self._shard = _shard(rank, world_size)
        if steps is None:
            steps = _default_steps(self._lengths, batch_size * self._shard.world_size)
        _check_at_least("steps", steps, 1)
        compose = Composer(
            make_shares(sampling, follow, self._lengths),
            size=batch_size,
            minimum=minimum,
            fixed=not is_followed(sampling, follow),
        )
        compose(0.0)  # refuses a composition that is impossible now, not in the first batch
        workers = options.get("num_workers", 0)
        sources = _sources(self._lengths, self._shard, workers)
        if isinstance(seed, torch.Generator):
            seed = int(torch.randint(2**31, (), generator=seed))
        self._draws = Draws(sources, compose, steps=steps, workers=workers, seed=seed, rank=self._shard.rank)
        if workers and None in self._lengths.values():
            options.setdefault("persistent_workers", True)  # or each epoch would read the streams from the beginning
        self._loader: DataLoader[DomainBatch | None] = DataLoader(
            Batches(datasets, collate_fn),
            batch_size=None,
            sampler=self._draws,
            collate_fn=_unchanged,
            generator=torch.Generator(),  # or each epoch would draw a number from the program's own
            **options,
        )

    @classmethod
    def from_labels(
        cls,
        dataset: Dataset[Any],
        labels: Tensor | Sequence[int | str],
        domains: Sequence[str],
        batch_size: int,
        **settings: Any,
    ) -> Self:
        """Make a loader of one dataset whose samples have domain labels.

        Args:
            dataset: with a length and an index.
            labels: for each sample the name of its domain, or the domain's index in `domains`.
            domains: the names of the domains; each must have a sample.
            batch_size: the number of samples in a batch.
            settings: further arguments of `DomainLoader`.
        """
        numbers = split_by_domain(torch.arange(len(dataset)), labels, domains)  # type: ignore[arg-type]
        if missing := [name for name in domains if name not in numbers]:
            raise ValueError(f"labels must have a sample of each of {tuple(domains)}; got none of {missing[0]!r}.")
        subsets = {name: Subset(dataset, numbers[name].tolist()) for name in domains}
        return cls(subsets, batch_size, **settings)

    def __len__(self) -> int:
        """The number of batches in an epoch, the same on every rank."""
        return self._draws.steps

    def __iter__(self) -> Iterator[DomainBatch]:
        """The batches of an epoch; after `load_state_dict`, those that are left of it."""
        self._draws.start_epoch()
        for batch in self._loader:
            if batch is not None:
                self._draws.note_delivery()
                yield batch
        self._draws.finish_epoch()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to continue after the last batch, as plain values.

        It is the same on every rank whose weights are.
        """
        fitting = {"format": _FORMAT, "lengths": dict(self._lengths), "world_size": self._shard.world_size}
        return {**fitting, **self._draws.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the batch after the last one of the run that saved the state, in the middle of an epoch or not.

        The batches are bit-identical, also with workers, and where datasets draw random numbers. The seed is that of
        the state. An iterable dataset must yield the same samples when it is iterated over again. It is read from its
        beginning, and what was used is skipped. It needs the same number of workers; other datasets do not, if the
        weights are not followed.
        """
        if state["format"] != _FORMAT:
            raise ValueError(f"the state of a loader must have the format version {_FORMAT}; got {state['format']}.")
        if state["lengths"] != self._lengths:
            raise ValueError(
                f"the state is of datasets of the lengths {state['lengths']}; this loader {self._lengths}."
            )
        if state["world_size"] != self._shard.world_size:
            raise ValueError(
                f"the state is of {state['world_size']} ranks; this loader is of {self._shard.world_size}."
            )
        self._draws.load_state_dict(state)


def _check_at_least(name: str, number: int, least: int) -> None:
    if not isinstance(number, int) or number < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {number!r}.")


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"DomainLoader has no argument {name!r}; of DataLoader's it takes {', '.join(_OPTIONS)}.")


def _lengths(datasets: Mapping[str, Any]) -> dict[str, int | None]:
    """The number of samples of each domain; `None` where it is unknown."""
    if not isinstance(datasets, Mapping) or not datasets:
        raise TypeError(f"datasets must map domain names to datasets; got {datasets!r}.")
    lengths: dict[str, int | None] = {}
    for name, dataset in datasets.items():
        lengths[name] = None if is_stream(dataset) else len(dataset)
        if lengths[name] == 0:
            raise ValueError(f"the dataset of domain {name!r} must have a sample; it has none.")
    return lengths


def _shard(rank: int | None, world_size: int | None) -> Shard:
    if (rank is None) != (world_size is None):
        raise ValueError(f"give both rank and world_size, or none; got {rank!r} and {world_size!r}.")
    if rank is None or world_size is None:
        if not (distributed.is_available() and distributed.is_initialized()):
            return Shard(0, 1)
        return Shard(distributed.get_rank(), distributed.get_world_size())
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be at least 0 and less than world_size ({world_size}); got {rank}.")
    return Shard(rank, world_size)


def _sources(
    lengths: Mapping[str, int | None], shard: Shard, workers: int
) -> dict[str, ShuffledPasses | StreamPositions]:
    """For each domain which of its samples come next."""
    sources: dict[str, ShuffledPasses | StreamPositions] = {}
    for name, length in lengths.items():
        if length is None:
            sources[name] = StreamPositions(workers)
        else:
            sources[name] = ShuffledPasses(name, length, shard)
    return sources


def _default_steps(lengths: Mapping[str, int | None], samples_per_step: int) -> int:
    """As many steps as use the number of samples of all datasets together."""
    total = 0
    for name, length in lengths.items():
        if length is None:
            raise ValueError(f"steps must be given: the length of domain {name!r} is unknown.")
        total += length
    return math.ceil(total / samples_per_step)


def _unchanged(batch: Any) -> Any:
    return batch
