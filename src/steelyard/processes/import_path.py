"""Where modules are imported from: never the current folder, unless the user names it."""

import os
import sys
from contextlib import chdir, suppress
from importlib import import_module
from pathlib import Path


def leave_out_current_folder() -> None:
    """Import nothing from the current folder, in this process and in every child, unless `PYTHONPATH` names it.

    `python -m` puts the current folder before the standard library. So does `python -c`, as which multiprocessing
    starts workers. A file `pickle.py` in a folder that somebody sent would then run. The empty entry that
    `PYTHONPATH=$PYTHONPATH:folder` often leaves also means the current folder; it is dropped.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        here = Path.cwd().resolve()
    except FileNotFoundError:  # it was deleted; nothing can be imported from it
        return
    entries = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    folders = [Path(entry).absolute() for entry in entries if entry]
    if folders:  # absolute, because children may work in another folder
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    if here in [folder.resolve() for folder in folders]:
        return  # the user named it
    before, after = _around_standard_library(sys.path)
    sys.path[:] = [folder for folder in before if Path(folder).resolve() != here] + after


def leave_out_matplotlibrc() -> None:
    """Keep matplotlib from reading a file `matplotlibrc` in the current folder, which could start LaTeX.

    matplotlib reads it before any other settings, once, when it is imported. No variable prevents that, so it is
    imported here from another folder. Without such a file it is imported when it is needed.
    """
    if os.path.lexists("matplotlibrc"):
        with suppress(ModuleNotFoundError), chdir(Path(os.__file__).parent):
            import_module("matplotlib")


def _around_standard_library(folders: list[str]) -> tuple[list[str], list[str]]:
    """Split an import path: entries before the standard library, then it and the installed packages."""
    library = str(Path(os.__file__).parent)
    first = folders.index(library) if library in folders else len(folders)
    return folders[:first], folders[first:]
