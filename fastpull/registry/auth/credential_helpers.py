"""Credential helpers: programs called ``docker-credential-NAME`` that keep the secrets of others.

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
"""How long a helper may take; some ask a cloud's servers."""

_MAX_OUTPUT = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_FOUND = ("credentials not found", "no credentials for", "could not be found")
_OURS = ("FASTPULL_PASSWORD", "FASTPULL_USERNAME")


@dataclass(frozen=True, slots=True)
class Output:
    """What a program left.

    Attributes:
        status: it exited with; negative for a signal.
        text: its standard output.
    """

    status: int
    text: str


async def output_of(command: tuple[str, ...], given: bytes, origin: str) -> Output:
    """Runs a program that tells secrets: its output is kept, its complaints go nowhere.

    It gets a session of its own, so that all of it can be ended if it hangs or if the caller is cancelled.

    Args:
        command: program and arguments.
        given: to its standard input.
        origin: which file asks for it, for messages.

    Raises:
        InvalidSetting: it is not there, cannot be run, takes too long, or talks too much.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _OURS}
    # asyncio's own pipe would be waited for as long as anybody holds its other end, also who escaped the session
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        with theirs:
            process = await _start(command, theirs, environment, origin)
        try:
            async with asyncio.timeout(HELPER_SECONDS):
                text = await _talk(process, ours, given)
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
    return Output(status, text.decode("utf-8", "replace"))


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
        reason = f"the program {command[0]!r} is not in PATH; install it, or log in without"
        raise HelperMissing(origin, reason) from None
    except OSError as error:
        raise InvalidSetting(origin, f"the program {command[0]!r} cannot be run ({error.strerror})") from error


async def _talk(process: asyncio.subprocess.Process, output: socket.socket, given: bytes) -> bytes:
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it may have ended without reading
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()
    text = bytearray()
    while len(text) <= _MAX_OUTPUT and (piece := await asyncio.get_running_loop().sock_recv(output, 1 << 16)):
        text += piece
    return bytes(text)


class HelperMissing(InvalidSetting):
    """A file of logins names a helper program that this machine does not have."""


async def ask_helper(name: str, server: str, origin: str) -> Credentials | None:
    """Asks a helper for the credentials of one server.

    Args:
        name: of the helper, the part after ``docker-credential-``.
        server: as the file of logins calls it.
        origin: which file names it, for messages.

    Returns:
        None if the helper says that it has none.

    Raises:
        InvalidSetting: it failed, or talks nonsense; HelperMissing if it is not there.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidSetting(origin, f"{name[:100]!r} cannot be a credential helper")
    program = f"docker-credential-{name}"
    origin = f"{origin}, by {program}"
    output = await output_of((program, "get"), f"{server}\n".encode(), origin)
    if output.status != 0:
        said = next(iter(output.text.splitlines()), "")
        if any(words in said.lower() for words in _NOT_FOUND):
            return None
        # an error is told on standard output; whatever looks like an answer may hold a secret
        complaint = f": {said[:200]}" if said.isprintable() and not set(said) & set('{}"') else ""
        raise InvalidSetting(origin, f"{program} failed with status {output.status}{complaint}")
    try:
        answer = JsonDocument.parse(output.text.encode(), program)
        username, secret = answer.text_or("Username", ""), answer.text_or("Secret", "")
    except MalformedDocument:
        raise InvalidSetting(origin, f"{program} gave something that is no answer; run it by hand") from None
    if not secret:
        return None
    if username == "<token>":
        return Credentials("", origin=origin, identity_token=Secret(secret), is_renewable=True)
    return Credentials(username, Secret(secret), origin, is_renewable=True)
