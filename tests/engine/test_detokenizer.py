"""Text comes out as soon as it is settled, and joined it is the decoded whole."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moonpool.engine.detokenizer import Detokenizer, StopStrings, TextStream
from moonpool.engine.tokenizer import Tokenizer


def decode_bytes(ids: object) -> str:
    """A decoder like those of byte-level tokenizers: a token a byte, 256 and up give no text."""
    assert isinstance(ids, list)
    return bytes(i for i in ids if i < 256).decode(errors="replace")


def pieces(ids: list[int]) -> list[str]:
    stream = Detokenizer(decode_bytes)
    return [*(stream.push(token) for token in ids), stream.finish()]


@given(st.lists(st.integers(0, 300), max_size=200))
@settings(max_examples=200)
def test_any_bytes_joined_are_the_decoded_whole(ids: list[int]) -> None:
    assert "".join(pieces(ids)) == decode_bytes(ids)


@given(st.text(max_size=80))
def test_text_is_never_shown_with_half_a_character(text: str) -> None:
    got = pieces(list(text.encode()))
    assert "".join(got) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in got)


def test_a_finished_character_comes_at_once() -> None:
    assert pieces(list("aé€b".encode())) == ["a", "", "é", "", "", "€", "b", ""]


def test_bytes_that_are_no_text_do_not_grow_the_window() -> None:
    stream = Detokenizer(decode_bytes)
    got = [stream.push(token) for token in [0xFF] * 1000]
    assert len(stream._window) < 100
    assert "".join(got) + stream.finish() == decode_bytes([0xFF] * 1000)


@pytest.mark.parametrize("count", range(55, 75))
def test_a_character_after_many_bytes_that_are_no_text_comes_whole(count: int) -> None:
    ids = [0xFF] * count + list("é€a".encode())
    assert "".join(pieces(ids)) == decode_bytes(ids)


def test_control_tokens_do_not_grow_the_window() -> None:
    stream = Detokenizer(decode_bytes)
    got = [stream.push(token) for token in [65, *[300] * 1000, 66]]
    assert len(stream._window) < 100
    assert "".join(got) == "AB"


def test_spaces_that_a_decoder_drops_at_the_start_stay_inside() -> None:
    def decode(ids: object) -> str:
        assert isinstance(ids, list)
        return "".join(" word" for _ in ids)[1:]

    stream = Detokenizer(decode)
    assert [stream.push(0) for _ in range(3)] == ["word", " word", " word"]


@example("abc", ["abc", "b"])  # the first to end, not the first to begin
@example("ab", ["b", "ab"])
@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_stops_cut_at_the_first_one_however_the_text_comes(text: str, stops: list[str]) -> None:
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    for size in (1, 2, 7, 30):
        cut = StopStrings(stops)
        out = ""
        for start in range(0, len(text), size):
            piece, done = cut.push(text[start : start + size])
            out += piece
            if done:
                break
        else:
            out += cut.finish()
        assert out == expected


def test_text_that_begins_a_stop_string_is_held_and_then_given_out() -> None:
    stream = TextStream(decode_bytes, ["\n\nEnd"])
    assert [stream.push(token) for token in b"a\n\nEx"] == ["a", "", "", "", "\n\nEx"]
    assert not stream.stopped


def test_after_a_stop_string_nothing_comes_any_more() -> None:
    stream = TextStream(decode_bytes, ["stop"])
    assert "".join(stream.push(token) for token in b"go, stop here") == "go, "
    assert stream.stopped
    assert stream.finish() == ""


def test_what_was_held_comes_at_the_end() -> None:
    stream = TextStream(decode_bytes, ["stop"])
    assert "".join(stream.push(token) for token in b"to the st\xe2") == "to the "
    assert stream.finish() == "st\N{REPLACEMENT CHARACTER}"


def test_a_real_tokenizer_streams_what_it_decodes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Grüße, 世界 🌖!\n") + [2, 200, 5]
    stream = Detokenizer(tokenizer.decode)
    assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)
