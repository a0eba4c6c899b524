# System calls that Python's os module lacks, and the removal of whole trees.

cdef extern from "fcntl.h" nogil:
    unsigned int SYNC_FILE_RANGE_WRITE
    int sync_file_range(int, int64_t, int64_t, unsigned int)
    int FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE
    int fallocate(int, int, int64_t, int64_t)

cdef extern from "stdio.h" nogil:
    unsigned int RENAME_EXCHANGE
    unsigned int RENAME_NOREPLACE
    int renameat2(int, const char*, int, const char*, unsigned int)

cdef extern from "unistd.h" nogil:
    int syncfs(int)

cdef extern from "dirent.h" nogil:
    ctypedef struct DIR:
        pass
    struct dirent:
        unsigned char d_type
        char* d_name
    unsigned char DT_DIR, DT_UNKNOWN
    DIR* fdopendir(int)
    dirent* readdir(DIR*)
    void rewinddir(DIR*)
    int closedir(DIR*)

cdef extern from "fcntl.h" nogil:
    int AT_REMOVEDIR, AT_EMPTY_PATH

cdef extern from *:
    """
    #ifndef STATX_ATTR_MOUNT_ROOT  /* glibc before 2.32 */
    #define STATX_ATTR_MOUNT_ROOT 0x2000
    #endif
    """
    uint64_t STATX_ATTR_MOUNT_ROOT

cdef extern from "sys/stat.h" nogil:
    struct statx_result "statx":
        uint64_t stx_attributes
    int statx(int, const char*, int, unsigned int, statx_result*)


def start_writeback(int fd, int64_t offset, int64_t size):
    """Ask the kernel to begin writing a range of a file to its disk, without waiting. Errors are ignored."""
    with nogil:
        sync_file_range(fd, offset, size, SYNC_FILE_RANGE_WRITE)


def give_back(int fd, int64_t offset, int64_t size):
    """Punch a hole into a file. The range then reads as zeros, or unchanged if the filesystem cannot do this."""
    with nogil:
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size)


def sync_filesystem(int fd):
    """Wait until everything on the filesystem of `fd` is on its disk; return 0 or an errno."""
    cdef int error = 0
    with nogil:
        if syncfs(fd) != 0:
            error = errno
    return error


def exchange(int old_dir, bytes old not None, int new_dir, bytes new not None):
    """Swap two names atomically; return 0 or an errno (EINVAL, ENOSYS where the filesystem cannot)."""
    cdef const char* old_name = old
    cdef const char* new_name = new
    cdef int error = 0
    with nogil:
        if renameat2(old_dir, old_name, new_dir, new_name, RENAME_EXCHANGE) != 0:
            error = errno
    return error


def remove_tree(int directory, bytes name not None):
    """Remove `name` and everything below it, without following links; return 0 or an errno.

    A mount below it is an error (EBUSY) and stays. A missing name is no error.
    """
    cdef const char* entry = name
    cdef int error
    with nogil:
        error = remove_entry(directory, entry)
    return error


cdef int remove_entry(int directory, const char* name) noexcept nogil:
    """Remove one name, of whatever type."""
    if unlinkat(directory, name, 0) == 0 or errno == ENOENT:
        return 0
    if errno != EISDIR:
        return errno
    return remove_directory(directory, name)


cdef bint is_mount_point(int fd) noexcept nogil:
    """Return whether a directory is the root of a mount, also of a bind mount (Linux 5.8; before that always false)."""
    cdef statx_result found
    if statx(fd, b"", AT_EMPTY_PATH, 0, &found) != 0:
        return False
    return (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0


cdef int open_unreadable(int directory, const char* name) noexcept nogil:
    """Make a directory accessible to its owner, and open it; by descriptor, because the name may become a link."""
    cdef char itself[32]
    cdef int fd = -1
    cdef int error
    cdef int found = openat(directory, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    if found < 0:
        return -1
    snprintf(itself, sizeof(itself), b"/proc/self/fd/%d", found)
    if chmod(itself, 0o700) == 0:
        fd = openat(found, b".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    error = errno
    close(found)
    (&errno)[0] = error
    return fd


cdef int remove_directory(int directory, const char* name) noexcept nogil:
    cdef int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    cdef DIR* stream
    cdef dirent* entry
    cdef bint opened_up = False
    cdef int error = 0
    if fd < 0 and errno == EACCES:
        fd = open_unreadable(directory, name)
    if fd < 0:
        return 0 if errno == ENOENT else errno
    if is_mount_point(fd):
        close(fd)
        return EBUSY
    stream = fdopendir(fd)
    if stream == NULL:
        error = errno
        close(fd)
        return error
    while error == 0:
        entry = readdir(stream)
        if entry == NULL:
            break
        if strcmp(entry.d_name, b".") == 0 or strcmp(entry.d_name, b"..") == 0:
            continue
        if entry.d_type == DT_DIR:
            error = remove_directory(fd, entry.d_name)
        else:
            error = remove_entry(fd, entry.d_name)
        if error == EACCES and not opened_up and fchmod(fd, 0o700) == 0:
            # the directory was read-only: begin again, now that it is not
            error = 0
            opened_up = True
            rewinddir(stream)
    closedir(stream)
    if error == 0 and unlinkat(directory, name, AT_REMOVEDIR) != 0 and errno != ENOENT:
        error = errno
    return error
