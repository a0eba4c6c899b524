# Payload: the bytes of files in the chunk that is fed, as spans.

cdef enum:
    # fastpull.native.codes.SpanFlag
    SPAN_FIRST = 1
    SPAN_LAST = 2


cdef struct Span:
    int64_t file_offset
    uint32_t entry
    uint32_t chunk_offset
    uint32_t length
    uint32_t flags


cdef class Spans:
    """The payload in the last chunk.

    Each is (entry, chunk_offset, length, file_offset, flags): `length` bytes at `chunk_offset` of the chunk belong at
    `file_offset` of the file of `entry`; flags say whether it is the entry's first (1) and last (2). An empty file has
    one span of length 0. The next `feed` replaces the spans.
    """

    cdef Buffer items

    def __dealloc__(self):
        buffer_free(&self.items)

    def __len__(self):
        return self.items.size // sizeof(Span)

    def __getitem__(self, size_t number):
        if number >= self.items.size // sizeof(Span):
            raise IndexError(number)
        cdef Span* span = <Span*> self.items.data + number
        return span.entry, span.chunk_offset, span.length, span.file_offset, span.flags


cdef class Scanner  # declared here, defined in scanner.pxi


cdef int begin_payload(Scanner self, size_t at) noexcept nogil:
    """Check the layout of the last entry's file; emit the span of an empty one."""
    cdef Segment* segments = <Segment*> self.segments.data
    cdef int64_t end = 0
    cdef int64_t stored = 0
    cdef size_t number
    cdef bint ragged = False  # after each piece GNU tar continues at the next block, others at the next byte
    for number in range(self.segments.size // sizeof(Segment)):
        if (
            segments[number].offset < end
            or segments[number].length < 0
            or segments[number].offset > self.real_size
            or segments[number].length > self.real_size - segments[number].offset
        ):
            return FAULT_SPARSE
        end = segments[number].offset + segments[number].length
        if stored % BLOCK and segments[number].length:
            ragged = True
        stored += segments[number].length
    if stored != self.left:
        return FAULT_SPARSE
    if ragged:
        return FAULT_SPARSE_PIECE
    self.segment = 0
    self.segment_done = 0
    self.first = True
    if self.left == 0:
        return end_payload(self, at, 0, 0)
    return FAULT_NONE


cdef int end_payload(Scanner self, size_t at, size_t length, int64_t file_offset) noexcept nogil:
    self.state = STATE_PADDING if self.padding else STATE_HEADER
    return add_span(self, at, length, file_offset, SPAN_LAST)


cdef int add_span(Scanner self, size_t at, size_t length, int64_t file_offset, uint32_t flags) noexcept nogil:
    cdef Span span
    span.entry = self.entries.count - 1
    span.chunk_offset = <uint32_t> at
    span.length = <uint32_t> length
    span.file_offset = file_offset
    span.flags = flags | (SPAN_FIRST if self.first else 0)
    self.first = False
    return FAULT_MEMORY if buffer_append(&self.spans.items, &span, sizeof(Span)) != 0 else FAULT_NONE


cdef size_t scan_payload(Scanner self, size_t at, size_t available, int* fault) noexcept nogil:
    """Emit spans for the payload in the chunk; return its size."""
    cdef Segment* segments = <Segment*> self.segments.data
    cdef size_t done = 0
    cdef size_t take
    cdef int64_t file_offset
    while done < available and self.state == STATE_PAYLOAD:
        while segments[self.segment].length == self.segment_done:
            self.segment += 1
            self.segment_done = 0
        take = available - done
        if <int64_t> take > segments[self.segment].length - self.segment_done:
            take = <size_t> (segments[self.segment].length - self.segment_done)
        file_offset = segments[self.segment].offset + self.segment_done
        self.segment_done += take
        self.left -= take
        if self.left == 0:
            fault[0] = end_payload(self, at + done, take, file_offset)
        else:
            fault[0] = add_span(self, at + done, take, file_offset, 0)
        done += take
        if fault[0]:
            break
    return done
