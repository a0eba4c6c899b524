# Headers: what a tar header and its extended headers say of an entry, as a row of the table.
#
# Spec: POSIX.1-2017 pax, ustar Interchange Format; GNU tar manual, appendix D (Tar Internals).

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
    """Check the numbers of an extended header. None has a meaning, but Go and tarfile stop at a malformed one."""
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
    """Take a GNU long name. It ends with NULs; a NUL within it would be ambiguous."""
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
    """Append the entry of a header, and of its extended headers, to the table."""
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
    """Choose path and link target: GNU.sparse.name, then pax, then GNU long name, then the header itself."""
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
    if typeflag == 0:  # v7 marks a directory by a trailing slash
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
    """Set the size of the payload that follows.

    Every reader ignores the size in the header of a hard link. A size in its pax header is a fault, because GNU tar and
    libarchive skip so many bytes.
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
    # checked for all types: Go and tarfile stop at malformed device numbers
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
    """Return a number of the header, or its replacement in an extended header."""
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
    """Copy the pending records to the table, each after the number of the entry."""
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
    """Store the name at fault for the message."""
    buffer_assign(&self.culprit_name, name, size)
    return fault
