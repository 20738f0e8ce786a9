"""Stop strings in a stream of text: none of one may reach the reader, not even its beginning.

    stop "DEFGHIJ", text "abcDEF" "G" "HI" "J"   ->   "abc" "" "" "" and it has stopped
    stop "DEFGHIJ", text "abcDEF" "x"            ->   "abc" "DEFx"

Invariant: what is held back is the longest end of the text that could begin a stop string, so at
most len(longest stop) - 1 characters; and the result does not depend on how the text was cut into
pieces. vLLM: `include_stop_str_in_output=False`.
"""

from collections.abc import Sequence


class StopStrings:
    """Watches one request's text; `matched` is the stop string that ended it, or None so far.

    The stop string that is complete first wins; of two that end together, the longer.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """`stop` may be empty; ValueError for an entry that is not a non-empty str."""
        if isinstance(stop, str) or not all(isinstance(s, str) and s for s in stop):
            raise ValueError(f"stop must be a list of non-empty strings, got {stop!r:.80}")
        self._stop = list(stop)
        self._held = ""  # a true beginning of some stop string
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """What of the text so far can be shown now; nothing any more once a stop string was met."""
        if self.matched is not None:
            return ""
        text, self._held = self._held + text, ""
        ends = [(text.find(s) + len(s), -len(s), s) for s in self._stop if s in text]
        if ends:
            end, _, self.matched = min(ends)
            return text[: end - len(self.matched)]
        held = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back, once no more text will come."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
