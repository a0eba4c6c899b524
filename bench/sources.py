"""Sources: where peers take the image from, each there for as long as it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tests.support.docker_registry import REPOSITORY, Certificate, push, reference_at, running, slowed

if TYPE_CHECKING:
    from tests.support.images.layouts import Layout

RATE = 50e6
"""Bytes a second of each connection to a distant registry."""


class Where(StrEnum):
    """The ways to an image."""

    LAYOUT = "layout"
    HTTP = "http"
    TLS = "tls"
    NEAR = "20 ms"
    FAR = "80 ms"


_DELAYS = {Where.NEAR: 0.020, Where.FAR: 0.080}


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image as it is offered.

    Attributes:
        reference: on a registry, without a scheme; of a layout, ``PATH:TAG``.
        scheme: ``docker://`` or ``oci:``, as skopeo and fastpull have it.
        repository: of the registry in plain http as a URL; empty without one.
    """

    reference: str
    scheme: str = "docker://"
    repository: str = ""

    def __str__(self) -> str:
        return self.scheme + self.reference


@contextlib.contextmanager
def offered(layout: Layout, ways: Collection[Where], folder: str) -> Iterator[dict[Where, ImageSource]]:
    """Offers an image, by registries and proxies that are stopped at the end.

    Args:
        layout: the image.
        ways: those that are needed.
        folder: for the registry's storage and logs; exists.

    Raises:
        SetupError: something does not start, or does not take the image.
    """
    sources = {Where.LAYOUT: ImageSource(f"{layout.path}:{layout.tag}", "oci:")}
    with contextlib.ExitStack() as stack:
        if set(ways) - {Where.LAYOUT}:
            address = stack.enter_context(running(folder))
            push(layout, address)
            for way in ways:
                if way in _DELAYS:
                    at = stack.enter_context(slowed(address, _DELAYS[way], RATE))
                elif way is Where.TLS:
                    at = stack.enter_context(running(folder, Certificate.make(folder)))
                else:
                    at = address
                if way is not Where.LAYOUT:
                    sources[way] = ImageSource(reference_at(at, layout), repository=f"http://{address}/v2/{REPOSITORY}")
        yield sources
