"""What can go wrong, by who can mend it; the command line makes one line and a code of it."""

from __future__ import annotations


class FedveilError(Exception):
    """Anything this package raises on purpose. Exit code 1."""

    exit_code = 1


class ConfigError(FedveilError, ValueError):
    """An argument, file or recipe that cannot be used; the message names it and its value."""

    exit_code = 2


class PrivacyRefusal(ConfigError):
    """A combination for which no proof exists, so no epsilon may be printed.

    `reason` says why it is not private as described, `instead` what would work.
    """

    def __init__(self, reason: str, instead: str) -> None:
        super().__init__(f"{reason}; {instead}")
        self.reason = reason
        self.instead = instead
