"""What users may rely on, as text: the library's names with their signatures, and the command line's arguments.

`python tests/public_api.py` (or `make snapshots`) writes both files anew. Commit them with a line in CHANGELOG.md.
"""

import ast
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import steelyard

TESTS = Path(__file__).parent
LIBRARY = TESTS / "public_api.txt"
COMMAND_LINE = TESTS / "command_line.txt"
UNIONS = (typing.Union, types.UnionType)
KINDS = ("property", "classmethod", "staticmethod", "abstractmethod")
"""Decorators that change how a member is used."""
SPECIAL = ("__init__", "__call__")
"""Methods that are listed although their names start with an underscore."""


def library() -> str:
    """Describe every name of `steelyard.__all__`, as it is written in the source."""
    values = [getattr(steelyard, name) for name in sorted(steelyard.__all__)]
    paragraphs = ["\n".join(_choices([value for value in values if inspect.isclass(value)]))]
    for value in values:
        if inspect.isclass(value):
            paragraphs.append("\n".join(_describe_class(value)))
        else:
            paragraphs.append(_signature(_definition(value)))
    return "\n\n".join(paragraphs) + "\n"


def command_line() -> str:
    """Describe every subcommand, in the order of the overview, with its arguments, their types and defaults."""
    from steelyard.cli import COMMANDS

    paragraphs = []
    for name, command in COMMANDS.items():
        paragraphs.append("\n".join([f"steelyard {name}", *_flags(command)]))
    return "\n\n".join(paragraphs) + "\n"


def _choices(classes: list[type]) -> Iterator[str]:
    """Yield the allowed values of arguments whose type is a `Literal` with a name."""
    choices = {}
    for module in {owner.__module__ for cls in classes for owner in cls.__mro__ if _is_own(owner)}:
        for name, value in vars(sys.modules[module]).items():
            if typing.get_origin(value) in (typing.Literal, *UNIONS) and "Literal[" in str(value):
                choices[name] = _type_name(value)
    for name in sorted(choices):
        yield f"{name} = {choices[name]}"


def _is_own(cls: type) -> bool:
    return cls.__module__.startswith("steelyard")


def _describe_class(cls: type) -> Iterator[str]:
    """Yield the class's line, then one line per public member; members of public bases are listed there."""
    yield f"class {cls.__name__}({', '.join(ast.unparse(base) for base in _definition(cls).bases)})"
    listed = set()
    for owner in cls.__mro__:
        if not _is_own(owner):
            continue
        if owner is not cls and owner.__name__ in steelyard.__all__:
            continue
        for name, line in _members(_definition(owner)):
            if name not in listed:
                listed.add(name)
                yield f"    {line}"


def _members(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield name and description of what a class's body defines for its users."""
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and not node.target.id.startswith("_"):
            yield node.target.id, ast.unparse(node)
        elif isinstance(node, ast.Assign) and not ast.unparse(node.targets[0]).startswith("_"):
            yield ast.unparse(node.targets[0]), ast.unparse(node)
        elif isinstance(node, ast.FunctionDef) and _is_public(node.name):
            yield node.name, _signature(node)
            if node.name == "__init__":
                yield from _attributes(node)


def _is_public(name: str) -> bool:
    return name in SPECIAL or not name.startswith("_")


def _attributes(constructor: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the public attributes that a constructor sets."""
    for node in ast.walk(constructor):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if ast.unparse(node.value) == "self" and not node.attr.startswith("_"):
            yield node.attr, f"attribute {node.attr}"


def _signature(function: ast.FunctionDef) -> str:
    """Return a function's line without its body, with `property` and the like before it."""
    kinds = [ast.unparse(decorator) for decorator in function.decorator_list]
    listed_kinds = [kind for kind in kinds if kind in KINDS]
    returned = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return " ".join([*listed_kinds, f"{function.name}({ast.unparse(function.args)}){returned}"])


def _definition(value: typing.Any) -> typing.Any:
    """Return the syntax tree of a class or function at the top of its module."""
    tree = ast.parse(Path(inspect.getsourcefile(value)).read_text(encoding="utf-8"))
    for node in tree.body:
        if getattr(node, "name", None) == value.__name__:
            return node
    raise LookupError(f"{value.__module__} does not define {value.__name__} at its top level")


def _flags(command: type, prefix: str = "") -> Iterator[str]:
    """Yield the arguments of a command, as they are typed."""
    import tyro

    hints = typing.get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):
        hint = hints[field.name]
        markers = getattr(hint, "__metadata__", ())
        if typing.get_origin(hint) is typing.Annotated:
            hint = hint.__origin__
        name = f"{prefix}{field.name}".replace("_", "-")
        if dataclasses.is_dataclass(hint):
            yield from _flags(hint, prefix=f"{name}.")
            continue
        is_positional = tyro.conf.Positional in markers
        argument = _metavar(markers) if is_positional else f"--{name}"
        yield f"    {argument}: {_type_name(hint)}{_default(field)}"


def _metavar(markers: typing.Iterable[object]) -> str:
    """Return the name that the usage shows for a positional argument."""
    (metavar,) = [marker.metavar for marker in markers if hasattr(marker, "metavar")]
    return metavar


def _default(field: dataclasses.Field) -> str:
    if field.default is dataclasses.MISSING:
        return ""
    if isinstance(field.default, Path):
        return f" = {field.default.as_posix()!r}"
    return f" = {field.default!r}"


def _type_name(hint: typing.Any) -> str:
    """Return a type as it is written in the source.

    >>> _type_name(Path | None), _type_name(int), _type_name(typing.Literal["a", "b"])
    ('Path | None', 'int', "Literal['a', 'b']")
    """
    if typing.get_origin(hint) in UNIONS:
        return " | ".join(_type_name(part) for part in typing.get_args(hint))
    if hint is types.NoneType:
        return "None"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("pathlib.", "").replace("typing.", "")


def main() -> int:
    """Write both snapshots."""
    LIBRARY.write_text(library(), encoding="utf-8")
    COMMAND_LINE.write_text(command_line(), encoding="utf-8")
    sys.stdout.write(f"{LIBRARY}\n{COMMAND_LINE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
