"""Makes a memory cgroup for one process, and drops a model's files from the page cache. Limits no other resource.

Pages of the page cache belong to the group that read them first. A page that is already cached costs a new group nothing,
however small its limit, so drop_cache() runs before each process.
"""
import ctypes
import mmap
import os
import pathlib
import re
import time

MAP_NORESERVE = 0x4000     # of Linux; the module mmap names it from Python 3.13 on


class GroupError(Exception):
    """A group cannot be made; the message says why in one line."""


def parse_size(text, whole):
    """Returns the bytes of "50%" (of `whole`), "2400MiB", "2GiB" or "2500000000"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|[KMGT]iB|B|)", text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size: give bytes, a size such as 2400MiB, or a share such as 50%")
    number, unit = float(match[1]), match[2]
    return int(number * (whole / 100 if unit == "%" else 1024 ** " KMGT".index(unit[0]) if unit not in ("", "B") else 1))


def find_parent(mounts, groups):
    """Returns (folder for groups with a memory limit, cgroup version) from the texts of /proc/self/mountinfo and
    /proc/self/cgroup."""
    own = {}                          # controllers: path of this process's group
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path
    for line in mounts.splitlines():
        fields, _, tail = line.partition(" - ")
        root, place = fields.split()[3:5]
        kind, _, options = tail.split(" ", 2)
        place = pathlib.Path(place)
        if kind == "cgroup" and "memory" in options.split(","):
            path = next((path for controllers, path in own.items() if "memory" in controllers.split(",")), "/")
            return inside(place, root, path), 1
        if kind == "cgroup2" and "memory" in (place / "cgroup.controllers").read_text().split():
            # A group with processes cannot have groups with limits in it, unless it is the root.
            mine = inside(place, root, own.get("", "/"))
            return (mine if mine == place else mine.parent), 2
    raise GroupError("this system has no memory cgroup mounted")


def inside(place, root, path):
    """Returns the folder of group `path` in the hierarchy from `root` on, mounted at `place`; `place` if it is not visible
    there."""
    found = place / os.path.relpath(path, root)
    return found if ".." not in found.parts and found.exists() else place


class MemoryGroup:
    """with MemoryGroup(bytes) as group: run([*group.launcher, program, ...]). The group lies below the caller's own
    group where possible, so that the caller's limits still apply. Needs root, or a delegated group."""

    def __init__(self, limit, parent=None):
        self.limit = limit
        if parent:
            self.version = 2 if (parent / "cgroup.controllers").exists() else 1
            self.parent = parent
        else:
            self.parent, self.version = find_parent(pathlib.Path("/proc/self/mountinfo").read_text(),
                                                    pathlib.Path("/proc/self/cgroup").read_text())
        self.path = self.parent / f"penstock-compare-{os.getpid()}"
        # A shell joins the group, then execs the program.
        self.launcher = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.path]

    def __enter__(self):
        limit, swap, without_swap = [("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", self.limit),
                                     ("memory.max", "memory.swap.max", 0)][self.version - 1]
        try:
            self.path.mkdir()
        except OSError as error:
            raise GroupError(f"cannot make a memory cgroup in {self.parent}: {error.strerror}; this needs root or a "
                             f"delegated group") from error
        try:
            (self.path / limit).write_text(str(self.limit))
            if (self.path / swap).exists():
                (self.path / swap).write_text(str(without_swap))
        except OSError as error:
            self.remove()
            raise GroupError(f"{self.path / limit} cannot be set: {error.strerror}; is the memory controller delegated to "
                             f"{self.parent}?") from error
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        for _ in range(100):          # a group is busy until its last process is reaped
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.05)
        raise GroupError(f"{self.path} cannot be removed: processes are left in it")

    def peak_bytes(self):
        """Returns the group's peak memory; None where the kernel does not report it."""
        path = self.path / ["memory.max_usage_in_bytes", "memory.peak"][self.version - 1]
        return int(path.read_text()) if path.exists() else None

    def was_killed(self):
        """Says whether a process of the group was killed for lack of memory."""
        text = (self.path / ["memory.oom_control", "memory.events"][self.version - 1]).read_text()
        return re.search(r"^oom_kill [1-9]", text, re.M) is not None


def drop_cache(paths):
    """Drops the page cache of the files in `paths`, and of those directly in its folders. Returns the bytes that stay cached
    because other processes map them, and all bytes."""
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path]) if file.is_file()]
    left = 0
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)      # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            left += cached_bytes(descriptor)
        finally:
            os.close(descriptor)
    return left, sum(file.stat().st_size for file in files)


def cached_bytes(descriptor):
    size = os.fstat(descriptor).st_size
    if size == 0:
        return 0
    pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    resident = (ctypes.c_ubyte * pages)()
    # ctypes wants a view that it could write to. Linux must not set memory aside for that: files may be larger than it.
    flags = mmap.MAP_PRIVATE | MAP_NORESERVE
    with mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
        start = ctypes.c_ubyte.from_buffer(view)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), resident) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        del start                     # a view cannot be closed while anything points into it
    return sum(byte & 1 for byte in resident) * mmap.PAGESIZE
