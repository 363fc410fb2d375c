"""Try whether another process's memory may be read, without reading any of it."""

from __future__ import annotations

import ctypes
import errno
import os

from tpmon.model.known import Known, Missing

_NOWHERE = 64
"""An address in the first page, which no process has mapped (vm.mmap_min_addr)."""


def try_memory(pid: int) -> Known[int]:
    """Call process_vm_readv(2) for one byte; return 1 where it is permitted, else Missing with the reason.

    The kernel asks for permission before it looks at the address, which leads nowhere on purpose:
    EFAULT means "permitted", and no page of the process was touched.
    """
    library = ctypes.CDLL(None, use_errno=True)
    try:
        call = library.process_vm_readv
    except AttributeError:
        return Missing("this C library does not have process_vm_readv")
    call.restype = ctypes.c_ssize_t
    call.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)
    piece = ctypes.c_size_t * 2  # struct iovec: where, and how many bytes
    buffer = ctypes.create_string_buffer(1)
    here, there = piece(ctypes.addressof(buffer), 1), piece(_NOWHERE, 1)
    if call(pid, ctypes.addressof(here), 1, ctypes.addressof(there), 1, 0) >= 0:
        return 1
    number = ctypes.get_errno()
    return 1 if number == errno.EFAULT else Missing(os.strerror(number))
