"""The base of all errors that end a command with a sentence instead of a traceback."""


class LauncherError(Exception):
    """The message names what is wrong and the way out."""
