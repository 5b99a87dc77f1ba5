import json

import pytest

from steelyard.cli import main
from steelyard.experiments import benchmark, training_steps
from steelyard.experiments.training_steps import Case

KEYS = {"network", "domains", "method", "every", "time_ratio", "time_ratio_spread", "memory_ratio"}


def test_writes_a_record_for_each_case(tmp_path, monkeypatch, capsys):
    chosen = [Case(method="plain"), Case(method="inner-loop")]
    monkeypatch.setattr(training_steps, "cases", lambda: chosen)
    monkeypatch.setattr(benchmark, "BLOCK", 1)
    out = tmp_path / "costs.json"
    assert main(["benchmark", str(out), "--rounds", "3"]) == 0
    plain, learned = json.loads(out.read_text())
    assert set(plain) == set(learned) == KEYS
    assert (plain["method"], plain["time_ratio"], plain["memory_ratio"]) == ("plain", 1.0, 1.0)
    assert learned["time_ratio"] > 1.2
    assert "inner-loop" in capsys.readouterr().out


def test_every_case_steps():
    for case in training_steps.cases():
        training_steps.make_step(case)()
    assert [case.method for case in training_steps.cases()][:2] == ["plain", "fixed"]


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("there.json", [], "there.json: exists already"),
        ("no/such.json", [], "no: no such folder"),
        ("new.json", ["--rounds", "2"], "--rounds must be at least 3, or there is no spread to state; got 2"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys, path, arguments, message):
    (tmp_path / "there.json").write_text("kept")
    assert main(["benchmark", str(tmp_path / path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (tmp_path / "there.json").read_text() == "kept"


def test_the_first_case_must_be_plain():
    with pytest.raises(ValueError, match="the first case must be the plain step; got 'fixed'"):
        next(benchmark.measure([Case(method="fixed")], rounds=1))
