"""Patch the places of torch that a step passes, and take the patches back.

Four places: the global hooks after ``Optimizer.step``, ``__next__`` of the DataLoader's iterators,
the entry of the autograd engine (and that of Megatron), ``GradScaler.update`` (and the end of an update
of DeepSpeed, whose scaler is its own). DDP and FSDP are patched where they are made, for their settings.
Attributes of classes and modules are replaced, and put back only where they are still ours; collections that
torch may be walking through are never changed. Modules that torch imports too are imported after torch:
they would double the start-up.
"""

from __future__ import annotations

import sys

from tpmon.hook.bus import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from tpmon.hook.steps import Steps

OPTIMIZER = "torch.optim.optimizer"
LOADER = "torch.utils.data.dataloader"
ENGINE = "torch.autograd.graph"
SCALER = "torch.amp.grad_scaler"
PLACES = (OPTIMIZER, LOADER, ENGINE, SCALER)
# Where it was before torch 2.3, imported with torch; newer ones have no ``update()`` of their own there.
SCALER_BEFORE = "torch.cuda.amp.grad_scaler"
# These two come with torch, the first where it is built for several ranks.
DDP = "torch.nn.parallel.distributed"
GRAPHS = "torch.cuda.graphs"
# The rest comes only when the program imports it.
FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel"
SHARDED = "torch.distributed.fsdp.sharded_grad_scaler"
SCHEDULES = "megatron.core.pipeline_parallel.schedules"  # its backwards call the engine past torch's entry
DEEPSPEED = "deepspeed.runtime.engine"  # it skips updates by a scaler of its own
MEGATRON = "megatron.core.optimizer.grad_scaler"  # is told before an update whether that is skipped
LATER = (FSDP, SHARDED, SCHEDULES, DEEPSPEED, MEGATRON)
_HOOKS = "_global_optimizer_post_hooks"
_KEY = -7_061_646
"""Ours in torch's dictionary of hooks; torch counts up from 0."""


class Patches:
    """Hold what was replaced: place, name, what was there, what is there now."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._handle: Any = None
        self._done: set[str] = set()

    def apply(self) -> None:
        """Patch each place whose module is imported and that is not patched yet."""
        for name in (OPTIMIZER, ENGINE, *_WRAPPED):
            module = sys.modules.get(name)
            if module is not None and name not in self._done:
                bit = self._patch(name, module)
                if bit or name in (DDP, GRAPHS, *LATER):
                    self._done.update((name, SCALER) if name == SCALER_BEFORE else (name,))
                    self._steps.patches |= bit
        if self._steps.pages is not None:
            self._steps.pages.set_status(wire.STATE_RUNNING, self._steps.patches, "")

    def missing(self) -> list[str]:
        """List the places that are not patched."""
        return [name for name in PLACES if name not in self._done]

    def awaits(self) -> bool:
        """Tell whether modules to patch are still to be imported."""
        later = "torch.distributed" in sys.modules and not self._done.issuperset(LATER)
        return later or bool(self.missing())

    def take_back(self, within: bool = False) -> None:
        """Put back what was there, where what is there now is still ours.

        ``within`` an event an optimizer may be walking through the dictionary of hooks, and removing one of
        several would raise in its ``step()``: ours stays, and does nothing once counting is off.
        """
        kept = []
        for one in reversed(self._replaced):
            place, name, before, ours = one
            if name == _HOOKS and within and len(ours) > 1:
                kept.append(one)
            elif name == _HOOKS:
                _remove_hook(place, ours)
            elif place.__dict__.get(name) is ours:
                setattr(place, name, before)
        self._replaced = kept
        if self._handle is not None and not within:
            self._handle.remove()
            self._handle = None
        self._done = {OPTIMIZER} if kept or self._handle is not None else set()
        self._steps.patches = 0

    def _replace(self, place: Any, name: str, ours: Any) -> None:
        self._replaced.append((place, name, place.__dict__[name], ours))
        setattr(place, name, ours)

    def _patch(self, name: str, module: ModuleType) -> int:
        """Patch a module; return the bits of wire.PATCH_*."""
        if name == OPTIMIZER:
            return self._patch_optimizers(module)
        if name == ENGINE:
            return self._patch_engine(module)
        bits = 0
        for kind, attribute, wrap, bit in _WRAPPED[name]:
            place = module.__dict__.get(kind) if kind else module
            found = getattr(place, "__dict__", {}).get(attribute)
            if found is not None:
                self._replace(place, attribute, wrap(found, self._steps))
                bits |= bit
        return bits

    def _patch_optimizers(self, module: ModuleType) -> int:
        from collections import OrderedDict  # noqa: PLC0415

        hook = self._steps.optimizer_stepped
        _hide_from_dynamo(hook)
        hooks = module.__dict__.get(_HOOKS)
        if type(hooks) is OrderedDict and not hooks:
            # A new dictionary: adding to one that an optimizer walks through raises in its step().
            self._replace(module, _HOOKS, OrderedDict({_KEY: hook}))
        elif hasattr(module, "register_optimizer_step_post_hook"):
            self._handle = module.register_optimizer_step_post_hook(hook)
        else:
            return 0
        return wire.PATCH_OPTIMIZER

    def _patch_engine(self, module: ModuleType) -> int:
        autograd = sys.modules["torch.autograd"]
        engine = module.__dict__.get("_engine_run_backward")
        if ("backward" if engine is None else "_engine_run_backward") not in autograd.__dict__:
            return 0  # torch.autograd is still being imported, and binds the name later
        if engine is None:
            # Before torch 2.2; Tensor.backward comes through here too.
            self._replace(autograd, "backward", _wrap_engine(autograd.__dict__["backward"], self._steps))
            return wire.PATCH_BACKWARD
        ours = _wrap_engine(engine, self._steps)
        self._replace(module, "_engine_run_backward", ours)
        if autograd.__dict__.get("_engine_run_backward") is engine:
            self._replace(autograd, "_engine_run_backward", ours)
        return wire.PATCH_BACKWARD


def _remove_hook(module: ModuleType, ours: OrderedDict[int, object]) -> None:
    if module.__dict__.get(_HOOKS) is not ours:
        return
    if len(ours) == 1:
        setattr(module, _HOOKS, type(ours)())
    else:  # others registered since, and their handles know this dictionary
        ours.pop(_KEY, None)


def _like(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from functools import wraps  # noqa: PLC0415

    return wraps(original)


def _wrap_next(original: Callable[[Any], Any], steps: Steps) -> Callable[[Any], Any]:
    begins, ended, stopped = steps.data_begins, steps.data_ended, steps.data_stopped
    for hook in (begins, ended, stopped):
        _hide_from_dynamo(hook)

    @_like(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        ours = False
        try:
            ours = begins()
            batch = original(self)
        except BaseException:
            if ours:
                stopped(self)
            raise
        if ours:
            ended(self, batch)
        return batch

    return __next__


def _wrap_engine(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    begins, ended = steps.backward_begins, steps.backward_ended
    _hide_from_dynamo(begins)
    _hide_from_dynamo(ended)

    @_like(original)
    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        ours = False
        try:
            ours = begins()
            return original(*args, **kwargs)
        finally:
            if ours:
                ended(kwargs.get("accumulate_grad", True))

    return _engine_run_backward


def _wrap_update(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    updated = steps.scaler_updated
    _hide_from_dynamo(updated)

    @_like(original)
    def update(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        updated(args[0] if args else None)
        return result

    return update


def _wrap_found(original: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    @_like(original)
    def update(self: Any, found_inf: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, found_inf, *args, **kwargs)
        if found_inf:
            steps.scaler_updated()
        return result

    return update


def _wrap_capture(original: Callable[..., None], steps: Steps, begins: bool) -> Callable[..., None]:
    @_like(original)
    def capture(self: Any, *args: Any, **kwargs: Any) -> None:
        if begins:
            steps.graph_noted(self, True)
        over = True
        try:
            original(self, *args, **kwargs)
            over = not begins
        finally:
            if over:
                steps.graph_noted(self, False)

    return capture


def _wrap_init(original: Callable[..., None], steps: Steps, made: list[Any]) -> Callable[..., None]:
    @_like(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        steps.wrapper_made(made, self)

    return __init__


_SCALES = (("GradScaler", "update", _wrap_update, wire.PATCH_SCALER),)
_WRAPPED: dict[str, tuple[tuple[str, str, Callable[..., Any], int], ...]] = {
    LOADER: (("_BaseDataLoaderIter", "__next__", _wrap_next, wire.PATCH_DATA),),
    SCALER: _SCALES,
    SCALER_BEFORE: _SCALES,
    SHARDED: (("ShardedGradScaler", "update", _wrap_update, wire.PATCH_SCALER),),
    DDP: (("DistributedDataParallel", "__init__", lambda one, steps: _wrap_init(one, steps, steps.ddp), 0),),
    FSDP: (
        ("FullyShardedDataParallel", "__init__", lambda one, steps: _wrap_init(one, steps, steps.fsdp), 0),
    ),
    SCHEDULES: (("", "custom_backward", _wrap_engine, wire.PATCH_BACKWARD),),
    # Called at the end of an accumulation alone, whether it comes to an update or not.
    DEEPSPEED: (("DeepSpeedEngine", "_take_model_step", _wrap_update, wire.PATCH_SCALER),),
    MEGATRON: (
        ("ConstantGradScaler", "update", _wrap_found, wire.PATCH_SCALER),
        ("DynamicGradScaler", "update", _wrap_found, wire.PATCH_SCALER),
    ),
    GRAPHS: (
        ("CUDAGraph", "capture_begin", lambda one, steps: _wrap_capture(one, steps, True), 0),
        ("CUDAGraph", "capture_end", lambda one, steps: _wrap_capture(one, steps, False), 0),
    ),
}
"""By module: class ("" for a function), attribute, wrapper, bit of wire.PATCH_*."""


class _UnlessWhole:
    """Tell dynamo, which asks while it traces, whether to leave the compiled code for a call."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Return False where the program demands one graph: leaving it would end the program."""
        try:
            tracing: Any = sys.modules["torch._dynamo.symbolic_convert"]
            now = tracing.InstructionTranslator.current_tx()
            whole = now.one_graph or now.error_on_graph_break
        except Exception:
            whole = False  # another version of torch, or dynamo is not tracing; it must not fail through us
        return not whole


def _do_nothing(*_args: object, **_kwargs: object) -> None:
    """Stand for a hook where dynamo traces it."""


_do_nothing._torchdynamo_disable = _UnlessWhole()  # type: ignore[attr-defined]  # noqa: SLF001


def _hide_from_dynamo(hook: Any) -> None:
    """Keep torch.compile from tracing a hook and what it calls; importing dynamo for that would take seconds.

    Without the marks dynamo follows a call out of a frame that it compiles, and warns of what it meets there.
    With them it leaves the compiled code for the call, or drops the call where the program demands one graph.
    """
    hook.__func__._torchdynamo_disable = True  # noqa: SLF001
    hook.__func__._torchdynamo_inline = _do_nothing  # noqa: SLF001
    compiled: Any = getattr(sys.modules["torch"], "_C", None)
    frames: Any = getattr(getattr(compiled, "_dynamo", None), "eval_frame", None)
    try:
        if hasattr(frames, "set_code_exec_strategy"):
            skip = frames._FrameAction.SKIP  # noqa: SLF001
            strategy = frames._FrameExecStrategy(skip, skip)  # noqa: SLF001
            frames.set_code_exec_strategy(hook.__code__, strategy)
        elif hasattr(frames, "skip_code"):
            frames.skip_code(hook.__code__)
    except Exception:
        pass  # another version of torch traces the hook: slower once, never wrong
