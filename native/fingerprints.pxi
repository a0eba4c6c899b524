# Fingerprints of content, to find duplicates.

cdef enum:
    FINGERPRINT_SIZE = 16


cdef struct Fingerprint:
    uint64_t low
    uint64_t high


cdef class Fingerprints:
    """Fingerprints of 16 bytes, numbered from 0 in order of insertion; about 28 bytes each, where a dict takes 200.

    The hash depends on a secret, so that the author of content cannot cause collisions.
    """

    cdef Buffer items
    cdef Buffer places  # by hash, the number of a fingerprint and one; 0 is free; as many as a power of two
    cdef uint64_t secret_low, secret_high

    def __cinit__(self):
        secret = urandom(FINGERPRINT_SIZE)
        self.secret_low = <uint64_t> int.from_bytes(secret[:8], "little")
        self.secret_high = <uint64_t> int.from_bytes(secret[8:], "little")

    def __dealloc__(self):
        buffer_free(&self.items)
        buffer_free(&self.places)

    def __len__(self):
        return self.items.size // FINGERPRINT_SIZE

    def __getitem__(self, size_t number):
        if number >= self.items.size // FINGERPRINT_SIZE:
            raise IndexError(number)
        return PyBytes_FromStringAndSize(self.items.data + number * FINGERPRINT_SIZE, FINGERPRINT_SIZE)

    def find(self, bytes fingerprint not None):
        """Return the number of a fingerprint, the last of duplicates; -1 if it is missing."""
        cdef const char* data = fingerprint_data(fingerprint)
        if self.places.size == 0:
            return -1
        return <int64_t> (<uint32_t*> self.places.data)[find_place(self, data)] - 1

    def add(self, bytes fingerprint not None):
        """Append a fingerprint, which may be a duplicate; return its number."""
        cdef const char* data = fingerprint_data(fingerprint)
        cdef size_t count = self.items.size // FINGERPRINT_SIZE
        if count >= UINT32_MAX - 1 or buffer_append(&self.items, data, FINGERPRINT_SIZE) != 0:
            raise MemoryError
        if 3 * (count + 1) * sizeof(uint32_t) > 2 * self.places.size and spread(self) != 0:
            self.items.size -= FINGERPRINT_SIZE
            raise MemoryError
        (<uint32_t*> self.places.data)[find_place(self, data)] = <uint32_t> (count + 1)
        return count


cdef const char* fingerprint_data(bytes fingerprint) except NULL:
    if len(fingerprint) != FINGERPRINT_SIZE:
        raise ValueError("a fingerprint has 16 bytes")
    return fingerprint


cdef size_t find_place(Fingerprints self, const char* data) noexcept nogil:
    """Return the slot of a fingerprint, or the free slot for it."""
    cdef uint32_t* places = <uint32_t*> self.places.data
    cdef size_t mask = self.places.size // sizeof(uint32_t) - 1
    cdef Fingerprint item
    cdef uint64_t mixed
    cdef size_t at
    memcpy(&item, data, FINGERPRINT_SIZE)
    mixed = (item.low ^ self.secret_low) * <uint64_t> 0x9E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 32) ^ item.high ^ self.secret_high) * <uint64_t> 0xD6E8FEB86659FD93
    at = <size_t> (mixed >> 32) & mask
    while places[at] and memcmp(self.items.data + (places[at] - 1) * <size_t> FINGERPRINT_SIZE, data,
                                FINGERPRINT_SIZE) != 0:
        at = (at + 1) & mask
    return at


cdef int spread(Fingerprints self) noexcept nogil:
    """Double the hash table, and insert all fingerprints but the last; return 0, or -1 if out of memory."""
    cdef size_t size = 2 * self.places.size if self.places.size else 64 * sizeof(uint32_t)
    cdef size_t number
    cdef Buffer old = self.places
    memset(&self.places, 0, sizeof(Buffer))
    if buffer_reserve(&self.places, size) != 0:
        self.places = old
        return -1
    memset(self.places.data, 0, size)
    self.places.size = size
    for number in range(self.items.size // FINGERPRINT_SIZE - 1):
        (<uint32_t*> self.places.data)[find_place(self, self.items.data + number * FINGERPRINT_SIZE)] = (
            <uint32_t> (number + 1)
        )
    buffer_free(&old)
    return 0
