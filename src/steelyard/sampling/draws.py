"""Draws batches one by one, and keeps count of what was delivered, so that a run can be resumed."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from steelyard.sampling.composition import Composition
from steelyard.sampling.passes import ShuffledPasses
from steelyard.sampling.seeds import seed_of, uniform_of
from steelyard.sampling.streams import StreamPositions


class Draw(NamedTuple):
    """Which samples make one batch.

    Attributes:
        samples: by domain the indices of its samples, or their positions in a stream. None at all: an idle draw, which
            makes no batch.
        factors: of the batch.
        worker: the number of the worker that must read it.
        seed: of the random numbers that datasets draw for this batch.
        stream_seed: of those that iterable datasets draw.
    """

    samples: Mapping[str, Sequence[int]]
    factors: Mapping[str, float]
    worker: int
    seed: int = 0
    stream_seed: int = 0


@dataclass(kw_only=True)
class Progress:
    """How far a loader has come.

    Attributes:
        step: the number of batches in this epoch.
        batches: the number of batches in all epochs.
        used: for each domain the number of samples, by worker for streams.
    """

    step: int
    batches: int
    used: dict[str, list[int]]

    def advance(self, counts: Mapping[str, int], worker: int) -> None:
        """Count one batch."""
        self.step += 1
        self.batches += 1
        for name, count in counts.items():
            slots = self.used[name]
            slots[worker % len(slots)] += count


@final
class Draws:
    """The batches of an epoch, drawn when they are asked for.

    Workers ask ahead. So what was drawn and not delivered is part of the state: a resumed run draws it again as it was,
    although the weights have changed since.

    Args:
        sources: for each domain which samples come next.
        compose: how many samples of each domain a batch has, from a random number between 0 and 1.
        steps: the number of batches in an epoch.
        workers: the number of worker processes; 0 for none.
        seed: of all random numbers.
        rank: the process that draws.
    """

    def __init__(
        self,
        sources: Mapping[str, ShuffledPasses | StreamPositions],
        compose: Callable[[float], Composition],
        *,
        steps: int,
        workers: int,
        seed: int,
        rank: int,
    ) -> None:
        self.sources = sources
        self.compose = compose
        self.steps = steps
        self.workers = max(workers, 1)
        self.seed = seed
        self.rank = rank
        used = {name: [0] * source.slots for name, source in sources.items()}
        self._delivered = Progress(step=0, batches=0, used=used)
        self._ahead: deque[Composition] = deque()  # drawn and not delivered
        self._resumes = False

    def start_epoch(self) -> None:
        """Start an epoch, or continue the one that was loaded. What was drawn ahead by an unfinished one is undone."""
        if not self._resumes:
            self._delivered.step = 0
            self._ahead.clear()
        self._resumes = False

    def __iter__(self) -> Iterator[Draw]:
        progress = deepcopy(self._delivered)
        # torch hands draws to workers in turns, from the first worker on. Idle draws let the right one be next.
        for worker in range(progress.step % self.workers):
            yield Draw({}, {}, worker)
        redrawn, self._ahead = self._ahead, deque()
        while progress.step < self.steps:
            if redrawn:
                composition = redrawn.popleft()
            else:
                composition = self.compose(uniform_of(self.seed, "composition", progress.batches))
            self._ahead.append(composition)
            draw = self._draw(composition, progress)
            progress.advance(composition.counts, draw.worker)
            yield draw

    def note_delivery(self) -> None:
        """Count the next batch as delivered."""
        worker = self._delivered.step % self.workers
        self._delivered.advance(self._ahead.popleft().counts, worker)

    def finish_epoch(self) -> None:
        """The epoch's last batch was used."""
        self._delivered.step = 0

    def _draw(self, composition: Composition, progress: Progress) -> Draw:
        worker = progress.step % self.workers
        samples = {}
        for name, count in composition.counts.items():
            if count:
                slots = progress.used[name]
                samples[name] = self.sources[name].take(slots[worker % len(slots)], count, seed=self.seed)
        return Draw(
            samples,
            composition.factors,
            worker,
            seed=seed_of(self.seed, "batch", self.rank, progress.batches),
            stream_seed=seed_of(self.seed, "stream", self.rank, worker),
        )

    def state_dict(self) -> dict[str, Any]:
        """What was delivered, and what was drawn ahead, as plain values."""
        progress = deepcopy(self._delivered)
        ahead = []
        for composition in self._ahead:
            ahead.append({"counts": dict(composition.counts), "factors": dict(composition.factors)})
        return {
            "seed": self.seed,
            "step": progress.step,
            "batches": progress.batches,
            "used": progress.used,
            "ahead": ahead,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        used = {name: list(slots) for name, slots in state["used"].items()}
        for name, source in self.sources.items():
            if len(used[name]) != source.slots:
                raise ValueError(
                    f"domain {name!r} is an iterable dataset that was read by {len(used[name])} workers: "
                    f"resume with as many; got {source.slots}."
                )
        self.seed = state["seed"]
        self._delivered = Progress(step=state["step"], batches=state["batches"], used=used)
        self._ahead = deque(Composition(entry["counts"], entry["factors"]) for entry in state["ahead"])
        self._resumes = True
