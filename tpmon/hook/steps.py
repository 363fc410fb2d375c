"""Tell steps and phases from events of the training thread, and what ends a step.

Events: a DataLoader hands out a batch (begins, ended, stopped), the autograd engine runs (begins,
ended), an optimizer finished ``step()``, a GradScaler (or DeepSpeed's) finished ``update()``, the user
called ``step()``. Every event ends the phase before it, so the phases of a step add up to its duration:

    data       inside the DataLoader's ``__next__``
    forward    from a batch, an update or a backward to the next backward; all of a batch without one
    backward   inside the autograd engine
    optimizer  from the end of a backward to the end of ``step()``: clipping, unscaling, all-reduce
    other      the rest: from an update to the next batch (logging, checkpoints), around an epoch

This is host time: on a GPU it includes waits for the device, not the device's work.

A step ends (``rule``) when the next batch is asked for after an update; without a DataLoader, at the
update, which is the first optimizer call after a backward; without a torch optimizer, at each batch
with a backward; once ``step()`` was called, only there. A batch without backward is an evaluation step,
unless it was fetched ahead of its use or drawn with others for one step. Of those nothing is known but when
they came, how soon the next was asked for, whether gradients were on, and what earlier steps were made of
(``_learn_ahead``). Where the DataLoader ended with batches fetched ahead, a step ends at its last update.

Only one thread is counted. Nothing prints or raises into it: an error of our own turns the hook off. Every
few seconds one step is watched (``watch``): settings, device times.
"""

from __future__ import annotations

from _thread import get_ident
from time import monotonic_ns

from tpmon.hook.bus import wire
from tpmon.hook.context import count_of, find_sized, has_gradients_on
from tpmon.hook.counters import BACKWARD, BATCH, CALL, NOTHING, OFF, SHORT_NS, SILENT_NS, UPDATE, Counts

_AT_ONCE_NS = 100_000
"""Where the next batch is asked for this soon, nothing was computed between: both are drawn for one step.

For the batches that Accelerate draws for two ranks 30 us were too few (docs/measured/hook-frameworks.md).
"""

_MOST_AT_ONCE = 1024
"""More of them are no step: the program reads its data for something else."""

_LONGEST_AHEAD_NS = 1_000_000_000
"""Fetching ahead at most copies a batch to the device; what takes longer computes on it."""

_UPDATES_A_BATCH = 16
"""With more updates after one batch the loop does not train on the DataLoader (a GAN makes a few)."""

_ALIKE = 3
"""So many steps in a row with equally many batches without a backward: several DataLoaders feed each step."""

_DATA_ENDED = wire.LIVE_DATA_ENDED
_BY_UPDATE = wire.RULE_UPDATE
_BACKWARDS_WITHOUT_UPDATE = wire.BACKWARDS_WITHOUT_UPDATE


class StepEnds(Counts):
    """End steps and evaluation steps by what is open."""

    __slots__ = ()

    def _update(self, now: int) -> None:
        """Count an update: the first optimizer call after a backward."""
        self.updates += 1
        self.backwards_since_update = 0
        if self.rule == wire.RULE_UPDATE:
            if self.batches_open > self.backwards_open:  # of an evaluation that was broken off
                self.eval_samples += self.samples_open
                self.samples_open = 0
            self._close(now, 1)
        elif self.rule != wire.RULE_CALL:
            self.updates_open += 1
            over = self.batches == self.batches_at_end
            if over and self.lookahead:
                self._end_last(now)
            elif not self.loader_seen or self.updates_open > (1 if over else _UPDATES_A_BATCH):
                self.rule = wire.RULE_UPDATE
                self._close(now, self.updates_open)

    def _end_last(self, now: int) -> None:
        """End the step with the last batches: no more will be asked for."""
        if self.updates_open >= self.updates_a_step:
            self._close(now, 1)

    def _end_unused(self, now: int) -> None:
        """End a batch that no backward followed: of an evaluation, or fetched ahead of its use."""
        if self.rule == wire.RULE_CALL:
            return
        self.unused_open += 1
        if self.unused_open <= self.lookahead:
            return
        if not self._is_ahead(now - self.live[_DATA_ENDED]):
            self._count_unused(now)
        elif now - self.published_ns > SILENT_NS:
            self.publish_between(now)

    def _is_ahead(self, used_ns: int) -> bool:
        """Tell whether the last batch is for a coming step, by the time until the next was asked for."""
        if self.rule == _BY_UPDATE:
            self.votes = 0
            return False
        at_once = used_ns <= _AT_ONCE_NS
        if self.backwards:
            # The loader that is trained on: the program joins batches, or skips some. Such a batch is used
            # for less than a quarter of the mean time that training on one takes.
            short = 4 * used_ns * self.backwards <= self.forward_ns + self.backward_ns
            drawn = at_once or (self.drawn_from == self.trained_on != 0 and short)
            ahead = drawn and self.unused_open <= _MOST_AT_ONCE and has_gradients_on()
        elif self.updates:
            return True  # no backward is ever seen here, so that its absence proves nothing
        elif self.unused_open - self.evals_open > self.most_ahead or used_ns > _LONGEST_AHEAD_NS:
            self.most_ahead = 0
            return False
        else:
            ahead = self.graded and has_gradients_on()  # training may follow an evaluation's last batch
        if ahead and at_once:
            self.at_once += 1
        return ahead

    def _end_epoch(self, now: int) -> None:
        """Count as evaluation what was taken for fetched ahead and is unused where the DataLoader ended."""
        # The shorter of two loaders may end while a batch of the other waits for its use.
        is_other = self.drawn_from != self.ended_from
        unused = self.unused_open > (max(self.evals_open, self.lookahead) if is_other else self.evals_open)
        if unused and not self.backwards_open and self.rule != wire.RULE_CALL:
            self._count_unused(now)
        self.unused_open = self.evals_open = self.at_once = 0

    def _count_unused(self, now: int) -> None:
        if not self.updates and not self.backwards:
            self.rule = wire.RULE_BATCH
        self._close_eval(now, self.unused_open - self.evals_open)
        self.evals_open = self.unused_open
        self.at_once = 0

    def _end_part(self, now: int) -> None:
        """End a batch with a backward and no update: a part of a step, or there is no torch optimizer."""
        if self.rule == wire.RULE_BACKWARD:
            self.guessed += 1
            self._close(now, 1)
        elif self.rule != wire.RULE_CALL:
            self.rebase()
            if self.backwards_open < _BACKWARDS_WITHOUT_UPDATE:
                return
            if not self.updates:
                self.rule = wire.RULE_BACKWARD
                self.guessed = self.batches_open
                self._close(now, self.batches_open)
            elif self.guessed:
                self.steps -= self.guessed  # it accumulates: those were no steps either
                self.guessed = 0

    def _reconsider(self) -> None:
        """Return to steps by data where batches and updates alternate."""
        if self.updates_at_batch < 0:
            return  # the DataLoader had ended: these updates do not belong to its last batch
        updates = self.updates - self.updates_at_batch
        self.votes = self.votes + 1 if 0 < updates <= _UPDATES_A_BATCH else 0
        if self.votes >= 2:
            self.rule = wire.RULE_DATA_AFTER_UPDATE
            self.votes = 0

    def _learn_ahead(self, steps: int) -> None:
        """Decide at the end of a step whether its batches without a backward were for it or an evaluation."""
        if self.backwards_open:
            self.trained_on = self.drawn_from
        at_once, self.at_once = self.at_once, 0
        if self.evals_open and self.backwards_open == self.batches_open:
            # Each of those batches got its backward after all: this loop fetches ahead.
            self.lookahead = self.evals_open
        elif steps != 1 or (self.updates and not self.backwards):
            return
        elif not self.steps:
            self._learn_first(self.unused_open - self.evals_open, at_once)
        elif self.unused_open > self.lookahead and self.rule == wire.RULE_DATA_AFTER_UPDATE:
            # A DataLoader that ends within each step belongs to an evaluation.
            over = self.batches == self.batches_at_end
            if over or self.unused_open != self.unused_before or self.steps != self.unused_at:
                self.alike = 0
            self.unused_before = self.unused_open
            self.unused_at = self.steps + 1
            self.alike += 1
            if self.alike == _ALIKE:
                self.lookahead = self.unused_open

    def _learn_first(self, unused: int, at_once: int) -> None:
        """Tell the first step's batches from those of an evaluation, whose times stay in the step."""
        evals = unused - at_once
        if evals <= self.backwards_open:
            self.lookahead = unused
            return
        self.eval_steps += evals
        samples = min(evals * self.batch_size, self.samples_open)
        self.samples_open -= samples
        self.eval_samples += samples

    def _close(self, now: int, steps: int) -> None:
        if self.unused_open:
            self._learn_ahead(steps)
        self.steps += steps
        if self.updates_open > self.updates_a_step:  # noqa: PLR1730  # max() is called, 0.05 us
            self.updates_a_step = self.updates_open
        self.batches_open = self.backwards_open = self.updates_open = self.unused_open = self.evals_open = 0
        # As in rebase, without the call: 0.06 us of the 1.9 us that a step costs in a tight loop.
        self.samples += self.samples_open
        self.samples_open = 0
        self.base_data = self.data_ns
        self.base_forward = self.forward_ns
        self.base_backward = self.backward_ns
        self.base_other = self.other_ns
        if now >= self.due_ns:
            self.settle(now, True)

    def _close_eval(self, now: int, steps: int) -> None:
        """Count evaluation steps, and take their time out of that of training."""
        if self.watch is not None and self.rule != wire.RULE_BATCH:
            self.watch.evaluated()
        self.eval_steps += steps
        self.eval_samples += self.samples_open
        self.samples_open = 0
        self.eval_data_ns += self.data_ns - self.base_data
        self.eval_forward_ns += self.forward_ns - self.base_forward
        self.eval_other_ns += self.other_ns - self.base_other + self.backward_ns - self.base_backward
        self.data_ns = self.base_data
        self.forward_ns = self.base_forward
        self.backward_ns = self.base_backward
        self.other_ns = self.base_other
        if now >= self.due_ns:
            self.settle(now, self.rule == wire.RULE_BATCH)


# The live words, short: they are written at each event.
_DATA_BEGAN = wire.LIVE_DATA_BEGAN
_BACKWARD_BEGAN = wire.LIVE_BACKWARD_BEGAN
_BACKWARD_ENDED = wire.LIVE_BACKWARD_ENDED
_OPTIMIZER = wire.LIVE_OPTIMIZER
_LEFT = wire.LIVE_LEFT
_BY_DATA = wire.RULE_DATA_AFTER_UPDATE


class Steps(StepEnds):
    """Count the steps of this process by its events."""

    __slots__ = ()

    # The events come with every batch of every run: they make few calls.

    def data_begins(self) -> bool:
        """Note that a batch is asked for; return False when this call does not count."""
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
                self.drawn_from = id(told)  # the same in every epoch of a DataLoader
                if "batch_size" not in told:
                    told = find_sized(told)
                size = told["batch_size"]
                if told.get("split_batches"):  # Accelerate's: the size over all ranks
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
            ahead = self.lookahead or self.backwards_open or self.rule == wire.RULE_CALL
            if self.unused_open > self.evals_open and self.steps and not ahead:
                self._end_epoch(now)  # all were drawn at once, in a loop that fetches none ahead
        except Exception as error:
            if not self.fail(error):
                raise

    def backward_begins(self) -> bool:
        """Note that the autograd engine begins; return False when this call does not count."""
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
            self.depth += 1  # last: where this is interrupted, nothing has begun
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
            self.backwards_since_update += 1  # an update may use gradients that autograd.grad returned
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

        A disabled scaler skips none. Nor does a DeepSpeed engine (``scaler``) that reports an update: there
        the hook does not see the optimizer.
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
        """Note that the user ends a step here; from now on nothing else ends one."""
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
        """Count a step that another thread than the loop's ended; phases stay the loop's."""
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
        """Uncount steps before the loop: optimizers make one to build their state."""
        self.trained_on = self.drawn_from
        before_loop = self.batches == self.batches_open and not self.differentiated
        if self.steps and before_loop and self.rule != wire.RULE_CALL:
            self.rule = wire.RULE_NONE
            self.steps = self.updates = self.updates_open = self.votes = self.updates_a_step = 0
            self.updates_at_batch = min(self.updates_at_batch, 0)

    def _leave_backward(self, now: int) -> None:
        """Leave a backward whose end was lost to an interrupt: one thread does not train on within it."""
        self.depth = 0
        if self.update_in_backward:
            self.update_in_backward = False
            self._update(now)
