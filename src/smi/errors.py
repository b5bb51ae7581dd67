"""Define errors that the command line prints as one sentence, without a traceback."""

MAX_LENGTH = 600  # of a sentence, which may quote a name or a value of any length
SHOWN_START, SHOWN_END = 400, 190  # characters of a longer one: the problem, and the fix


class UserError(ValueError):
    """Report a mistake the user can correct: the problem, its cause and the fix. Exit code 2."""

    def __init__(self, message: object = ""):
        super().__init__(sentence(str(message)))


class TrainingError(RuntimeError):
    """Report that training cannot continue: the cause, what is kept, what to try. Exit code 1."""

    def __init__(self, message: object = ""):
        super().__init__(sentence(str(message)))


def sentence(text: str) -> str:
    """Return a text on one line, without characters that cannot be printed, and not too long."""
    if len(text) > MAX_LENGTH:
        text = f"{text[:SHOWN_START]} … {text[-SHOWN_END:]}"
    text = printable(text)
    return text if len(text) <= MAX_LENGTH else f"{text[:SHOWN_START]} … {text[-SHOWN_END:]}"


def printable(text: str) -> str:
    """Escape characters that cannot be printed: names of files may hold any bytes.

    These are also the invisible ones, and those that reverse the direction of the text.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )


class DiskError(UserError):
    """Report that the system refused to read or write: a full disk, a lost permission."""
