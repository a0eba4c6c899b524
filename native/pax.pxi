# Pax extended headers: the records of x and g headers.
#
# Spec: POSIX.1-2017 pax, pax Extended Header.

cdef enum:
    # whether an extended header has a value
    UNSET = 0
    SET = 1
    DELETED = 2  # an empty number: the value of the header applies, whatever a global header said


cdef struct Extended:
    # values of extended headers for the next entry, or for all
    int path_state, link_state, size_state, uid_state, gid_state, mtime_state
    int64_t size, uid, gid, mtime
    Buffer path, link
    Buffer xattrs  # as in EntryTable, without the entry's number
    # GNU.sparse.*
    bint sparse, has_name, has_real_size, has_version, has_minor, has_blocks, has_map
    int64_t major, minor, real_size, blocks
    int64_t pending_offset  # of a 0.0 record pair without numbytes so far; -1 for none
    Buffer name, segments


cdef void extended_clear(Extended* pax) noexcept nogil:
    """Clear all fields but keep the buffers."""
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


cdef int parse_pax(Extended* pax, const char* body, size_t size, bint common) noexcept nogil:
    """Parse the records `length key=value\n` of an x or g header into `pax`; the last of equal keys applies."""
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
        pax.path_state = SET  # also if it is empty: then there is no path
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
        return parse_decimal(value, size, &pax.size)  # an empty value is ambiguous: 0, or the value of the header
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
