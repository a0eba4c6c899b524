# Writing the payload of a layer's files to one file, one after the other.

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    ssize_t pwritev(int, const iovec*, int, int64_t)

cdef enum:
    MAX_PIECES = 256  # a chunk of small files has some hundred spans; the system takes 1024 at a time


cdef class PayloadWriter:
    """Appends the payload spans of one layer to one file, in the order of the tar.

    Holes of sparse files stay holes. What is written by several calls or by one is the same.

    Attributes:
        failed: the number of the entry at fault after `write` returned an errno.
    """

    cdef readonly uint32_t failed

    cdef EntryTable entries
    cdef const uint8_t[::1] wanted
    cdef Buffer starts, holes
    cdef int fd
    # the payload at hand
    cdef bint skipping
    cdef int64_t start, at, end
    # pending spans that are adjacent in the file
    cdef iovec pieces[MAX_PIECES]
    cdef int count
    cdef int64_t pieces_start

    def __cinit__(self, EntryTable entries not None, int fd, const uint8_t[::1] wanted=None):
        """Prepare to write one layer.

        Args:
            entries: the table that the spans number; its scanner may still be growing it.
            fd: an empty file that stays open as long as the writer.
            wanted: for each entry whether its payload is needed; of entries beyond the end all are.
        """
        self.entries = entries
        self.fd = fd
        self.wanted = wanted

    def __dealloc__(self):
        buffer_free(&self.starts)
        buffer_free(&self.holes)

    def write(self, const uint8_t[::1] chunk, Spans spans not None):
        """Write the spans of a chunk; return 0 or an errno."""
        cdef const uint8_t* data = &chunk[0] if chunk.shape[0] else NULL
        cdef int error
        with nogil:
            error = append_spans(self, data, spans)
        return error

    def starts_bytes(self):
        """Return eight bytes per entry: the offset of its payload in the file, or -1; may be shorter than the table."""
        return buffer_bytes(&self.starts)

    def holes_bytes(self):
        """Return sixteen bytes per hole, ascending: its start and its end in the file."""
        return buffer_bytes(&self.holes)


cdef int append_spans(PayloadWriter self, const uint8_t* data, Spans spans) noexcept nogil:
    cdef Span* items = <Span*> spans.items.data
    cdef size_t number
    cdef int error
    self.count = 0
    for number in range(spans.items.size // sizeof(Span)):
        self.failed = items[number].entry
        error = append_span(self, data, items + number)
        if error:
            return error
    return write_pieces(self)


cdef int append_span(PayloadWriter self, const uint8_t* data, const Span* span) noexcept nogil:
    cdef int64_t at
    cdef int error = 0
    if span.flags & SPAN_FIRST:
        error = begin_payload_of(self, span.entry)
    if error or self.skipping:
        return error
    if span.length:
        at = self.start + span.file_offset
        if at != self.at:
            error = write_pieces(self) or add_hole(self, at)
        elif self.count == MAX_PIECES:
            error = write_pieces(self)
        if error:
            return error
        if self.count == 0:
            self.pieces_start = at
        self.pieces[self.count].iov_base = <void*> (data + span.chunk_offset)
        self.pieces[self.count].iov_len = span.length
        self.count += 1
        self.at = at + <int64_t> span.length
    if span.flags & SPAN_LAST and self.at != self.end:  # it ends in a hole
        error = write_pieces(self) or add_hole(self, self.end)
        if error == 0 and ftruncate(self.fd, self.end) != 0:
            error = errno
    return error


cdef int begin_payload_of(PayloadWriter self, uint32_t entry) noexcept nogil:
    """Reserve the range of an entry's payload at the end of the file."""
    cdef int64_t size = (<int64_t*> self.entries.sizes.data)[entry]
    cdef size_t missing = entry - self.starts.size // sizeof(int64_t)
    self.skipping = self.wanted is not None and entry < <size_t> self.wanted.shape[0] and self.wanted[entry] == 0
    if self.skipping:
        return 0
    if size > INT64_MAX - self.end:
        return EFBIG
    self.start = self.end
    self.end += size
    if buffer_reserve(&self.starts, (missing + 1) * sizeof(int64_t)) != 0:
        return ENOMEM
    memset(self.starts.data + self.starts.size, 0xFF, missing * sizeof(int64_t))
    self.starts.size += missing * sizeof(int64_t)
    return 0 if buffer_append(&self.starts, &self.start, sizeof(int64_t)) == 0 else ENOMEM


cdef int add_hole(PayloadWriter self, int64_t end) noexcept nogil:
    """Record a hole from the current offset to `end`."""
    cdef int64_t[2] hole = [self.at, end]
    self.at = end
    return 0 if buffer_append(&self.holes, hole, sizeof(hole)) == 0 else ENOMEM


cdef int write_pieces(PayloadWriter self) noexcept nogil:
    """Write the collected pieces; return 0 or an errno."""
    cdef iovec* piece = self.pieces
    cdef int left = self.count
    cdef ssize_t written
    self.count = 0
    while left:
        written = pwritev(self.fd, piece, left, self.pieces_start)
        if written < 0:
            if errno == EINTR:
                continue
            return errno
        if written == 0:
            return EIO
        self.pieces_start += written
        while left and <size_t> written >= piece.iov_len:
            written -= <ssize_t> piece.iov_len
            piece += 1
            left -= 1
        if left:
            piece.iov_base = <char*> piece.iov_base + written
            piece.iov_len -= <size_t> written
    return 0
