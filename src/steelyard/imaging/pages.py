"""HTML pages from the templates of this package."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **values: Any) -> str:
    """Return a self-contained page; whatever a value holds is text, never markup.

    Args:
        template: Its name in `templates`, without the ending.
        values: What it shows.
    """
    environment = Environment(
        loader=PackageLoader("steelyard.imaging"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{template}.html.j2").render(**values)
