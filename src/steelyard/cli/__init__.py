"""The command line: one dataclass per subcommand, each with a `run()`."""

import logging
import signal
import sys
from collections.abc import Callable, Sequence

import tyro

from steelyard import __version__
from steelyard.cli.agreement import Agreement
from steelyard.cli.benchmark import Benchmark
from steelyard.cli.command import Command, say
from steelyard.cli.demo import Demo
from steelyard.cli.evaluate import Evaluate
from steelyard.cli.experiment import Experiment
from steelyard.cli.export import Export
from steelyard.cli.phantom import Phantom
from steelyard.cli.predict import Predict
from steelyard.cli.preprocess import Preprocess
from steelyard.cli.profile import Profile
from steelyard.cli.regret import Regret
from steelyard.cli.report import Report
from steelyard.cli.train import Train
from steelyard.errors import UserError, one_line
from steelyard.processes.stopping import message

COMMANDS: dict[str, Callable[..., Command]] = {
    "agreement": Agreement,
    "benchmark": Benchmark,
    "demo": Demo,
    "evaluate": Evaluate,
    "experiment": Experiment,
    "export": Export,
    "phantom": Phantom,
    "predict": Predict,
    "preprocess": Preprocess,
    "profile": Profile,
    "regret": Regret,
    "report": Report,
    "train": Train,
}


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
    command: Command = tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="steelyard", args=arguments)
    try:
        return command.run()
    except UserError as error:
        say(f"steelyard: {error}")
        return 2
    except KeyboardInterrupt:
        say(message(signal.SIGINT))
        return 128 + signal.SIGINT
