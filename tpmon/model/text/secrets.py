"""Tell secrets by their names, their forms and their randomness: tables and their readers. Pure.

A name is rated by its words: "db_password" is a secret whatever it holds, of "token" and "key" it depends on
the value, "pad_token", "sort_key" and "password_file" hold none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from functools import cache, lru_cache
from itertools import islice, pairwise


def late(pattern: str, flags: int = 0) -> Callable[[], re.Pattern[str]]:
    """Return what compiles a pattern when it is first used: no first picture waits for these."""
    return cache(lambda: re.compile(pattern, flags))


class Rating(IntEnum):
    """Say what a name tells of its value."""

    NONE = 0
    WEAK = 1
    """A secret unless it is a number, a short word or code: token, key."""
    BRIEF = 2
    """A secret where it is surely a name, with "=" behind it or in quotes: pass, pw, auth."""
    STRONG = 3
    """A secret, whatever it looks like: password, api_key."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STEMS = _words("passw passphrase passcode secret credential apikey authkey accesskey privatekey")
_ALWAYS = _words(
    "authorization cookie cookies cred creds psk otp totp jwt mnemonic authtoken accesstoken sas webhook"
)
_WEAK = _words("key keys token tokens signature sig session sid csrf xsrf sessionid pat")
_VALUES = ("data", "str", "value", "b")
_BRIEF = _words("pass pw pwd auth")
_OF_SECRETS = _words(
    "access account admin anthropic api app auth aws azure azureml bearer bot client cohere csrf deploy"
    " encryption gh git github gitlab google hf hmac host hub huggingface id jwt kaggle license master"
    " mlflow neptune ngc npm oauth openai personal private refresh registration registry repl replicate"
    " secret security service session shared sign signing ssh ssl storage stripe subscription tls user"
    " vault wandb webhook"
)
"""Before "key" or "token" they make a secret of it."""
_OF_DATA = _words(
    "pad eos bos unk mask cls sep image special start end stop added next num n max min per total new"
    " input output train prompt generated type sort group primary foreign metric cache state dict"
    " missing unexpected index label text column feature batch query value attention padding past prefix"
    " map partition row record param best loss rank public pub first last prev max_new vocab sub extra"
    " each any all by unused reserved position positional eval val test audio video patch class register"
    " memory kv encoder decoder key-value unknown"
)
"""Before "key" or "token" they make data of it."""
_ABOUT = _words(
    "file path dir name names count size length len dim dims heads ids type types url uri endpoint ref"
    " frames bits rate limit expiry expires ttl age field fields prompt env var version policy manager"
    " store attempts usage budget throughput error required through enabled stdin per sec second s seen"
    " hint max min mask helper provider"
)
"""Behind a name of a secret they make it a name of something else."""
_PASSES = _words("forward backward first second third single one two per num n by com train eval warmup last")
_NOT_PASS = ("bypass", "compass", "surpass", "trespass", "lowpass", "highpass", "bandpass", "onepass")
_WORDS = late(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@lru_cache(maxsize=4096)
def rate_name(name: str) -> Rating:
    """Rate a name by its words, as they are parted by capitals, signs and numbers."""
    words = [word.lower() for word in _WORDS().findall(name)]
    if not words or (words[-1] in _ABOUT and name.lower() != "secret_id") or name == "OLDPWD":
        return Rating.NONE
    last, before = words[-1], words[:-1]
    if any(word in _ALWAYS or any(stem in word for stem in _STEMS) for word in words):
        return Rating.STRONG
    if last.endswith("pass") and last != "pass":
        return Rating.NONE if last in _NOT_PASS else Rating.STRONG
    if last in _BRIEF:
        return (Rating.STRONG if before else Rating.BRIEF) if _PASSES.isdisjoint(before) else Rating.NONE
    told = last in _VALUES and not {"key", "token"}.isdisjoint(words)
    if not (last in _WEAK or last.endswith(("token", "pwd", "signature")) or told):
        return Rating.NONE
    if not _OF_SECRETS.isdisjoint(before) or "pwd" in last:
        return Rating.STRONG
    return Rating.WEAK if _OF_DATA.isdisjoint(before) else Rating.NONE


_NOTHING = late(
    r"(?:none|null|nil|lambda|true|false|yes|no|undefined|\(hidden\)|[*•]+|x{3,}|\.{3}|…|\||>|[|>][+-]"
    r"|<[^>]*>?|\$\{.*|\$[A-Z_]{2,}|%\(\w+\)s|\{\{.*)?[,;)\]}]*",
    re.IGNORECASE,
)
_CODE = late(
    r"(?!Some\()[A-Za-z_][A-Za-z_.]*[(\[].*|(?:self|args|cfg|config|os|opts|options|settings|kwargs|hparams)\.[\w.]+"
)
_FOLDER = late(r"[/~][\w./-]*")
_HARMLESS = late(
    r"[-+]?[0-9][0-9._,]*(?:e[-+]?[0-9]+)?[kmgbt%]?(?:/\w{1,6})?[,;)]*"  # tokens=4096, tokens: 1.2k/s
    r"|\w{1,5}|[a-z_][\w.]*[(\[].*"  # key=loss, key = torch.cat(...) in a traceback
    r"|[\[({][\s0-9.,eE:+\[\](){}-]*",  # tokens: [4096, 512]
    re.IGNORECASE,
)
_NAMING = late(r"[a-z]+(?:[_. /-][a-z]+)+(?::\w{1,5})?|(?:[a-z_]+\.)+[\w.]+", re.IGNORECASE)
_WITH_FIGURES = late(r"(?=\w*[0-9])(?=\w*[A-Za-z])[A-Za-z0-9]{6,}")
_WITH_SIGNS = late(r"(?=.*[A-Za-z])\S*[!@#$%^&*?+][\S]*")


def is_harmless(rating: Rating, value: str, *, quoted: bool) -> bool:
    """Tell by a value without its quotes that it is no secret, although its name may be one of a secret."""
    if _NOTHING().fullmatch(value):
        return True
    if rating is Rating.BRIEF and _FOLDER().fullmatch(value):
        return True  # PWD=/home/me
    if rating > Rating.WEAK:
        return not quoted and _CODE().fullmatch(value) is not None
    return (_HARMLESS().fullmatch(value) or _NAMING().fullmatch(value)) is not None


def looks_secret(rating: Rating, word: str) -> bool:
    """Tell whether a word has letters with numbers or signs in it, as no word of a sentence has."""
    if _HARMLESS().fullmatch(word):
        return False
    signs = rating > Rating.WEAK and len(word) >= 8 and _WITH_SIGNS().fullmatch(word) is not None
    return signs or _WITH_FIGURES().search(word) is not None or (rating > Rating.WEAK and word.isdigit())


_SURE = late(
    r"(?<![A-Za-z0-9])(?:(?:sk-(?:ant|proj|or|svcacct)-|[srp]k_(?:live|test)_|whsec_|gh[pousr]_|github_pat_"
    r"|gl(?:pat|dt|rt|ft|cbt|ptt|agent|soat)-|xox[a-z]-|xapp-|gsk_|nvapi-|dckr_pat_|pypi-AgE|shp(?:at|ss|ca|pa)_"
    r"|lsv2_(?:pt|sk)_|do[op]_v1_|tskey-|GOCSPX-|ATATT3|AGE-SECRET-KEY-|glsa_|wandb_v1_|api_org_|hv[sbr]\.|PMAK-)"
    r"[\w-]{8,}(?:\.[\w-]+)*|(?:AKIA|ASIA)[A-Z0-9]{8,}|AIza[\w-]{20,}|ya29\.[\w-]{8,}|SG\.[\w-]{8,}\.[\w-]{8,}"
    r"|(?:dapi|key-)[0-9a-f]{32}|[0-9]{8,10}:AA[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
)
_UNSURE = late(
    r"(?<![A-Za-z0-9])(?:(?:hf_|sk-|key-|r8_|rpa_|tgp_v1_|xai-|pplx-|npm_|fw_|pat-|secret_|dp\.pt\.|figd_|PMAK-"
    r"|EAAC|phc_|sbp_|AKCp|ATBB)([A-Za-z0-9]{8,}[\w-]*)|[a-z0-9]{6}\.([a-z0-9]{16})(?![A-Za-z0-9]))"
)


def find_forms(text: str) -> list[tuple[int, int]]:
    """Find what is a secret by how it begins; an unsure beginning also takes a rest that is no word."""
    found = [one.span() for one in _SURE().finditer(text)]
    for one in _UNSURE().finditer(text):
        rest = one[1] or one[2]
        kinds = sum(map(any, ((c.isdigit() for c in rest), map(str.isupper, rest), map(str.islower, rest))))
        if kinds == 3 or _roughness(rest) >= _ROUGH_REST or sum(map(str.isdigit, rest)) > 3:
            found.append(one.span())
    return found


_PLACES = tuple(
    (hints.split("|"), late(pattern))
    for hints, pattern in (
        (
            "bearer|basic|digest|negotiate|auth ",
            (
                r"(?i)\b(?:bearer|basic|digest|negotiate|auth\s(?:plain|login|xoauth2))\s{1,3}"
                r"(?=\S*[0-9=+/._-])([\w+/=.~-]{6,})"
            ),
        ),
        (
            "auth|login|secret|credential|passw|securestring",
            (
                r"(?i)(?:auth|login|secret|secretstr|credentials?|password|securestring)[(\s]\s?"
                r"(?:b?[\"'][^\"']{0,100}[\"']\s?,\s?){0,2}b?[\"']([^\"']{1,200})[\"'](?:\)|\s-|,\s?\w{1,40}=)"
            ),
        ),
        ("send", r"\bsend\s\\?[\"']([^\"'\\]{1,100})\\{1,2}[rn]"),
        ("<<<", r"(?<!<)<<<\s?([^\s<]\S*)"),
        ("://", r"://(?:(?!/)[^/\s?#@:]{0,100}:)?([^/\s?#]{1,300})@"),
        ("@", r"(?<![\w./@-])[\w.+-]{1,60}:([^\s@:/\"'=,]{3,100})@(?=[\w-]{1,60}(?:\.[\w.-]|:[0-9]|$|[/(]))"),
        (
            "hooks|api.|/t/",
            (
                r"(?i)(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks|api\.tele"
                r"gram\.org/bot|webhook\.office\.com|hooks\.zapier\.com|anaconda\.org/t"
                r"|/t(?=/[a-z]{2}-[0-9a-f-]{8})|chat\.googleapis\.com/v1/spaces)(/?[^\s\"'<>]+)"
            ),
        ),
        ("=", r"(?i)[?&;](?:sig|code|access|t|k|pw?|st|auth|hash|hmac|key|sign)=([^\s&\"'<>#]{8,})"),
        (":5432:|:*:", r"(?<!\S)[\w.*-]+:(?:\d+|\*):[^:\s]*:[^:\s]+:(\S+)"),
        (" code", r"(?i)(?:-time|recovery|enter the)\scodes?(?:\sis)?:?((?:\s(?=[\w-]*\d)[\w-]{4,})+)"),
        ("identified", r"(?i)\bidentified\s(?:with\s\S{1,40}\s)?by\s{1,3}([^\s;]{1,200})"),
        (
            "echo|printf",
            r"\b(?:echo|printf)\s(?:-\w+\s)?([^|]{1,100}?)\s?\|(?=.{0,80}(?:sudo\s-S|passw|-stdin|openssl|login|gpg))",
        ),
    )
)
"""Where secrets stand without a name: a word that is in the line -> where it is then."""


def find_places(text: str, low: str) -> list[tuple[int, int]]:
    """Find what is a secret by where it stands; ``low`` is the text in lower case."""
    rows = (pattern() for hints, pattern in _PLACES if any(hint in low for hint in hints))
    return [one.span(1) for pattern in rows for one in pattern.finditer(text)]


_ROUGH = 0.62
"""Of 30,000 long words of code some 60 that are no keys are as rough; of random ones 92 to 99 %."""
_ROUGH_REST = 0.4
_LETTER_CHARS, _HEX_CHARS, _DISTINCT = 20, 32, 9
_PAIRS = frozenset(
    re.findall(
        "..",
        "sereinerthelonteenorledeathestesmelfetartialntconeanndnoedroittatrliuriongraisecexilnaamficepaasefpe"
        "tuctriotmaodrnfossloeadivesiaclanscagellhaprutrtncommprsimoupochadunuerrulopemptcllsaitoocckvaeptsic"
        "kemousplhohiwityossurglueextspsottdabuapryirniumobltdofrolfaagabypblupgsbaigidieppldowwaxcshrubjberm",
    )
)
"""Of letters that make 86 % of all pairs in names and sentences of the standard library."""
_RUN = late(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+(?:x[0-9]+)*")
_CANDIDATE = late(r"[A-Za-z0-9+/=_-]{16,}")
_SOLID = late(r"[A-Za-z0-9]{16,}")
_HEX = late(r"(?:0x)?(?:[0-9a-f]+|[0-9A-F]+)")
_CALLS = late(r"(?:cu|hip|nvml|nccl)[a-z]*[A-Z]")
_HASH = late(r"[0-9a-f]+|[0-9A-F]+|[a-z2-7]+|[A-Z2-7]+")
_NAMES_HASH = late(
    r"(?:commit|revision|\brev|sha-?[0-9]{0,3}|md5|blake\w*|git(?:\+\S{1,200})?|hash|digest|checksum|etag|blobs?|snapshots?|uuid|guid"
    r"|run|trace|span|docker|containerd|crio|libpod|container|pod\S{0,60}|image|layer|overlay2|fingerprint|HEAD|branch"
    r"|tree|version|build|\.?cache\S{0,200}|torchinductor\S{0,80}|triton\S{0,80}|mlruns\S{0,60}|artifacts?|experiment"
    r"|packages\S{0,20}|world_info|checkpoints?|ckpts?|files?|weights|dataset|objects?|job|tag"
    r"|cmpl|request|[a-z]{2,20}(?:(?<!key)_?id|ref)|ssh-(?:rsa|dss|ed25519)|ecdsa\S{0,20})"
    r"(?:[_ -]?id|[_ -]?hash)?(?:\sof\s\S{1,60})?[\"'\]]?"
    r"(?:\s{0,3}[:=/@._+-]{0,3}|\s(?:is|at|to|now at))\s{0,2}[\"'(\[]?$",
    re.IGNORECASE,
)
_EXTENSION = late(r"\.[A-Za-z][A-Za-z0-9]{0,11}\b")
_BEFORE = 260


def _roughness(word: str) -> float:
    """Return the share of letters after which a word changes its kind or goes on as no word does."""
    runs = _RUN().findall(word)
    bad = sum(a + b not in _PAIRS for run in runs if run.isalpha() for a, b in pairwise(run.lower()))
    return (len(runs) - 1 + bad) / max(1, len(word) - 1)


def _is_random(word: str) -> bool:
    if len(set(word)) < _DISTINCT or word.isdigit() or _CALLS().match(word):
        return False
    if _HEX().fullmatch(word):
        return len(word) >= _HEX_CHARS
    if len(word) < _LETTER_CHARS and not any(map(str.isdigit, word)):
        return False
    return _roughness(word) >= _ROUGH


def _is_hash(text: str, begin: int, end: int) -> bool:
    """Tell whether a random word is called a hash: by what stands before it, or as the name of a file."""
    before = text[max(0, begin - _BEFORE) : begin]
    if _NAMES_HASH().search(before):
        return True
    return _EXTENSION().match(text, end) is not None and _HASH().fullmatch(text, begin, end) is not None


def find_random(text: str) -> list[tuple[int, int]]:
    """Find long words of mixed digits and letters that nobody chose, but for hashes that are called so."""
    found: list[tuple[int, int]] = []
    for one in _CANDIDATE().finditer(text):
        if one[0].startswith("_Z"):
            continue  # a name of C++
        for solid in _SOLID().finditer(text, *one.span()):
            if not _is_random(solid[0]) or _is_hash(text, *solid.span()):
                continue
            found.append(_widen(text, one.span(), solid.span()))
    return found


def _widen(text: str, whole: tuple[int, int], solid: tuple[int, int]) -> tuple[int, int]:
    """Return the part of a path that a random word stands in, or all of what is no path."""
    before, behind = text[whole[0] : solid[0]], text[solid[1] : whole[1]]
    rough = _roughness("".join(filter(str.isalnum, before + behind))) >= _ROUGH_REST
    if "/" in before + behind and (
        not rough or text[whole[0] - 1 : whole[0]] in ("/", ".", "~") or before[:1] == "/"
    ):
        begin = whole[0] + before.rfind("/") + 1
        return begin, whole[1] if "/" not in behind else solid[1] + behind.index("/")
    begin = whole[0] + (before.rfind("=") + 1 if not rough else 0)
    return begin, whole[1]


_PROGRAMS = (
    ("sshpass mysql mysqldump mysqladmin mariadb 7z 7za rar unrar mongo mongosh mongodump", "-p"),
    ("helm skopeo az oc docker podman cqlsh ncftp psexec useradd usermod twine", "-p"),
    ("curl wget http https xh lftp etcdctl", "-u|-U|-a|--user|--auth|--proxy-user"),
    ("snmpget snmpwalk snmpset", "-A|-X|-c"),
    ("redis-cli valkey-cli", "-a"),
    ("openssl", "-passin|-passout|-pass|-[kK]"),
    ("smbclient smbmap rpcclient", "-U|--user"),
    ("ldapsearch ldapadd ldapmodify ldapwhoami", "-w"),
    ("ipmitool mosquitto_pub mosquitto_sub zip unzip sqlcmd bcp tsql ssh-keygen", "-P|-N"),
    ("wandb comet clearml huggingface-cli hf ngc", "login|--relogin"),
    ("htpasswd", r"-nb\w*\s+\S+|-b\w*\s+\S+\s+\S+"),
    ("xfreerdp rdesktop net", "/p:"),
    ("poetry", r"http-basic\.\S+\s+\S+|pypi-token\.\S+"),
    ("mc", r"(?:set|add)\s+\S+\s+\S+\s+\S+"),
    ("sqlplus", r"\S+/"),
)  # fmt: skip
"""What takes a secret without a name that says so, and the option before it."""
_PROGRAM = late(
    r"(?<![\w.-])(?:" + "|".join(f"{one}".replace(" ", "|") for one, _ in _PROGRAMS) + r")(?=[\s\"',])"
)
_MOST_PROGRAMS, _ARGUMENT_CHARS = 20, 400
_PORT = late(r"[0-9.:]*:[0-9]+(?:/\w+)?|-.*")


@cache
def _options_of(program: str) -> re.Pattern[str]:
    options = next(options for programs, options in _PROGRAMS if program in programs.split())
    return re.compile(
        rf"(?<=[\s\"'])(?:{options})[\s=\"',]{{0,4}}(?<![\w.])(?:pass:)?(\S+)|(?<=\s)-p(\S+)"
        if options == "-p"
        else rf"(?<=[\s\"'])(?:{options})(?:[\s=\"',]{{1,4}}|(?<=[/:])|(?<=-[uU])(?=\S{{1,60}}:))(\S+)"
    )


def find_arguments(text: str) -> list[tuple[int, int]]:
    """Find the secrets in a command line that programs take by an option of one letter."""
    found: list[tuple[int, int]] = []
    for one in islice(_PROGRAM().finditer(text), _MOST_PROGRAMS):
        values = _options_of(one[0]).finditer(text, one.end(), one.end() + _ARGUMENT_CHARS)
        found += [value.span(value.lastindex or 0) for value in values]
    return [span for span in found if not _PORT().fullmatch(text, *span)]
