"""Which trials are for choosing settings and which for confirming them; committed before any was run.

Settings of the weighting (rate, caution, floor, scale, default judge) are chosen from the group `choosing` alone. The
group `confirming` is run once with what was chosen, and its tables are the ones that are published.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steelyard.errors import UserError
from steelyard.experiments.problems.catalogue import problem_named
from steelyard.experiments.problems.problem import NO_FOLDERS, Folders
from steelyard.experiments.regret.methods import SWEEP
from steelyard.experiments.regret.trial import OPTIMIZERS, Trial, parse_method
from steelyard.files.checks import check_choice


@dataclass(frozen=True, kw_only=True)
class Block:
    """Trials on one problem: every variant, every optimizer, every seed.

    Args:
        problem: Its name.
        seeds: From the first up to, not including, the second.
        optimizers: Their names.
        variants: Their names; default all.
        steps: Of each training; default the problem's own number.
        sweep_seeds: How many of the seeds have a sweep, the first ones; default all. A sweep of four domains trains
            525 networks.
    """

    problem: str
    seeds: tuple[int, int]
    optimizers: tuple[str, ...] = OPTIMIZERS
    variants: tuple[str, ...] = ()
    steps: int | None = None
    sweep_seeds: int | None = None

    def trials(self, methods: Sequence[str], folders: Folders = NO_FOLDERS) -> Iterator[Trial]:
        """Yield the trials; those of one seed and optimizer, which are compared, are together.

        Args:
            methods: Their names, with a factor of the learning rate or without: `equal`, `equal@3`.
            folders: Where problems read and keep files.

        Raises:
            UserError: There is no such problem or variant, a folder of data is needed, or there are no seeds.
        """
        problem = problem_named(self.problem, folders)
        for variant in self.variants:
            check_choice(f"variant of {self.problem}", variant, tuple(problem.variants))
        if self.seeds[0] >= self.seeds[1]:
            raise UserError(f"seeds must be a first one and a larger one; got {self.seeds[0]} {self.seeds[1]}.")
        variants = self.variants or tuple(problem.variants)
        steps = problem.steps if self.steps is None else self.steps
        for variant, optimizer, seed, text in itertools.product(variants, self.optimizers, range(*self.seeds), methods):
            method, rate = parse_method(text)
            if method == SWEEP and not self._has_sweep(seed):
                continue
            yield Trial(
                problem=self.problem,
                variant=variant,
                optimizer=optimizer,
                steps=steps,
                method=method,
                seed=seed,
                rate=rate,
            )

    def _has_sweep(self, seed: int) -> bool:
        return self.sweep_seeds is None or seed < self.seeds[0] + self.sweep_seeds


GROUPS: dict[str, tuple[Block, ...]] = {
    "choosing": (
        Block(problem="digits", seeds=(100, 120)),
        Block(problem="curves", seeds=(100, 120)),
        Block(problem="reviews-4", seeds=(100, 120), sweep_seeds=5),
    ),
    "confirming": (
        Block(problem="digits", seeds=(300, 320)),
        Block(problem="wine", seeds=(300, 320)),
        Block(problem="reviews-12", seeds=(300, 320)),
        Block(problem="heart", seeds=(300, 320), sweep_seeds=5),
        Block(problem="phantoms", seeds=(300, 303), optimizers=("adamw",), sweep_seeds=1),
    ),
    # Drift shows in long training: ten thousand steps on problems where equal weights are right.
    "drift": (Block(problem="digits", seeds=(300, 304), variants=("plain",), steps=10_000),),
}
"""The groups of trials, by name. Seeds from 1000 on are for checks that training converges, and in no group."""

SMALLEST = Block(problem="digits", seeds=(1000, 1002), variants=("plain", "noisy"), optimizers=("sgd",), steps=100)
"""The suite's smallest form: it shows that all parts work, about a minute on one core."""
