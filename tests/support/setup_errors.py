"""What can go wrong with a benchmark."""

from __future__ import annotations


class SetupError(Exception):
    """The benchmark cannot go on; the message is one line for people."""


class ProgramFailed(SetupError):
    """A program that the benchmark started did not succeed.

    Attributes:
        program: its name.
        code: its exit code, or the negative number of the signal that ended it.
        output: the last lines of what it said.
    """

    def __init__(self, program: str, code: int, output: str) -> None:
        self.program = program
        self.code = code
        self.output = "\n".join(output.strip().splitlines()[-12:])
        super().__init__(f"{program} failed with exit code {code}: {self.output or 'it said nothing'}")
