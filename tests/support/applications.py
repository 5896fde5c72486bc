"""Applications for tests of the command: modules that a process imports by name from its working directory."""

from pathlib import Path

SHOP = (Path(__file__).parents[2] / "consumers" / "demo" / "shop.py").read_text()
"""The README's example."""
