"""HTML pages from templates."""

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

MARK = '<meta name="generator" content="steelyard">'
"""The mark in the head of every page that steelyard writes."""


def render(template: str, *, package: str, **values: Any) -> str:
    """Return a self-contained page; values are escaped: they are text, never markup.

    Args:
        template: The name of the template, without the ending.
        package: The package whose folder `templates` holds it. It may extend the templates of this package.
        values: The values that the template uses.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(__package__)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{template}.html.j2").render(**values)
