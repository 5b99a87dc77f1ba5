import time
from dataclasses import replace

import pytest

from steelyard.experiments import timing_trial
from steelyard.experiments.estimate import Forecast, step_kind
from steelyard.experiments.grids import smoke
from steelyard.experiments.units import do_unit, plan, read_slices
from steelyard.imaging.train import training
from steelyard.imaging.train.records import EpochRecord
from steelyard.imaging.train.training import validate_on


@pytest.fixture(scope="module")
def slices(cohort):
    return read_slices(smoke(), cohort)


@pytest.fixture
def units(cohort, slices, tmp_path):
    grid = replace(smoke(), availability=(None,), methods=("equal", "conservative-25", "conservative-25+every-9"))
    return plan(grid, slices, data=cohort, out=tmp_path / "out")


def test_what_nothing_is_known_of_is_timed_in_a_trial_with_validation_and_judging(slices, units, tmp_path):
    forecast = Forecast(slices)
    forecast.measure(units)
    assert set(forecast.step) == {step_kind(unit) for unit in units}
    (validation,), (judging,) = forecast.validation.values(), forecast.judging.values()
    assert min(validation, judging, *forecast.step.values()) > 0
    unit = units[0]
    steps = 2 * forecast.steps(unit) * forecast.step[step_kind(unit)]
    assert forecast.seconds(unit) == pytest.approx(steps + 2 * validation + len(unit.split.test) * judging)
    assert list(tmp_path.iterdir()) == []


def test_what_has_been_timed_is_not_timed_again(slices, units):
    unit = units[0]
    forecast = Forecast(slices, {step_kind(unit): 1.0}, {("unet", 2): 2.0}, {"unet": 3.0})
    forecast.measure([unit])
    assert (*forecast.step.values(), *forecast.validation.values(), *forecast.judging.values()) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("number", "paces", "mean"),
    [
        (0, [9.0, 0.6, 0.2], 0.4),  # three steps at least, and the first epoch is warming up
        (0, [9.0, 0.1, 0.1, 0.1, 0.1], 0.1),  # for half a second at least
        (2, [9.0, 1.0, 1.0, 1.0, 1.0, 3.5], 1.5),  # at least as many as there are from vote to vote
    ],
)
def test_enough_steps_are_timed(slices, units, monkeypatch, number, paces, mean):
    def epochs(trainee, *_):
        for pace in paces:
            yield EpochRecord(
                epoch=0, learning_rate=0.1, losses={}, validation={}, better=True, steps=(None,) * 2, seconds=2 * pace
            )
        pytest.fail("more steps were timed than needed")

    monkeypatch.setattr(timing_trial, "fit", epochs)
    assert timing_trial.time_step(units[number], slices) == pytest.approx(mean)


def test_the_steps_of_a_run_are_timed_apart_from_its_validation(slices, units, monkeypatch):
    def slowly(*arguments):
        time.sleep(0.5)
        return validate_on(*arguments)

    monkeypatch.setattr(training, "validate_on", slowly)
    started = time.monotonic()
    timing = do_unit(units[0])
    assert (timing.epochs, timing.steps) == (2, 2 * Forecast(slices).steps(units[0]))
    assert timing.validation > 1.0
    assert 0 < timing.training < time.monotonic() - started - 1.0
