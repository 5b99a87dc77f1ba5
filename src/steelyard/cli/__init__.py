"""The command line: one dataclass per subcommand, each with a `run()`."""

import logging
import signal
import sys
from collections.abc import Callable, Sequence

import tyro
from rich.console import Console

from steelyard import __version__
from steelyard.cli.agreement import Agreement
from steelyard.cli.benchmark import Benchmark
from steelyard.cli.command import Command, say
from steelyard.cli.demo import Demo
from steelyard.cli.evaluate import Evaluate
from steelyard.cli.experiment import Experiment
from steelyard.cli.export import Export
from steelyard.cli.numbers import NUMBERS
from steelyard.cli.overview import print_overview
from steelyard.cli.phantom import Phantom
from steelyard.cli.predict import Predict
from steelyard.cli.preprocess import Preprocess
from steelyard.cli.profile import Profile
from steelyard.cli.regret import Regret
from steelyard.cli.report import Report
from steelyard.cli.train import Train
from steelyard.errors import UserError, one_line
from steelyard.files.checks import did_you_mean
from steelyard.processes.stopping import message

GROUPS: dict[str, dict[str, type[Command]]] = {
    "commands, in the order of work": {
        "demo": Demo,
        "predict": Predict,
        "phantom": Phantom,
        "preprocess": Preprocess,
        "train": Train,
        "evaluate": Evaluate,
        "report": Report,
        "export": Export,
        "experiment": Experiment,
        "regret": Regret,
    },
    "tools for developers of the method": {
        "benchmark": Benchmark,
        "profile": Profile,
        "agreement": Agreement,
    },
}
"""The commands as the overview shows them."""

COMMANDS: dict[str, Callable[..., Command]] = {
    name: command for commands in GROUPS.values() for name, command in commands.items()
}

_HELP = ("--help", "-h", "help")


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 0, or 2 with one line on stderr for a user's mistake.

    Ctrl-C, where it raises `KeyboardInterrupt`, gives one line and 130.
    """
    if logging.lastResort is not None:  # prints log messages that have no handler on stderr
        logging.lastResort.setFormatter(_OneLine())
    if arguments is None:
        arguments = sys.argv[1:]
    if list(arguments) == ["--version"]:
        sys.stdout.write(f"steelyard {__version__}\n")
        return 0
    if not arguments or arguments[0] in _HELP:
        print_overview(GROUPS, Console(stderr=not arguments))
        return 0 if arguments else 2
    try:
        return parse(arguments).run()
    except UserError as error:
        say(f"steelyard: {error}")
        return 2
    except KeyboardInterrupt:
        say(message(signal.SIGINT))
        return 128 + signal.SIGINT


def parse(arguments: Sequence[str]) -> Command:
    """Return the command that arguments describe; where tyro refuses them, it prints why and exits with 2.

    Raises:
        UserError: There is no such command.
    """
    name = arguments[0]
    config = (tyro.conf.DisallowNone,)  # an option that is left out is the only way to its default
    if name in COMMANDS:  # parsed alone, so that a wrong flag is compared with the flags of this command only
        command: Command = tyro.cli(
            COMMANDS[name], prog=f"steelyard {name}", args=arguments[1:], config=config, registry=NUMBERS
        )
        return command
    if not name.startswith("-"):
        advice = did_you_mean(name, COMMANDS) or " steelyard --help lists all."
        raise UserError(f"there is no command {name}.{advice}")
    # What is left is tyro's own, such as --tyro-print-completion bash.
    parsed: Command = tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="steelyard", args=arguments, config=config)
    return parsed
