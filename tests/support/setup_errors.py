"""Errors of the setup of tests and benchmarks."""

from __future__ import annotations


class SetupError(Exception):
    """A service, an image, a program or an option that a test or benchmark needs is not available."""


class ProgramFailed(SetupError):
    """A program exited with a nonzero code.

    Attributes:
        program: name of the program.
        code: exit code, or the negated number of the signal that ended it.
        output: last lines of its output.
    """

    def __init__(self, program: str, code: int, output: str) -> None:
        self.program = program
        self.code = code
        self.output = "\n".join(output.strip().splitlines()[-12:])
        super().__init__(f"{program} failed with exit code {code}: {self.output or 'no output'}")
