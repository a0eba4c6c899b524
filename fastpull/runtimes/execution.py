"""How an image wants to be run, checked: what no runtime can express is refused before anything is downloaded."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Self

from fastpull.errors import MalformedDocument
from fastpull.runtimes.base import Frame

if TYPE_CHECKING:
    from fastpull.oci.image import Image

_MAX_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Execution:
    """The execution parameters of an image's config.

    Attributes:
        args: entrypoint and command; ``/bin/sh`` where the image has neither.
        entrypoint, cmd: as in the config.
        env: likewise, as pairs; of a name that stands twice the last counts, at the place of the first.
        working_dir: an absolute path; ``/`` where the image has none.
        volumes: absolute paths.

    Spec: image-spec config.md, Properties.
    """

    args: tuple[str, ...]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    working_dir: str
    volumes: tuple[str, ...]

    @classmethod
    def of(cls, image: Image) -> Self:
        """Reads and checks an image's config.

        Raises:
            MalformedDocument: a text holds NUL or half a surrogate pair, which no process can be given; the working
                directory is relative, or a variable has no name.
        """
        config = image.config
        texts: dict[str, tuple[str, ...]] = {
            "User": (config.user,),
            "WorkingDir": (config.working_dir,),
            "Env": config.env,
            "Entrypoint": config.entrypoint,
            "Cmd": config.cmd,
            "Labels": tuple(text for label in config.labels for text in label),
            "Volumes": config.volumes,
        }
        for name, values in texts.items():
            for value in values:
                _check_text(image, name, value)
        working_dir = config.working_dir or "/"
        if not working_dir.startswith("/"):
            refuse(image, f"the working directory {_shown(working_dir)} is not absolute")
        env: dict[str, str] = {}
        for text in config.env:
            name, _, value = text.partition("=")
            if not name:
                refuse(image, f"a variable without a name, {_shown(text)},")
            env[name] = value
        for volume in config.volumes:
            if not volume.startswith("/") or not posixpath.normpath(volume).strip("/"):
                refuse(image, f"the volume {_shown(volume)} is not absolute, or all of the root filesystem,")
        return cls(
            config.entrypoint + config.cmd or ("/bin/sh",),
            config.entrypoint,
            config.cmd,
            tuple(env.items()),
            working_dir,
            config.volumes,
        )


class FromConfig:
    """What dialects have in common that see nothing of an image but its config."""

    frame = Frame.NONE
    companions: tuple[str, ...] = ()
    has_one_owner = False

    def reads(self, image: Image, /) -> tuple[bytes, ...]:
        """See `fastpull.runtimes.base.Dialect`."""
        Execution.of(image)
        return ()


def refuse(image: Image, reason: str) -> NoReturn:
    """Says what is wrong with an image's config.

    Raises:
        MalformedDocument: always.
    """
    raise MalformedDocument(f"config of {image.source}", reason)


def _check_text(image: Image, name: str, value: str) -> None:
    if "\0" in value:
        refuse(image, f"NUL in {name}, {_shown(value)},")
    try:
        value.encode()
    except UnicodeEncodeError:
        refuse(image, f"half a surrogate pair in {name}, {_shown(value)},")


def _shown(value: str) -> str:
    return ascii(value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "…")
