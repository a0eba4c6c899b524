# Numbers, strings and paths of tar headers. Functions return a fault, 0 for none.

cdef enum Fault:
    # fastpull.layers.faults.Fault, number for number
    FAULT_NONE = 0
    FAULT_MEMORY = 1
    FAULT_CHECKSUM = 2
    FAULT_NUMBER = 3
    FAULT_ID_RANGE = 4
    FAULT_TYPEFLAG = 5
    FAULT_SIZE_OF_TYPE = 6
    FAULT_TRAILING_SLASH = 7
    FAULT_EMPTY_PATH = 8
    FAULT_PATH_ESCAPES = 9
    FAULT_PATH_DEPTH = 10
    FAULT_NAME_LENGTH = 11
    FAULT_NUL_IN_NAME = 12
    FAULT_EMPTY_LINK = 13
    FAULT_EXTENSION_SIZE = 14
    FAULT_EXTENSION_REPEATED = 15
    FAULT_EXTENSION_DANGLING = 16
    FAULT_PAX_RECORD = 17
    FAULT_PAX_GLOBAL = 18
    FAULT_NAMES_DIFFER = 19
    FAULT_SPARSE = 20
    FAULT_LONE_ZERO_BLOCK = 21
    FAULT_AFTER_END = 22
    FAULT_TRUNCATED = 23
    FAULT_TOO_LARGE = 24
    FAULT_DEVICE_RANGE = 25
    FAULT_LAYER_SIZE = 26
    FAULT_XATTR_SIZE = 27
    FAULT_XATTR_NAME = 28
    FAULT_TARGET_LENGTH = 29
    FAULT_SPARSE_PIECE = 30


cdef enum:
    MAX_NAME = 255
    MARKER_SIZE = 4  # the prefix `.wh.` of a whiteout
    MAX_DEPTH = 255
    MAX_TARGET = 4095      # of a symbolic link, as the kernel's PATH_MAX
    MAX_XATTR_NAME = 255   # as the kernel's XATTR_NAME_MAX
    MAX_XATTRS = 65536     # names and values of one entry, as the kernel's XATTR_SIZE_MAX for one value

cdef int64_t MAX_ID = UINT32_MAX - 1  # the last value means "no change" to chown


cdef int parse_number(const uint8_t* field, size_t size, int64_t* value) noexcept nogil:
    """Parse a number of a header: octal digits between blanks, or two's complement in base 256 after a sign byte."""
    cdef size_t at = 0
    cdef uint64_t bits
    cdef uint8_t fill, byte
    value[0] = 0
    if field[0] & 0x80:
        fill = field[0] if field[0] == 0xFF else 0
        if field[0] != 0xFF and field[0] != 0x80:  # GNU tar and tarfile reject it
            return FAULT_NUMBER
        bits = UINT64_MAX if fill else 0
        for at in range(1, size):
            byte = field[at]
            if at + 8 < size and byte != fill:
                return FAULT_NUMBER
            bits = (bits << 8) | byte
        if (bits >> 63) != (fill & 1):
            return FAULT_NUMBER
        value[0] = <int64_t> bits
        return FAULT_NONE
    while at < size and field[at] == c" ":
        at += 1
    bits = 0
    while at < size and c"0" <= field[at] <= c"7":
        if bits >> 60:
            return FAULT_NUMBER
        bits = (bits << 3) | (field[at] - c"0")
        at += 1
    while at < size and field[at] == c" ":
        at += 1
    if at < size and field[at] != 0:
        return FAULT_NUMBER
    value[0] = <int64_t> bits
    return FAULT_NONE


cdef int parse_decimal(const char* text, size_t size, int64_t* value) noexcept nogil:
    """Parse a pax number: decimal digits and nothing else."""
    cdef size_t at
    cdef int64_t digit, result = 0
    if size == 0:
        return FAULT_PAX_RECORD
    for at in range(size):
        if not (c"0" <= text[at] <= c"9"):
            return FAULT_PAX_RECORD
        digit = text[at] - c"0"
        if result > (INT64_MAX - digit) // 10:
            return FAULT_NUMBER
        result = result * 10 + digit
    value[0] = result
    return FAULT_NONE


cdef int parse_seconds(const char* text, size_t size, int64_t* value) noexcept nogil:
    """Parse a pax time, `[-]digits[.digits]`, rounded down to whole seconds."""
    cdef bint negative = size > 0 and text[0] == c"-"
    cdef size_t start = 1 if negative else 0
    cdef size_t point = start
    cdef size_t at
    cdef bint fraction = False
    cdef int fault
    while point < size and text[point] != c".":
        point += 1
    fault = parse_decimal(text + start, point - start, value)
    if fault:
        return fault
    for at in range(point + 1, size):
        if not (c"0" <= text[at] <= c"9"):
            return FAULT_PAX_RECORD
        if text[at] != c"0":
            fraction = True
    if negative:
        value[0] = -value[0] - (1 if fraction else 0)
    return FAULT_NONE


cdef size_t field_length(const uint8_t* field, size_t size) noexcept nogil:
    """Return the length of a header's string, which ends at a NUL or fills the field."""
    cdef const void* nul = memchr(field, 0, size)
    return size if nul == NULL else <size_t> (<const uint8_t*> nul - field)


cdef bint header_checksum_fits(const uint8_t* header) noexcept nogil:
    """Return whether the checksum is right, computed with unsigned or, as old writers did, with signed bytes."""
    cdef int64_t said
    cdef int64_t unsigned_sum = 8 * 32
    cdef int64_t signed_sum = 8 * 32
    cdef size_t at
    if parse_number(header + 148, 8, &said) != FAULT_NONE:
        return False
    for at in range(148):
        unsigned_sum += header[at]
        signed_sum += <signed char> header[at]
    for at in range(156, 512):
        unsigned_sum += header[at]
        signed_sum += <signed char> header[at]
    return said == unsigned_sum or said == signed_sum


cdef bint is_zero(const uint8_t* data, size_t size) noexcept nogil:
    return size == 0 or (data[0] == 0 and memcmp(data, data + 1, size - 1) == 0)


cdef int append_normalised(Buffer* arena, const char* path, size_t size) noexcept nogil:
    """Append a path without leading, trailing and double slashes, `.` and `..`; the root becomes empty.

    `..` removes the name before it, as in Go's path.Clean; one that leaves the root is a fault.
    """
    cdef size_t start = arena.size
    cdef size_t at = 0
    cdef size_t end, length
    cdef uint32_t depth = 0
    if size and memchr(path, 0, size) != NULL:
        return FAULT_NUL_IN_NAME
    if buffer_reserve(arena, size + 1) != 0:
        return FAULT_MEMORY
    while at < size:
        end = at
        while end < size and path[end] != c"/":
            end += 1
        length = end - at
        if length == 0 or (length == 1 and path[at] == c"."):
            pass
        elif length == 2 and path[at] == c"." and path[at + 1] == c".":
            if depth == 0:
                return FAULT_PATH_ESCAPES
            depth -= 1
            while arena.size > start and arena.data[arena.size - 1] != c"/":
                arena.size -= 1
            if arena.size > start:
                arena.size -= 1
        else:
            if length > MAX_NAME and (length > MAX_NAME + MARKER_SIZE or memcmp(path + at, b".wh.", MARKER_SIZE) != 0):
                return FAULT_NAME_LENGTH
            depth += 1
            if depth > MAX_DEPTH:
                return FAULT_PATH_DEPTH
            if arena.size > start:
                arena.data[arena.size] = c"/"
                arena.size += 1
            memcpy(arena.data + arena.size, path + at, length)
            arena.size += length
        at = end + 1
    return FAULT_NONE
