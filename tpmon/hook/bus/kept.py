"""Keep what nobody may free, and a last word for tpmon where there is no page to leave it on."""

from __future__ import annotations

from tpmon.hook.bus import wire

_READ_WRITE = 0x1 | 0x2
_PRIVATE_ANONYMOUS_THERE_OR_NOWHERE = 0x2 | 0x20 | 0x100000
_NOT_IN_CHILDREN = 10  # MADV_DONTFORK


def keep_for_ever(one: object) -> None:
    """Keep an object until its process is gone: in forked children too, and past the interpreter's end."""
    import ctypes  # noqa: PLC0415 torch imported it already

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def leave_word(text: str) -> None:
    """Leave a word in a private page of memory, at an address that tpmon knows; the first one alone."""
    try:
        import ctypes  # noqa: PLC0415

        library = ctypes.CDLL(None)
        library.mmap.restype = ctypes.c_void_p
        at, size = ctypes.c_void_p(wire.WORD_ADDRESS), ctypes.c_size_t(wire.WORD_BYTES)
        flags = _PRIVATE_ANONYMOUS_THERE_OR_NOWHERE
        if library.mmap(at, size, _READ_WRITE, flags, -1, ctypes.c_long(0)) == wire.WORD_ADDRESS:
            word = (wire.WORD_MAGIC + text.encode("utf-8", "replace"))[: wire.WORD_BYTES]
            ctypes.memmove(wire.WORD_ADDRESS, word, len(word))
            library.madvise(at, size, _NOT_IN_CHILDREN)
    except Exception:
        return  # there is nowhere to say it
