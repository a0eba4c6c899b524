"""The memory of layers, and the return of freed memory."""

from __future__ import annotations

from contextlib import suppress

LAYER_COST = 4 << 20
"""Bytes reserved for the buffers of one layer: compressed and uncompressed chunks, and a small inflater window."""


def give_back_freed_memory() -> None:
    """Return freed memory to the kernel, also that of ended threads; does nothing unless the libc is glibc."""
    import ctypes  # noqa: PLC0415  # rarely needed

    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
