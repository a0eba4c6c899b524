# The scanner: a push parser over arbitrary chunks of a tar stream. Reads ustar, pax (global too), GNU and v7 headers.
# It decides nothing about layers: whiteouts are entries like others here.
#
# Spec: POSIX.1-2017 pax, ustar Interchange Format and pax Extended Header; GNU tar manual, appendix D (Tar Internals).

cdef enum:
    BLOCK = 512
    MAX_EXTENSION = 1 << 20  # of a pax header, a GNU long name or a sparse map: what Go's archive/tar allows

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

cdef enum:
    SPAN_FIRST = 1
    SPAN_LAST = 2

cdef enum:
    # whether an extended header has a value
    UNSET = 0
    SET = 1
    DELETED = 2  # an empty number: the header's own counts, whatever a global header said


cdef struct Span:
    int64_t file_offset
    uint32_t entry
    uint32_t chunk_offset
    uint32_t length
    uint32_t flags


cdef struct Segment:
    int64_t offset
    int64_t length


cdef struct Extended:
    # what extended headers say of the next entry, or of all
    int path_state, link_state, size_state, uid_state, gid_state, mtime_state
    int64_t size, uid, gid, mtime
    Buffer path, link
    Buffer xattrs  # as in EntryTable, without the entry's number
    # GNU.sparse.*
    bint sparse, has_name, has_real_size, has_version, has_minor, has_blocks, has_map
    int64_t major, minor, real_size, blocks
    int64_t pending_offset  # of a 0.0 record pair whose numbytes has not come; -1 for none
    Buffer name, segments


cdef void extended_clear(Extended* pax) noexcept nogil:
    """Forgets everything but the memory."""
    cdef Buffer path = pax.path, link = pax.link, xattrs = pax.xattrs, name = pax.name, segments = pax.segments
    memset(pax, 0, sizeof(Extended))
    path.size = link.size = xattrs.size = name.size = segments.size = 0
    pax.path, pax.link, pax.xattrs, pax.name, pax.segments = path, link, xattrs, name, segments
    pax.pending_offset = -1


cdef void extended_free(Extended* pax) noexcept nogil:
    buffer_free(&pax.path)
    buffer_free(&pax.link)
    buffer_free(&pax.xattrs)
    buffer_free(&pax.name)
    buffer_free(&pax.segments)


cdef class Spans:
    """Where payload lies in the chunk that was fed last.

    Each is (entry, chunk_offset, length, file_offset, flags): `length` bytes at `chunk_offset` of the chunk belong at
    `file_offset` of the file of `entry`; flags say whether it is the entry's first (1) and last (2). An empty file has
    one span without bytes. Spans are replaced at the next feed.
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


cdef class Scanner:
    """Scans one layer. Feed it chunks of any size, then finish; after a fault it only repeats the fault.

    Attributes:
        entries: the table that grows.
        spans: the payload in the chunk that was fed last.
        offset: where the header at hand, or at fault, begins in the stream.
        culprit: the name at fault, where a name is.
        content: bytes of all files so far, holes included.
    """

    cdef readonly EntryTable entries
    cdef readonly Spans spans
    cdef readonly int64_t offset
    cdef readonly int64_t content
    cdef int64_t max_content

    cdef State state
    cdef int fault
    cdef int64_t position          # in the stream, of the chunk's start
    cdef uint8_t block[BLOCK]      # a header that stands across chunks
    cdef size_t block_fill
    cdef int64_t left              # bytes of the body at hand
    cdef int64_t padding           # after it
    cdef uint8_t extension_type
    cdef Buffer extension
    cdef Extended local, common    # from x headers, from g headers
    cdef bint has_local, has_long_path, has_long_link
    cdef Buffer long_path, long_link
    cdef Buffer culprit_name
    # the payload at hand
    cdef bint first
    cdef int64_t real_size
    cdef Buffer segments
    cdef size_t segment
    cdef int64_t segment_done
    cdef int64_t map_size, map_number, map_count
    cdef bint map_digits

    def __cinit__(self, int64_t max_content=INT64_MAX):
        """Prepares to scan a layer whose files have `max_content` bytes at most, all together, holes included."""
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
        """Scans a chunk and returns a fault, 0 for none."""
        cdef size_t size = chunk.shape[0]
        if self.entries.complete is not None:
            raise ValueError("the table is complete")
        with nogil:
            self.spans.items.size = 0
            if self.fault == FAULT_NONE and size:
                self.fault = scan(self, &chunk[0], size)
        return self.fault

    def finish(self):
        """Says that the stream has ended, and returns a fault, 0 for none."""
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


# --- headers

cdef int on_header(Scanner self, const uint8_t* header, size_t at) noexcept nogil:
    cdef int64_t size
    cdef uint8_t typeflag = header[156]
    cdef bint pending = self.has_local or self.has_long_path or self.has_long_link
    cdef int fault
    if header[0] == 0 and is_zero(header, BLOCK):
        self.state = STATE_SECOND_ZERO
        return FAULT_EXTENSION_DANGLING if pending else FAULT_NONE
    if not header_checksum_fits(header):
        return FAULT_CHECKSUM
    fault = parse_number(header + 124, 12, &size)
    if fault:
        return fault
    if size < 0:
        return FAULT_NUMBER
    if typeflag == c"x" or typeflag == c"g" or typeflag == c"L" or typeflag == c"K":
        if (
            (typeflag == c"x" and self.has_local)
            or (typeflag == c"L" and self.has_long_path)
            or (typeflag == c"K" and self.has_long_link)
            or (typeflag == c"g" and pending)
        ):
            return FAULT_EXTENSION_REPEATED
        fault = check_numbers(header)
        return fault if fault else begin_extension(self, typeflag, size)
    fault = on_entry(self, header, typeflag, size, at)
    self.has_local = self.has_long_path = self.has_long_link = False
    extended_clear(&self.local)
    return fault


cdef int check_numbers(const uint8_t* header) noexcept nogil:
    """Of an extended header none counts; but Go and tarfile do not read on where one is malformed."""
    cdef int64_t value
    if (
        parse_number(header + 100, 8, &value)
        or parse_number(header + 108, 8, &value)
        or parse_number(header + 116, 8, &value)
        or parse_number(header + 136, 12, &value)
        or parse_number(header + 329, 8, &value)
        or parse_number(header + 337, 8, &value)
    ):
        return FAULT_NUMBER
    return FAULT_NONE


cdef int begin_extension(Scanner self, uint8_t typeflag, int64_t size) noexcept nogil:
    if size > MAX_EXTENSION:
        return FAULT_EXTENSION_SIZE
    self.extension_type = typeflag
    self.extension.size = 0
    self.left = size
    self.padding = (BLOCK - size % BLOCK) % BLOCK
    self.state = STATE_EXTENSION
    return end_extension(self) if size == 0 else FAULT_NONE


cdef int end_extension(Scanner self) noexcept nogil:
    cdef int fault
    self.state = STATE_PADDING if self.padding else STATE_HEADER
    if self.extension_type == c"x":
        self.has_local = True
        fault = parse_pax(&self.local, self.extension.data, self.extension.size, False)
        if fault == FAULT_NONE and self.local.pending_offset >= 0:
            fault = FAULT_SPARSE
        return fault
    if self.extension_type == c"g":
        return parse_pax(&self.common, self.extension.data, self.extension.size, True)
    if self.extension_type == c"L":
        self.has_long_path = True
        return take_long_name(&self.long_path, &self.extension)
    self.has_long_link = True
    return take_long_name(&self.long_link, &self.extension)


cdef int take_long_name(Buffer* name, const Buffer* body) noexcept nogil:
    """GNU's long names end with NULs; one in between would be read in two ways."""
    cdef size_t length = field_length(<const uint8_t*> body.data, body.size) if body.size else 0
    if length < body.size and not is_zero(<const uint8_t*> body.data + length, body.size - length):
        return FAULT_NUL_IN_NAME
    if length == 0:
        return FAULT_EMPTY_PATH
    return FAULT_MEMORY if buffer_assign(name, body.data, length) != 0 else FAULT_NONE


cdef struct Names:
    const char* path
    size_t path_size
    const char* link
    size_t link_size
    char joined[256]  # a ustar prefix and name


cdef int on_entry(Scanner self, const uint8_t* header, uint8_t typeflag, int64_t size, size_t at) noexcept nogil:
    """Takes a header that is an entry, with what extended headers have said of it, into the table."""
    cdef Row row
    cdef Names names
    cdef int fault = choose_names(self, header, &names)
    if fault == FAULT_NONE:
        fault = choose_type(self, typeflag, names.path[names.path_size - 1] == c"/", &row.type)
    if fault == FAULT_NONE:
        fault = choose_size(self, row.type, size)
    if fault == FAULT_NONE:
        fault = read_attributes(self, header, &row)
    if fault == FAULT_NONE:
        fault = append_names(self, self.entries, row.type, &names)
    if fault == FAULT_NONE:
        fault = append_xattrs(&self.local.xattrs, self.entries)
    if fault == FAULT_NONE and row.type == TYPE_FILE:
        fault = begin_file(self, header, typeflag)
        row.size = self.real_size
        if fault == FAULT_NONE and row.size > self.max_content - self.content:
            fault = FAULT_LAYER_SIZE
        if fault == FAULT_NONE:
            self.content += row.size
    if fault:
        return fail_name(self, fault, names.path, names.path_size)
    if table_append(self.entries, &row) != 0:
        return FAULT_MEMORY
    return begin_payload(self, at) if self.state == STATE_PAYLOAD else FAULT_NONE


cdef int choose_names(Scanner self, const uint8_t* header, Names* names) noexcept nogil:
    """The path is GNU.sparse.name, or pax's, or GNU's long one, or the header's own; likewise the link's target."""
    cdef Extended* pax = &self.local
    cdef size_t prefix_size
    names.path, names.path_size = <const char*> header, field_length(header, 100)
    names.link, names.link_size = <const char*> header + 157, field_length(header + 157, 100)
    if self.has_long_path:
        names.path, names.path_size = self.long_path.data, self.long_path.size
    elif memcmp(header + 257, b"ustar\0", 6) == 0 and header[345] != 0:
        prefix_size = field_length(header + 345, 155)
        memcpy(names.joined, header + 345, prefix_size)
        names.joined[prefix_size] = c"/"
        memcpy(names.joined + prefix_size + 1, header, names.path_size)
        names.path, names.path_size = names.joined, prefix_size + 1 + names.path_size
    if self.has_long_link:
        names.link, names.link_size = self.long_link.data, self.long_link.size
    if self.has_long_path and pax.path_state == SET and not same_bytes(&pax.path, &self.long_path):
        return FAULT_NAMES_DIFFER
    if self.has_long_link and pax.link_state == SET and not same_bytes(&pax.link, &self.long_link):
        return FAULT_NAMES_DIFFER
    if pax.path_state == SET:
        names.path, names.path_size = pax.path.data, pax.path.size
    if pax.has_name:
        names.path, names.path_size = pax.name.data, pax.name.size
    if pax.link_state == SET:
        names.link, names.link_size = pax.link.data, pax.link.size
    return FAULT_EMPTY_PATH if names.path_size == 0 else FAULT_NONE


cdef bint same_bytes(const Buffer* one, const Buffer* other) noexcept nogil:
    return one.size == other.size and memcmp(one.data, other.data, one.size) == 0


cdef int choose_type(Scanner self, uint8_t typeflag, bint slash, uint8_t* type) noexcept nogil:
    if typeflag == c"0" or typeflag == c"7" or typeflag == c"S":
        type[0] = TYPE_FILE
        return FAULT_TRAILING_SLASH if slash else FAULT_NONE
    if typeflag == 0:  # v7, which marks a directory by its slash
        type[0] = TYPE_DIRECTORY if slash else TYPE_FILE
    elif typeflag == c"1":
        type[0] = TYPE_HARDLINK
    elif typeflag == c"2":
        type[0] = TYPE_SYMLINK
    elif typeflag == c"3":
        type[0] = TYPE_CHAR
    elif typeflag == c"4":
        type[0] = TYPE_BLOCK
    elif typeflag == c"5":
        type[0] = TYPE_DIRECTORY
    elif typeflag == c"6":
        type[0] = TYPE_FIFO
    else:
        return FAULT_TYPEFLAG
    return FAULT_NONE


cdef int choose_size(Scanner self, uint8_t type, int64_t size) noexcept nogil:
    """Sets how many bytes of payload follow.

    Of a hard link every reader ignores the header's size; what its pax header says, GNU tar and libarchive skip.
    """
    self.state = STATE_HEADER
    self.left = self.local.size if self.local.size_state == SET else size
    if type != TYPE_FILE:
        if self.left != 0 and (type != TYPE_HARDLINK or self.local.size_state == SET):
            return FAULT_SIZE_OF_TYPE
        if self.local.sparse:
            return FAULT_SPARSE
        self.left = 0
    self.padding = (BLOCK - self.left % BLOCK) % BLOCK
    return FAULT_NONE


cdef int read_attributes(Scanner self, const uint8_t* header, Row* row) noexcept nogil:
    cdef Extended* pax = &self.local
    cdef Extended* common = &self.common
    cdef int64_t mode, uid, gid, major = 0, minor = 0
    if (
        parse_number(header + 100, 8, &mode)
        or header_number(header + 108, 8, pax.uid_state, pax.uid, common.uid_state, common.uid, &uid)
        or header_number(header + 116, 8, pax.gid_state, pax.gid, common.gid_state, common.gid, &gid)
        or header_number(header + 136, 12, pax.mtime_state, pax.mtime, common.mtime_state, common.mtime, &row.mtime)
    ):
        return FAULT_NUMBER
    if uid < 0 or uid > MAX_ID or gid < 0 or gid > MAX_ID:
        return FAULT_ID_RANGE
    # of all types: Go and tarfile do not read on where these are malformed
    if parse_number(header + 329, 8, &major) or parse_number(header + 337, 8, &minor):
        return FAULT_NUMBER
    if (row.type != TYPE_CHAR and row.type != TYPE_BLOCK) or memcmp(header + 257, b"ustar", 5) != 0:
        major = minor = 0
    elif major < 0 or major > 0xFFF or minor < 0 or minor > 0xFFFFF:  # the kernel's dev_t
        return FAULT_DEVICE_RANGE
    row.mode = <uint16_t> (mode & 0o7777)
    row.uid = <uint32_t> uid
    row.gid = <uint32_t> gid
    row.device = (<uint64_t> major << 32) | <uint64_t> minor
    row.size = 0
    return FAULT_NONE


cdef int header_number(const uint8_t* field, size_t size, int state, int64_t value, int common_state, int64_t common,
                       int64_t* result) noexcept nogil:
    """A header's number, or what the extended headers say in its place."""
    cdef int fault = parse_number(field, size, result)
    if state == SET:
        result[0] = value
    elif state == UNSET and common_state == SET:
        result[0] = common
    return fault


cdef int append_names(Scanner self, EntryTable table, uint8_t type, const Names* names) noexcept nogil:
    if (
        table.count == UINT32_MAX
        or table.paths.size + names.path_size > UINT32_MAX
        or table.links.size + names.link_size > UINT32_MAX
    ):
        return FAULT_TOO_LARGE
    cdef int fault = append_normalised(&table.paths, names.path, names.path_size)
    if fault or (type != TYPE_HARDLINK and type != TYPE_SYMLINK):
        return fault
    if names.link_size == 0:
        return FAULT_EMPTY_LINK
    if type == TYPE_HARDLINK:
        return append_normalised(&table.links, names.link, names.link_size)
    if memchr(names.link, 0, names.link_size) != NULL:
        return FAULT_NUL_IN_NAME
    if names.link_size > MAX_TARGET:
        return FAULT_TARGET_LENGTH
    return FAULT_MEMORY if buffer_append(&table.links, names.link, names.link_size) != 0 else FAULT_NONE


cdef int append_xattrs(const Buffer* xattrs, EntryTable table) noexcept nogil:
    """Copies the records that wait for the next entry, each with the entry's number before it."""
    cdef size_t start = 0
    cdef size_t size
    cdef size_t total = 0
    cdef uint32_t[2] sizes  # of name and value
    while start < xattrs.size:
        memcpy(sizes, xattrs.data + start, sizeof(sizes))
        size = sizeof(sizes) + <size_t> sizes[0] + sizes[1]
        if sizes[0] > MAX_XATTR_NAME:
            return FAULT_XATTR_NAME
        total += size - sizeof(sizes)
        if total > MAX_XATTRS:
            return FAULT_XATTR_SIZE
        if (
            buffer_append(&table.xattrs, &table.count, sizeof(table.count)) != 0
            or buffer_append(&table.xattrs, xattrs.data + start, size) != 0
        ):
            return FAULT_MEMORY
        start += size
    return FAULT_NONE


cdef int fail_name(Scanner self, int fault, const char* name, size_t size) noexcept nogil:
    """Keeps the name at fault for the message."""
    buffer_assign(&self.culprit_name, name, size)
    return fault


# --- pax records

cdef int parse_pax(Extended* pax, const char* body, size_t size, bint common) noexcept nogil:
    """Reads the records `length key=value\n` of an x or g header into `pax`; the last of equal keys counts."""
    cdef size_t at = 0
    cdef size_t digits, equals
    cdef int64_t length
    cdef const char* key
    cdef int fault
    while at < size:
        digits = 0
        while at + digits < size and body[at + digits] != c" ":
            digits += 1
        if digits == 0 or digits > 7 or parse_decimal(body + at, digits, &length) != FAULT_NONE:
            return FAULT_PAX_RECORD
        if length < <int64_t> digits + 4 or length > <int64_t> (size - at) or body[at + length - 1] != c"\n":
            return FAULT_PAX_RECORD
        key = body + at + digits + 1
        equals = 0
        while equals < <size_t> length - digits - 2 and key[equals] != c"=":
            equals += 1
        if equals == 0 or equals >= <size_t> length - digits - 2 or memchr(key, 0, equals) != NULL:
            return FAULT_PAX_RECORD
        fault = on_pax_record(pax, key, equals, key + equals + 1, <size_t> length - digits - 3 - equals, common)
        if fault:
            return fault
        at += length
    return FAULT_NONE


cdef bint is_key(const char* key, size_t size, const char* name) noexcept nogil:
    return strlen(name) == size and memcmp(key, name, size) == 0


cdef bint has_prefix(const char* key, size_t size, const char* prefix) noexcept nogil:
    return size >= strlen(prefix) and memcmp(key, prefix, strlen(prefix)) == 0


cdef int on_pax_record(Extended* pax, const char* key, size_t key_size, const char* value, size_t size,
                       bint common) noexcept nogil:
    cdef uint32_t name_size, value_size
    cdef int state = SET if size else DELETED
    if is_key(key, key_size, b"uid"):
        pax.uid_state = state
        return parse_decimal(value, size, &pax.uid) if size else FAULT_NONE
    if is_key(key, key_size, b"gid"):
        pax.gid_state = state
        return parse_decimal(value, size, &pax.gid) if size else FAULT_NONE
    if is_key(key, key_size, b"mtime"):
        pax.mtime_state = state
        return parse_seconds(value, size, &pax.mtime) if size else FAULT_NONE
    if is_key(key, key_size, b"path"):
        if common:
            return FAULT_PAX_GLOBAL
        if memchr(value, 0, size) != NULL:
            return FAULT_NUL_IN_NAME
        pax.path_state = SET  # to an empty one, too: then there is none
        return FAULT_MEMORY if buffer_assign(&pax.path, value, size) != 0 else FAULT_NONE
    if is_key(key, key_size, b"linkpath"):
        if common:
            return FAULT_PAX_GLOBAL
        if memchr(value, 0, size) != NULL:
            return FAULT_NUL_IN_NAME
        pax.link_state = SET
        return FAULT_MEMORY if buffer_assign(&pax.link, value, size) != 0 else FAULT_NONE
    if is_key(key, key_size, b"size"):
        if common:
            return FAULT_PAX_GLOBAL
        pax.size_state = SET
        return parse_decimal(value, size, &pax.size)  # an empty one is 0 to some, and the header's own to others
    if has_prefix(key, key_size, b"SCHILY.xattr."):
        if common:
            return FAULT_PAX_GLOBAL
        name_size, value_size = <uint32_t> (key_size - 13), <uint32_t> size
        if name_size == 0:
            return FAULT_PAX_RECORD
        if (
            buffer_append(&pax.xattrs, &name_size, sizeof(name_size)) != 0
            or buffer_append(&pax.xattrs, &value_size, sizeof(value_size)) != 0
            or buffer_append(&pax.xattrs, key + 13, name_size) != 0
            or buffer_append(&pax.xattrs, value, value_size) != 0
        ):
            return FAULT_MEMORY
        return FAULT_NONE
    if has_prefix(key, key_size, b"GNU.sparse."):
        if common:
            return FAULT_PAX_GLOBAL
        return on_sparse_record(pax, key + 11, key_size - 11, value, size)
    return FAULT_NONE


# --- sparse files: GNU's old format, and pax 0.0, 0.1 and 1.0

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
    """Chooses how the payload of a file is laid out, and the state that reads it."""
    cdef Extended* pax = &self.local
    cdef int fault
    self.segments.size = 0
    self.real_size = self.left
    self.state = STATE_PAYLOAD
    if typeflag == c"S":
        if pax.sparse or memcmp(header + 257, b"ustar  \0", 8) != 0:  # of others, star's maps look different
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
    if not pax.has_real_size or memcmp(header + 257, b"ustar\0", 6) != 0:  # GNU tar takes others for whole files
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
    if pax.segments.size == 0:  # GNU tar and tarfile do not read on here
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
            self.map_count = 1 + 2 * self.map_number  # numbers that are to come, and this one
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


# --- payload

cdef int begin_payload(Scanner self, size_t at) noexcept nogil:
    """Checks the layout of the last entry's file, and emits an empty one at once."""
    cdef Segment* segments = <Segment*> self.segments.data
    cdef int64_t end = 0
    cdef int64_t stored = 0
    cdef size_t number
    cdef bint ragged = False  # GNU tar goes on at the next block after each piece, others at the next byte
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
    """Emits spans for what the chunk holds of the payload, and returns how many bytes that is."""
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
