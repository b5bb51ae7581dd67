"""What a user can mend: the command line prints its one sentence, without a traceback, and exits with code 2."""


class UserError(ValueError):
    """Says what was wrong, where, and what to do."""
