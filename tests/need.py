"""What a test needs and not everybody has: skip without it, but fail where CI is set."""

import os
from importlib.util import find_spec

import pytest


def need(module: str) -> None:
    """Skip the test when a module is missing; where CI is set, fail: there it must be present."""
    if find_spec(module) is not None:
        return
    if os.environ.get("CI"):
        pytest.fail(f"{module} is not installed, and CI must not skip what needs it")
    pytest.skip(f"{module} is not installed (`make test` installs it)")
