"""Put tpmon's hook into the Python processes of a run, once they import torch (docs/hook.md).

``tpmon run`` puts this folder on PYTHONPATH, or the zip of ``tpmon hook export``. Python imports this file at
each start. It installs a finder that waits for torch, takes the folder off ``sys.path`` again, and imports
the ``sitecustomize`` that it hides. It prints nothing and raises no error of its own. No functions and no
annotations: Pythons too old for the hook read it too.
"""

import sys

_here = __file__.rpartition("/")[0]

if sys.version_info >= (3, 8):  # noqa: UP036 a job's prologue may be of any Python
    try:
        import tpmon_awaits_torch  # type: ignore[import-not-found] # beside this file

        tpmon_awaits_torch.begin(_here)
    except Exception:
        pass  # no hook; the program must not notice

sys.path[:] = [_path for _path in sys.path if _path != _here]

_self = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # type: ignore[import-not-found] # noqa: F401
except ImportError as _error:
    if getattr(_error, "name", "sitecustomize") != "sitecustomize":
        raise  # the user's own file failed: Python reports it as always
finally:
    if _self is not None:
        sys.modules.setdefault("sitecustomize", _self)
