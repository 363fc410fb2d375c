"""The words of tpmon: frozen dataclasses that every room shares. Standard library only."""
