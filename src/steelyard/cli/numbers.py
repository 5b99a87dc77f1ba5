"""How numbers on the command line are read: a text that is none is refused in plain words."""

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

_WORDS = {int: "a whole number", float: "a number"}

NUMBERS = ConstructorRegistry()
"""What tyro is given; its own words would name Python's classes."""


@NUMBERS.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Return how `int`, `float` and their optional forms are read; `None` for other types."""
    kinds = {info.type}
    if get_origin(info.type) in (Union, UnionType):
        kinds = set(get_args(info.type)) - {NoneType}
    if len(kinds) != 1 or not kinds <= _WORDS.keys():
        return None
    (kind,) = kinds
    words = _WORDS[kind]

    def read(texts: list[str]) -> Any:
        try:
            return kind(texts[0])
        except ValueError:
            raise ValueError(f"must be {words}; got {texts[0]!r}.") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, int | float),
        str_from_instance=lambda value: [str(value)],
    )
