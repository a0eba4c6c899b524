"""How an image wants to be run, checked: what no runtime can express is refused before anything is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Self

from fastpull.errors import MalformedDocument
from fastpull.runtimes.base import OutputShape
from fastpull.runtimes.text import is_plain_path, listed, shown

if TYPE_CHECKING:
    from fastpull.oci.image import Image


@dataclass(frozen=True, slots=True)
class Execution:
    """The execution parameters of an image's config.

    Attributes:
        args: entrypoint and command; ``/bin/sh`` if the image has neither.
        entrypoint, cmd: entrypoint and command of the config.
        env: names and values of the environment; a repeated name has its last value at its first position.
        working_dir: absolute path of the working directory; ``/`` if the image has none.
        volumes: plain absolute paths, see `is_plain_path`; other volumes are left out.
        warnings: warnings about parts that are left out, one sentence each.

    Spec: image-spec config.md, Properties.
    """

    args: tuple[str, ...]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    working_dir: str
    volumes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, image: Image) -> Self:
        """Parse and check an image's config.

        Raises:
            MalformedDocument: a text contains NUL or half a surrogate pair, which a process cannot be given; the
                working directory is relative; or a variable has no name.
        """
        config = image.config
        texts: dict[str, tuple[str, ...]] = {
            "User": (config.user,),
            "WorkingDir": (config.working_dir,),
            "Env": config.env,
            "Entrypoint": config.entrypoint,
            "Cmd": config.cmd,
            "Labels": tuple(text for label in config.labels for text in label),
        }
        for name, values in texts.items():
            for value in values:
                _check_text(image, name, value)
        working_dir = config.working_dir or "/"
        if not working_dir.startswith("/"):
            refuse(image, f"the working directory {shown(working_dir)} is not absolute")
        env: dict[str, str] = {}
        for text in config.env:
            name, _, value = text.partition("=")
            if not name:
                refuse(image, f"a variable without a name, {shown(text)},")
            env[name] = value
        strange = [volume for volume in config.volumes if not is_plain_path(volume)]
        warnings = (f"volumes that are no plain absolute paths are left out: {listed(strange)}",) if strange else ()
        return cls(
            config.entrypoint + config.cmd or ("/bin/sh",),
            config.entrypoint,
            config.cmd,
            tuple(env.items()),
            working_dir,
            tuple(volume for volume in config.volumes if is_plain_path(volume)),
            warnings,
        )


class FromConfig:
    """The common part of profiles that need no files of the image."""

    output_shape = OutputShape.ROOTFS
    sidecar_names: tuple[str, ...] = ()
    has_one_owner = False

    def required_files(self, image: Image, /) -> tuple[bytes, ...]:
        """See `fastpull.runtimes.base.RuntimeProfile`."""
        Execution.of(image)
        return ()


def refuse(image: Image, reason: str) -> NoReturn:
    """Raise the error for an invalid config.

    Raises:
        MalformedDocument: always.
    """
    raise MalformedDocument(f"config of {image.source}", reason)


def _check_text(image: Image, name: str, value: str) -> None:
    if "\0" in value:
        refuse(image, f"NUL in {name}, {shown(value)},")
    try:
        value.encode()
    except UnicodeEncodeError:
        refuse(image, f"half a surrogate pair in {name}, {shown(value)},")
