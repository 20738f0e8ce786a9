"""Stop strings in a stream: D37, and independence of how the stream is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.stop_strings import StopStrings

SHORT = st.text("ab", min_size=1, max_size=4)


def run(stop: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    """What is shown after each piece and at the end, and which stop string was met."""
    strings = StopStrings(stop)
    return [strings.add(piece) for piece in pieces] + [strings.finish()], strings.matched


def test_d37_a_stop_string_over_several_tokens():
    """In vLLM the first letters of a stop string reached the client before the rest arrived.

    "DEFGHIJ" comes in four pieces after "abc": none of it may be shown.
    """
    shown, matched = run(["DEFGHIJ"], ["abc", "DEF", "G", "HI", "J", "after"])
    assert shown == ["abc", "", "", "", "", "", ""] and matched == "DEFGHIJ"


def test_d37_what_was_held_back_is_shown_when_it_was_not_the_stop():
    """Either as soon as another letter shows that, or when the text ends."""
    assert run(["DEFGHIJ"], ["DEFG", "x"]) == (["", "DEFGx", ""], None)
    assert run(["DEFGHIJ"], ["aDEF", "GHI"]) == (["a", "", "DEFGHI"], None)
    assert run(["aab"], ["aa", "aa", "b"]) == (["", "aa", "", ""], "aab")


@pytest.mark.parametrize(
    ("stop", "pieces", "text", "matched"),
    [
        ([], ["abc"], "abc", None),
        (["x"], ["abc"], "abc", None),
        (["c", "b"], ["abc"], "a", "b"),  # the first in the text, not in the list
        (["abcd", "bc"], ["abcd"], "a", "bc"),  # complete first, though begun later
        (["bc", "abc"], ["abcd"], "", "abc"),  # complete together: the longer
        (["\n\n"], ["one\n", "\ntwo\n\n"], "one", "\n\n"),
        (["🙂"], ["a🙂b"], "a", "🙂"),
        (["b"], ["", "", "ab", ""], "a", "b"),
    ],
)
def test_the_stop_that_is_complete_first_wins(
    stop: list[str], pieces: list[str], text: str, matched: str | None
):
    """Several stop strings, overlapping ones among them."""
    shown, found = run(stop, pieces)
    assert ("".join(shown), found) == (text, matched)


@pytest.mark.parametrize("stop", ["abc", [""], ["a", ""], [None], [b"a"]])
def test_stop_strings_must_be_strings(stop: object):
    """A bare string would be a list of its letters; an empty one would be met at once."""
    with pytest.raises(ValueError, match="stop must be a list of non-empty strings"):
        StopStrings(stop)


@settings(max_examples=150, deadline=None)
@given(stop=st.lists(SHORT, max_size=3), letters=st.text("abc", max_size=25), data=st.data())
def test_the_result_does_not_depend_on_the_pieces(
    stop: list[str], letters: str, data: st.DataObject
):
    """Cut at random: the same text and stop as letter by letter, by a definition written out.

    And on the way nothing of a stop string is shown, nor is more held back than it must.
    """
    met = [
        (end, -len(s), s)
        for s in stop
        for end in range(len(s), len(letters) + 1)
        if letters[:end].endswith(s)
    ]
    end, _, matched = min(met, default=(len(letters), 0, None))
    expected = letters[: end - len(matched or "")]

    strings, shown, at = StopStrings(stop), "", 0
    while at < len(letters):
        size = data.draw(st.integers(0, 4))
        shown += strings.add(letters[at : at + size])
        at += size
        assert expected.startswith(shown)
        if strings.matched is None:
            assert len(letters[:at]) - len(shown) <= max(map(len, stop), default=1) - 1
    shown += strings.finish()
    assert (shown, strings.matched) == (expected, matched)
