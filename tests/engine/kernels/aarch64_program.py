"""The native kernels compiled for aarch64, wherever tests run, and what such a program is made of.

`ziglang` brings a compiler (clang), headers and a linker for every system in one package.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import iter_unpack, unpack_from
from typing import Final

from kvchat.engine.kernels.native.build import FLAGS, LEVELS, NATIVE, ROOT, sources

LINUX, MACOS = "aarch64-linux-musl", "aarch64-macos"
BASE: Final = 1 << 36
"""Where the program lies: far from everything in a process on Linux, which maps memory low or very high."""
SYSTEM_FUNCTIONS = (
    "calloc",
    "free",
    "getauxval",
    "malloc",
    "posix_memalign",
    "pread",
    "sched_yield",
    "__errno_location",
)
"""What the kernels call, and the emulator does for them: each of them returns at once here."""
# Threads one after the other: the first does all, and the others find that nothing is left.
_SYSTEM = """
void run_in_turn(void (*work)(void *), void *data, unsigned num_threads, unsigned flags) {
  for (unsigned i = 0; i < num_threads; i++) work(data);
}
void come_back(void) {}
void *memcpy(char *to, const char *from, unsigned long count) {
  for (unsigned long i = 0; i < count; i++) to[i] = from[i];
  return to;
}
void *memset(char *to, int byte, unsigned long count) {
  for (unsigned long i = 0; i < count; i++) to[i] = byte;
  return to;
}
int bcmp(const char *a, const char *b, unsigned long count) {
  for (unsigned long i = 0; i < count; i++)
    if (a[i] != b[i]) return 1;
  return 0;
}
typedef union { double number; unsigned long bits; } Double;
float ldexpf(float x, int by) {
  by = by < -500 ? -500 : by > 500 ? 500 : by;
  Double power = {.bits = (unsigned long)(1023 + by) << 52};
  return (float)(x * power.number);
}
float frexpf(float x, int *exponent) {
  Double all = {.number = x};
  int biased = (int)(all.bits >> 52 & 2047);
  *exponent = biased == 0 || biased == 2047 ? 0 : biased - 1022;
  if (biased != 0 && biased != 2047) all.bits = (all.bits & ~(2047ul << 52)) | 1022ul << 52;
  return (float)all.number;
}
"""
_LOADED, _SYMBOLS = 1, 2  # types of segments and sections
_PLACE_SYMBOLS, _SECTION = 0x28, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A file in ELF's format whose places in memory are fixed.

    Args:
        segments: first address, size in memory and bytes, which zeros follow.
        functions: name → address.
    """

    segments: Sequence[tuple[int, int, bytes]]
    functions: dict[str, int]


def link(directory: Path) -> Program:
    """Compile every source at every level of aarch64 and link them without a C library. Takes a minute."""
    objects = compile_all(directory, LINUX)
    system = directory / "system.c"
    stubs = "\n".join(f'asm(".globl {name}\\n{name}: ret");' for name in SYSTEM_FUNCTIONS)
    system.write_text(_SYSTEM + stubs)
    target = directory / "program"
    flags = ("-w", "-O1", "-g0", "-fno-builtin", "-static", "-nostdlib", "-Wl,--no-gc-sections")
    zig(
        "cc",
        "-target",
        LINUX,
        *flags,
        f"-Wl,--image-base={BASE:#x}",
        "-Wl,-e,come_back",
        system,
        *objects,
        "-o",
        target,
    )
    return read_program(target.read_bytes())


def compile_all(directory: Path, target: str) -> list[Path]:
    """Compile every source at every level for a system, as the build does; return the objects."""
    made = []
    for source, level, features in _variants():
        made.append(directory / f"{target}.{source.parent.name}.{level}.o")
        flags = (*FLAGS, "-g0", *features, f"-DLEVEL={level}", f"-I{ROOT}")
        zig("c++", "-target", target, "-c", *flags, source, "-o", made[-1])
    return made


def _variants() -> Iterator[tuple[Path, str, Sequence[str]]]:
    for source in sources():
        if source.suffix == ".cpp" and source.parent == NATIVE:
            yield source, "any", ()
        elif source.suffix == ".cpp":
            for level, features in LEVELS["aarch64"].items():
                yield source, level, tuple(map(_as_zig_says, features))


def _as_zig_says(flag: str) -> str:
    """Zig wants a processor where other compilers take a version of the instructions."""
    return flag.replace("-march=armv8.2-a", "-mcpu=generic+v8_2a")


def zig(*command: str | Path) -> str:
    """Run a tool of Zig's; return what it prints.

    Raises:
        AssertionError: it failed; with what it complains of.
    """
    run = subprocess.run([sys.executable, "-m", "ziglang", *command], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def read_program(data: bytes) -> Program:
    """Read a file in ELF's format of 64 bits, as its specification lays it out."""
    assert data[:6] == b"\x7fELF\x02\x01"
    segments_at, sections_at = unpack_from("<QQ", data, 0x20)
    size, num_segments, _, num_sections = unpack_from("<HHHH", data, 0x36)
    segments = [unpack_from("<IIQQQQQ", data, segments_at + number * size) for number in range(num_segments)]
    sections = [unpack_from("<IIQQQQII", data, sections_at + n * _SECTION) for n in range(num_sections)]
    (table,) = (section for section in sections if section[1] == _SYMBOLS)
    names_at = sections[table[6]][4]
    symbols = iter_unpack("<IBBHQQ", data[table[4] : table[4] + table[5]])
    return Program(
        segments=[
            (address, num_bytes, data[offset : offset + in_file])
            for kind, _, offset, address, _, in_file, num_bytes in segments
            if kind == _LOADED
        ],
        functions={
            data[names_at + name : data.index(0, names_at + name)].decode(): value
            for name, _, _, _, value, _ in symbols
            if name and value
        },
    )
