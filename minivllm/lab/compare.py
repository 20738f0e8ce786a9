"""Whether two answers are the same, and how they differ, in words.

Numbers may differ by rounding, a list may be a tuple, a tensor of one number may be the number; a
tensor must have the right shape. Torch is not imported here: a tensor is known by what it can do.
"""

from __future__ import annotations

import math
from typing import Any

TENSOR_TOLERANCE = 1e-4


def is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "tolist")


def is_open(value: Any) -> bool:
    """True for what a stub holds: nothing yet."""
    return value is None or value is Ellipsis


def same(got: Any, expected: Any, tolerance: float = 1e-9) -> bool:
    """Equal, but for rounding.

    >>> same((1, 2.0), [1, 2]), same([1], [1, 2]), same(0.1 + 0.2, 0.3)
    (True, False, True)
    """
    if type(got).__name__ == type(expected).__name__ == "Raised":
        return got.kind == expected.kind
    if is_tensor(expected) or is_tensor(got):
        if shape_of(got) != shape_of(expected):
            return False
        pairs = zip(flat(got), flat(expected), strict=True)
        return all(same(a, b, max(tolerance, TENSOR_TOLERANCE)) for a, b in pairs)
    if isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple)):
        pairs = zip(got, expected, strict=False)
        return len(got) == len(expected) and all(same(a, b, tolerance) for a, b in pairs)
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(
            same(got[key], expected[key], tolerance) for key in expected
        )
    if isinstance(got, (int, float)) and isinstance(expected, (int, float)):
        both = math.isnan(got) and math.isnan(expected)
        return both or math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    return type(got) is type(expected) and got == expected


def difference(got: Any, expected: Any) -> str:
    """How they differ: the end of a sentence that begins with what was called."""
    if type(got).__name__ == "Raised":
        words = f"raised {got.kind}" + (f" ({short(got.message, 80)})" if got.message else "")
        return f"{words}, expected {_expected(expected)}"
    if got is None and expected is not None:
        return f"gave None, expected {_expected(expected)} (is a return missing?)"
    if is_tensor(expected):
        if shape_of(got) != shape_of(expected):
            return f"gave {short(got)}, expected shape {shape_of(expected)}"
        pairs = list(zip(flat(got), flat(expected), strict=True))
        off = [abs(a - b) for a, b in pairs]
        return f"is off by up to {max(off):.2g}, and {sum(x > TENSOR_TOLERANCE for x in off)} of " \
               f"{len(off)} numbers are wrong"  # fmt: skip
    return f"gave {short(got)}, expected {_expected(expected)}"


def _expected(value: Any) -> str:
    return f"a {value.kind}" if type(value).__name__ == "Raised" else short(value)


def shape_of(value: Any) -> list[int]:
    return list(value.shape) if is_tensor(value) else []


def flat(value: Any) -> list[Any]:
    """All numbers of a tensor, or the number itself, in a list."""
    if not is_tensor(value):
        return [value]
    return value.reshape(-1).tolist()


def short(value: Any, most: int = 60) -> str:
    """A value in a few words.

    >>> short(list(range(50)), 20), short("text")
    ('[0, 1, 2, 3, 4, 5, …', 'text')
    """
    if is_tensor(value) and list(value.shape):
        return f"a tensor of shape {list(value.shape)}"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
