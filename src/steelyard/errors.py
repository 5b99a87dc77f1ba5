"""Errors that reach the user as one line instead of a traceback."""

import errno


class UserError(ValueError):
    """A user's mistake: one line that names the file (or argument) and what is wrong with it."""


def one_line(text: str) -> str:
    r"""Return a text without line breaks and other control characters, which names of files may hold.

    >>> one_line("a\nb.nii")
    'a b.nii'
    """
    plain = text.encode(errors="replace").decode()  # names in another encoding have characters without UTF-8
    return "".join(letter if letter.isprintable() else " " for letter in plain)


def reason(error: OSError) -> str:
    """Return in a few words why the system refused.

    >>> reason(OSError(errno.ENOSPC, "No space left on device"))
    'the disk is full'
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "permission denied"
    return (error.strerror or str(error)).lower()
