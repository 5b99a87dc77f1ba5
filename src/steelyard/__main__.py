"""`python -m steelyard` and the `steelyard` command."""

import sys

from steelyard.processes.import_path import leave_out_current_folder, leave_out_matplotlibrc
from steelyard.processes.stopping import end_on_signals

if "--multiprocessing-fork" in sys.orig_argv:  # a worker imports this module first, seconds before torch
    from steelyard.processes.children import start_spawned

    start_spawned()
    leave_out_matplotlibrc()


def main() -> int:
    """Run the command line, or say what to install if a package is missing."""
    end_on_signals()
    leave_out_current_folder()
    leave_out_matplotlibrc()
    try:
        from steelyard.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("steelyard"):
            raise
        sys.stderr.write(f"steelyard: {error.name} is missing; install steelyard's extra 'all', as README says\n")
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
