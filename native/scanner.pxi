# The scanner: a push parser over arbitrary chunks of a tar stream. Reads ustar, pax (global too), GNU and v7 headers.
# It knows nothing about layers: whiteouts are ordinary entries here.
#
# Spec: POSIX.1-2017 pax, ustar Interchange Format and pax Extended Header; GNU tar manual, appendix D (Tar Internals).

cdef enum:
    BLOCK = 512
    MAX_EXTENSION = 1 << 20  # bytes of a pax header, GNU long name or sparse map, as in Go's archive/tar

cdef enum State:
    STATE_HEADER
    STATE_EXTENSION    # the body of an x, g, L or K header
    STATE_OLD_SPARSE   # GNU's extension blocks of an S header
    STATE_SPARSE_MAP   # the map at the start of a pax 1.0 sparse file
    STATE_PAYLOAD
    STATE_PADDING
    STATE_SECOND_ZERO  # after one zero block
    STATE_END          # after two
    STATE_FAILED


cdef class Scanner:
    """Scans one layer. Call `feed` with chunks of any size, then `finish`. After a fault, both return the fault again.

    Attributes:
        entries: the table of entries so far.
        spans: payload in the last chunk.
        offset: offset of the current header, or of the one at fault, in the stream.
        culprit: name at fault, if any.
        content: bytes of all files so far, including holes.
    """

    cdef readonly EntryTable entries
    cdef readonly Spans spans
    cdef readonly int64_t offset
    cdef readonly int64_t content
    cdef int64_t max_content

    cdef State state
    cdef int fault
    cdef int64_t position          # in the stream, of the chunk's start
    cdef uint8_t block[BLOCK]      # a header that spans chunks
    cdef size_t block_fill
    cdef int64_t left              # bytes left of the current body
    cdef int64_t padding           # after it
    cdef uint8_t extension_type
    cdef Buffer extension
    cdef Extended local, common    # from x headers, from g headers
    cdef bint has_local, has_long_path, has_long_link
    cdef Buffer long_path, long_link
    cdef Buffer culprit_name
    # the current payload
    cdef bint first
    cdef int64_t real_size
    cdef Buffer segments
    cdef size_t segment
    cdef int64_t segment_done
    cdef int64_t map_size, map_number, map_count
    cdef bint map_digits

    def __cinit__(self, int64_t max_content=INT64_MAX):
        """Prepare to scan a layer; its files may have `max_content` bytes in total, including holes."""
        self.entries = EntryTable()
        self.spans = Spans()
        self.state = STATE_HEADER
        self.max_content = max_content
        extended_clear(&self.local)
        extended_clear(&self.common)

    def __dealloc__(self):
        buffer_free(&self.extension)
        extended_free(&self.local)
        extended_free(&self.common)
        buffer_free(&self.long_path)
        buffer_free(&self.long_link)
        buffer_free(&self.culprit_name)
        buffer_free(&self.segments)

    @property
    def culprit(self):
        return buffer_bytes(&self.culprit_name)

    def feed(self, const uint8_t[::1] chunk):
        """Scan a chunk; return a fault, 0 for none."""
        cdef size_t size = chunk.shape[0]
        if self.entries.complete is not None:
            raise ValueError("the table is complete")
        with nogil:
            self.spans.items.size = 0
            if self.fault == FAULT_NONE and size:
                self.fault = scan(self, &chunk[0], size)
        return self.fault

    def finish(self):
        """End the stream; return a fault, 0 for none."""
        if self.fault != FAULT_NONE:
            return self.fault
        if self.state in (STATE_HEADER, STATE_SECOND_ZERO) and self.block_fill == 0:
            if self.has_local or self.has_long_path or self.has_long_link:
                self.fault = FAULT_EXTENSION_DANGLING
        elif self.state != STATE_END:
            self.fault = FAULT_TRUNCATED
        return self.fault


cdef int scan(Scanner self, const uint8_t* chunk, size_t size) noexcept nogil:
    cdef size_t at = 0
    cdef size_t take
    cdef const uint8_t* block
    cdef int fault = FAULT_NONE
    while at < size and fault == FAULT_NONE:
        if self.state == STATE_PAYLOAD:
            at += scan_payload(self, at, size - at, &fault)
        elif self.state == STATE_PADDING:
            take = size - at
            if <int64_t> take > self.padding:
                take = <size_t> self.padding
            self.padding -= take
            at += take
            if self.padding == 0:
                self.state = STATE_HEADER
        elif self.state == STATE_EXTENSION:
            take = size - at
            if <int64_t> take > self.left:
                take = <size_t> self.left
            if buffer_append(&self.extension, chunk + at, take) != 0:
                return FAULT_MEMORY
            self.left -= take
            at += take
            if self.left == 0:
                fault = end_extension(self)
        elif self.state == STATE_END:
            if not is_zero(chunk + at, size - at):
                return FAULT_AFTER_END
            at = size
        else:
            # the other states take whole blocks
            if self.block_fill == 0:
                if self.state == STATE_HEADER:
                    self.offset = self.position + <int64_t> at
            if self.block_fill == 0 and size - at >= BLOCK:
                block = chunk + at
                at += BLOCK
            else:
                take = BLOCK - self.block_fill
                if take > size - at:
                    take = size - at
                memcpy(self.block + self.block_fill, chunk + at, take)
                self.block_fill += take
                at += take
                if self.block_fill < BLOCK:
                    break
                block = self.block
                self.block_fill = 0
            if self.state == STATE_HEADER:
                fault = on_header(self, block, at)
            elif self.state == STATE_OLD_SPARSE:
                fault = on_old_sparse_block(self, block, at)
            elif self.state == STATE_SPARSE_MAP:
                fault = on_sparse_map_block(self, block, at)
            else:
                fault = FAULT_NONE if is_zero(block, BLOCK) else FAULT_LONE_ZERO_BLOCK
                self.state = STATE_END
    self.position += <int64_t> size
    return fault
