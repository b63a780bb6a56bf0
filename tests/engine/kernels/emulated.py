"""An aarch64 processor in this process, which runs the native kernels that were compiled for it.

Its memory is the process's own, at the same addresses: a kernel finds what ctypes hands to it, and tests call
what they call for the processor underneath. Only the program is the emulator's.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Final

from unicorn import UC_ARCH_ARM64, UC_HOOK_CODE, UC_HOOK_MEM_UNMAPPED, UC_MODE_ARM, Uc, UcError
from unicorn import arm64_const as arm
from unicorn.unicorn_const import UC_PROT_ALL, UC_PROT_READ, UC_PROT_WRITE

from tests.engine.kernels.aarch64_program import SYSTEM_FUNCTIONS, Program

OLD, NEW = arm.UC_CPU_ARM64_A53, arm.UC_CPU_ARM64_MAX
"""Kinds of processors. The old one has no dot products, and stops at one."""
PAGE: Final = 4096
_STACK_BYTES = 1 << 20
_REGISTERS = (arm.UC_ARM64_REG_X0, arm.UC_ARM64_REG_X1, arm.UC_ARM64_REG_X2, arm.UC_ARM64_REG_X3)
_BEHIND = b"\xa5" * 64


class Broken(AssertionError):
    """A kernel did what would end a process, or spoil its memory."""


class Processor:
    """Runs functions of a program, one at a time.

    Args:
        kind: OLD or NEW.
        capabilities: what the system says of the processor, as Linux does in AT_HWCAP.
    """

    def __init__(self, program: Program, kind: int, capabilities: int = 0) -> None:
        self._program = program
        self._system = _System(capabilities)
        self._stack = ctypes.create_string_buffer(_STACK_BYTES)
        self._lock = Lock()
        self._lent: list[tuple[int, int]] = []  # the process's memory that the emulator has: first, end
        self._uc = Uc(UC_ARCH_ARM64, UC_MODE_ARM)
        self._uc.ctl_set_cpu_model(kind)
        self._place_program()
        self._uc.hook_add(UC_HOOK_MEM_UNMAPPED, self._lend)
        for name in SYSTEM_FUNCTIONS:
            at = program.functions[name]
            self._uc.hook_add(UC_HOOK_CODE, self._answer, getattr(self._system, name.strip("_")), at, at)

    def call(self, name: str, argument: int = 0) -> int:
        """Return what a function returns.

        Raises:
            Broken: it reads what is not there, has an instruction that the processor lacks, keeps memory.
        """
        with self._lock:
            back = self._program.functions["come_back"]
            self._uc.reg_write(arm.UC_ARM64_REG_X0, argument)
            self._uc.reg_write(arm.UC_ARM64_REG_LR, back)
            self._uc.reg_write(arm.UC_ARM64_REG_SP, (ctypes.addressof(self._stack) + _STACK_BYTES) & -16)
            try:
                self._uc.emu_start(self._program.functions[name], back)
            except UcError as error:
                at = self._uc.reg_read(arm.UC_ARM64_REG_PC)
                raise Broken(f"{name}: {error} at {at:#x}") from None
            finally:
                self._take_back()
            self._system.check_that_all_was_freed()
            return int(self._uc.reg_read(arm.UC_ARM64_REG_X0))

    def text(self, address: int) -> str:
        """Return what the program has at an address, up to a zero."""
        return bytes(self._uc.mem_read(address, 64)).split(b"\0")[0].decode()

    def __getattr__(self, name: str) -> Callable[[Any], int]:
        """Return a function as a library of ctypes has it: of a structure by reference, with an int."""
        if name not in self._program.functions:
            raise AttributeError(name)
        return lambda by_reference: ctypes.c_int(self.call(name, ctypes.addressof(by_reference._obj))).value

    def _place_program(self) -> None:
        first, end = self._program.segments[0][0], max(at + size for at, size, _ in self._program.segments)
        self._uc.mem_map(first, -(-(end - first) // PAGE) * PAGE, UC_PROT_ALL)
        for address, _, data in self._program.segments:
            self._uc.mem_write(address, data)

    def _lend(self, uc: Uc, access: int, address: int, *_unused: object) -> bool:
        """Let the emulator see all memory of the process around an address; false: there is none."""
        for first, end, protection in _memory_of_process():
            if first <= address < end:
                # A heap may have grown since a part of it was lent.
                first = max([first, *(e for _, e in self._lent if e <= address)])
                end = min([end, *(f for f, _ in self._lent if f > address)])
                uc.mem_map_ptr(first, end - first, protection, first)
                self._lent.append((first, end))
                return True
        return False

    def _take_back(self) -> None:
        for first, end in self._lent:
            self._uc.mem_unmap(first, end - first)
        self._lent.clear()

    @staticmethod
    def _answer(uc: Uc, _address: int, _size: int, function: Callable[[int, int, int, int], int]) -> None:
        """Do what a function of the system does, in place of its first instruction, which returns."""
        arguments = [uc.reg_read(register) for register in _REGISTERS]
        uc.reg_write(arm.UC_ARM64_REG_X0, function(*arguments) & (1 << 64) - 1)


class _System:
    """The system's functions, of the first four registers. New memory is filled with NaN.

    Args:
        capabilities: see `Processor`.
    """

    def __init__(self, capabilities: int) -> None:
        self._capabilities = capabilities
        self._taken: dict[int, tuple[int, Any]] = {}
        self._errno = ctypes.c_int()

    def check_that_all_was_freed(self) -> None:
        if self._taken:
            sizes = [size for size, _ in self._taken.values()]
            self._taken.clear()
            raise Broken(f"pieces of {sizes} bytes were not freed")

    def malloc(self, size: int, *_: int) -> int:
        return self._take(size, 16)

    def calloc(self, count: int, size: int, *_: int) -> int:
        address = self._take(count * size, 16)
        ctypes.memset(address, 0, count * size)
        return address

    def posix_memalign(self, to: int, alignment: int, size: int, *_: int) -> int:
        ctypes.c_void_p.from_address(to).value = self._take(size, alignment)
        return 0

    def free(self, address: int, *_: int) -> int:
        if address:
            size, _memory = self._taken.pop(address)
            if ctypes.string_at(address + size, len(_BEHIND)) != _BEHIND:
                raise Broken(f"something was written behind a piece of {size} bytes")
        return 0

    def pread(self, descriptor: int, to: int, count: int, at: int) -> int:
        try:
            data = os.pread(descriptor, count, at)
        except OSError as error:
            self._errno.value = error.errno or 0
            return -1
        ctypes.memmove(to, data, len(data))
        return len(data)

    def errno_location(self, *_: int) -> int:
        return ctypes.addressof(self._errno)

    def getauxval(self, *_: int) -> int:
        return self._capabilities

    def sched_yield(self, *_: int) -> int:
        return 0

    def _take(self, size: int, alignment: int) -> int:
        memory = ctypes.create_string_buffer(size + alignment + len(_BEHIND))
        address = -(-ctypes.addressof(memory) // alignment) * alignment
        ctypes.memset(address, 0xFF, size)
        ctypes.memmove(address + size, _BEHIND, len(_BEHIND))
        self._taken[address] = size, memory
        return address


def _memory_of_process() -> Iterator[tuple[int, int, int]]:
    """Yield pieces of this process's memory that can be read: first address, end, protection."""
    with Path("/proc/self/maps").open() as lines:
        for line in lines:
            places, rights = line.split(maxsplit=2)[:2]
            first, end = (int(place, 16) for place in places.split("-"))
            if rights[0] == "r" and "[v" not in line:
                yield first, end, UC_PROT_READ | UC_PROT_WRITE if rights[1] == "w" else UC_PROT_READ
