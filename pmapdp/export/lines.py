"""Texts for a model to read, one a line, from a file or from standard input."""

import sys

from pmapdp.errors import UserError


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 file, or of standard input where the path is `-`; empty ones are left out.

    Raises:
        UserError: it cannot be read, is not UTF-8, or has no text in it.
    """
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            content = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                content = file.read()
        lines = content.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}): name a file with one text a line") from None
    except UnicodeDecodeError:
        raise UserError(f"{name} is no text in UTF-8: convert it first, for example with iconv") from None
    if texts := [line for line in lines if line.strip()]:
        return texts
    raise UserError(f"{name} holds no text: write one text a line")
