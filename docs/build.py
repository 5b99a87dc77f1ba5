"""Build the API reference from the docstrings; a public name without documentation fails the build."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pdoc
from torch import nn

MODULES = ("steelyard", "!steelyard.cli", "!steelyard.experiments")


def undocumented(module: ModuleType) -> Iterator[str]:
    """The public classes, functions, methods and properties of a module that have no docstring."""
    for name in getattr(module, "__all__", ()):
        getattr(module, name)  # names that are imported on first use are there from now on
    yield from _without_docstring(pdoc.doc.Module(module))


def _without_docstring(namespace: pdoc.doc.Namespace) -> Iterator[str]:
    members = namespace.own_members if isinstance(namespace, pdoc.doc.Class) else namespace.members.values()
    for member in members:
        name = member.name.rsplit(".", 1)[-1]
        if name.startswith("_") or isinstance(member, pdoc.doc.Module):
            continue
        is_property = isinstance(getattr(namespace.obj, name, None), property)
        if (is_property or not isinstance(member, pdoc.doc.Variable)) and not member.docstring:
            yield member.fullname
        if isinstance(member, pdoc.doc.Class):
            yield from _without_docstring(member)


def main(out: Path) -> int:
    """Check, then build."""
    import steelyard

    missing = list(undocumented(steelyard))
    for name in missing:
        sys.stderr.write(f"{name} is public and has no docstring\n")
    if missing:
        return 1
    nn.Module.__init__.__doc__ = None  # or pdoc hands it down to every constructor of ours
    pdoc.render.configure(docformat="google")
    pdoc.pdoc(*MODULES, output_directory=out)
    sys.stdout.write(f"{out / 'index.html'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
