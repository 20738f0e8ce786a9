"""The examples in the package's docstrings are run, and must show what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import minivllm

PACKAGE = Path(minivllm.__file__).parent
# A file is read before it is imported: those without an example need not be loaded at all.
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text("utf-8")]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_examples(path: Path):
    module = importlib.import_module(module_name(path))
    failed, attempted = doctest.testmod(module)
    assert attempted > 0, "an example that doctest does not find is not run"
    assert failed == 0, "what differs is told above"
