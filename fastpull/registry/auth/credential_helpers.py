"""Credential helpers: programs called ``docker-credential-NAME`` that store secrets.

Spec: the protocol of docker-credential-helpers (github.com/docker/docker-credential-helpers, README).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from dataclasses import dataclass

from fastpull.config.secret import Secret
from fastpull.errors import InvalidSetting, MalformedDocument
from fastpull.oci.json import JsonDocument
from fastpull.registry.auth.credentials import Credentials

HELPER_SECONDS = 30.0
"""The longest time for a helper; some query the servers of a cloud."""

_MAX_OUTPUT = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_FOUND = ("credentials not found", "no credentials for", "could not be found")
_OWN_VARIABLES = ("FASTPULL_PASSWORD", "FASTPULL_USERNAME")


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of a program.

    Attributes:
        status: the exit status; negative for a signal.
        text: the standard output.
    """

    status: int
    text: str


async def run_program(command: tuple[str, ...], given: bytes, origin: str) -> ProgramResult:
    """Run a program that prints secrets: its standard output is captured, its standard error discarded.

    The program gets its own session, so that all its processes are killed after a timeout or a cancellation.

    Args:
        command: the program and its arguments.
        given: the standard input.
        origin: the file that requires the program, for messages.

    Raises:
        InvalidSetting: the program is missing, cannot be run, takes too long, or prints too much.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    # asyncio waits for its own pipes until every process has closed them, even one that left the session
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        with theirs:
            process = await _start(command, theirs, environment, origin)
        try:
            async with asyncio.timeout(HELPER_SECONDS):
                text = await _communicate(process, ours, given)
                if len(text) <= _MAX_OUTPUT:
                    await process.wait()
        except TimeoutError:
            reason = f"{command[0]!r} gave no answer in {HELPER_SECONDS:.0f} s; run it by hand"
            raise InvalidSetting(origin, reason) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            status = await process.wait()
    if len(text) > _MAX_OUTPUT:
        raise InvalidSetting(origin, f"{command[0]!r} wrote more than {_MAX_OUTPUT} bytes")
    return ProgramResult(status, text.decode("utf-8", "replace"))


async def _start(
    command: tuple[str, ...], output: socket.socket, environment: dict[str, str], origin: str
) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=output.fileno(),
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError:
        reason = f"the program {command[0]!r} is not in PATH; install it, or log in without it"
        raise HelperMissing(origin, reason) from None
    except OSError as error:
        raise InvalidSetting(origin, f"cannot run the program {command[0]!r} ({error.strerror})") from error


async def _communicate(process: asyncio.subprocess.Process, output: socket.socket, given: bytes) -> bytes:
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # the program may exit without reading its input
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()
    text = bytearray()
    while len(text) <= _MAX_OUTPUT and (piece := await asyncio.get_running_loop().sock_recv(output, 1 << 16)):
        text += piece
    return bytes(text)


class HelperMissing(InvalidSetting):
    """An auth file names a helper program that is not installed."""


async def ask_helper(name: str, server: str, origin: str) -> Credentials | None:
    """Get the credentials of one server from a helper.

    Args:
        name: the helper's name, the part after ``docker-credential-``.
        server: the server's name in the auth file.
        origin: the file that names the helper, for messages.

    Returns:
        The credentials; None if the helper has none.

    Raises:
        HelperMissing: the helper is not installed.
        InvalidSetting: the helper failed, or its output is invalid.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidSetting(origin, f"{name[:100]!r} is not the name of a credential helper")
    program = f"docker-credential-{name}"
    origin = f"{origin}, by {program}"
    output = await run_program((program, "get"), f"{server}\n".encode(), origin)
    if output.status != 0:
        first_line = next(iter(output.text.splitlines()), "")
        if any(words in first_line.lower() for words in _NOT_FOUND):
            return None
        # helpers print errors to standard output; a line that looks like JSON may hold a secret
        detail = f": {first_line[:200]}" if first_line.isprintable() and not set(first_line) & set('{}"') else ""
        raise InvalidSetting(origin, f"{program} failed with status {output.status}{detail}")
    try:
        document = JsonDocument.parse(output.text.encode(), program)
        username, secret = document.text_or("Username", ""), document.text_or("Secret", "")
    except MalformedDocument:
        raise InvalidSetting(origin, f"the output of {program} is not valid; run it by hand") from None
    if not secret:
        return None
    if username == "<token>":
        return Credentials("", origin=origin, identity_token=Secret(secret), is_renewable=True)
    return Credentials(username, Secret(secret), origin, is_renewable=True)
