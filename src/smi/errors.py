"""Define errors that the command line prints as one sentence, without a traceback."""


class UserError(ValueError):
    """Report a mistake the user can correct: the problem, its cause and the fix. Exit code 2."""


class TrainingError(RuntimeError):
    """Report that training cannot continue: the cause, what is kept, what to try. Exit code 1."""


class DiskError(UserError):
    """Report that the system refused to read or write: a full disk, a lost permission."""
