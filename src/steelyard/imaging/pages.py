"""HTML pages from templates."""

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

MARK = '<meta name="generator" content="steelyard">'
"""What the head of every page of ours holds."""


def render(template: str, *, package: str = __package__, **values: Any) -> str:
    """Return a self-contained page; whatever a value holds is text, never markup.

    Args:
        template: Its name in `templates`, without the ending.
        package: Whose `templates` it is in; it may extend those of this one.
        values: What it shows.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(__package__)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{template}.html.j2").render(**values)
