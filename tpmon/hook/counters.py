"""Hold what the hook counts in this process, and write it to the bus (``wire`` defines each word).

``*_open`` counts since the last step. ``base_*`` is where the last batch began: an evaluation step takes
what came after.
"""

from __future__ import annotations

from _thread import get_ident
from time import monotonic_ns

from tpmon import __version__
from tpmon.hook.bus import wire
from tpmon.hook.bus.pages import leave_word
from tpmon.hook.context import (
    GRAPHS,
    describe,
    is_loader_worker,
    is_of_python,
    is_ours,
    read_put_in,
    read_ranks,
    read_torch_version,
)

TYPE_CHECKING = False  # importing typing takes longer than the rest of the hook
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tpmon.hook.bus.pages import Pages

NOBODY = 0
OFF = -1

WATCHED = -1
"""As ``answered`` it equals no request, so that the mailbox is looked at after each step (``attend``)."""

NOTHING, BATCH, BACKWARD, UPDATE, CALL = range(5)
"""The last event; CALL: a scaler's update or a call of ``step()``."""

SILENT_NS = 1_000_000_000
"""Where no step ends, counters are published this often."""

SHORT_NS = 2_000_000
"""Shorter steps share a record, and a look at the mailbox unless a request is under way."""

_TAKE_OVER = 8
"""Another thread becomes the training thread by so many updates while the present one makes none."""

_LONGEST_BACKWARD_NS = 60_000_000_000
"""After so long in a backward another thread of Python may count: the end was lost with its thread."""

_MOST_AHEAD = 32
"""The Trainer fetches all batches of an accumulation first; more without a backward are an evaluation."""

_REPLAYS = "a CUDA graph holds whole steps, and nobody sees its replays: call tpmon.hook.step() after each"


class Counts:
    """Hold counters and times; ``owner`` is the training thread, ``problem`` why the hook is off."""

    __slots__ = (
        "alike",
        "answered",
        "at_once",
        "backward_ns",
        "backwards",
        "backwards_open",
        "backwards_since_update",
        "base_backward",
        "base_data",
        "base_forward",
        "base_other",
        "batch_size",
        "batches",
        "batches_at_end",
        "batches_open",
        "between_ns",
        "data_ns",
        "ddp",
        "depth",
        "differentiated",
        "drawn_from",
        "due_ns",
        "elsewhere",
        "ended_from",
        "eval_data_ns",
        "eval_forward_ns",
        "eval_other_ns",
        "eval_samples",
        "eval_steps",
        "evals_open",
        "forward_ns",
        "fsdp",
        "graded",
        "graphed_at",
        "guessed",
        "in_data",
        "kind",
        "last_ns",
        "live",
        "loader_seen",
        "lookahead",
        "mailbox",
        "most_ahead",
        "on_off",
        "optimizer_calls",
        "optimizer_ns",
        "other_base",
        "other_ns",
        "other_thread",
        "other_updates",
        "owner",
        "page",
        "pages",
        "patches",
        "problem",
        "published_ns",
        "records",
        "requests",
        "rival",
        "rule",
        "samples",
        "samples_open",
        "skipped",
        "steps",
        "trained_on",
        "unused_at",
        "unused_before",
        "unused_open",
        "update_in_backward",
        "updates",
        "updates_a_step",
        "updates_at_batch",
        "updates_open",
        "votes",
        "watch",
        "watch_at",
        "watcher",
    )

    def __init__(self, on_off: Callable[[], None], mailbox: Any = None) -> None:
        """Take patches back after an error by ``on_off``; leave all requests but a ping to ``mailbox``."""
        self.on_off = on_off
        self.mailbox = mailbox
        self.patches = 0
        self.pages: Pages | None = None
        self.ddp: list[Any] = []
        self.fsdp: list[Any] = []
        self.forget()

    def forget(self) -> None:
        """Begin anew without pages, as in a forked child."""
        self.drop_pages()
        self.problem = ""
        self.watch: Any = None
        self.watcher: Any = None
        self.watch_at = self.due_ns = 0
        self.owner = NOBODY
        self.other_thread = self.other_base = self.other_updates = 0
        self.in_data = self.update_in_backward = self.loader_seen = self.graded = self.differentiated = False
        self.depth = self.kind = self.last_ns = self.published_ns = self.records = self.answered = 0
        self.between_ns = 0
        self.guessed = self.graphed_at = 0
        self.rule = wire.RULE_NONE
        self.votes = 0
        self.steps = self.eval_steps = self.batches = self.backwards = 0
        self.optimizer_calls = self.updates = self.skipped = self.elsewhere = 0
        self.samples = self.eval_samples = self.batch_size = 0
        self.drawn_from = self.ended_from = self.trained_on = self.rival = 0
        self.batches_open = self.backwards_open = self.updates_open = self.samples_open = 0
        self.unused_open = self.evals_open = self.at_once = self.lookahead = 0
        self.unused_before = self.unused_at = self.alike = 0
        self.most_ahead = _MOST_AHEAD
        self.backwards_since_update = self.updates_a_step = 0
        self.batches_at_end = self.updates_at_batch = -1
        self.data_ns = self.forward_ns = self.backward_ns = self.optimizer_ns = self.other_ns = 0
        self.eval_data_ns = self.eval_forward_ns = self.eval_other_ns = 0
        self.base_data = self.base_forward = self.base_backward = self.base_other = 0

    def drop_pages(self) -> None:
        """Close the pages, if there are any."""
        pages, self.pages = self.pages, None
        self.live = self.page = self.requests = memoryview(b"")
        if pages is not None:
            pages.close()

    def fail(self, error: Exception) -> bool:
        """Turn the hook off after an error of its own; False when the error is not ours."""
        if not is_ours(error):
            return False
        self.turn_off(describe(error))
        return True

    def turn_off(self, problem: str) -> None:
        """Stop counting for good and write the reason to the bus; make a page for it where there is none."""
        self.owner = OFF
        self.problem = problem
        try:
            self.on_off()
            if self.pages is None and not is_loader_worker():
                self._make_pages()
            if self.pages is not None:
                self.pages.set_status(wire.STATE_DISABLED, 0, problem)
        except Exception as error:
            self.problem = f"{problem}; then {error}"
            leave_word(problem)

    def turn_off_later(self, problem: str) -> None:
        """Stop counting for good, and write the reason at the first event: a DataLoader worker has none."""
        self.problem = problem
        self.owner = NOBODY

    def rebase(self) -> None:
        """Book what was counted as training; an evaluation batch takes what follows."""
        self.samples += self.samples_open
        self.samples_open = 0
        self.base_data = self.data_ns
        self.base_forward = self.forward_ns
        self.base_backward = self.backward_ns
        self.base_other = self.other_ns

    def admit(self, event: int) -> bool:
        """Decide whether an event of a thread that is not the training thread counts."""
        if self.owner == OFF:
            return False
        thread = get_ident()
        if self.owner == NOBODY:
            return self.open(thread)
        if event == BACKWARD and is_of_python(thread):
            self.rival = thread  # a second training: the engine lets others run in between
        if self.depth and event != BATCH:
            if thread != self.rival and (event == UPDATE or not is_of_python(thread)):
                # A thread of the engine for a device (optimizers in the backward, checkpoints), or of a pool
                # that takes gradients from the backward. The owner waits.
                if event == UPDATE:
                    self.optimizer_calls += 1
                    self.update_in_backward = True
                return False
            if monotonic_ns() - self.last_ns < _LONGEST_BACKWARD_NS:
                self.elsewhere += 1
                return False
        if event != BATCH and not self.backwards and not self.optimizer_calls:
            # So far the owner only fetched data: it is a prefetcher.
            self.become(thread)
            return True
        if event >= UPDATE and self.takes_over(thread):
            self.become(thread)
            return True
        self.elsewhere += 1
        return False

    def takes_over(self, thread: int) -> bool:
        """Tell whether training goes on in this thread: a second run of a launcher, a notebook."""
        if self.other_thread != thread or self.other_base != self.optimizer_calls:
            self.other_thread, self.other_base, self.other_updates = thread, self.optimizer_calls, 0
        self.other_updates += 1
        return self.other_updates >= _TAKE_OVER

    def open(self, thread: int) -> bool:
        """Make the pages at the first event; a DataLoader worker gets none."""
        if is_loader_worker():
            self.owner = OFF
            return False
        if self.problem:
            self.turn_off(self.problem)
            return False
        self.announce()
        self.owner = thread
        self.last_ns = self.published_ns = monotonic_ns()
        self.due_ns = self.last_ns + SHORT_NS
        if self.mailbox is not None:
            self.mailbox.opened(self)
        return True

    def announce(self) -> None:
        """Make the pages where there are none; before the first event they say that the hook is in."""
        if is_loader_worker():
            return
        pages = self.pages or self._make_pages()
        pages.set_status(wire.STATE_RUNNING, self.patches, "")

    def _make_pages(self) -> Pages:
        from tpmon.hook.bus.pages import Pages  # noqa: PLC0415 a millisecond that only trainings pay

        pages = self.pages = Pages(__version__, read_torch_version(), read_ranks(), read_put_in())
        self.page = pages.page
        self.live = pages.live
        self.requests = pages.requests
        return pages

    def become(self, thread: int) -> None:
        """Count this thread from here on."""
        self.owner = thread
        self.depth = self.kind = 0
        self.in_data = self.loader_seen = self.update_in_backward = False
        self.batches_open = self.backwards_open = self.updates_open = 0
        self.unused_open = self.evals_open = self.at_once = self.samples_open = 0
        self.last_ns = monotonic_ns()
        if self.mailbox is not None:
            self.mailbox.opened(self)  # again: a thread that fetches batches may have made the pages
            self.mailbox.look_at_signal()

    def settle(self, now: int, may_look: bool) -> None:
        """Do what is not due at each end of a step: publish, watch the next, answer the mailbox."""
        if now - self.published_ns >= SHORT_NS:
            self.published_ns = now
            self.publish(now)
        if may_look and now >= self.watch_at:
            self.look(now)
        if self.graphed_at and self.steps > self.graphed_at and self.pages is not None:
            self.graphed_at = 0  # steps end beside it all the same
            self.pages.set_status(wire.STATE_RUNNING, self.patches, "")
        if self.requests[0] != self.answered:
            self.answer()
        self.due_ns = now + SHORT_NS if self.watch is None and self.answered != WATCHED else 0

    def attend(self) -> None:
        """Look at the mailbox at the end of each step until a request is answered."""
        self.answered = WATCHED
        self.due_ns = 0

    def publish(self, now: int) -> None:
        """Write a record, then the count of records; ``published_ns``: when the last step with one ended."""
        number = self.records
        wire.RECORD.pack_into(
            self.page,
            wire.RING_OFFSET + number % wire.RING_RECORDS * wire.RECORD_BYTES,
            number,
            now,
            self.rule,
            self.steps,
            self.eval_steps,
            self.batches,
            self.backwards,
            self.optimizer_calls,
            self.updates,
            self.skipped,
            self.samples,
            self.eval_samples,
            self.data_ns,
            self.forward_ns,
            self.backward_ns,
            self.optimizer_ns,
            self.other_ns,
            self.eval_data_ns,
            self.eval_forward_ns,
            self.eval_other_ns,
            self.elsewhere,
            self.batch_size,
            self.published_ns,
            number,
        )
        self.records = number + 1
        self.live[wire.LIVE_RECORDS] = number + 1

    def publish_between(self, now: int) -> None:
        """Write a record where no step ended for a second, and have the mailbox do what is due then."""
        if now - self.between_ns <= SILENT_NS:
            return
        self.between_ns = now
        self.publish(now)
        if self.mailbox is not None:
            self.mailbox.between()

    def look(self, now: int) -> None:
        """Begin or end to watch a step: settings, and times of the device."""
        if self.watcher is None:
            from tpmon.hook.step_sample import Watcher  # noqa: PLC0415 a millisecond that only trainings pay

            self.watcher = Watcher(self)
        self.watch_at = self.watcher.at_step(now)

    def graph_noted(self, graph: object, begins: bool) -> None:
        """Note that the capture of a CUDA graph begins or ends, in any thread.

        Replays of a graph with an update or a backward end steps that the hook cannot see.
        """
        try:
            seen = self.optimizer_calls + self.backwards
            if begins:
                GRAPHS[graph] = seen
            elif GRAPHS.pop(graph, seen) != seen and get_ident() == self.owner and self.pages is not None:
                self.graphed_at = 0 if self.rule == wire.RULE_CALL else self.steps + 1
                if self.graphed_at:
                    self.pages.set_status(wire.STATE_UNSEEN, self.patches, _REPLAYS)
        except Exception as error:
            if not self.fail(error):
                raise

    def wrapper_made(self, made: list[Any], module: object) -> None:
        """Add a module to ``ddp`` or ``fsdp``: its settings are read while it lives."""
        try:
            from tpmon.hook.tensors import note_wrapper  # noqa: PLC0415 who trains in one process pays nothing

            made[:] = note_wrapper(made, module)
        except Exception as error:
            if not self.fail(error):
                raise

    def answer(self) -> None:
        """Answer the mailbox. Any process of the user can write it: its bytes are only compared."""
        request, kind = self.requests[0], self.requests[1]
        ping = kind in (0, wire.KIND_PING) and self.answered != WATCHED
        if self.mailbox is not None and self.pages is not None and not ping:
            self.mailbox.requested()
        else:
            self.reply(request, wire.ANSWER_DONE if kind == wire.KIND_PING else wire.ANSWER_UNKNOWN)

    def reply(self, request: int, answer: int) -> None:
        """Write the answer to a request, and look again when there is another."""
        self.answered = request
        if self.pages is not None:
            self.pages.answers[1] = answer
            self.pages.answers[0] = request
