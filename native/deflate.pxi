# The headers of deflate blocks, to find where a stream can be entered.
#
# Spec: RFC 1951, 3.2.6 and 3.2.7.

cdef enum:
    MAX_CODES = 286 + 30
    PRECODES = 19
    PRECODE_BITS = 7
    MAX_CODE_LENGTH = 15

cdef uint8_t[PRECODES] PRECODE_ORDER
PRECODE_ORDER[:] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15]


def find_deflate_block(const uint8_t[::1] data not None, uint64_t start, uint64_t stop):
    """Return the first bit offset in [start, stop) where a dynamic block that is not the last may begin; -1 for none.

    All codes of its header are complete, which random bits hardly ever are: in real streams every offset found was that
    of a block. Bits are numbered from the least significant of each byte.
    """
    cdef uint64_t size = data.shape[0]
    cdef uint64_t bit = start
    cdef uint64_t word, at
    cdef const uint8_t* bytes_ = &data[0] if size else NULL
    cdef bint found = False
    if size < 8:
        return -1
    with nogil:
        while bit < stop:
            at = bit >> 3
            if at + 16 > size:
                break
            memcpy(&word, bytes_ + at, 8)
            word >>= bit & 7
            # not the last block, with dynamic codes: at most 286 literals and lengths, at most 30 distances
            if word & 7 == 4 and word >> 3 & 31 <= 29 and word >> 8 & 31 <= 29:
                if is_block_header(bytes_, size, bit):
                    found = True
                    break
            bit += 1
    return bit if found else -1


cdef inline uint64_t bits_at(const uint8_t* data, uint64_t size, uint64_t bit) noexcept nogil:
    """Return at least 57 bits from an offset on; zeros beyond the end."""
    cdef uint64_t at = bit >> 3
    cdef uint64_t word = 0
    if at < size:
        memcpy(&word, data + at, 8 if size - at >= 8 else size - at)
    return word >> (bit & 7)


cdef bint is_block_header(const uint8_t* data, uint64_t size, uint64_t bit) noexcept nogil:
    cdef uint8_t[PRECODES] precode
    cdef uint8_t[1 << PRECODE_BITS] symbols
    cdef uint8_t[MAX_CODES] lengths
    cdef uint64_t word = bits_at(data, size, bit)
    cdef uint32_t literals = (word >> 3 & 31) + 257
    cdef uint32_t distances = (word >> 8 & 31) + 1
    cdef uint32_t count = (word >> 13 & 15) + 4
    cdef uint32_t number, symbol, length, repeated, kraft = 0, code = 0, step, reversed_code, at, value
    memset(precode, 0, PRECODES)
    word = bits_at(data, size, bit + 17)
    for number in range(count):
        length = word & 7
        word >>= 3
        precode[PRECODE_ORDER[number]] = length
        if length:
            kraft += 1 << (PRECODE_BITS - length)
    if kraft != 1 << PRECODE_BITS:
        return False
    for length in range(1, PRECODE_BITS + 1):
        for symbol in range(PRECODES):
            if precode[symbol] == length:
                reversed_code = 0
                for step in range(length):
                    reversed_code |= (code >> step & 1) << (length - 1 - step)
                at = reversed_code
                while at < 1 << PRECODE_BITS:
                    symbols[at] = symbol
                    at += 1 << length
                code += 1
        code <<= 1
    bit += 17 + 3 * count
    number = 0
    while number < literals + distances:
        word = bits_at(data, size, bit)
        symbol = symbols[word & ((1 << PRECODE_BITS) - 1)]
        bit += precode[symbol]
        word >>= precode[symbol]
        if symbol < 16:
            lengths[number] = symbol
            number += 1
            continue
        if symbol == 16:
            if number == 0:
                return False
            value, repeated = lengths[number - 1], 3 + (word & 3)
            bit += 2
        elif symbol == 17:
            value, repeated = 0, 3 + (word & 7)
            bit += 3
        else:
            value, repeated = 0, 11 + (word & 127)
            bit += 7
        if number + repeated > literals + distances:
            return False
        memset(lengths + number, value, repeated)
        number += repeated
    if bit > size << 3 or lengths[256] == 0:
        return False
    return is_complete(lengths, literals) and is_complete(lengths + literals, distances)


cdef bint is_complete(const uint8_t* lengths, uint32_t count) noexcept nogil:
    """Return whether a code uses all of its space."""
    cdef uint32_t number, kraft = 0
    for number in range(count):
        if lengths[number]:
            kraft += 1 << (MAX_CODE_LENGTH - lengths[number])
    return kraft == 1 << MAX_CODE_LENGTH
