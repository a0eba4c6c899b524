# The table of entries: one row per tar entry, stored in columns; about 45 bytes per row and the names.

cdef enum:
    # fastpull.layers.entry.EntryType
    TYPE_FILE = 0
    TYPE_HARDLINK = 1
    TYPE_SYMLINK = 2
    TYPE_CHAR = 3
    TYPE_BLOCK = 4
    TYPE_DIRECTORY = 5
    TYPE_FIFO = 6


cdef struct Row:
    uint8_t type
    uint16_t mode
    uint32_t uid
    uint32_t gid
    int64_t mtime
    int64_t size
    uint64_t device


cdef class EntryTable:
    """The entries of one layer in the order of the tar, in columns of native-endian integers.

    A table grows while its scanner is fed. The first call of `columns` completes it.
    """

    cdef uint32_t count
    cdef list complete
    cdef Buffer types, modes, uids, gids, mtimes, sizes, devices
    cdef Buffer path_ends, paths, link_ends, links, xattrs

    def __dealloc__(self):
        buffer_free(&self.types)
        buffer_free(&self.modes)
        buffer_free(&self.uids)
        buffer_free(&self.gids)
        buffer_free(&self.mtimes)
        buffer_free(&self.sizes)
        buffer_free(&self.devices)
        buffer_free(&self.path_ends)
        buffer_free(&self.paths)
        buffer_free(&self.link_ends)
        buffer_free(&self.links)
        buffer_free(&self.xattrs)

    def __len__(self):
        return self.count

    def columns(self):
        """Return the table as bytes, in the order of the fields of `fastpull.layers.index.Columns`."""
        if self.complete is None:
            self.complete = []
            buffer_settle(&self.types, self.complete)
            buffer_settle(&self.modes, self.complete)
            buffer_settle(&self.uids, self.complete)
            buffer_settle(&self.gids, self.complete)
            buffer_settle(&self.mtimes, self.complete)
            buffer_settle(&self.sizes, self.complete)
            buffer_settle(&self.devices, self.complete)
            buffer_settle(&self.path_ends, self.complete)
            buffer_settle(&self.paths, self.complete)
            buffer_settle(&self.link_ends, self.complete)
            buffer_settle(&self.links, self.complete)
            buffer_settle(&self.xattrs, self.complete)
        return tuple(self.complete)

    def path(self, uint32_t number):
        """Return the path of an entry."""
        if number >= self.count:
            raise IndexError(number)
        cdef size_t size
        cdef const char* data = table_path(self, number, &size)
        return PyBytes_FromStringAndSize(data, <Py_ssize_t> size)


cdef const char* table_path(EntryTable table, uint32_t number, size_t* size) noexcept nogil:
    """Return a path in the table; it is not terminated, and moves when the table grows."""
    cdef uint32_t* ends = <uint32_t*> table.path_ends.data
    cdef uint32_t start = ends[number - 1] if number else 0
    size[0] = ends[number] - start
    return table.paths.data + start


cdef int table_append(EntryTable table, const Row* row) noexcept nogil:
    """Append a row whose path and link are at the ends of their arenas; return 0, or -1 if out of memory."""
    cdef uint32_t path_end = <uint32_t> table.paths.size
    cdef uint32_t link_end = <uint32_t> table.links.size
    if (
        buffer_append(&table.types, &row.type, sizeof(row.type)) != 0
        or buffer_append(&table.modes, &row.mode, sizeof(row.mode)) != 0
        or buffer_append(&table.uids, &row.uid, sizeof(row.uid)) != 0
        or buffer_append(&table.gids, &row.gid, sizeof(row.gid)) != 0
        or buffer_append(&table.mtimes, &row.mtime, sizeof(row.mtime)) != 0
        or buffer_append(&table.sizes, &row.size, sizeof(row.size)) != 0
        or buffer_append(&table.devices, &row.device, sizeof(row.device)) != 0
        or buffer_append(&table.path_ends, &path_end, sizeof(path_end)) != 0
        or buffer_append(&table.link_ends, &link_end, sizeof(link_end)) != 0
    ):
        return -1
    table.count += 1
    return 0
