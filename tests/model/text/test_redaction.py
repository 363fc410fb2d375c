"""Secrets of many kinds in lines, command lines and paths; ordinary logs that stay as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpmon
from tests.model.text.secret_lists import HEX32, HEX40, HEX64, KINDS, MORE, OTHERS, PEM, READABLE, S, Secret
from tpmon.model.text.redaction import HIDDEN, Redactor, admit_text, hide, hide_lines, hide_words, keep_random
from tpmon.model.text.secrets import Rating, rate_name
from tpmon.probe.host.output import parse_tail
from tpmon.probe.spy.text import _parse_local

ORDINARY = (Path(__file__).parents[2] / "data" / "ordinary_log.txt").read_text().splitlines()
EVERY = (*KINDS, *OTHERS, *MORE)
ONE_LINE = tuple(secret for secret in EVERY if "\n" not in secret.text)


def named(secret: Secret) -> str:
    return secret.kind


@pytest.mark.parametrize("secret", EVERY, ids=named)
def test_a_secret_of_each_kind_is_hidden(secret):
    shown = hide(secret.text)
    assert [part for part in secret.parts if part in shown] == []
    assert HIDDEN in shown
    assert hide(shown) == shown, "what is hidden settles"


@pytest.mark.parametrize("secret", READABLE, ids=named)
def test_what_stays_readable_is_known(secret):
    assert len(READABLE) <= 3
    assert any(part in hide(secret.text) for part in secret.parts)


@pytest.mark.parametrize("secret", ONE_LINE, ids=named)
def test_a_secret_is_hidden_as_one_word_of_a_command_line(secret):
    shown = " ".join(hide_words(("python", "train.py", secret.text, "--lr", "3")))
    assert [part for part in secret.parts if part in shown] == []
    assert shown.startswith("python train.py")
    assert shown.endswith("--lr 3")


def test_a_word_of_several_lines_is_hidden_to_its_end_and_before_its_text_is_cut():
    assert hide_words(("x", "--password", f"a\n{S}", "--api-key=b\nc", "3")) == (
        *("x", "--password", "***", "--api-key=***", "3"),
    )
    assert hide_words(("python", "-c", f"import os\ntoken = '{S}'\n")) == (
        *("python", "-c", "import os\ntoken = ***\n"),
    )
    assert S[:4] not in admit_text("x" * 40 + f" password={S}", 56)


@pytest.mark.parametrize("secret", EVERY, ids=named)
def test_a_secret_is_hidden_in_the_tail_of_a_log(secret):
    tail = parse_tail(f"step 1\n{secret.text}\nstep 2\n".encode(), cut=False, most=20, length=4000)
    assert [part for part in secret.parts if any(part in line for line in tail)] == []
    assert (tail[0], tail[-1]) == ("step 1", "step 2")


def test_of_ordinary_logs_two_lines_in_a_hundred_may_change():
    assert len(ORDINARY) >= 200
    together = [line for line, shown in zip(ORDINARY, hide_lines(ORDINARY), strict=True) if line != shown]
    alone = [line for line in ORDINARY if line != hide(line)]
    assert max(len(together), len(alone)) <= len(ORDINARY) * 0.02, together


@pytest.mark.parametrize(
    "text",
    [
        f"commit {HEX40}",
        f"git+https://github.com/me/x@{HEX40}",
        f"sha256:{HEX64}",
        f"md5: {HEX32}",
        f"/home/me/.cache/huggingface/hub/models--x/snapshots/{HEX40}/model.safetensors",
        f"/system.slice/docker-{HEX64}.scope",
        f"/kubepods/burstable/pod6f1c2d3e-4b5a-6978-8a9b-0c1d2e3f4a5b/{HEX64}",
        f"/data/weights/{HEX40}.safetensors",
        "/tmp/torchinductor_me/3s/c3slh7q6xg5ndoz4e4y2svurf5ys2hd2nlhyp7hnnr4rhtsp2lfw.py",
        f"actor_id: {HEX32} ObjectRef({HEX40})",
        f"Received request cmpl-{HEX32}-0: prompt",
        f"BuildID[sha1]={HEX40}, stripped",
        "GPU-5f0c2a9e-1b2c-3d4e-5f60-718293a4b5c6",
        "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
        "00000000:3B:00.0",
        "2.13.0a0+git1a2b3c4d5e6f",
        "0x7f3c2a001000-0x7f3c2a021000",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize160x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEENS_6detail5ArrayIPcLi3EEEEEviT0_T1_",
        "cudaMemcpy3DAsync",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJb0yq7kXb5jF9cH2nWz8Qe4Rt6Yu1Io3Pa5Sd7Fg9Hj me@host",
    ],
)
def test_what_is_called_a_hash_and_what_a_driver_names_stays_readable(text):
    assert hide(text) == text


@pytest.mark.parametrize("text", [f"got {HEX40}", "value kJ8sQ2zXv5Lp0WbN3rTy7Ucd"])
def test_what_only_its_randomness_tells_can_be_shown(text):
    try:
        keep_random()
        assert hide(text) == text
        assert hide(f"password={S}") == "password=***"
    finally:
        keep_random(False)
    assert hide(text) != text


@pytest.mark.parametrize(
    ("rating", "names"),
    [
        (Rating.STRONG, "DB_PASSWORD wandbApiKey a.b.auth_token storepass"),
        (Rating.BRIEF, "pass"),
        (Rating.WEAK, "token key key_data"),
        (Rating.NONE, "pad_token sort_key password_file num_tokens tokens_per_sec tokenizer author public_key"),
        (Rating.NONE, "forward_pass bypass"),
    ],
)
def test_a_name_is_rated_by_its_words(rating, names):
    assert {name: rate_name(name) for name in names.split()} == dict.fromkeys(names.split(), rating)


def test_lines_between_those_of_a_key_stay_and_one_that_never_ends_hides_no_log_for_ever():
    lines = ["-----BEGIN PRIVATE KEY-----", PEM[0], "step 3 loss 2.1", PEM[4], "-----END PRIVATE KEY-----", "done"]
    shown = hide_lines(lines)
    assert (shown[2], shown[-1]) == ("step 3 loss 2.1", "done")
    assert all(HIDDEN in shown[at] for at in (1, 3))
    redactor = Redactor()
    redactor.feed("-----BEGIN PRIVATE KEY-----")
    for _ in range(200):
        redactor.feed("word")
    assert redactor.feed("word") == "word"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("config", f"{{'auth': {{'token': '{S}'}}}}", "{'auth': ***}"),
        ("headers", f"[('X-Api-Key', '{S}')]", "[('X-Api-Key', '***')]"),
        ("found", f"'{HEX40}'", "'***'"),
        ("tokens", "['Hello', 'world']", "['Hello', 'world']"),
        ("key", "'attention_mask'", "'attention_mask'"),
        ("pad_token", "'[PAD]'", "'[PAD]'"),
    ],
)
def test_a_variable_is_hidden_where_its_value_tells(name, value, shown):
    assert _parse_local(name, value).value == shown


UNITS = (
    *("a", "key=", '"', "=", "password ", "(token, ", "curl -u ", "http://", "a@", "a:", "%3D", "<token ", "{"),
    *("-----BEGIN ", HEX32, "aB3/", "\x1b[", "name=token ", "echo a ", "--token ", "a.b-", "é", '{"token":'),
    *("pod/", "token\x1f", "aaaa:bbbb", "eyJaaaaaaaa.", "password='", "\\", "AUTH ", "login(", "_Z"),
)


@pytest.mark.parametrize(
    "unit", ["password a@b:aaaa=(token, '{<curl -u ", *(pytest.param(unit, marks=pytest.mark.long) for unit in UNITS)]
)
def test_hostile_lines_take_no_longer_than_they_are_long(unit):
    """A pattern that tries every way would take hours for these."""
    long = unit * (100_000 // len(unit))
    code = (
        "import sys, resource; resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "from tpmon.model.text.redaction import hide\nhide(sys.stdin.read())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=long, text=True, check=False, timeout=120)
    assert done.returncode == 0


@given(st.text("abk=ey:-/@ '\"tokn.1\\,|>%(){}\x1f\n", max_size=60))
def test_any_text_is_taken(text):
    assert isinstance(hide(text), str)


def test_text_of_others_enters_through_one_border():
    """These clean what is hidden before: words of a command line, lines of a log, a path; or a card's own names."""
    rooms = Path(tpmon.__file__).parent
    bare = {
        str(path.relative_to(rooms))[:-3]
        for room in ("probe", "capture")
        for path in (rooms / room).rglob("*.py")
        if re.search(r"import .*\bclean_text\b", path.read_text())
    }
    assert bare == {
        *("probe/collect/bundle", "probe/gpu/bounds", "probe/gpu/rates", "probe/job/discovery", "probe/host/output"),
        *("probe/records/dump_files", "capture/dialog", "probe/spy/text", "probe/proc/access"),
    }


def test_no_pattern_is_compiled_before_it_is_needed():
    code = (
        "import re, time; compile = re.compile; seen = []\n"
        "re.compile = lambda *a, **k: seen.append(a[0]) or compile(*a, **k)\n"
        "import tpmon.model.text.redaction; print(len(seen))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
