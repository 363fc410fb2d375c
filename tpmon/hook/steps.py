"""Tell steps and phases from events of the training thread, and write them to the bus.

Events: a DataLoader hands out a batch (begins, ended, stopped), the autograd engine runs (begins,
ended), an optimizer finished ``step()``, a GradScaler (or DeepSpeed's) finished ``update()``, the user
called ``step()``. Every event ends the phase before it, so the phases of a step add up to its duration:

    data       inside the DataLoader's ``__next__``
    forward    from a batch, an update or a backward to the next backward; all of a batch without one
    backward   inside the autograd engine
    optimizer  from the end of a backward to the end of ``step()``: clipping, unscaling, all-reduce
    other      the rest: from an update to the next batch (logging, checkpoints), around an epoch

Host time: on a GPU it holds the waits for the device and not its work.
A step ends (``rule``) when the next batch is asked for after an update; without a DataLoader, at the
update, which is the first optimizer call after a backward; without a torch optimizer, at each batch
with a backward; at ``step()`` once it was called (``ends``). A batch without backward is an evaluation
step, unless it was fetched ahead of its use or drawn with others for one step. The step after whose
batches the DataLoader has ended, because they were fetched ahead, ends at its last update.

One thread counts. Nothing raises into it or prints: an error of our own turns the hook off. Every few
seconds one step is watched (``watch``): settings, device times.
"""

from __future__ import annotations

from _thread import get_ident
from time import monotonic_ns

from tpmon.hook.bus import wire
from tpmon.hook.context import count_of, find_sized, has_gradients_on
from tpmon.hook.counters import BACKWARD, BATCH, CALL, NOTHING, OFF, SHORT_NS, SILENT_NS, UPDATE
from tpmon.hook.ends import Ends

# The live words, short: they are written at each event.
_DATA_BEGAN = wire.LIVE_DATA_BEGAN
_DATA_ENDED = wire.LIVE_DATA_ENDED
_BACKWARD_BEGAN = wire.LIVE_BACKWARD_BEGAN
_BACKWARD_ENDED = wire.LIVE_BACKWARD_ENDED
_OPTIMIZER = wire.LIVE_OPTIMIZER
_LEFT = wire.LIVE_LEFT
_BY_DATA = wire.RULE_DATA_AFTER_UPDATE
_BY_UPDATE = wire.RULE_UPDATE


class Steps(Ends):
    """Count the steps of this process by its events."""

    __slots__ = ()

    # The events. Each is called for every batch of every run: names are few and short of calls.

    def data_begins(self) -> bool:
        """Note that a batch is asked for; False when this call does not count."""
        try:
            if (get_ident() != self.owner and not self.admit(BATCH)) or self.in_data:
                return False
            now = monotonic_ns()
            kind = self.kind
            if kind == BATCH:
                self.forward_ns += now - self.last_ns
            else:
                self.other_ns += now - self.last_ns
            self.last_ns = now
            self.live[_DATA_BEGAN] = now
            if self.depth:
                self._leave_backward(now)
            if self.updates_open:
                self.rule = _BY_DATA
                self._close(now, 1)
            elif kind == BATCH:
                self._end_unused(now)
            elif kind == BACKWARD:
                self._end_part(now)
            elif kind == NOTHING:
                self._end_epoch(now)
            elif self.rule == _BY_UPDATE:
                self._reconsider()
            if not self.backwards:
                self.graded = has_gradients_on()
            self.in_data = True
        except Exception as error:
            if not self.fail(error):
                raise
            return False
        return True

    def data_ended(self, iterator: object, batch: object = None) -> None:
        """Note that the batch came."""
        try:
            if not self.in_data:  # the hook began anew meanwhile
                return
            now = monotonic_ns()
            self.data_ns += now - self.last_ns
            self.last_ns = now
            self.live[_DATA_ENDED] = now
            self.kind = BATCH
            self.in_data = False
            self.loader_seen = True
            self.batches += 1
            self.batches_open += 1
            self.updates_at_batch = self.updates
            if self.watch is not None:
                self.watch.batch(iterator, batch)
            # Straight from the dictionaries: no code of a user's sampler runs.
            self.drawn_from = 0
            try:
                told = iterator.__dict__["_index_sampler"].__dict__
                self.drawn_from = id(told)  # of its DataLoader, in every epoch the same
                if "batch_size" not in told:
                    told = find_sized(told)
                size = told["batch_size"]
                if told.get("split_batches"):  # Accelerate's: that of all ranks
                    size //= told["num_processes"]
            except (KeyError, AttributeError, TypeError, ZeroDivisionError):
                size = 0
            if (
                size.__class__ is int and 0 < size < 1073741824
            ):  # as count_of; beyond one digit of Python's it costs 0.05 us
                self.batch_size = size
                self.samples_open += size
        except Exception as error:
            if not self.fail(error):
                raise

    def data_stopped(self, iterator: object = None) -> None:
        """Note that the DataLoader raised: the end of an epoch, or an error."""
        try:
            if not self.in_data:
                return
            now = monotonic_ns()
            self.data_ns += now - self.last_ns
            self.last_ns = now
            self.live[_LEFT] = now
            self.kind = NOTHING
            self.in_data = False
            self.batches_at_end = self.batches
            self.updates_at_batch = -1
            held = getattr(iterator, "__dict__", {}).get("_index_sampler")
            self.ended_from = id(getattr(held, "__dict__", None))
            if self.unused_open > self.evals_open:
                self._end_loader(now)
        except Exception as error:
            if not self.fail(error):
                raise

    def backward_begins(self) -> bool:
        """Note that the autograd engine begins; False when this call does not count."""
        try:
            if get_ident() != self.owner and not self.admit(BACKWARD):
                return False
            self.in_data = False
            if self.depth and self.update_in_backward:
                self._leave_backward(monotonic_ns())
            if not self.depth:
                now = monotonic_ns()
                self.forward_ns += now - self.last_ns
                self.last_ns = now
                self.live[_BACKWARD_BEGAN] = now
                if self.watch is not None:
                    self.watch.backward_begins()
            self.depth += 1  # last: whatever interrupts this, nothing has begun
        except Exception as error:
            if not self.fail(error):
                raise
            return False
        return True

    def backward_ended(self, counts: bool) -> None:
        """Note that the engine is done; ``counts``: it filled ``.grad``, as ``autograd.grad`` does not."""
        try:
            depth = self.depth - 1
            if depth < 0:
                return
            self.depth = depth
            if depth:
                return
            now = monotonic_ns()
            self.backward_ns += now - self.last_ns
            self.last_ns = now
            self.live[_BACKWARD_ENDED] = now
            if self.watch is not None:
                self.watch.backward_ended()
            if counts:
                self.kind = BACKWARD
                if not self.backwards:
                    self._begin_training()
                self.backwards += 1
                self.backwards_open += 1
            else:
                self.differentiated = True
            self.backwards_since_update += 1  # of gradients that autograd.grad returned an update may be made
            if self.update_in_backward:
                self.update_in_backward = False
                self._update(now)
            elif now - self.published_ns > SILENT_NS:
                self.publish_between(now)
        except Exception as error:
            if not self.fail(error):
                raise

    def optimizer_stepped(self, optimizer: object, args: object, kwargs: object) -> None:  # noqa: ARG002
        """Note that an optimizer's ``step()`` is done."""
        try:
            if get_ident() != self.owner and not self.admit(UPDATE):
                return
            self.optimizer_calls += 1
            if self.watch is not None:
                self.watch.updated(optimizer)
            if self.depth:
                self.update_in_backward = True
                return
            now = monotonic_ns()
            if self.kind >= BACKWARD:
                self.optimizer_ns += now - self.last_ns
            else:
                self.other_ns += now - self.last_ns
            self.last_ns = now
            self.live[_OPTIMIZER] = now
            self.kind = UPDATE
            self.in_data = False
            if (
                self.backwards_since_update
                or not self.backwards
                or (self.batches_open and not self.updates_open)  # gradients that no engine made
            ):
                if self.rule == _BY_DATA and not self.updates_open:  # _update, without the call
                    self.updates += 1
                    self.backwards_since_update = 0
                    self.updates_open = 1
                    if self.lookahead and self.batches == self.batches_at_end:
                        self._end_last(now)
                else:
                    self._update(now)
        except Exception as error:
            if not self.fail(error):
                raise

    def scaler_updated(self, scaler: object = None) -> None:
        """Note that a GradScaler's ``update()`` is done: without an update before it, one was skipped.

        A scaler that is not enabled skips none, nor does an engine of DeepSpeed (``scaler``) that says that
        it made one: then the hook does not see the optimizer.
        """
        try:
            if (get_ident() != self.owner and not self.admit(CALL)) or not self.backwards_since_update:
                return
            now = monotonic_ns()
            self.optimizer_ns += now - self.last_ns
            self.last_ns = now
            self.live[_OPTIMIZER] = now
            self.kind = UPDATE
            told = getattr(scaler, "__dict__", {})
            if told.get("_enabled", True) and not told.get("_step_applied", False):
                self.skipped += 1
            self._update(now)
        except Exception as error:
            if not self.fail(error):
                raise

    def step_called(self, samples: object, train: bool) -> None:
        """Note that the user says: a step ends here. From now on nothing else ends one."""
        try:
            if get_ident() != self.owner and not self.admit(CALL):
                if self.owner != OFF:
                    self._step_elsewhere(samples, train)
                return
            now = monotonic_ns()
            if self.kind == BATCH:
                self.forward_ns += now - self.last_ns
            else:
                self.other_ns += now - self.last_ns
            self.last_ns = now
            self.live[_LEFT] = now
            self.kind = NOTHING
            self.rule = wire.RULE_CALL
            if samples:
                self.samples_open = count_of(samples) or self.samples_open
            if train:
                self._close(now, 1)
            else:
                self._close_eval(now, 1)
        except Exception as error:
            if not self.fail(error):
                raise

    def _step_elsewhere(self, samples: object, train: bool) -> None:
        """Count a step of which another thread than the loop's says that it ended; phases stay the loop's."""
        self.rule = wire.RULE_CALL
        size = (count_of(samples) if samples else 0) or self.samples_open
        self.batches_open = self.backwards_open = self.updates_open = self.unused_open = self.evals_open = 0
        self.samples_open = 0
        if train:
            self.steps += 1
            self.samples += size
        else:
            self.eval_steps += 1
            self.eval_samples += size
        now = monotonic_ns()
        if now - self.published_ns >= SHORT_NS:
            self.published_ns = now
            self.publish(now)

    def _begin_training(self) -> None:
        """Take back what came before the loop: optimizers that make their state do a step."""
        self.trained_on = self.drawn_from
        before_loop = self.batches == self.batches_open and not self.differentiated
        if self.steps and before_loop and self.rule != wire.RULE_CALL:
            self.rule = wire.RULE_NONE
            self.steps = self.updates = self.updates_open = self.votes = self.updates_a_step = 0
            self.updates_at_batch = min(self.updates_at_batch, 0)

    def _leave_backward(self, now: int) -> None:
        """Leave a backward whose end an interrupt took: one thread does not train within one."""
        self.depth = 0
        if self.update_in_backward:
            self.update_in_backward = False
            self._update(now)
