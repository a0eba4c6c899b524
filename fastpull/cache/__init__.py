"""The content-addressed cache that tasks, processes, users and nodes share. See ``docs/cache.md`` for its format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.cache.images.pins import Holder
    from fastpull.cache.images.store import FinishedImage
    from fastpull.cache.maintenance.manager import CacheManager
    from fastpull.cache.maintenance.reports import CachedImage, ListedImage, Removed, RemovedImage, Usage, Verified
    from fastpull.cache.store import StoredBlob

__all__ = [
    "CacheManager",
    "CachedImage",
    "FinishedImage",
    "Holder",
    "ListedImage",
    "Removed",
    "RemovedImage",
    "StoredBlob",
    "Usage",
    "Verified",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.cache.images.pins": ("Holder",),
            "fastpull.cache.images.store": ("FinishedImage",),
            "fastpull.cache.maintenance.manager": ("CacheManager",),
            "fastpull.cache.maintenance.reports": (
                "CachedImage",
                "ListedImage",
                "Removed",
                "RemovedImage",
                "Usage",
                "Verified",
            ),
            "fastpull.cache.store": ("StoredBlob",),
        },
    )
