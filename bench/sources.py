"""Sources of the image: a layout, registries and slow links, started on demand."""

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
"""Bytes per second of each connection to a distant registry."""


class ImageTransport(StrEnum):
    """The transports of an image."""

    LAYOUT = "layout"
    HTTP = "http"
    TLS = "tls"
    NEAR = "20 ms"
    FAR = "80 ms"


_DELAYS = {ImageTransport.NEAR: 0.020, ImageTransport.FAR: 0.080}


@dataclass(frozen=True, slots=True)
class ImageSource:
    """The address of an image.

    Attributes:
        reference: reference in a registry without a scheme, or ``PATH:TAG`` of a layout.
        scheme: ``docker://`` or ``oci:``, as in skopeo and fastpull.
        repository: URL of the repository over plain http; empty without a registry.
    """

    reference: str
    scheme: str = "docker://"
    repository: str = ""

    def __str__(self) -> str:
        return self.scheme + self.reference


@contextlib.contextmanager
def serve_sources(
    layout: Layout, transports: Collection[ImageTransport], folder: str
) -> Iterator[dict[ImageTransport, ImageSource]]:
    """Serve an image from registries and proxies, and stop them at the end.

    Args:
        layout: layout of the image.
        transports: transports to serve.
        folder: an existing folder for the registry's storage and logs.

    Raises:
        SetupError: A service does not start, or rejects the image.
    """
    sources = {ImageTransport.LAYOUT: ImageSource(f"{layout.path}:{layout.tag}", "oci:")}
    with contextlib.ExitStack() as stack:
        if set(transports) - {ImageTransport.LAYOUT}:
            address = stack.enter_context(running(folder))
            push(layout, address)
            for transport in transports:
                if transport in _DELAYS:
                    at = stack.enter_context(slowed(address, _DELAYS[transport], RATE))
                elif transport is ImageTransport.TLS:
                    at = stack.enter_context(running(folder, Certificate.make(folder)))
                else:
                    at = address
                if transport is not ImageTransport.LAYOUT:
                    sources[transport] = ImageSource(
                        reference_at(at, layout), repository=f"http://{address}/v2/{REPOSITORY}"
                    )
        yield sources
