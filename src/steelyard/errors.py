"""The one error that reaches the user as a line instead of a traceback."""


class UserError(ValueError):
    """A user's mistake, said in one line that names the file (or argument) and what is wrong with it."""
