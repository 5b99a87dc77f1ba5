"""Where the time of a training epoch goes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from time import perf_counter
from typing import Any

from lightning.fabric import Fabric

from steelyard.imaging.train import training
from steelyard.imaging.train.launch import TrainingJob, prepare_training
from steelyard.imaging.train.run_writer import RunWriter
from steelyard.imaging.train.sampling import BatchIndices
from steelyard.imaging.train.training_state import TrainingState

PARTS = ("data", "augmentation", "vote", "forward", "backward", "optimizer", "validation", "records", "other")
"""Gathering slices; changing them; the probe; the outer losses; their gradients; the step; the validation subjects; the
records of steps and epochs, with the checkpoint on disk; all the rest of the loop."""


class Stopwatch:
    """Gives every moment to one part: the innermost that is under way, or `other`.

    Args:
        clock: Tells the time in seconds.

    Attributes:
        seconds: By part; they add up to the time since the watch was made, as of the last change of parts.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._clock = clock
        self._under_way = ["other"]
        self._since = clock()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Give what happens inside to a part."""
        self.turn()
        self._under_way.append(name)
        try:
            yield
        finally:
            self.turn()
            self._under_way.pop()

    def turn(self) -> None:
        """Give the time since the last turn to the part under way."""
        now = self._clock()
        self.seconds[self._under_way[-1]] += now - self._since
        self._since = now

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function whose every call goes to a part."""

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return function(*arguments, **named)

        return call


@dataclass(frozen=True, kw_only=True)
class EpochProfile:
    """What one epoch took.

    Args:
        method: How it weighed the domains.
        steps: How many steps it had.
        seconds: By part.
        total: The whole of it, which the parts add up to.
    """

    method: str
    steps: int
    seconds: dict[str, float]
    total: float


def profile_epoch(job: TrainingJob, fabric: Fabric | None = None) -> EpochProfile:
    """Train the first epoch of a run as `steelyard train` does, and time the parts of the loop.

    Args:
        job: The run; its folder gets what the first epoch writes.
        fabric: Where it runs; times are those of a CPU, which waits for what it began.
    """
    training_state, learned, judged = prepare_training(job, fabric or Fabric(accelerator="cpu", devices=1))
    run = RunWriter(job.out)
    run.begin(job.config, job.split, job.slices.digests)
    start = perf_counter()
    watch = Stopwatch()
    with _timed_parts(training_state, watch):
        record = next(training.fit(training_state, learned, judged))
        with watch.part("records"):
            run.record(training_state, record)
        total = perf_counter() - start
    method = job.config.method.name
    return EpochProfile(method=method, steps=len(record.steps), seconds=watch.seconds, total=total)


@contextmanager
def _timed_parts(training_state: TrainingState, watch: Stopwatch) -> Iterator[None]:
    """Have the parts of the real loop timed as they are called, and put everything back afterwards."""
    places: list[tuple[Any, str, str]] = [
        (BatchIndices, "gather", "data"),
        (training, "augment_batch", "augmentation"),
        (training_state.balancer, "forward", "forward"),
        (training_state.fabric, "backward", "backward"),
        (training_state.optimizer, "zero_grad", "optimizer"),
        (training_state.optimizer, "step", "optimizer"),
        (training, "validate_on", "validation"),
        (training, "record_step", "records"),
    ]
    if training_state.balancer.probe is not None:
        places.append((training_state.balancer.probe, "find", "vote"))
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in places]
    try:
        for owner, name, part in places:
            setattr(owner, name, watch.timed(getattr(owner, name), part))
        yield
    finally:
        for owner, name, own in before:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
