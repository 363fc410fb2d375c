"""Stacks of a made-up training, of its main threads and of its loader's workers, and fields of threads in them."""

from __future__ import annotations

from tpmon.model.dump import WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.stacks import StackFrame

SITE = "/env/lib/python3.11/site-packages"
LIB = "/env/lib/python3.11"

RUNNING = {"state": "R", "waits_for": "running", "wchan": Missing("running"), "call": Missing("running")}

MAIN = StackFrame("<module>", "/run/train.py", 90)
TRAIN = StackFrame("train", "/run/train.py", 40)


def stack_of(text: str) -> tuple[StackFrame, ...]:
    """Build a stack, outermost frame first: "main > train > get lib/queue.py:171 > step torch/x.py:7".

    A file is one of an installed package, of Python's library below "lib/", or has its whole path.
    """
    stack = []
    for one in text.split(" > "):
        function, _, place = one.partition(" ")
        path, _, line = place.rpartition(":")
        if path.startswith("lib/"):
            file = f"{LIB}/{path.removeprefix('lib/')}"
        else:
            file = path if path.startswith("/") else f"{SITE}/{path}"
        stack.append({"main": MAIN, "train": TRAIN}[one] if not place else StackFrame(function, file, int(line)))
    return tuple(stack)


ALL_REDUCE = stack_of(
    "main > train > wrapper torch/distributed/c10d_logger.py:81 > all_reduce torch/distributed/distributed_c10d.py:2800"
)
BROADCAST = stack_of("main > train /run/train.py:55 > broadcast torch/distributed/distributed_c10d.py:2500")
BACKWARD = stack_of(
    "main > train > Tensor.backward torch/_tensor.py:623 > _engine_run_backward torch/autograd/graph.py:979"
)
DECODE = stack_of(
    "main > train > __next__ torch/utils/data/dataloader.py:700"
    " > fetch torch/utils/data/_utils/fetch.py:54 > Images.__getitem__ /run/data.py:60"
    " > decode /run/data.py:88"
)
NEXT_BATCH = stack_of(
    "main > train > _BaseDataLoaderIter.__next__ torch/utils/data/dataloader.py:700"
    " > _try_get_data torch/utils/data/dataloader.py:1200 > get lib/multiprocessing/queues.py:113"
    " > poll lib/multiprocessing/connection.py:257"
)
IN_LOCK = (MAIN, TRAIN, StackFrame("hold", "/run/train.py", 12))
_LOOP = StackFrame("_worker_loop", f"{SITE}/torch/utils/data/_utils/worker.py", 250)
WORKER_WAITS = (MAIN, _LOOP, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 113))
WORKER_READS = stack_of(
    "main > _worker_loop torch/utils/data/_utils/worker.py:250"
    " > fetch torch/utils/data/_utils/fetch.py:54 > Images.__getitem__ /run/data.py:60"
    " > decode /run/data.py:88"
)
PEER = WaitTarget("recvfrom", 5, WaitKind.SOCKET, "socket:[7]", NOT_APPLICABLE, NOT_APPLICABLE, "10.0.0.7:443")
PIPE = WaitTarget("read", 4, WaitKind.PIPE, "pipe:[9]", NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE)
NFS = WaitTarget("read", 7, WaitKind.FILE, "/data/7.bin", "/data", "nfs4", NOT_APPLICABLE)
READS = {"state": "D", "waits_for": "NFS", "waits_on": NFS, "call": "read"}
