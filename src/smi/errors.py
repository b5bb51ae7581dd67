"""What a user can mend: the command line prints its one sentence, without a traceback, and exits with code 2."""


class UserError(ValueError):
    """Says what was wrong, where, and what to do."""


class TrainingError(RuntimeError):
    """Training cannot go on: what happened, what is kept, what to try. The command line prints it and exits with code 1."""
