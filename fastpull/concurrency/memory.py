"""The memory of layers, and of what threads have freed."""

from __future__ import annotations

from contextlib import suppress

LAYER_COST = 4 << 20
"""What the buffers of one layer may take: compressed and uncompressed chunks, and a small window of the inflater."""


def give_back_freed_memory() -> None:
    """Gives the kernel back what was freed, also by threads that have ended; does nothing where libc is not GNU's."""
    import ctypes  # noqa: PLC0415  # few need it

    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
