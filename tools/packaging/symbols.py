#!/usr/bin/env python3
"""Says which versions of system libraries a Linux binary needs, and fails where a glibc symbol is newer than the limit.

    symbols.py BINARY LIMIT        such as: symbols.py gantry 2.28

Reads the ELF file itself (64 bits, little-endian): no binutils are needed. Other libraries than glibc's own and
libgcc_s fail, too: a distribution need not have them.
"""

import struct
import sys

SHT_DYNAMIC, SHT_VERNEED = 6, 0x6FFFFFFE
DT_NEEDED = 1
# glibc was one library for each subject before 2.34; the loader has its own.
ALLOWED = ("libc.so.", "libm.so.", "libdl.so.", "libpthread.so.", "librt.so.", "libgcc_s.so.", "ld-linux")


class Elf:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        if self.data[:6] != b"\x7fELF\x02\x01":
            sys.exit(f"{path}: this is no 64-bit ELF file")
        (table,) = struct.unpack_from("<Q", self.data, 0x28)
        size, count, _ = struct.unpack_from("<HHH", self.data, 0x3A)
        # Of each section: type, link, info, offset, size.
        self.sections = []
        for index in range(count):
            at = table + index * size
            kind = struct.unpack_from("<I", self.data, at + 4)[0]
            offset, length = struct.unpack_from("<QQ", self.data, at + 24)
            link, info = struct.unpack_from("<II", self.data, at + 40)
            self.sections.append((kind, link, info, offset, length))

    def text(self, strings, at):
        start = self.sections[strings][3] + at
        return self.data[start : self.data.index(b"\0", start)].decode()

    def libraries(self):
        """The libraries that the loader is told to load."""
        for kind, link, _, offset, length in self.sections:
            if kind == SHT_DYNAMIC:
                for at in range(offset, offset + length, 16):
                    tag, value = struct.unpack_from("<QQ", self.data, at)
                    if tag == DT_NEEDED:
                        yield self.text(link, value)

    def versions(self):
        """Pairs of a library and a version of its symbols that is needed."""
        for kind, link, info, offset, _ in self.sections:
            if kind != SHT_VERNEED:
                continue
            at = offset
            for _ in range(info):
                _, count, name, first, following = struct.unpack_from("<HHIII", self.data, at)
                one = at + first
                for _ in range(count):
                    version, step = struct.unpack_from("<II", self.data, one + 8)
                    yield self.text(link, name), self.text(link, version)
                    one += step
                at += following


def number(version):
    return tuple(int(part) for part in version.split("."))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    path, limit = sys.argv[1], number(sys.argv[2])
    elf = Elf(path)
    libraries, versions = sorted(elf.libraries()), set(elf.versions())
    glibc = {version[len("GLIBC_") :] for _, version in versions if version.startswith("GLIBC_")}
    glibc = sorted((v for v in glibc if v[0].isdigit()), key=number)
    if not glibc:
        sys.exit(f"{path}: no symbol of glibc is needed; is it linked statically?")
    faults = [f"glibc {version} is needed" for version in glibc if number(version) > limit]
    faults += [f"{library} is needed" for library in libraries if not library.startswith(ALLOWED)]
    print(f"{path}: needs glibc {glibc[-1]}; libraries: {', '.join(libraries)}")
    if faults:
        sys.exit(f"{path}: " + "; ".join(faults))


if __name__ == "__main__":
    main()
