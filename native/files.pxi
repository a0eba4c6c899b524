# Writing the payload of a layer's files below a staging directory.
#
# While layers stream, the staging directory holds nothing but directories and regular files of our own making, and no
# other process of another user can enter it: there is no symbolic link to follow. Still every component is opened by
# descriptor with O_NOFOLLOW, and every file is made with O_EXCL.

cdef extern from "fcntl.h" nogil:
    int O_WRONLY, O_RDONLY, O_CREAT, O_EXCL, O_NOFOLLOW, O_CLOEXEC, O_DIRECTORY, O_PATH
    int openat(int, const char*, int, ...)

cdef extern from "sys/stat.h" nogil:
    ctypedef unsigned int mode_t
    struct timespec:
        int64_t tv_sec
        long tv_nsec
    int mkdirat(int, const char*, mode_t)
    int fchmod(int, mode_t)
    int chmod(const char*, mode_t)
    int futimens(int, const timespec*)

cdef extern from "unistd.h" nogil:
    ctypedef unsigned int uid_t
    ctypedef unsigned int gid_t
    ssize_t pwrite(int, const void*, size_t, int64_t)
    int close(int)
    int ftruncate(int, int64_t)
    int fchown(int, uid_t, gid_t)
    int unlinkat(int, const char*, int)
    uid_t geteuid()
    gid_t getegid()

cdef enum:
    # fastpull.native.codes.Placement
    PLACE_NONE = 0
    PLACE_PATH = 1
    PLACE_SPOOL = 2

cdef enum:
    MAX_CHAIN = 64  # directories held open; deeper files go to the spool


cdef class FileWriter:
    """Writes the payload spans of one layer to files, each with its owner, mode and time.

    A file is written to its path below `root_fd` if that is free, and otherwise to `spool_fd` as `LAYER.ENTRY`. The
    merge decides the final path later.

    Attributes:
        failed: the number of the entry at fault after `write` returned an errno.
    """

    cdef readonly uint32_t failed

    cdef EntryTable entries
    cdef const uint8_t[::1] wanted
    cdef Buffer placements
    cdef int root_fd, spool_fd
    cdef uint32_t layer
    cdef bint keep_owner
    cdef mode_t mode_and, mode_or
    cdef uid_t uid
    cdef gid_t gid
    # the file at hand
    cdef int fd
    cdef bint skipping
    cdef int64_t end
    # the directories from root_fd to its parent
    cdef Buffer chain
    cdef int chain_fds[MAX_CHAIN]
    cdef size_t chain_ends[MAX_CHAIN]
    cdef int depth

    def __cinit__(self, EntryTable entries not None, int root_fd, int spool_fd, uint32_t layer, bint keep_owner,
                  mode_t mode_and, mode_t mode_or, const uint8_t[::1] wanted=None):
        """Prepare to write one layer.

        Args:
            entries: the table that the spans number; its scanner may still be growing it.
            root_fd, spool_fd: directories that stay open as long as the writer.
            layer: a number for names in the spool.
            keep_owner: whether files get the owners of their entries.
            mode_and, mode_or: what is kept of a mode, and what is added to it.
            wanted: for each entry whether its payload is needed; of entries beyond the end all are.
        """
        self.entries = entries
        self.root_fd, self.spool_fd, self.layer = root_fd, spool_fd, layer
        self.keep_owner, self.mode_and, self.mode_or = keep_owner, mode_and, mode_or
        self.wanted = wanted
        self.uid, self.gid = geteuid(), getegid()
        self.fd = -1

    def __dealloc__(self):
        close_all(self)
        buffer_free(&self.placements)
        buffer_free(&self.chain)

    def write(self, const uint8_t[::1] chunk, Spans spans not None):
        """Write the spans of a chunk; return 0 or an errno."""
        cdef const uint8_t* data = &chunk[0] if chunk.shape[0] else NULL
        cdef int error
        with nogil:
            error = write_spans(self, data, spans)
        return error

    def close(self):
        """Close all descriptors; a file without its last span stays incomplete. May be called twice."""
        with nogil:
            close_all(self)

    def places(self):
        """Return one `Placement` byte per entry; may be shorter than the table."""
        return buffer_bytes(&self.placements)


cdef void close_all(FileWriter self) noexcept nogil:
    if self.fd >= 0:
        close(self.fd)
        self.fd = -1
    shorten_chain(self, 0)


cdef int write_spans(FileWriter self, const uint8_t* data, Spans spans) noexcept nogil:
    cdef Span* items = <Span*> spans.items.data
    cdef Span* span
    cdef size_t number
    cdef int error = 0
    for number in range(spans.items.size // sizeof(Span)):
        span = items + number
        if span.flags & SPAN_FIRST:
            error = begin_written(self, span.entry)
        if error == 0 and not self.skipping:
            if span.length:
                error = write_at(self.fd, data + span.chunk_offset, span.length, span.file_offset)
                self.end = span.file_offset + <int64_t> span.length
            if error == 0 and span.flags & SPAN_LAST:
                error = end_written(self, span.entry)
        if error:
            self.failed = span.entry
            return error
    return 0


cdef int write_at(int fd, const uint8_t* data, size_t size, int64_t offset) noexcept nogil:
    cdef ssize_t written
    while size:
        written = pwrite(fd, data, size, offset)
        if written < 0:
            if errno == EINTR:
                continue
            return errno
        if written == 0:
            return EIO
        data += written
        size -= written
        offset += written
    return 0


cdef int begin_written(FileWriter self, uint32_t entry) noexcept nogil:
    """Open the file of an entry, at its path or in the spool."""
    cdef char name[MAX_NAME + MARKER_SIZE + 1]
    cdef size_t path_size, start
    cdef const char* path = table_path(self.entries, entry, &path_size)
    cdef int directory
    cdef uint8_t place = PLACE_PATH
    self.skipping = self.wanted is not None and entry < <size_t> self.wanted.shape[0] and self.wanted[entry] == 0
    if self.skipping:
        return 0
    self.end = 0
    directory = open_parent(self, path, path_size, &start)
    if directory >= 0 and path_size - start > 0:
        memcpy(name, path + start, path_size - start)
        name[path_size - start] = 0
        self.fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0o600)
    else:
        if directory >= 0:
            (&errno)[0] = EISDIR  # a file that calls itself the root: the merge refuses it
        self.fd = -1
    if self.fd < 0:
        # taken by another layer's file or directory, by an earlier entry of this one, too deep, or a long marker
        if errno not in (EEXIST, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG):
            return errno
        place = PLACE_SPOOL
        snprintf(name, sizeof(name), b"%u.%u", self.layer, entry)
        self.fd = openat(self.spool_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0o600)
        if self.fd < 0:
            return errno
    if buffer_reserve(&self.placements, entry + 1 - self.placements.size) != 0:
        return ENOMEM
    memset(self.placements.data + self.placements.size, PLACE_NONE, entry - self.placements.size)
    self.placements.data[entry] = place
    self.placements.size = entry + 1
    return 0


cdef int end_written(FileWriter self, uint32_t entry) noexcept nogil:
    """Give the file its size, owner, mode and time, in this order: a change of owner clears setuid."""
    cdef int64_t size = (<int64_t*> self.entries.sizes.data)[entry]
    cdef uid_t uid = (<uint32_t*> self.entries.uids.data)[entry]
    cdef gid_t gid = (<uint32_t*> self.entries.gids.data)[entry]
    cdef mode_t mode = (<uint16_t*> self.entries.modes.data)[entry] & self.mode_and | self.mode_or
    cdef timespec times[2]
    cdef int fd = self.fd
    cdef int error = 0
    times[0].tv_sec = times[1].tv_sec = (<int64_t*> self.entries.mtimes.data)[entry]
    times[0].tv_nsec = times[1].tv_nsec = 0
    if (
        (self.end < size and ftruncate(fd, size) != 0)
        or (self.keep_owner and (uid != self.uid or gid != self.gid) and fchown(fd, uid, gid) != 0)
        or (mode != 0o600 and fchmod(fd, mode) != 0)
        or futimens(fd, times) != 0
    ):
        error = errno
    self.fd = -1
    if close(fd) != 0 and error == 0:
        error = errno
    return error


cdef int open_parent(FileWriter self, const char* path, size_t size, size_t* name_start) noexcept nogil:
    """Return the descriptor of a path's parent directory, created if missing; -1 and errno on failure.

    The directories of the previous path stay open, so that neighbours in the tar need no new walk.
    """
    cdef char name[MAX_NAME + MARKER_SIZE + 1]
    cdef size_t parent = size
    cdef size_t start, end
    cdef int depth = 0
    cdef int above, fd
    while parent > 0 and path[parent - 1] != c"/":
        parent -= 1
    name_start[0] = parent
    if parent:
        parent -= 1
    while (
        depth < self.depth
        and self.chain_ends[depth] <= parent
        and (self.chain_ends[depth] == parent or path[self.chain_ends[depth]] == c"/")
        and memcmp(self.chain.data, path, self.chain_ends[depth]) == 0
    ):
        depth += 1
    shorten_chain(self, depth)
    start = self.chain_ends[depth - 1] + 1 if depth else 0
    while start < parent:
        end = start
        while end < parent and path[end] != c"/":
            end += 1
        if self.depth == MAX_CHAIN:
            (&errno)[0] = ELOOP
            return -1
        memcpy(name, path + start, end - start)
        name[end - start] = 0
        above = self.chain_fds[self.depth - 1] if self.depth else self.root_fd
        fd = openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
        if fd < 0 and errno == ENOENT:
            if mkdirat(above, name, 0o700) != 0 and errno != EEXIST:
                return -1
            fd = openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
        if fd < 0:
            return -1
        if buffer_assign(&self.chain, path, end) != 0:
            close(fd)
            (&errno)[0] = ENOMEM
            return -1
        self.chain_fds[self.depth] = fd
        self.chain_ends[self.depth] = end
        self.depth += 1
        start = end + 1
    return self.chain_fds[self.depth - 1] if self.depth else self.root_fd


cdef void shorten_chain(FileWriter self, int depth) noexcept nogil:
    while self.depth > depth:
        self.depth -= 1
        close(self.chain_fds[self.depth])
    self.chain.size = self.chain_ends[depth - 1] if depth else 0
