"""Every error that fastpull raises.

::

    FastpullError                          exit code
    ├── InvalidInput (ValueError)                  3   the caller gave something invalid
    │   ├── InvalidReference
    │   │   └── InvalidSource
    │   ├── InvalidDigest
    │   ├── InvalidPlatform
    │   └── InvalidSetting
    ├── TransportError (OSError)                  10   no complete answer: name, connection, TLS, stall, reset
    ├── RegistryError                             11   the answer cannot be used
    │   ├── NotFound (LookupError)
    │   ├── NoMatchingPlatform (LookupError)
    │   ├── RateLimited
    │   ├── UnexpectedAnswer
    │   └── MalformedDocument
    ├── AccessDenied (PermissionError)            12   401, 403: credentials missing, wrong or insufficient
    ├── Forbidden (PermissionError)               13   this machine's policy forbids the image
    ├── IntegrityError                            20   bytes do not match their digest
    │   ├── DigestMismatch
    │   ├── SizeMismatch
    │   ├── DiffIdMismatch
    │   ├── FrameDamaged
    │   └── LayerBlocksDamaged
    ├── UnsupportedMediaType                      21   an artifact, a schema 1 image, an unknown layer format
    ├── DecompressError                           22   a corrupt or truncated gzip or zstd stream
    ├── TarError                                  23   a layer is not a well-formed tar
    ├── LayerError                                24   an entry breaks the rules of image-spec's layer.md
    ├── LimitExceeded                             25   an image exceeds a limit
    ├── CacheError (OSError)                      30   the cache cannot be read or written
    │   └── LockLost                              30   this process stalled, and another took over its lock
    ├── OutputError (OSError)                     31   the destination cannot be written
    │   └── OutputExists (FileExistsError)
    └── ClusterError                              40   the ranks of a job cannot work together
        ├── MpiError
        ├── Disagreement
        ├── RankFailed
        ├── RankLost
        ├── MalformedMessage
        └── OutputDiffers

Each class has its facts as fields, and makes its message from them. A hint names the next step.
No message holds a credential. ``asyncio.CancelledError`` is never wrapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastpull.errors.base import FastpullError
from fastpull.errors.base import printable as printable
from fastpull.errors.cluster import (
    ClusterError,
    Disagreement,
    MalformedMessage,
    MpiError,
    OutputDiffers,
    RankFailed,
    RankLost,
)
from fastpull.errors.content import (
    DecompressError,
    DiffIdMismatch,
    DigestMismatch,
    FrameDamaged,
    IntegrityError,
    LayerBlocksDamaged,
    LayerError,
    LimitExceeded,
    SizeMismatch,
    TarError,
    UnsupportedMediaType,
)
from fastpull.errors.inputs import (
    InvalidDigest,
    InvalidInput,
    InvalidPlatform,
    InvalidReference,
    InvalidSetting,
    InvalidSource,
)
from fastpull.errors.local import CacheError, LockLost, OutputError, OutputExists
from fastpull.errors.local import from_os_error as from_os_error
from fastpull.errors.registry import (
    AccessDenied,
    Forbidden,
    MalformedDocument,
    NoMatchingPlatform,
    NotFound,
    RateLimited,
    RegistryError,
    TransportError,
    UnexpectedAnswer,
)
from fastpull.errors.translate import ErrorMapping as ErrorMapping
from fastpull.errors.translate import translate_errors as translate_errors

__all__ = [
    "AccessDenied",
    "CacheError",
    "ClusterError",
    "DecompressError",
    "DiffIdMismatch",
    "DigestMismatch",
    "Disagreement",
    "FastpullError",
    "Forbidden",
    "FrameDamaged",
    "IntegrityError",
    "InvalidDigest",
    "InvalidInput",
    "InvalidPlatform",
    "InvalidReference",
    "InvalidSetting",
    "InvalidSource",
    "LayerBlocksDamaged",
    "LayerError",
    "LimitExceeded",
    "LockLost",
    "MalformedDocument",
    "MalformedMessage",
    "MpiError",
    "NoMatchingPlatform",
    "NotFound",
    "OutputDiffers",
    "OutputError",
    "OutputExists",
    "RankFailed",
    "RankLost",
    "RateLimited",
    "RegistryError",
    "SizeMismatch",
    "TarError",
    "TransportError",
    "UnexpectedAnswer",
    "UnsupportedMediaType",
]

_FORMER = {"RunDamaged": LayerBlocksDamaged, "WindowDamaged": FrameDamaged}
"""Names of earlier versions."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _FORMER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _FORMER[name]
