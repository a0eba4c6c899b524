# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""The native tar stage: what is done per byte and per file, without the GIL.

The parts, in the order of the data:

    buffers.pxi    growable C arrays
    entries.pxi    EntryTable: one row per tar entry, in columns
    fields.pxi     numbers, pax records and paths, as tar spells them
    scanner.pxi    Scanner: chunks of a tar stream -> rows of an EntryTable, and Spans of payload in the chunk
    files.pxi      FileWriter: chunk + Spans -> files below a directory descriptor
    blocks.pxi     BlockCutter: chunk + Spans -> squashfs blocks and tails in memory
    payload.pxi    PayloadWriter: chunk + Spans -> one file with the payload of all entries
    fingerprints.pxi     Fingerprints: what content is there already
    system.pxi     system calls that Python lacks

A chunk is scanned and written in two calls, whatever number of files it holds. Nothing here raises for what a layer
holds or the system answers: functions return fault codes and errno values, and Python makes errors of them.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EACCES, EBUSY, EEXIST, EFBIG, EINTR, EIO, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOMEM, \
    ENOTDIR, errno
from libc.stdint cimport INT64_MAX, UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strcmp, strlen

from os import urandom

include "buffers.pxi"
include "entries.pxi"
include "fields.pxi"
include "scanner.pxi"
include "files.pxi"
include "blocks.pxi"
include "payload.pxi"
include "fingerprints.pxi"
include "system.pxi"
