"""Put the hook into this process, which is running, or take it out, and answer in a file (docs/late-hook.md).

tpmon writes a script that calls ``main``, and has the main thread run it at a safe point. This and the
hook's modules come from one file beside it and are kept in memory: nothing of it stays on disk. Removed, the
modules stay loaded and do nothing, as code that other threads may stand in cannot be unloaded. Files are
opened by ``posix``: a program may have replaced ``open`` and ``os.open`` by guards of its own.
Stands alone. Valid Python 3.10.
"""

from __future__ import annotations

import os
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, FrameType, ModuleType
    from typing import Any

    Modules = dict[str, tuple[bool, bytes, bytes]]

_ROOT = "/tpmon-by-hand/"
"""Where tracebacks say that the modules are; there is no such folder."""

_TRACING = ("torch/_dynamo/convert_frame.py", "torch/_dynamo/symbolic_convert.py")
_OPTIMIZER = "torch/optim/optimizer.py"
_TRIES = 3
_LEAVES_S, _LOOK_S = 30.0, 0.001
_CAUGHT_S = 0.02
"""What an error that was raised takes to where it is caught, at most some turns of the GIL."""
_FINDERS = "<frozen importlib._bootstrap>"
_FRAMES_LEFT = 200
"""So many more calls must fit on the stack: the hook comes and goes with some 60 nested ones."""

_VARIABLE = 4
"""CO_VARARGS of a code's flags."""


class Shelf:
    """Find and load the modules of the hook from memory."""

    def __init__(self, modules: Modules, mark: str, same: bool) -> None:
        """Keep by name whether a module is a package, its source, its code or nothing.

        ``same``: the code is of this version of Python.
        """
        self.modules, self.mark, self.same = modules, mark, same
        self.kept: dict[str, ModuleType] = {}

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a module of ours, while ``tpmon`` is ours; None for all other names."""
        from importlib.machinery import ModuleSpec  # noqa: PLC0415

        held = self.modules.get(name)
        if held is None or getattr(sys.modules.get("tpmon"), "__loader__", self) is not self:
            return None
        place = _ROOT + name.replace(".", "/")
        spec = ModuleSpec(
            name,
            self,  # type: ignore[arg-type]
            origin=place + ("/__init__.py" if held[0] else ".py"),
            is_package=held[0],
        )
        spec.has_location = True
        if held[0]:
            spec.submodule_search_locations = [place]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module that the program dropped from ``sys.modules``: a second one would count again."""
        return self.kept.get(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run its code; compile it first where tpmon's Python was another version."""
        if module.__name__ in self.kept:
            return
        _, source, code = self.modules[module.__name__]
        if code and self.same:
            import marshal  # noqa: PLC0415

            exec(marshal.loads(code), module.__dict__)  # noqa: S102, S302
        else:
            exec(compile(source, str(module.__file__), "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        self.kept[module.__name__] = module

    def get_source(self, name: str) -> str:
        """Return the source for tracebacks."""
        return self.modules[name][1].decode()


def is_busy() -> bool:
    """Tell whether a thread stands where hooks, finders or compiled frames may not change under it.

    No frame may be kept, least of all our own in a variable of itself. That cycle would keep every frame
    below alive until a collection, which then clears the program's variables in an order of its own: a buffer
    before its views, and the program crashes.
    """
    from _thread import get_ident  # noqa: PLC0415

    hooks = getattr(sys.modules.get("torch.optim.optimizer"), "_global_optimizer_post_hooks", ())
    shared = any(key >= 0 for key in hooks)
    stacks = sys._current_frames()  # noqa: SLF001
    del stacks[get_ident()]
    for frame in stacks.values():
        if stands_within(frame, shared):
            return True
    return is_deep() or stands_within(sys._getframe().f_back, shared)  # noqa: SLF001


def is_deep() -> bool:
    """Tell whether the program has called so deep that Python may refuse us a call: it recurses."""
    try:
        sys._getframe(max(sys.getrecursionlimit() - _FRAMES_LEFT, 0))  # noqa: SLF001
    except ValueError:
        return False
    return True


def stands_within(frame: FrameType | None, shared: bool) -> bool:
    """Tell whether a frame, or one that called it, is of such a place."""
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if file.endswith(_TRACING) or (shared and file.endswith(_OPTIMIZER)):
            return True
        if file == _FINDERS and code.co_name == "_find_spec":
            return True
        if file.startswith(_ROOT) and not file.endswith(("/patches.py", "/late.py")):
            return True
        frame = frame.f_back
    return False


def install(folder: str, put_in: tuple[int, str], mark: str) -> tuple[str, str]:
    """Install the hook from the folder, or the one that is here already; return the answer."""
    ours: Any = sys.modules.get("tpmon")
    shelf: Any = getattr(ours, "__loader__", None)
    held: Any = sys.modules.get("tpmon.hook.installation")
    if ours is not None and not hasattr(shelf, "mark"):
        if held is not None and held.HOOK.installed and not getattr(ours, "put_in", None):
            return "present", ""  # it came with the run
    elif ours is not None and shelf.mark != mark:
        if held is not None:
            held.HOOK.uninstall()  # another tpmon's
        forget()
        ours = None
    if ours is None:
        import marshal  # noqa: PLC0415
        from importlib.util import MAGIC_NUMBER, module_from_spec  # noqa: PLC0415

        modules, magic = marshal.loads(read_file(folder + "/hook"))  # noqa: S302
        shelf = Shelf(modules, mark, magic == MAGIC_NUMBER)
        sys.meta_path.append(shelf)
        ours = module_from_spec(shelf.find_spec("tpmon"))
        sys.modules["tpmon"] = ours
        shelf.exec_module(ours)
    ours.put_in = put_in
    try:
        import tpmon.hook.step_sample  # noqa: PLC0415
        import tpmon.hook.tensors  # noqa: F401, PLC0415 the next step would import it and wait
        from tpmon.hook.installation import HOOK  # noqa: PLC0415
    except BaseException:
        forget()
        raise
    if HOOK.problem or HOOK.steps.problem:
        HOOK.uninstall()  # it had turned itself off
    HOOK.install()
    problem = HOOK.problem or HOOK.steps.problem
    return ("failed", problem) if problem else ("installed", str(HOOK.steps.patches))


def list_shelves() -> list[Any]:
    """List our finders; no code of the program's finders runs."""
    return [one for one in sys.meta_path if "mark" in getattr(one, "__dict__", ())]


def forget() -> None:
    """Drop the modules of ours, so that the next import begins anew."""
    for shelf in list_shelves():
        shelf.kept = {}
    for name in [one for one in sys.modules if one == "tpmon" or one.startswith("tpmon.")]:
        del sys.modules[name]


def is_importing() -> bool:
    """Tell whether this thread is within an import: modules that ours need may be there in part."""
    frame = sys._getframe().f_back  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename != _FINDERS:
        frame = frame.f_back
    return frame is not None


def remove() -> tuple[str, str]:
    """Take out the hook that came by hand; return the answer: busy while it records.

    A recording ends at the end of a step: here may be the middle of a backward.
    """
    ours: Any
    held: Any
    ours, held = sys.modules.get("tpmon"), sys.modules.get("tpmon.hook.installation")
    if held is None or not (held.HOOK.installed or held.HOOK.steps.pages):
        return "absent", ""
    if not getattr(ours, "put_in", None):
        return "present", ""
    capture = held.HOOK.mailbox.capture
    if capture is not None and capture.under_way is not None:
        return "busy", ""
    held.HOOK.uninstall()
    left = held.HOOK.problem or held.HOOK.steps.problem
    if left:
        return "failed", left
    ours.put_in = None
    return "removed", ""


def make_again(kind: type, arguments: tuple[object, ...], raised: list[bool]) -> type:
    """Make a class of errors that Python raises with these arguments, as it raises a class without any.

    ``raised`` gets an entry once it does.
    """

    def again(self: BaseException, *_arguments: object) -> None:
        raised.append(True)
        kind.__init__(self, *arguments)  # type: ignore[misc]

    return type(kind.__name__, (kind,), {"__init__": again, "__module__": kind.__module__})


def find_first() -> CodeType:
    """Return the code with which all of ours began: below 3.14 that of the text in the pending call.

    Of a frame only its address could be kept, and Python gives that to the next one.
    """
    frame = sys._getframe().f_back or sys._getframe()  # noqa: SLF001
    while frame.f_back is not None and frame.f_back.f_globals is globals():
        frame = frame.f_back
    while sys.version_info < (3, 14) and frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "<module>":
            break
    return frame.f_code


def raise_later(
    thread: int,
    first: CodeType,
    errors: Sequence[tuple[type, list[bool]]],
    folder: str,
    answer: tuple[str, str],
) -> None:
    """Raise errors in a thread in turn, once it stands no more in that code; then answer.

    A thread holds one such error at a time, and tpmon's next script must not meet it: there is none before
    the answer, and after it has given up, no folder.
    """
    import ctypes  # noqa: PLC0415
    import time  # noqa: PLC0415
    from contextlib import suppress  # noqa: PLC0415

    until = time.monotonic() + _LEAVES_S
    for kind, raised in errors:
        while time.monotonic() < until:
            frame = sys._current_frames().get(thread)  # noqa: SLF001
            while frame is not None and frame.f_code is not first:
                frame = frame.f_back
            if frame is None:
                break
            del frame
            time.sleep(_LOOK_S)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
        while not raised and time.monotonic() < until and os.path.exists(folder):
            time.sleep(_LOOK_S)
        time.sleep(_CAUGHT_S)
    with suppress(OSError):  # tpmon has given up and taken the folder away
        write_answer(folder, answer)


def is_foreign(error: BaseException) -> bool:
    """Tell whether an error is the program's: of a signal handler that ran while we did.

    Not of what we called: a guard that the program put before ``os.open`` speaks to us.
    """
    if not isinstance(error, Exception):
        return True
    trace = error.__traceback__
    while trace is not None:
        if is_of_handler(trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def is_of_handler(frame: FrameType) -> bool:
    """Tell whether a frame is of a signal handler: one in place, or with a frame among its arguments."""
    import signal  # noqa: PLC0415

    code = frame.f_code
    if frame.f_globals is globals() or code.co_filename.startswith((_ROOT, "<frozen ")):
        return False
    number = code.co_argcount + bool(code.co_flags & _VARIABLE)
    given = [frame.f_locals.get(name) for name in code.co_varnames[:number]]
    if code.co_flags & _VARIABLE and type(given[-1]) is tuple:
        given.extend(given[-1])
    handlers = map(signal.getsignal, range(1, signal.NSIG))
    return any(type(one) is type(frame) for one in given) or any(
        getattr(one, "__code__", None) is code for one in handlers
    )


def main(folder: str, verb: str, put_in: tuple[int, str], mark: str) -> None:
    """Do what was asked, and answer.

    Errors of the program's own signal handlers are raised again in this thread once it has left our frames.
    A thread of a moment does it: Python raises what it is asked to at once, which would be here. It keeps
    no frame: see ``is_busy``.
    """
    from contextlib import suppress  # noqa: PLC0415

    answer = ("busy", "")
    errors: list[tuple[type, list[bool]]] = []
    compiling: list[Any] = []
    try:
        try:
            posix.close(_open_private(folder + "/answer.part"))  # it has begun
            turn_off_compiling(compiling)
            answer = _do(folder, verb, put_in, mark)
        except BaseException as error:
            keep(error, errors)
        for _ in range(_TRIES):
            try:
                hand_over(folder, answer, errors)
                break
            except BaseException as error:
                keep(error, errors)
    except BaseException as error:  # it came while another was kept
        keep(error, errors)
    finally:
        if len(compiling) > 1:
            compiling[0](compiling[1])
        if errors:
            with suppress(RuntimeError):  # no thread can be started: there is no way to raise them
                hand_over(folder, answer, errors)


def turn_off_compiling(compiling: list[Any]) -> None:
    """Keep torch.compile from this thread, and note what gives it back, where it is there.

    A safe point may lie within a compiled call. Each function of ours was looked at there, and some were
    traced, which took 0.3 s.
    """
    held = sys.modules.get("torch._C._dynamo.eval_frame") if "torch._dynamo" in sys.modules else None
    turn = getattr(held, "set_eval_frame", None)
    if turn is not None:
        compiling.append(turn)
        compiling.append(turn(None))


def keep(error: BaseException, errors: list[tuple[type, list[bool]]]) -> None:
    """Keep an error of the program's, to be raised again."""
    if is_foreign(error):
        raised: list[bool] = []
        errors.append((make_again(type(error), error.args, raised), raised))


def hand_over(folder: str, answer: tuple[str, str], errors: list[tuple[type, list[bool]]]) -> None:
    """Answer, by the thread that raises the errors first where there are some."""
    from _thread import get_ident, start_new_thread  # noqa: PLC0415

    if errors:
        mine = tuple(errors)
        errors.clear()
        start_new_thread(raise_later, (get_ident(), find_first(), mine, folder, answer))
    else:
        write_answer(folder, answer)


def _do(folder: str, verb: str, put_in: tuple[int, str], mark: str) -> tuple[str, str]:
    try:
        if is_busy():
            return "busy", ""
        for shelf in list_shelves():
            for name, module in getattr(shelf, "kept", {}).items():
                sys.modules.setdefault(name, module)
        return install(folder, put_in, mark) if verb == "install" else remove()
    except BaseException as error:
        if is_foreign(error):
            raise
        return ("busy", "") if is_importing() else ("failed", repr(error)[:200])


def write_answer(folder: str, answer: tuple[str, str]) -> None:
    """Write the answer in one go, for tpmon to read."""
    part = folder + "/answer.part"
    file = _open_private(part)
    try:
        posix.write(file, "\n".join(answer).encode("utf-8", "replace"))
    finally:
        posix.close(file)
    posix.rename(part, folder + "/answer")


def read_file(path: str) -> bytes:
    """Read a whole file of tpmon's."""
    file = posix.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return posix.read(file, posix.fstat(file).st_size)
    finally:
        posix.close(file)


def _open_private(path: str) -> int:
    return posix.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
