"""Challenges: the authorization schemes that a host offers.

Spec: RFC 9110, 11.6.1; RFC 6750, 3.1 for the errors of bearer tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # a token of RFC 9110
_SCHEME = re.compile(rf"\s*,*\s*({_WORD})(?:\s+|$|(?=,))")
_PARAMETER = re.compile(rf"\s*,*\s*({_WORD})\s*=\s*(?:({_WORD})|\"((?:[^\"\\]|\\.)*)\")")
_TOKEN68 = re.compile(r"\s*[0-9A-Za-z._~+/-]+=*\s*(?=,|$)")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One authorization scheme that a host offers.

    Attributes:
        scheme: the name of the scheme in lower case, such as ``bearer``.
        parameters: the parameters; their names are in lower case.
    """

    scheme: str
    parameters: dict[str, str]

    @property
    def is_scope_error(self) -> bool:
        """Whether the token was valid but its scope insufficient."""
        return self.scheme == "bearer" and self.parameters.get("error") == "insufficient_scope"


def parse_challenges(header: str) -> list[Challenge]:
    """Parse ``WWW-Authenticate``, which may hold several challenges. Several headers are joined with commas."""
    found: list[Challenge] = []
    at = 0
    while match := _SCHEME.match(header, at):
        at = match.end()
        parameters: dict[str, str] = {}
        while parameter := _PARAMETER.match(header, at):
            name, plain, quoted = parameter.groups()
            parameters[name.lower()] = plain if plain is not None else re.sub(r"\\(.)", r"\1", quoted)
            at = parameter.end()
        if not parameters and (token := _TOKEN68.match(header, at)):
            at = token.end()
        found.append(Challenge(match[1].lower(), parameters))
    return found
