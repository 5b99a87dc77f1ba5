"""Pages that state what was measured, between lines that mark the place."""

from pathlib import Path

from steelyard.errors import UserError

_BEGIN, _END = "<!-- {} -->", "<!-- /{} -->"


def check_page(page: Path, mark: str) -> None:
    """Refuse a page without the marked place.

    Raises:
        UserError: There is no such page, or it lacks a mark.
    """
    try:
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
    except (OSError, ValueError) as error:
        raise UserError(f"{page}: cannot be read as text.") from error
    for line in (_BEGIN, _END):
        _, marked, text = text.partition(line.format(mark))
        if not marked:
            raise UserError(f"{page}: no page with the line {line.format(mark)}.")


def with_measured(page: str, mark: str, text: str) -> str:
    """Return a page with a text in its marked place.

    >>> with_measured("a <!-- m -->old<!-- /m --> b", "m", " new ")
    'a <!-- m --> new <!-- /m --> b'
    """
    begin, end = _BEGIN.format(mark), _END.format(mark)
    before, rest = page.split(begin, 1)
    return f"{before}{begin}{text}{end}{rest.split(end, 1)[1]}"
