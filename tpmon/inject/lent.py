"""Lend the hook to processes for one capture: put it in, take it out at the end, and look that it is out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpmon.inject.late_hook import LateHook, install_everywhere
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.model.text.late_words import describe_result


class LentHooks:
    """Hold the hooks that were put in for one capture."""

    def __init__(self, tell: Callable[[str], None], warn: Callable[[str], None]) -> None:
        """Lend nothing yet; ``tell`` takes what was done, ``warn`` what a person has to do."""
        self._tell, self._warn = tell, warn
        self._hooks: list[LateHook] = []
        self.out: tuple[str, ...] = ()
        """A line for each that is out again."""

    def put_in(self, hooks: Sequence[LateHook]) -> None:
        """Put the hook into each process, or into none; RefusedError where one refuses."""
        self._hooks += hooks  # first: who is interrupted takes out what was asked for too
        for result in install_everywhere(hooks):
            self._tell(describe_result(result))

    def close(self) -> None:
        """Take the hook out of each, and warn where it is not out afterwards."""
        while self._hooks:
            hook = self._hooks.pop()
            pid = hook.process.pid
            still = f"the hook is still in pid {pid}: tpmon hook {pid} --remove takes it out"
            try:
                result = hook.remove()
                if hook.is_there():
                    self._warn(still)
                else:
                    self.out = (*self.out, describe_result(result))
                    self._tell(self.out[-1])
            except RefusedError as error:
                if error.reason is not RefusalReason.GONE:
                    self._warn(f"{still} ({error.what})")
            except BaseException:
                self._warn(still)
                raise
