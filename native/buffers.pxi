# Growable C arrays.

cdef struct Buffer:
    char* data
    size_t size
    size_t capacity


cdef int buffer_reserve(Buffer* buffer, size_t extra) noexcept nogil:
    """Reserve space for `extra` more bytes; return 0, or -1 if out of memory."""
    cdef size_t needed = buffer.size + extra
    cdef size_t capacity = buffer.capacity
    cdef char* grown
    if needed <= capacity:
        return 0
    if capacity < 64:
        capacity = 64
    while capacity < needed:
        capacity += capacity // 2
    grown = <char*> realloc(buffer.data, capacity)
    if grown == NULL:
        return -1
    buffer.data = grown
    buffer.capacity = capacity
    return 0


cdef int buffer_append(Buffer* buffer, const void* data, size_t size) noexcept nogil:
    if buffer_reserve(buffer, size) != 0:
        return -1
    if size:
        memcpy(buffer.data + buffer.size, data, size)
    buffer.size += size
    return 0


cdef int buffer_assign(Buffer* buffer, const void* data, size_t size) noexcept nogil:
    buffer.size = 0
    return buffer_append(buffer, data, size)


cdef void buffer_free(Buffer* buffer) noexcept nogil:
    if buffer.capacity:
        free(buffer.data)
    memset(buffer, 0, sizeof(Buffer))


cdef bytes buffer_bytes(Buffer* buffer):
    return PyBytes_FromStringAndSize(buffer.data, <Py_ssize_t> buffer.size)


cdef int buffer_settle(Buffer* buffer, list owners) except -1:
    """Move the content to a bytes object in `owners`, which must outlive the buffer; the buffer must not grow again."""
    content = buffer_bytes(buffer)
    owners.append(content)
    buffer_free(buffer)
    buffer.data = content
    buffer.size = len(content)
    return 0
