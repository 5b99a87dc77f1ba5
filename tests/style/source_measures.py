"""Figures about the source code: how dense it is, how long and how branchy its functions are."""

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from radon.complexity import cc_visit

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "steelyard"
VAGUE = frozenset(
    (
        *("found", "each", "one", "held", "told", "given", "kept", "wanted", "what", "there", "place"),
        *("mine", "theirs", "ours", "known", "shown", "said", "how", "way", "ways", "made"),
    )
)
"""Names of locals that say nothing about what they hold."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class SourceFile:
    """One Python file with its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The path from the repository's root."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def lines(self) -> int:
        """All lines, blank ones included."""
        return len(self.text.splitlines())

    @cached_property
    def code_lines(self) -> int:
        """Lines that are not blank, not a comment and not an import."""
        stripped = [line.strip() for line in self.text.splitlines()]
        return sum(1 for line in stripped if line and not line.startswith(("#", "import ", "from ")))

    @cached_property
    def comprehensions(self) -> int:
        """How many comprehensions and generator expressions there are."""
        return sum(isinstance(node, COMPREHENSIONS) for node in ast.walk(self.tree))

    @cached_property
    def conditional_expressions(self) -> int:
        """How many `a if b else c` there are."""
        return sum(isinstance(node, ast.IfExp) for node in ast.walk(self.tree))

    @cached_property
    def assigned_names(self) -> list[ast.Name]:
        """Every name that is assigned to, once per assignment."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name)]
        return [node for node in nodes if isinstance(node.ctx, ast.Store)]

    @cached_property
    def vague_names(self) -> list[ast.Name]:
        """Those of the assigned names that say nothing."""
        return [node for node in self.assigned_names if node.id in VAGUE]

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Functions and methods, nested ones too."""
        return [node for node in ast.walk(self.tree) if isinstance(node, FUNCTIONS)]

    @cached_property
    def constructors(self) -> list[tuple[str, ast.FunctionDef]]:
        """Every class's name with its `__init__`."""
        classes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]
        members = [(node.name, member) for node in classes for member in node.body]
        return [(name, member) for name, member in members if getattr(member, "name", "") == "__init__"]

    def complexities(self) -> dict[str, int]:
        """Return the complexity of every function as radon counts it, by the function's place."""
        blocks = _radon_functions(cc_visit(self.text))  # radon lists methods twice: alone, and in their class
        return {f"{self.name}:{block.lineno} {block.name}": block.complexity for block in blocks}

    def place(self, node: ast.AST, name: str) -> str:
        """Return where a node is, for a message."""
        return f"{self.name}:{node.lineno} {name}"


def read_source() -> list[SourceFile]:
    """Read every Python file of the package."""
    paths = sorted(SOURCE.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [SourceFile(path, text, ast.parse(text)) for path, text in zip(paths, texts, strict=True)]


def package_of(file: SourceFile) -> str:
    """Return the part of `steelyard` that a file belongs to; modules at the top are the part `core`.

    >>> import ast
    >>> package_of(SourceFile(SOURCE / "report" / "data" / "cells.py", "", ast.parse("")))
    'report'
    """
    parts = file.path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "core"


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    """Return how many arguments a function takes, and how many of them may be given by position."""
    by_position = [*function.args.posonlyargs, *function.args.args]
    positional = sum(argument.arg not in ("self", "cls") for argument in by_position)
    return positional + len(function.args.kwonlyargs), positional


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the length of a function in lines, decorators and docstring left out."""
    length = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return length
    docstring = function.body[0]
    return length - (docstring.end_lineno - docstring.lineno + 1)


def _radon_functions(blocks):
    """Yield functions, methods and closures, but not classes: radon's figure for those is a mean."""
    for block in blocks:
        if hasattr(block, "methods"):
            yield from _radon_functions(block.methods)
            yield from _radon_functions(block.inner_classes)
        else:
            yield block
            yield from _radon_functions(block.closures)
