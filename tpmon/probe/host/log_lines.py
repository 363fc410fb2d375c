"""Read what one line of a training's log tells of its steps: bars, named counters, stated rates, losses.

Pure, of text alone. What only looks like a step (bars of downloads and evaluations, epochs, dates, sizes)
gives nothing: a line is read for its step only where it says what it counts, or by ``NumberLine`` where the
lines after it show what rises.
"""

from __future__ import annotations

import re
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, NotApplicable, is_known

MOST_CHARACTERS = 400
"""Of a line that are read."""
MOST_STEP = 10**9
"""From here on a number is a time since 1970, an address or a hash."""
NOT_STATED = Missing("the lines of the log state no rate, and their steps have not been counted long enough")
NEAR = 48
"""So many characters before a number are searched for what it counts."""
STEP, ITERATION, SAMPLE = "step", "it", "sample"

_NUMBER = r"[-+]?(?:\d{1,18}\.?\d{0,18}|\.\d{1,18})(?:[eE][-+]?\d{1,3})?"
_COUNT = r"\d{1,3}(?:[,_]\d{3})+|\d{1,10}"
_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SCALE_S = {"us": 1e-6, "ms": 1e-3, "min": 60.0}
"""All other units of a time are seconds."""

_BAR = re.compile(
    r"(?<![\d.])(?P<step>\d{1,12}(?:\.\d{1,3})?)(?P<si>[kKMGT]?)"
    r"(?:/(?P<total>\d{1,12}(?:\.\d{1,3})?)(?P<total_si>[kKMGT]?)|\s?[A-Za-z]\w{0,20})?\s?"
    r"\[\d[^\]]*?,\s*"
    r"(?:(?P<rate>\d{1,12}(?:\.\d{1,6})?)(?P<rate_si>[kKMGT]?)\s?(?P<unit>[^\W\d][^/,\]\s]*)/s"
    r"|(?P<took>\d{1,12}(?:\.\d{1,6})?)s/\s?(?P<unit_took>[^\W\d][^/,\]\s]*)"
    r"|\?\s?(?P<unit_first>[^\W\d][^/,\]\s]*)/s)"
    r"(?:,[^\r\n]*)?\]"
)
"""What tqdm writes behind its bar: ``1230/5000 [02:11<06:40, 9.41it/s, loss=2.15]``."""
_BAR_ITSELF = re.compile(r"\s*\d{1,3}%\|[^|]*\|\s*$|[\s|#=>.\u2500-\u259f\d%()-]*$")
_PAIR = re.compile(r"(?<![\w.:/])(\d{1,10})\s?/\s?(\d{1,10})(?![\w:/]|\.\d)")

_COUNTER = re.compile(
    rf"(?<![\w.-])(?=[bcginostu])(?P<name>(?:(?:train(?:ing|er)?|opt(?:im(?:izer)?)?|cur(?:rent)?)[ _/.])?"
    r"(?:global[ _]?steps?|(?:total[ _])?timesteps?|steps?|iter(?:ation)?s?|itr|(?:num_)?updates?"
    r"|batch(?:es)?|it))"
    r"(?:\(train\)\s*(?:\[\d+\])?)?['\"]?\s*[:=#|]?\s*['\"\[(]?\s*"
    rf"(?P<step>{_COUNT})(?![\w%]|\.\d|:\d|,\d|\s?(?:ms|s|secs?|seconds?|it|x)\b|\s?/\s?s\b)"
    rf"(?:\s*(?:/|of|out of)\s*(?P<total>{_COUNT})(?![\w.]))?",
    re.IGNORECASE,
)
_EPOCH_OF = re.compile(
    r"\b(?:(?:[Ee]poch(?:\(train\))?|[Tt]rain\w*):?\s*\[\d+(?:/\d+)?\]"
    r"|[Tt]rain\w*:?\s*\d+(?:/\d+)?(?:\s\(\s*\d+%\))?)"
    rf"\s*\[\s*(?P<step>{_COUNT})\s*/\s*(?P<total>{_COUNT})(?:\s\(\s*\d+%\))?\]"
)
"""``Epoch: [3] [ 10/504]``, ``Train: [3/90][10/504]``, ``Train: 3 [ 10/504 (  2%)]``: batches of an epoch."""
_SAMPLES_OF = re.compile(
    rf"\b[Tt]rain\w*\b.*?\b[Ee]poch\b.*\[\s*(?P<step>{_COUNT})/(?P<total>{_COUNT}) \(\s*\d+%\)\]"
)
"""``Train Epoch: 1 [640/60000 (1%)]``: samples of an epoch, not batches."""
_KNOWN_STEPS = re.compile(
    rf"\d+epoch:train:\d+-(?P<espnet>{_COUNT})batch:|\bTRAIN\b.*?\bBatch \d+/(?P<wenet>{_COUNT})\s"
)
"""Of known formats whose words mislead: the range of steps that a line is of; epoch and batch."""
_PER_SECOND = r"(?:it|iters?|iterations?|steps?|batch(?:es)?|updates?)"
_STATED = re.compile(
    rf"(?<![\w.])(?P<rate>{_NUMBER})(?:\s?{_PER_SECOND}\s?/\s?s(?:ec(?:ond)?)?\b|/s, eta\b)"
    rf"|(?<![\w.])(?P<took>{_NUMBER})\s?(?P<scale>us|ms|s|secs?|seconds?|min)\s?(?:/|per)\s?"
    r"(?:it|iter|iteration|step|batch|update)\b"
    rf"|(?<![\w/])(?:{_PER_SECOND}(?:[_ ]per[_ ]sec(?:ond)?|/s(?:ec)?)|ups)['\"]?\s*[:=]\s*['\"]?"
    rf"(?P<named>{_NUMBER})"
    r"|(?<![\w/])(?:elapsed )?(?:time|sec(?:ond)?s?|(?P<ms_each>ms))[ _/](?:per[_ ])?"
    r"(?:step|iter(?:ation)?|it|batch)(?:\s?\((?P<scale_in>ms|s)\))?['\"]?\s*[:=]\s*['\"]?"
    rf"(?P<each>{_NUMBER})\s?(?P<scale_after>us|ms|s)?(?![\w.])",
    re.IGNORECASE,
)
_RATE_SIGNS = ("/s", "/it", "/b", "/u", "per", "ups")
"""One of them is in every rate that is stated; most lines have none."""
_KNOWN_TIMES = (
    re.compile(rf"^iter \d+: loss {_NUMBER}, time (?P<ms>\d+(?:\.\d+)?)ms\b"),  # nanoGPT: of this iteration
    re.compile(rf"\btime: (?P<s>\d+\.\d+)\s(?=.*\bdata_time: {_NUMBER})"),  # detectron2, mmengine
)
"""Times of one step in formats that are known: in any other line a time may be that of many steps."""
_LOSS = re.compile(
    r"(?<![A-Za-z0-9])(?P<of>(?:[A-Za-z]{1,20}[ _/-]){0,2})"
    r"loss(?:_step|/train(?:/total)?| train)?['\"]?\s*(?:\([^)\d]*\)\s*)?[:=|]?\s*"
    rf"(?:['\"]|(?:np\.)?(?:tensor|array|float\d\d)\(\[?)?(?P<loss>{_NUMBER}|nan|[-+]?inf)(?![\w%])",
    re.IGNORECASE,
)
_LOSSES = frozenset(
    ("", "train", "training", "step", "total", "lm", "avg", "avr", "mean", "running", "batch", "ce")
)

_ASIDE = re.compile(
    r"(?<!/)\b(?:eval(?:s|uat\w*)?|val|valid(?:ation|at\w*)?|test(?:s|ing)?|dev|predict\w*|infer\w*|sanity|sampling"
    r"|generat\w*|decod\w*|denois\w*|download\w*|upload\w*|prefill\w*)\b(?!\.\w)",
    re.IGNORECASE,
)
"""Before a counter: it does not count training steps. ``test.py:`` and ``/dev/`` name files."""
_OF_VALIDATION = re.compile(
    r"(?:[\[(]|\b(?:split|phase|mode|stage|subset)['\"]?\s?[:=]\s?['\"]?)"
    r"(?:e?val|valid|validation|evaluation|test|testing|dev)\b(?!.*\btrain)",
    re.IGNORECASE,
)
"""Behind a counter, the same."""
_VALIDATION_FIGURE = re.compile(
    r"\b(?:e?val|valid|validation|test|dev)[ _/-](?:loss|acc|ppl|err|score|iou|map)", re.IGNORECASE
)
"""Beside a counter with a total and no other loss: it may count the batches of a validation."""
_OTHER_FIGURE = re.compile(
    r"\b(?:inertia|imbalance|centroids?|residual|cuts|healthy|alive|rtt|latency|committed|rows"
    r"|RUN|COPY|GET|POST|PUT)\b"
)
"""Beside a counter in a line without a loss: of a solver, a decoding, a watchdog, a server, a build."""
_OTHER_WORK = (
    r"eval|val\b|valid|test|predict|infer|sanity|sampl|generat|decod|denois|download|upload|fetch|load|map\b"
    r"|filter|token|sav(?:e|ing)|extract|resolv|split|cach|index|convert|encod|shard|flatten|sort|prepar|preproc"
    r"|process(?!\])|pack|group|concat|comput|collect|scan|read|writ|checkpoint|build|merg|quantiz|calibrat|warm"
    r"|search|compil|captur|creat|check|clean|copy|embed|bench|rollout|autotun|insert"
)
_OTHER_BAR = re.compile(rf"\b(?:{_OTHER_WORK}|rank(?![\W_]{{0,2}}\d)|epochs?\W*$)", re.IGNORECASE)
"""In the name of a bar: it counts something else. ``Epoch`` counts epochs, ``Epoch 3`` the steps of one, and
``[rank3]`` says whose it is."""
_OTHER_COUNT = re.compile(
    rf"\b(?:{_OTHER_WORK}|scor|simulat|prun|retriev|transcri|translat|render|verif|dedup|watchdog|heartbeat"
    r"|monitor|poll|retr(?:y|ies)|pipeline|setup|fps|cg\b|icp\b)"
    r"[\w-]*\W{1,4}(?:[a-z]+ )?$"
    r"|\b(?:(?!\w*(?:train|tun)|learn|fit|optimi|runn)[a-z]+ing|of|from|until) $",
    re.IGNORECASE,
)
"""Right before a counter in a line without a loss, the same."""
_TRAIN_BAR = re.compile(
    r"train(?!\w*[ _-](?:data(?!_?loader)|set\b|split))"
    r"|epoch|episode|\bep\b|steps?\b|iter(?!ating)|\bfit|fine-?tun|optimi"
    r"|update|learn|loss|\b(?:sft|dpo|grpo|ppo)\b",
    re.IGNORECASE,
)
"""``train dataset`` names what is worked on, and not the work."""
_NAME = re.compile(r"(?!(?i:batch)(?!es)|batches)(?<![^\W\d_])[^\W\d_]{3}")
"""A bar of batches has no name either: of what, its words do not say. ``Batches`` are of an encoding."""
_STEP_UNIT = re.compile(rf"(?:its|{_PER_SECOND})$", re.IGNORECASE)
_NEVER_UNITS = re.compile(r"(?i)[kmgt]?i?b$|bytes?$|epochs?$|files?$|shards?$|splits?$")

_DRAWING = re.compile(r"\|(?=[\s#\u2580-\u259f])[\s#\u2580-\u259f]*\||[\u2500-\u259f]+")
_TOKEN = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_DECIMAL = re.compile(
    r"(?<![\w.])(?<!\d:)[-+]?(?:\d+\.\d+(?:[eE][-+]?\d+)?|\d+[eE]-\d+)(?![\w.:%]|\s?[KMGT]i?B\b)"
)
_RISES = re.compile(
    rf"(?<![\w.+/,-])(?<!\d:)(?P<step>{_COUNT})"
    r"(?![\w%]|\.\d|:\d|,\d|-\d|\s%)"
    r"(?!\s?(?:[KMGTkmgt]i?[Bb]?|B|bytes|us|ms|s|secs?|seconds?|min\w*|h|hours?|C|W|x)\b)"
    r"(?!\s(?!steps|iter|batches|updates)[A-Za-z]{2,}(?<!s)s\b)"
    rf"(?:\s?/\s?(?P<total>{_COUNT})(?![\w.:/]))?"
)
"""A number before a unit, or before what there are so many of ("240 lines"), is no step."""
_ONLY_FIGURES = re.compile(r"[\d.,eE+-]+\s*$")
_WORD_BEFORE = re.compile(r"(?<![^\W\d])([A-Za-z][A-Za-z_]*)['\"]?[\s:=#\[(]*$")
_STEP_NAME = re.compile(
    r"(?i)(?:\w*(?:iter|upd|step|batch)\w*|(?:\w+_)?(?:s|gs|i|it|n|k|j|b|u|up|mb|nb|num|no|cnt|count\w*|idx|index"
    r"|itr|global|train\w*|round|tick|done|opt\w*|info|debug|main|root|episodes?|games?"
    r"|log|out|notice|success|utc|gmt|[ap]m|schritte?|pasos?|passos?|etape|krok|stap))$"
)
"""In a line without a loss a number behind a word is a step only where it is one of these, or ends so."""
_NO_STEP = re.compile(
    r"(?i)(?:epochs?|ep|time|elapsed|eta|t|ts|uptime|clock|age|sec\w*|min(?:ute)?s?|hours?|max|warm\w*|date|day"
    r"|pid|port|size|mem\w*|gpus?"
    r"|cuda|cpus?|loss|lr|workers?|ranks?|node|seed|shards?|files?|chunks?|parts?|attempt|retry|try|line|id|version|micro|tok\w*"
    r"|sampl\w*|seen|consumed|examples?|images?|imgs?|frames?|docs?|bytes?|requests?|heartbeat|alive|fold|trials?|layers?|depth|queue"
    r"|\w*id|rss|vms|alloc\w*|reserved|used|free|peak|util\w*|temp\w*)$"
)
_NO_LOG_OF_STEPS = re.compile(
    r"(?i)\b(?:download|upload|eval|val\b|val_|valid|test|map\b|filter|tokeniz|load|sav|cach|shard|chunk|heartbeat|alive"
    r"|request|retr|fetch|http|early\w*stop|patience|waiting|progress|process|extract|epochs?\s+done|copied|received|sent|written|(?:task|trial)s?\b)"
)
_RARELY_OF_STEPS = re.compile(r"(?i)\b(?:acc\b|accuracy|eta\b|elapsed)")
"""Of a training only in a line that tells its loss."""


class LineForm(str, Enum):
    """Name how a line tells its step."""

    BAR = "bar"
    COUNTER = "counter"
    BARE = "bare"
    """A named counter and no other figure, in words that must be the same again."""
    NUMBERS = "numbers"
    """A number without a name."""


@dataclass(frozen=True, slots=True)
class LineReading:
    """Hold what one line tells. Lines with the same ``key`` count the same thing."""

    form: LineForm
    key: str
    unit: str
    step: int
    total: Applicable[int]
    rate_hz: Known[float]
    """``unit`` a second, as the line states it."""
    loss: Applicable[float]
    is_named: bool
    """Whether it says that it counts training: by its name, or by a loss in it."""
    is_exact: bool = True
    """False for a step that is rounded ("1.23k")."""

    @property
    def is_finished(self) -> bool:
        """Return whether the counter has come to its total."""
        return is_known(self.total) and self.step >= self.total


@dataclass(frozen=True, slots=True)
class NumberLine:
    """Hold the whole numbers of a line without a named counter, any of which may be its step."""

    key: str
    values: tuple[int, ...]
    totals: tuple[int, ...]
    """Of each; 0 without one."""
    decimals: tuple[str, ...]
    loss: Applicable[float]


def mask(text: str) -> str:
    """Return the shape of a line: each number as "#", without the drawing of a bar."""
    return _DRAWING.sub("", _TOKEN.sub("#", text))


def parse_loss(text: str) -> Applicable[float]:
    """Return the training loss that a line tells; not applicable where it tells none."""
    if "oss" not in text and "OSS" not in text:
        return NOT_APPLICABLE
    begin = 0
    for found in _LOSS.finditer(text):
        of = re.split("[ _/-]", found["of"].lower().rstrip(" _/-"))
        if _ASIDE.search(" ".join(of)):
            begin = found.end()
        elif of[-1] in _LOSSES and not _ASIDE.search(text, begin, found.start()):
            said = found["loss"].lower()
            return Missing(f"the log says {said}") if said[-1] in "nf" else float(said)
    return NOT_APPLICABLE


def parse_line(text: str) -> LineReading | NumberLine | None:
    """Return what a line tells of its steps, None where it tells nothing."""
    text = text[:MOST_CHARACTERS]
    if not any(map(str.isdigit, text)) or "train_runtime" in text:
        return None
    bar = _parse_bar(text) if "/s" in text or "s/" in text else NOT_APPLICABLE
    if bar is not NOT_APPLICABLE:
        return bar
    counter = _parse_counter(text)
    return _parse_numbers(text) if counter is NOT_APPLICABLE else counter


def _parse_bar(text: str) -> LineReading | NotApplicable | None:
    """Return a bar of tqdm, or a pair "420/1000" with a rate; None for a bar of something else."""
    found = _BAR.search(text)
    if found is None:
        return _parse_other_bar(text)
    rate_hz: Known[float] = NOT_STATED
    if found["rate"] and float(found["rate"]) > 0:
        rate_hz = float(found["rate"]) * _SI[found["rate_si"]]
    elif found["took"] and float(found["took"]) > 0:
        rate_hz = 1 / float(found["took"])
    unit = found["unit"] or found["unit_took"] or found["unit_first"]
    step = float(found["step"]) * _SI[found["si"]]
    total = float(found["total"]) * _SI[found["total_si"]] if found["total"] else 0.0
    is_exact = not found["si"] and "." not in found["step"]
    return _name_bar(text, found.start(), BarFigures(unit, step, total, rate_hz, is_exact))


def _parse_other_bar(text: str) -> LineReading | NotApplicable | None:
    every = [one for one in _PAIR.finditer(text) if int(one[1]) <= int(one[2])]
    stated = _STATED.search(text) if every else None
    if stated is None or _COUNTER.search(text) or _ASIDE.search(text, 0, stated.start()):
        return NOT_APPLICABLE
    pairs = [one for one in every if one.end() <= stated.start()]
    pairs = pairs or [one for one in every if text[one.start() - 1] == "("]
    if not pairs:
        return NOT_APPLICABLE
    step, total = (float(part) for part in pairs[-1].groups())
    bar = _name_bar(text, pairs[-1].start(), BarFigures(ITERATION, step, total, _read_stated(stated)))
    is_prediction = stated["took"] and bar is not None and not bar.is_named  # of Keras: "12/900 3s 40ms/step"
    return None if is_prediction else bar


@dataclass(frozen=True, slots=True)
class BarFigures:
    """Hold the figures of a bar; ``total`` is 0 without one."""

    unit: str
    step: float
    total: float
    rate_hz: Known[float]
    is_exact: bool = True


def _name_bar(text: str, start: int, bar: BarFigures) -> LineReading | None:
    """Return the reading of a bar, whose figures start there, where it counts training; else None."""
    name = _BAR_ITSELF.sub("", text[:start]).strip(" :\t")
    loss, unit = parse_loss(text), bar.unit
    is_named = loss is not NOT_APPLICABLE or bool(_TRAIN_BAR.search(name))
    is_nameless = not _NAME.search(name)
    is_steps = _STEP_UNIT.match(unit)
    if _OTHER_BAR.search(name) or _NEVER_UNITS.match(unit) or bar.step > MOST_STEP:
        return None
    if not is_named and not (is_nameless and is_steps):
        return None
    total = int(bar.total) or NOT_APPLICABLE
    key = f"{mask(name)[:60]}|{int(bar.total)}|{unit}"
    return LineReading(
        LineForm.BAR, key, unit, int(bar.step), total, bar.rate_hz, loss, is_named, bar.is_exact
    )


def _to_count(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))


def _rank_name(found: re.Match[str]) -> tuple[int, int]:
    name = found["name"].lower()
    kinds = ("global", "step|update", "it", "")
    return next(at for at, kind in enumerate(kinds) if re.search(kind, name)), found.start()


def _parse_counter(text: str) -> LineReading | NotApplicable | None:
    """Return the step of a line that names it; None for a counter of something else."""
    if ("epoch:" in text or "TRAIN" in text) and (known := _KNOWN_STEPS.search(text)):
        step, rate_hz, loss = _to_count(known[known.lastindex or 0]), _find_stated(text), parse_loss(text)
        key = mask(text[: known.start()])[-100:]
        return LineReading(LineForm.COUNTER, key, STEP, step, NOT_APPLICABLE, rate_hz, loss, is_named=True)
    unit, found = STEP, min(_COUNTER.finditer(text), key=_rank_name, default=None)
    if found is None:
        found = _EPOCH_OF.search(text)
    if found is None and "%)]" in text:
        unit, found = SAMPLE, _SAMPLES_OF.search(text)
    if found is None:
        return NOT_APPLICABLE
    if _ASIDE.search(text, 0, found.start()) or _OF_VALIDATION.search(text, found.end()):
        return None
    step, total = _to_count(found["step"]), _to_count(found["total"] or "0")
    loss = parse_loss(text)
    if step > MOST_STEP or (loss is NOT_APPLICABLE and _is_of_other_work(text, found, total)):
        return None
    rate_hz = _find_stated(text) if unit == STEP else NOT_STATED
    has_loss = loss is not NOT_APPLICABLE
    tells_more = has_loss or is_known(rate_hz) or _DECIMAL.search(text) is not None
    form = LineForm.COUNTER if tells_more else LineForm.BARE
    # A line that tells nothing else may be about anything: then all its words must be the same again.
    key = mask(text[: found.start("step")] if tells_more else text).rstrip()[-100:]
    known_total = total if total >= step and total else NOT_APPLICABLE
    return LineReading(form, key, unit, step, known_total, rate_hz, loss, is_named=has_loss)


def _is_of_other_work(text: str, found: re.Match[str], total: int) -> bool:
    """Tell whether a counter in a line without a training loss may count something else."""
    if _OTHER_FIGURE.search(text) or (total and _VALIDATION_FIGURE.search(text, found.end())):
        return True
    return _OTHER_COUNT.search(text, max(0, found.start() - NEAR), found.start()) is not None


def _find_stated(text: str) -> Known[float]:
    found = _STATED.search(text) if any(sign in text for sign in _RATE_SIGNS) else None
    if found is not None:
        return _read_stated(found)
    if "time" in text:
        for known in _KNOWN_TIMES:
            if time := known.search(text):
                times = time.groupdict()
                seconds = float(times["ms"]) / 1000 if "ms" in times else float(times["s"])
                return 1 / seconds if seconds > 0 else NOT_STATED
    return NOT_STATED


def _read_stated(found: re.Match[str]) -> Known[float]:
    """Return the rate that a match of ``_STATED`` states; missing for 0, and for a time without its unit."""
    if rate := found["rate"] or found["named"]:
        return float(rate) if float(rate) > 0 else NOT_STATED
    scale = found["scale"] or found["scale_in"] or found["scale_after"] or found["ms_each"]
    if scale is None and "sec" in found[0].lower():
        scale = "s"
    took = float(found["took"] or found["each"])
    if scale is None or took <= 0:
        return NOT_STATED
    return 1 / (took * _SCALE_S.get(scale.lower(), 1.0))


def _may_be_step(text: str, start: int, loss: Applicable[float]) -> bool:
    """Tell whether the word before a number, which starts there, lets it be a step."""
    word = _WORD_BEFORE.search(text, max(0, start - NEAR), start)
    if word is None:
        return True
    if any(map(_NO_STEP.match, word[1].split("_"))):
        return False
    return loss is not NOT_APPLICABLE or _STEP_NAME.match(word[1]) is not None


def _parse_numbers(text: str) -> NumberLine | None:
    """Return the numbers of a line that may be of a training's own format, None where it is of another."""
    if _ONLY_FIGURES.match(text):
        text = text.replace(",", " ")
    decimals, loss = tuple(_DECIMAL.findall(text)), parse_loss(text)
    if _NO_LOG_OF_STEPS.search(text):
        return None
    if loss is NOT_APPLICABLE and (not decimals or _RARELY_OF_STEPS.search(text)):
        return None
    values, totals = [], []
    for found in _RISES.finditer(text):
        step = _to_count(found["step"])
        if step < MOST_STEP and _may_be_step(text, found.start(), loss):
            values.append(step)
            totals.append(_to_count(found["total"] or "0"))
    if not values:
        return None
    key = " ".join(mask(text[:200]).split())[:100]  # a number that is padded must not begin another
    return NumberLine(key, tuple(values), tuple(totals), decimals, loss)
