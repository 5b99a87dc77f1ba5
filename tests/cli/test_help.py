"""What a new user sees first: the overview, the help of each command, and what is said to a slip of the pen."""

import dataclasses
import re

import pytest

from steelyard.cli import COMMANDS, GROUPS, main, parse
from steelyard.experiments.configs import CONFIGS

POSITIONALS = {
    "demo": "[OUT]",
    "predict": "RUN SCAN… OUT",
    "phantom": "OUT",
    "preprocess": "BIDS OUT",
    "train": "DATA RUN",
    "evaluate": "RUN DATA",
    "report": "RUN…",
    "export": "RUN OUT.onnx",
    "experiment": "DESIGN DATA OUT",
    "regret": "OUT",
    "benchmark": "OUT.json",
    "profile": "DATA",
    "agreement": "OUT DATA",
}


def help_of(name, capsys):
    with pytest.raises(SystemExit) as exit_code:
        main([name, "--help"])
    assert exit_code.value.code == 0
    return capsys.readouterr().out


def in_one_line(text):
    """A help text without its boxes and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def test_the_overview_has_a_line_for_each_command_in_the_order_of_work(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    rows = [line.strip("│ ") for line in shown.splitlines() if line.startswith("│")]
    assert [row.split()[0] for row in rows] == list(POSITIONALS) == list(COMMANDS)
    _, tools = GROUPS.values()
    assert list(tools) == ["benchmark", "profile", "agreement"]
    assert shown.count("╭") == 2
    assert max(map(len, shown.splitlines())) <= 80
    for same in ("-h", "help"):
        assert main([same]) == 0
        assert capsys.readouterr().out == shown


def test_without_a_command_the_overview_is_the_error(capsys):
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "preprocess" in shown.err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_usage_names_every_positional_argument(name, capsys):
    usage = help_of(name, capsys).partition("\n")[0]
    assert re.search(rf"\[-h\] (\[OPTIONS\] )?{re.escape(POSITIONALS[name])}( |$)", usage)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_says_what_every_default_is(name, capsys):
    shown = in_one_line(help_of(name, capsys))
    assert "None" not in shown
    assert "(default: )" not in shown
    assert "(default: '')" not in shown
    options = [field for field in dataclasses.fields(COMMANDS[name]) if field.default is not dataclasses.MISSING]
    assert shown.count("(default: ") == len(options)


def test_the_help_of_train_states_the_configs_right(capsys):
    shown = in_one_line(help_of("train", capsys))
    configs = [make() for make in CONFIGS.values()]
    assert {(config.method.name, config.model) for config in configs} == {("equal", "unet")}
    standard = CONFIGS["standard"]()
    for words in ("the config's; equal in all", "the config's; unet in all"):
        assert f"(default: {words})" in shown
    for number in (standard.width, standard.epochs):
        assert f"(default: the config's; {number} in standard)" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "there is no command trian. Did you mean train?"),
        (["eval", "a", "b"], "there is no command eval. Did you mean evaluate?"),
        (["xyz"], "there is no command xyz. steelyard --help lists all."),
        (["phantom", "OUT", "--scanner", "noisy3t"], "Did you mean noisy-3t?"),
        (["regret", "OUT", "--methods", "evidense"], "Did you mean evidence?"),
        (["benchmark", "OUT.json", "--networks", "transfromer"], "Did you mean transformer?"),
        (["experiment", "smok", "DATA", "OUT"], "got 'smok'. Did you mean smoke?"),
        (["experiment", "smoke", "DATA", "OUT", "--methods", "greedy"], "Did you mean greedy-25?"),
        (["train", "DATA", "RUN", "--experiment", "Standrd"], "got 'Standrd'. Did you mean standard?"),
        (["train", "DATA", "RUN", "--method", "greedy"], "got 'greedy'. Did you mean greedy-25?"),
        (["train", "DATA", "RUN", "--method", "Ours-C25"], "Did you mean Ours-C-25?"),
        (["train", "DATA", "RUN", "--method", "greedy-9+firstorder"], "Did you mean first-order?"),
        (["train", "DATA", "RUN", "--set", "learning-rate=1"], "Did you mean learning_rate?"),
        (["train", "DATA", "RUN", "--set", "pixel_mm=1.2"], "Did you mean slices.frame.pixel_mm?"),
        (["train", "DATA", "RUN", "--set", "learning_rate", "1"], "without blanks around the =; got 'learning_rate'"),
        (["train", "DATA", "RUN", "--set", "optimizer=adam"], "Did you mean adamw?"),
    ],
)
def test_a_slip_gets_one_line_with_the_nearest_name(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_flag_is_compared_with_those_of_its_command(capsys):
    with pytest.raises(SystemExit) as exit_code:
        main(["train", "DATA", "RUN", "--metod", "equal"])
    assert exit_code.value.code == 2
    error = capsys.readouterr().err
    assert "Perhaps you meant" in error
    assert "--method" in error
    assert "regret" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "DATA", "RUN", "--seed", "x"], "--seed: must be a whole number; got 'x'."),
        (["train", "DATA", "RUN", "--epochs", "1.5"], "--epochs: must be a whole number; got '1.5'."),
        (["predict", "RUN", "SCAN", "OUT", "--threshold", "high"], "--threshold: must be a number; got 'high'."),
    ],
)
def test_a_text_that_is_no_number_is_refused_in_plain_words(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_code:
        main(arguments)
    assert exit_code.value.code == 2
    error = in_one_line(capsys.readouterr().err)
    assert message in error
    assert "class" not in error
    assert f"steelyard {arguments[0]} --help" in error


def test_numbers_arrive_as_what_they_are():
    train = parse(["train", "DATA", "RUN", "--seed", "3", "--epochs", "7"])
    assert (train.seed, train.epochs, train.width) == (3, 7, None)
    assert parse(["predict", "RUN", "SCAN", "OUT", "--threshold", "1e-1"]).threshold == 0.1
    assert parse(["regret", "OUT", "--seeds", "1", "9"]).seeds == (1, 9)
    assert parse(["benchmark", "OUT.json", "--domains", "2", "16"]).domains == (2, 16)


def test_an_accelerator_that_nobody_has_is_refused(capsys):
    with pytest.raises(SystemExit) as exit_code:
        main(["train", "DATA", "RUN", "--accelerator", "tpu"])
    assert exit_code.value.code == 2
    assert "'tpu'" in capsys.readouterr().err


def test_completion_of_the_shell_is_still_there(capsys):
    with pytest.raises(SystemExit) as exit_code:
        main(["--tyro-print-completion", "bash"])
    assert not exit_code.value.code
    assert "preprocess" in capsys.readouterr().out
