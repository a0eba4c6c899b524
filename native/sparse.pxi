# Sparse files: the maps of GNU's old format, and of pax 0.0, 0.1 and 1.0.
#
# Spec: GNU tar manual, Storing Sparse Files.

cdef struct Segment:
    int64_t offset
    int64_t length


cdef int on_sparse_record(Extended* pax, const char* key, size_t key_size, const char* value,
                          size_t size) noexcept nogil:
    cdef int64_t number
    cdef int fault
    pax.sparse = True
    if is_key(key, key_size, b"name"):
        if size == 0 or memchr(value, 0, size) != NULL:
            return FAULT_SPARSE
        pax.has_name = True
        return FAULT_MEMORY if buffer_assign(&pax.name, value, size) != 0 else FAULT_NONE
    if is_key(key, key_size, b"map"):
        return parse_sparse_list(pax, value, size)
    fault = parse_decimal(value, size, &number)
    if fault:
        return FAULT_SPARSE
    if is_key(key, key_size, b"major"):
        pax.has_version, pax.major = True, number
    elif is_key(key, key_size, b"minor"):
        pax.has_version, pax.has_minor, pax.minor = True, True, number
    elif is_key(key, key_size, b"size") or is_key(key, key_size, b"realsize"):
        pax.has_real_size, pax.real_size = True, number
    elif is_key(key, key_size, b"numblocks"):
        pax.has_blocks, pax.blocks = True, number
    elif is_key(key, key_size, b"offset"):
        if pax.pending_offset >= 0 or pax.has_map:
            return FAULT_SPARSE
        pax.pending_offset = number
    elif is_key(key, key_size, b"numbytes"):
        if pax.pending_offset < 0:
            return FAULT_SPARSE
        fault = add_segment(&pax.segments, pax.pending_offset, number)
        pax.pending_offset = -1
        return fault
    else:
        return FAULT_SPARSE
    return FAULT_NONE


cdef int parse_sparse_list(Extended* pax, const char* text, size_t size) noexcept nogil:
    """The 0.1 map: `offset,length,offset,length...`."""
    cdef size_t at = 0
    cdef size_t end
    cdef int64_t number, offset = -1
    if pax.has_map or pax.segments.size or pax.pending_offset >= 0:
        return FAULT_SPARSE
    pax.has_map = True
    while at < size:
        end = at
        while end < size and text[end] != c",":
            end += 1
        if parse_decimal(text + at, end - at, &number) != FAULT_NONE or end + 1 == size:
            return FAULT_SPARSE
        if offset < 0:
            offset = number
        else:
            if add_segment(&pax.segments, offset, number) != FAULT_NONE:
                return FAULT_MEMORY
            offset = -1
        at = end + 1
    return FAULT_SPARSE if offset >= 0 else FAULT_NONE


cdef int add_segment(Buffer* segments, int64_t offset, int64_t length) noexcept nogil:
    cdef Segment segment
    segment.offset = offset
    segment.length = length
    return FAULT_MEMORY if buffer_append(segments, &segment, sizeof(Segment)) != 0 else FAULT_NONE


cdef int begin_file(Scanner self, const uint8_t* header, uint8_t typeflag) noexcept nogil:
    """Choose the layout of a file's payload, and the state that reads it."""
    cdef Extended* pax = &self.local
    cdef int fault
    self.segments.size = 0
    self.real_size = self.left
    self.state = STATE_PAYLOAD
    if typeflag == c"S":
        if pax.sparse or memcmp(header + 257, b"ustar  \0", 8) != 0:  # maps of star differ
            return FAULT_SPARSE
        if parse_number(header + 483, 12, &self.real_size) != FAULT_NONE or self.real_size < 0:
            return FAULT_SPARSE
        self.map_size = 0
        fault = add_old_segments(self, header + 386, 4)
        if header[482] != 0:
            self.state = STATE_OLD_SPARSE
        return fault
    if not pax.sparse:
        return add_segment(&self.segments, 0, self.left)
    if not pax.has_real_size or memcmp(header + 257, b"ustar\0", 6) != 0:  # GNU tar reads others as whole files
        return FAULT_SPARSE
    self.real_size = pax.real_size
    if pax.has_version:
        if not pax.has_minor or pax.major != 1 or pax.minor != 0 or pax.segments.size or pax.has_map:
            return FAULT_SPARSE
        self.map_size = self.map_count = 0
        self.map_number = -1
        self.map_digits = False
        self.state = STATE_SPARSE_MAP
        return FAULT_NONE
    if pax.segments.size == 0:  # GNU tar and tarfile stop here
        return FAULT_SPARSE
    if pax.has_blocks and pax.blocks != <int64_t> (pax.segments.size // sizeof(Segment)):
        return FAULT_SPARSE
    return FAULT_MEMORY if buffer_assign(&self.segments, pax.segments.data, pax.segments.size) != 0 else FAULT_NONE


cdef int add_old_segments(Scanner self, const uint8_t* items, size_t count) noexcept nogil:
    cdef int64_t offset, length
    cdef size_t number
    for number in range(count):
        if items[number * 24] == 0:  # an unused slot
            return FAULT_NONE
        if parse_number(items + number * 24, 12, &offset) or parse_number(items + number * 24 + 12, 12, &length):
            return FAULT_SPARSE
        if add_segment(&self.segments, offset, length) != FAULT_NONE:
            return FAULT_MEMORY
    return FAULT_NONE


cdef int on_old_sparse_block(Scanner self, const uint8_t* block, size_t at) noexcept nogil:
    cdef int fault
    self.map_size += BLOCK
    if self.map_size > MAX_EXTENSION:
        return FAULT_EXTENSION_SIZE
    fault = add_old_segments(self, block, 21)
    if fault or block[504] != 0:
        return fault
    self.state = STATE_PAYLOAD
    return begin_payload(self, at)


cdef int on_sparse_map_block(Scanner self, const uint8_t* block, size_t at) noexcept nogil:
    """The 1.0 map: lines of decimal numbers in the first blocks of the payload, the count of pairs first."""
    cdef size_t position
    cdef Segment* last
    self.map_size += BLOCK
    self.left -= BLOCK
    if self.map_size > MAX_EXTENSION:
        return FAULT_EXTENSION_SIZE
    if self.left < 0:
        return FAULT_SPARSE
    for position in range(BLOCK):
        if c"0" <= block[position] <= c"9":
            if not self.map_digits:
                self.map_digits = True
                self.map_number = 0
            if self.map_number > (INT64_MAX - 9) // 10:
                return FAULT_SPARSE
            self.map_number = self.map_number * 10 + (block[position] - c"0")
            continue
        if block[position] != c"\n" or not self.map_digits:
            return FAULT_SPARSE
        self.map_digits = False
        if self.map_count == 0:
            if self.map_number > MAX_EXTENSION:
                return FAULT_EXTENSION_SIZE
            self.map_count = 1 + 2 * self.map_number  # numbers that follow, and this one
        elif self.segments.size and (<Segment*> (self.segments.data + self.segments.size) - 1).length < 0:
            last = <Segment*> (self.segments.data + self.segments.size) - 1
            last.length = self.map_number
        elif add_segment(&self.segments, self.map_number, -1) != FAULT_NONE:
            return FAULT_MEMORY
        self.map_count -= 1
        if self.map_count == 0:
            self.state = STATE_PAYLOAD
            return begin_payload(self, at)
    return FAULT_NONE
