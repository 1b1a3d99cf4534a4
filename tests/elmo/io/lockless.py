"""A file system whose locks fail, as those of NFS without a lock service do: a folder seen through
FUSE, by the kernel's protocol. `python lockless.py MOUNT FOLDER` serves until it is unmounted.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

LIBC = ctypes.CDLL(None, use_errno=True)
DETACH = 2  # unmount at once, whoever is still in there
FLOCK_LOCKS = 1 << 10  # flock is asked of this process, not answered by the kernel
HEADER = struct.Struct("<IIQQIIIHH")
NOTHING = b""


def mount(device: int, where: str) -> None:
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if LIBC.mount(b"lockless", where.encode(), b"fuse", 0, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), where)


def unmount(where: str) -> None:
    LIBC.umount2(where.encode(), DETACH)


class Mirror:
    """The answers to what the kernel asks; a node is an open descriptor of the folder behind."""

    def __init__(self, folder: str) -> None:
        self.nodes = {1: os.open(folder, os.O_PATH)}
        self.ids = {self._key(self.nodes[1]): 1}
        self.answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: lambda node, name: self.entry(node, name[:-1]),
            3: lambda node, _: self.attributes(node),
            4: self.change,
            9: self.make_folder,
            10: lambda node, name: self.removed(os.unlink, node, name),
            11: lambda node, name: self.removed(os.rmdir, node, name),
            12: lambda node, given: self.rename(node, given[:8], given[8:]),
            13: self.link,
            14: lambda node, given: self.opened(node, struct.unpack_from("<I", given)[0]),
            15: lambda _, given: self.read(given),
            16: lambda _, given: self.write(given),
            18: lambda _, given: self.close(given),
            26: lambda _, given: self.begin(given),
            27: lambda node, _: self.opened(node, os.O_RDONLY | os.O_DIRECTORY),
            28: self.list,
            29: lambda _, given: self.close(given),
            35: self.create,
            45: lambda node, given: self.rename(node, given[:8], given[16:]),
        }

    def answer(self, operation: int, node: int, given: bytes) -> bytes:
        if operation in (31, 32, 33):  # to look for a lock, to take one, to wait for one
            raise OSError(errno.ENOLCK, "")
        if operation not in self.answers:
            raise OSError(errno.ENOSYS, "")
        return self.answers[operation](node, given)

    @staticmethod
    def begin(given: bytes) -> bytes:
        major, minor, ahead = struct.unpack_from("<III", given)
        head = (major, min(minor, 31), ahead, FLOCK_LOCKS, 12, 9, 1 << 16, 1, 16, 0)
        return struct.pack("<IIIIHHIIHH32x", *head)

    @staticmethod
    def _key(descriptor: int) -> tuple[int, int]:
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino

    def _status(self, node: int) -> bytes:
        s = os.fstat(self.nodes[node])
        times = [t for t in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)]
        numbers = [s.st_ino, s.st_size, s.st_blocks, *(t // 10**9 for t in times)]
        more = [*(t % 10**9 for t in times), s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0, 4096, 0]
        return struct.pack("<6Q10I", *numbers, *more)

    def attributes(self, node: int) -> bytes:
        return bytes(16) + self._status(node)

    def entry(self, parent: int, name: bytes) -> bytes:
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self.nodes[parent])
        node = self.ids.setdefault(self._key(found), len(self.ids) + 1)
        if node in self.nodes:
            os.close(found)
        else:
            self.nodes[node] = found
        return struct.pack("<QQ24x", node, 0) + self._status(node)

    def _path(self, node: int) -> str:
        return f"/proc/self/fd/{self.nodes[node]}"

    def change(self, node: int, given: bytes) -> bytes:
        which, _, _, size, _, accessed, modified = struct.unpack_from("<II5Q", given)
        if which & 1 << 3:
            os.truncate(self._path(node), size)
        if which & 1 << 5:
            os.utime(self._path(node), (accessed or modified, modified))
        return self.attributes(node)

    def make_folder(self, node: int, given: bytes) -> bytes:
        os.mkdir(given[8:-1], dir_fd=self.nodes[node])
        return self.entry(node, given[8:-1])

    def removed(self, remove: Callable[..., None], node: int, name: bytes) -> bytes:
        remove(name[:-1], dir_fd=self.nodes[node])
        return NOTHING

    def rename(self, node: int, to: bytes, names: bytes) -> bytes:
        old, new, _ = names.split(b"\0")
        there = self.nodes[struct.unpack("<Q", to)[0]]
        os.rename(old, new, src_dir_fd=self.nodes[node], dst_dir_fd=there)
        return NOTHING

    def link(self, node: int, given: bytes) -> bytes:
        source = self._path(struct.unpack_from("<Q", given)[0])
        os.link(source, given[8:-1], dst_dir_fd=self.nodes[node], follow_symlinks=True)
        return self.entry(node, given[8:-1])

    def opened(self, node: int, flags: int) -> bytes:
        descriptor = os.open(self._path(node), flags & ~(os.O_NOFOLLOW | os.O_APPEND))
        return struct.pack("<QII", descriptor, 0, 0)

    def create(self, node: int, given: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", given)
        flags = flags & ~os.O_APPEND | os.O_CREAT
        descriptor = os.open(given[16:-1], flags, mode, dir_fd=self.nodes[node])
        return self.entry(node, given[16:-1]) + struct.pack("<QII", descriptor, 0, 0)

    def read(self, given: bytes) -> bytes:
        descriptor, offset, size = struct.unpack_from("<QQI", given)
        return os.pread(descriptor, size, offset)

    def write(self, given: bytes) -> bytes:
        descriptor, offset, size = struct.unpack_from("<QQI", given)
        return struct.pack("<II", os.pwrite(descriptor, given[40 : 40 + size], offset), 0)

    def close(self, given: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", given)[0])
        return NOTHING

    def list(self, _: int, given: bytes) -> bytes:
        descriptor, offset, size = struct.unpack_from("<QQI", given)
        listed = b""
        for number, name in enumerate(sorted(os.listdir(descriptor)), 1):
            text = name.encode()
            one = struct.pack("<QQII", number, number, len(text), 0) + text
            one += bytes(-len(one) % 8)
            if number > offset and len(listed) + len(one) <= size:
                listed += one
        return listed


def serve(where: str, folder: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    mount(device, where)
    print("mounted", flush=True)
    mirror = Mirror(folder)
    while True:
        try:
            asked = os.read(device, 1 << 18)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            if error.errno in (errno.ENOENT, errno.EINTR):  # who asked has gone
                continue
            raise
        length, operation, unique, node, *_ = HEADER.unpack_from(asked)
        if operation in (2, 42):  # to forget nodes takes no answer
            continue
        try:
            failed, answer = 0, mirror.answer(operation, node, asked[HEADER.size : length])
        except OSError as error:
            failed, answer = error.errno or errno.EIO, NOTHING
        with suppress(OSError):  # who asked has gone, or it is unmounted
            os.write(device, struct.pack("<IiQ", 16 + len(answer), -failed, unique) + answer)


if __name__ == "__main__":
    serve(*sys.argv[1:])
