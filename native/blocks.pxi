# Cutting the payload of a layer's files into squashfs blocks. Whole blocks go one after the other into a buffer that
# Python provides, tail-ends and small files into a separate one; blocks of zeros become holes.

cdef enum:
    # fastpull.native.codes.CutResult
    CUT_DONE = 0
    CUT_FULL = 1
    CUT_TOO_LARGE = 2
    CUT_MEMORY = 3

cdef enum:
    MAX_BLOCKS = 1 << 24  # of one file: 2 TiB in blocks of 128 KiB, and 64 MiB of their sizes


cdef class BlockCutter:
    """Cuts the payload spans of one layer.

    Every block has a number, from 0, in the order of the layer. A file's blocks follow each other. Its last bytes, if
    they do not fill a block, are its tail; with `tails_apart` that is no block.

    Attributes:
        failed: the number of the entry at fault.
        pending: bytes of complete blocks in the buffer.
    """

    cdef readonly uint32_t failed

    cdef EntryTable entries
    cdef const uint8_t[::1] wanted
    cdef uint8_t[::1] buffer
    cdef size_t block_size
    cdef bint tails_apart
    cdef size_t used     # bytes of complete blocks in the buffer
    cdef size_t partial  # and of the block at hand, behind them
    cdef uint64_t count  # of blocks so far
    cdef Buffer lengths  # of the complete blocks since the last `take`; 0 for a hole
    cdef Buffer firsts
    cdef Buffer tails, tail_entries, tail_lengths
    # the file at hand
    cdef int64_t size
    cdef int64_t position
    cdef bint skipping
    # where in the spans `cut` goes on
    cdef size_t span_number, span_done

    def __cinit__(self, EntryTable entries not None, uint32_t block_size, bint tails_apart,
                  uint8_t[::1] buffer not None, const uint8_t[::1] wanted=None):
        """Prepare to cut one layer.

        Args:
            entries: the table that the spans number; its scanner may still be growing it.
            block_size: in bytes.
            tails_apart: whether tails are to go to fragments.
            buffer: for blocks, at least two of them long.
            wanted: for each entry whether its blocks are needed; of entries beyond the end all are. Tails are needed
                in any case, because what shares a block with what must not depend on it.
        """
        if buffer.shape[0] < 2 * <Py_ssize_t> block_size:
            raise ValueError("a buffer of less than two blocks")
        self.entries, self.block_size, self.tails_apart = entries, block_size, tails_apart
        self.buffer, self.wanted = buffer, wanted

    def __dealloc__(self):
        buffer_free(&self.lengths)
        buffer_free(&self.firsts)
        buffer_free(&self.tails)
        buffer_free(&self.tail_entries)
        buffer_free(&self.tail_lengths)

    @property
    def pending(self):
        return self.used

    def cut(self, const uint8_t[::1] chunk, Spans spans not None):
        """Cut the spans of a chunk.

        Returns:
            0: it is done. 1: the buffer is full; after `take` call again with the same arguments. 2: the file of entry
            `failed` has too many blocks. 3: no memory.
        """
        cdef const uint8_t* data = &chunk[0] if chunk.shape[0] else NULL
        cdef int code
        with nogil:
            code = cut_spans(self, data, spans)
        return code

    def take(self, uint8_t[::1] buffer not None):
        """Continue in another buffer of the same size; return the lengths of the blocks in the previous one.

        Each is four bytes, in native order; of a hole there are no bytes in the buffer, and its length is 0.
        """
        if buffer.shape[0] != self.buffer.shape[0]:
            raise ValueError("a buffer of another size")
        if self.partial and not self.skipping and not (self.tails_apart and is_in_tail(self)):
            memcpy(&buffer[0], &self.buffer[self.used], self.partial)  # a tail is not in the buffer
        self.buffer = buffer
        self.used = 0
        lengths = buffer_bytes(&self.lengths)
        self.lengths.size = 0
        return lengths

    def take_tails(self):
        """The tails that were completed since the last call: their bytes together, their entries, their lengths."""
        cdef size_t held = self.partial if self.tails_apart and self.partial and is_in_tail(self) else 0
        cdef size_t size = self.tails.size - held  # of those that are complete
        found = (
            PyBytes_FromStringAndSize(self.tails.data, <Py_ssize_t> size),
            buffer_bytes(&self.tail_entries),
            buffer_bytes(&self.tail_lengths),
        )
        if held:
            memmove(self.tails.data, self.tails.data + size, held)
        self.tails.size = held
        self.tail_entries.size = self.tail_lengths.size = 0
        return found

    def firsts_bytes(self):
        """For each entry eight bytes: the number of its first block, or what follows the last one; may be shorter."""
        return buffer_bytes(&self.firsts)


cdef int cut_spans(BlockCutter self, const uint8_t* data, Spans spans) noexcept nogil:
    cdef Span* items = <Span*> spans.items.data
    cdef size_t total = spans.items.size // sizeof(Span)
    cdef Span* span
    cdef size_t size
    cdef int code
    while self.span_number < total:
        span = items + self.span_number
        self.failed = span.entry
        if span.flags & SPAN_FIRST and self.span_done == 0 and self.position == 0:
            code = begin_cut(self, span.entry)
            if code:
                return code
        code = fill_zeros(self, span.file_offset + <int64_t> self.span_done)
        if code:
            return code
        while self.span_done < span.length:
            size = self.block_size - self.partial
            if size > span.length - self.span_done:
                size = span.length - self.span_done
            code = put(self, data + span.chunk_offset + self.span_done, size)
            if code:
                return code
            self.span_done += size
        if span.flags & SPAN_LAST:
            code = fill_zeros(self, self.size)
            if code:
                return code
            code = end_cut(self, span.entry)
            if code:
                return code
        self.span_number += 1
        self.span_done = 0
    self.span_number = 0
    return CUT_DONE


cdef int begin_cut(BlockCutter self, uint32_t entry) noexcept nogil:
    cdef size_t end = (entry + 1) * sizeof(uint64_t)
    cdef uint64_t* firsts
    cdef size_t number
    self.size = (<int64_t*> self.entries.sizes.data)[entry]
    self.skipping = self.wanted is not None and entry < <size_t> self.wanted.shape[0] and self.wanted[entry] == 0
    if self.size // <int64_t> self.block_size >= MAX_BLOCKS:
        return CUT_TOO_LARGE
    if buffer_reserve(&self.firsts, end - self.firsts.size) != 0:
        return CUT_MEMORY
    firsts = <uint64_t*> self.firsts.data
    for number in range(self.firsts.size // sizeof(uint64_t), entry + 1):
        firsts[number] = self.count
    self.firsts.size = end
    return CUT_DONE


cdef bint is_in_tail(BlockCutter self) noexcept nogil:
    """Return whether the current block is the last one of the file, and not full."""
    return self.position - <int64_t> self.partial + <int64_t> self.block_size > self.size


cdef int put(BlockCutter self, const uint8_t* data, size_t size) noexcept nogil:
    """Append bytes to the current block; they must fit."""
    if is_in_tail(self) and self.tails_apart:
        if buffer_append(&self.tails, data, size) != 0:
            return CUT_MEMORY
    elif not self.skipping:
        if self.used + self.block_size > <size_t> self.buffer.shape[0]:
            return CUT_FULL
        memcpy(&self.buffer[self.used + self.partial], data, size)
    self.partial += size
    self.position += <int64_t> size
    if self.partial == self.block_size:
        return end_block(self)
    return CUT_DONE


cdef int fill_zeros(BlockCutter self, int64_t until) noexcept nogil:
    """Advance to an offset of the file; whole blocks on the way become holes."""
    cdef size_t size
    cdef uint32_t hole = 0
    while self.position < until:
        if self.partial == 0 and until - self.position >= <int64_t> self.block_size:
            if not self.skipping:
                if buffer_append(&self.lengths, &hole, sizeof(hole)) != 0:
                    return CUT_MEMORY
                self.count += 1
            self.position += <int64_t> self.block_size
            continue
        size = self.block_size - self.partial
        if <int64_t> size > until - self.position:
            size = <size_t> (until - self.position)
        if is_in_tail(self) and self.tails_apart:
            if buffer_reserve(&self.tails, size) != 0:
                return CUT_MEMORY
            memset(self.tails.data + self.tails.size, 0, size)
            self.tails.size += size
        elif not self.skipping:
            if self.used + self.block_size > <size_t> self.buffer.shape[0]:
                return CUT_FULL
            memset(&self.buffer[self.used + self.partial], 0, size)
        self.partial += size
        self.position += <int64_t> size
        if self.partial == self.block_size and end_block(self) != 0:
            return CUT_MEMORY
    return CUT_DONE


cdef int end_block(BlockCutter self) noexcept nogil:
    """Close the current block; a block of zeros becomes a hole."""
    cdef uint32_t length = <uint32_t> self.partial
    cdef const uint8_t* block
    self.partial = 0
    if self.skipping:
        return CUT_DONE
    block = &self.buffer[self.used]
    if block[0] == 0 and memcmp(block, block + 1, length - 1) == 0:
        length = 0
    if buffer_append(&self.lengths, &length, sizeof(length)) != 0:
        return CUT_MEMORY
    self.used += length
    self.count += 1
    return CUT_DONE


cdef int end_cut(BlockCutter self, uint32_t entry) noexcept nogil:
    """Close the current file."""
    cdef uint32_t length = <uint32_t> self.partial
    if self.partial:
        if self.tails_apart:
            self.partial = 0
            if (
                buffer_append(&self.tail_entries, &entry, sizeof(entry)) != 0
                or buffer_append(&self.tail_lengths, &length, sizeof(length)) != 0
            ):
                return CUT_MEMORY
        elif end_block(self) != 0:
            return CUT_MEMORY
    self.position = 0
    return CUT_DONE
