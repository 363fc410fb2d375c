"""What a person calls a job: the script, a part of its path, its module."""

import pytest

from tpmon.probe.job.names import ScriptName, find_by_name, name_script

NAMES = {
    1: ScriptName("train.py", "/home/ada/gpt/train.py"),
    2: ScriptName("train.py", "vit/train.py"),
    3: ScriptName("pretrain.py", "./pretrain.py"),
    4: ScriptName("lab.finetune", "lab.finetune"),
    5: ScriptName("python -c"),
    6: ScriptName("Eval_All.py", "Eval_All.py"),
}
CASES = [
    ("train.py", (1, 2)),
    ("train", (1, 2)),
    ("gpt/train.py", (1,)),
    ("gpt/train", (1,)),
    ("./vit/train.py", (2,)),
    ("/home/ada/gpt/train.py", (1,)),
    ("pretrain", (3,)),
    ("pre", (3,)),
    ("lab.finetune", (4,)),
    ("finetune", (4,)),
    ("lab", (4,)),
    ("eval", (6,)),
    ("python", (5,)),
    ("rain", (1, 2, 3)),
    ("ada", (1,)),
    ("nothing", ()),
]


@pytest.mark.parametrize(("wanted", "found"), CASES)
def test_the_exact_name_comes_before_the_end_of_a_path_and_that_before_a_part(wanted, found):
    assert find_by_name(wanted, NAMES) == found


@pytest.mark.parametrize(
    ("argv", "full"),
    [
        (("python", "a/b.py", "--x"), "a/b.py"),
        (("python", "-u", "-m", "a.b", "--x"), "a.b"),
        (("python", "-c", "import a"), ""),
        (("/opt/binary", "a.py"), ""),
        ((), ""),
    ],
)
def test_the_whole_name_is_as_it_was_started(argv, full):
    assert name_script("label", argv) == ScriptName("label", full)
