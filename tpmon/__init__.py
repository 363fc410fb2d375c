"""tpmon: a terminal live monitor that says why a PyTorch training run is slow or stuck."""

__version__ = "0.1.0"

archive = ""
"""The path of the tpmon.pyz that runs, which its start sets here; "" for an installed tpmon."""
