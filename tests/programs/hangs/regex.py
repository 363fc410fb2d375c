"""Match a text with an expression that tries all ways: the regular expression engine holds the interpreter."""

import re

from hang import Hang, Sticky

TEXT = "a" * 64 + "b"
PATTERN = re.compile(r"(a|a)+$")


class Captions(Sticky):
    def stick(self) -> None:
        program.tell()
        PATTERN.match(TEXT)


def clean() -> None:
    program.tell()
    PATTERN.match(TEXT)


program = Hang(__doc__)
if program.draw.random() < 0.5:
    program.train_sticky(Captions)
else:
    program.train_until(clean)
