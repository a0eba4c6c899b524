"""Faults of a tar stream: the codes that the scanner returns."""

from __future__ import annotations

from enum import IntEnum


class Fault(IntEnum):
    """The result of the scanner; ``native/fields.pxi`` has the same numbers."""

    NONE = 0
    MEMORY = 1
    CHECKSUM = 2
    NUMBER = 3
    ID_RANGE = 4
    TYPEFLAG = 5
    SIZE_OF_TYPE = 6
    TRAILING_SLASH = 7
    EMPTY_PATH = 8
    PATH_ESCAPES = 9
    PATH_DEPTH = 10
    NAME_LENGTH = 11
    NUL_IN_NAME = 12
    EMPTY_LINK = 13
    EXTENSION_SIZE = 14
    EXTENSION_REPEATED = 15
    EXTENSION_DANGLING = 16
    PAX_RECORD = 17
    PAX_GLOBAL = 18
    NAMES_DIFFER = 19
    SPARSE = 20
    LONE_ZERO_BLOCK = 21
    AFTER_END = 22
    TRUNCATED = 23
    TOO_LARGE = 24
    DEVICE_RANGE = 25
    LAYER_SIZE = 26
    XATTR_SIZE = 27
    XATTR_NAME = 28
    TARGET_LENGTH = 29
    SPARSE_PIECE = 30


LAYER_FAULTS = frozenset({Fault.PATH_ESCAPES, Fault.NAME_LENGTH, Fault.XATTR_NAME, Fault.TARGET_LENGTH})
"""Faults of a well-formed archive with content that fastpull refuses."""

LIMITS = {
    Fault.PATH_DEPTH: "",
    Fault.EXTENSION_SIZE: "",
    Fault.XATTR_SIZE: "",
    Fault.LAYER_SIZE: "max_layer_size",
}
"""Faults that are limits, each with the setting that raises it, if any."""

REASONS = {
    Fault.CHECKSUM: "header checksum does not match",
    Fault.NUMBER: "malformed number in header",
    Fault.ID_RANGE: "owner or group id out of range",
    Fault.TYPEFLAG: "unknown type of entry",
    Fault.SIZE_OF_TYPE: "an entry that is no file has a size, which readers understand differently,",
    Fault.TRAILING_SLASH: "a file whose name ends in '/', which readers understand differently,",
    Fault.EMPTY_PATH: "entry without a name",
    Fault.PATH_ESCAPES: "path leaves the root",
    Fault.PATH_DEPTH: "path has more than 255 components",
    Fault.NAME_LENGTH: "name is longer than 255 bytes",
    Fault.NUL_IN_NAME: "NUL within a name",
    Fault.EMPTY_LINK: "link without a target",
    Fault.EXTENSION_SIZE: "extended header over 1 MiB",
    Fault.EXTENSION_REPEATED: "two extended headers of one kind for one entry",
    Fault.EXTENSION_DANGLING: "extended header without an entry",
    Fault.PAX_RECORD: "malformed pax record",
    Fault.PAX_GLOBAL: "global pax header that names, sizes or tags every entry",
    Fault.NAMES_DIFFER: "pax and GNU extended headers name the entry differently",
    Fault.SPARSE: "malformed map of a sparse file",
    Fault.LONE_ZERO_BLOCK: "a zero block between entries",
    Fault.AFTER_END: "data after the end of the archive",
    Fault.TRUNCATED: "the archive ends within an entry",
    Fault.TOO_LARGE: "more names than 4 GiB",
    Fault.DEVICE_RANGE: "device number out of range",
    Fault.LAYER_SIZE: "files larger than the layer may be",
    Fault.XATTR_SIZE: "extended attributes over 64 KiB",
    Fault.XATTR_NAME: "name of an extended attribute is longer than 255 bytes",
    Fault.TARGET_LENGTH: "target of a symbolic link is longer than 4095 bytes",
    Fault.SPARSE_PIECE: "a piece of a sparse file ends within a block, which readers understand differently,",
}
