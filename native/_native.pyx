# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""The native module: the work per byte and per file, without the GIL.

The parts, in the order of the data:

    buffers.pxi        growable C arrays
    entries.pxi        EntryTable: one row per tar entry, stored in columns
    fields.pxi         numbers, strings and paths of tar headers
    scanner.pxi        Scanner: chunks of a tar stream -> rows of an EntryTable, and Spans of payload in the chunk
        headers.pxi    a tar header -> a row
        pax.pxi        records of extended headers
        sparse.pxi     maps of sparse files
        spans.pxi      Spans: the payload in a chunk
    files.pxi          FileWriter: chunk + Spans -> files below a directory descriptor
    blocks.pxi         BlockCutter: chunk + Spans -> squashfs blocks and tail-ends in memory
    payload.pxi        PayloadWriter: chunk + Spans -> one file with the payload of all entries
    fingerprints.pxi   Fingerprints: an ordered set of content fingerprints
    deflate.pxi        find_deflate_block: where a gzip stream can be entered
    system.pxi         system calls that Python lacks

A chunk is scanned in one call and written in a second one, whatever number of files it holds. No function raises for
the content of a layer or for an answer of the system: functions return fault codes and errno values, and Python raises.
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
include "pax.pxi"
include "spans.pxi"
include "scanner.pxi"
include "headers.pxi"
include "sparse.pxi"
include "files.pxi"
include "blocks.pxi"
include "payload.pxi"
include "fingerprints.pxi"
include "deflate.pxi"
include "system.pxi"
