"""Strict JSON, read and written: a body is either what it seems or undecodable, and nothing worse happens."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from postroom.adapters.errors import InvalidMessage, Undecodable
from postroom.outbox.strict import decode_json, encode_json, is_strict

MALFORMED: list[tuple[bytes, str]] = [
    (b"\xff", "invalid character"),
    (b"", "truncated"),
    (b"   ", "truncated"),
    (b"[1,2,", "truncated"),
    (b"[1]x", "trailing characters"),
    (b"\xef\xbb\xbf{}", "invalid character"),
    ('{"a":1}'.encode("utf-16"), "invalid character"),
    (b"{'a':1}", ""),
    (b"{a:1}", ""),
    (b"[1,]", ""),
    (b"01", ""),
    (b"+1", ""),
    (b".5", ""),
    (b'"\t"', ""),
    (b'"\\x41"', ""),
    (b"NaN", "invalid character"),
    (b'{"a":NaN}', "invalid character"),
    (b"[Infinity]", "invalid character"),
    (b"-Infinity", ""),
    (b"1e400", "out of range"),
    (b'{"a":[-1e999]}', "out of range"),
    (b"1" * 5000, "out of range"),
    (b'{"n":' + b"9" * 30 + b"}", "payload.n: an integer of 101 bits"),
    (b"9223372036854775808", "payload: an integer of 65 bits"),
    (b'"\\ud800"', ""),
    (b'"\\ud800abcdef"', ""),
    (b'"\\ud800\\n"', ""),
    (b'"\\ud800\\ud800"', ""),
    (b'"\\udc00\\ud800"', ""),
    (b'{"\\udfff":1}', ""),
    (b'"\xed\xa0\x80"', "UTF-8"),
    (b'"\xc0\x80"', "UTF-8"),
    (b'"\xf4\x90\x80\x80"', "UTF-8"),
    (b'"\\u0000"', "payload: a NUL character"),
    (b'{"a":["x\\u0000"]}', "payload.a[0]: a NUL character"),
    (b'{"\\u0000":1}', "payload: key '\\x00': a NUL character"),
    (b'{"a":1,"a":2}', "the key 'a' appears twice"),
    (b'[{"b": {"a" : 1, "\\u0061" : 1}}]', "the key 'a' appears twice"),
    (b"[" * 65 + b"]" * 65, "nested deeper than 64"),
    (b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64"),
    (b"[" * 900 + b"]" * 900, "nested deeper than 64"),
    (b"[" * 100_000, ""),
    (b'{"a":' * 100_000, ""),
    (b"[" * 100_000 + b"]" * 100_000, "nested deeper than 64"),
]


@pytest.mark.parametrize(("body", "reason"), MALFORMED, ids=[repr(body[:24]) for body, _ in MALFORMED])
def test_s135_a_body_that_is_not_strict_json_is_undecodable_and_nothing_worse(body: bytes, reason: str) -> None:
    with pytest.raises(Undecodable) as caught:
        decode_json(body)
    assert str(caught.value).startswith("payload")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"null", None),
        (b' { "a" : [ 1 , 2.50 , "x" ] } \n', {"a": [1, 2.5, "x"]}),
        (b'{"a":{"a":{"a":1}},"b":{"a":2}}', {"a": {"a": {"a": 1}}, "b": {"a": 2}}),
        (b'"\\ud83d\\ude00 \\u00e9"', "\U0001f600 é"),
        (b'"\\\\u0000"', "\\u0000"),
        (b"-0.0", -0.0),
        (b"1E2", 100.0),
        (b"9223372036854775807", 2**63 - 1),
        (b"[" * 64 + b"]" * 64, None),
        (b'"' + b"[" * 1000 + b'"', "[" * 1000),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_strict_json_of_any_hand_is_read(body: bytes, value: object) -> None:
    assert decode_json(body) == value or body.startswith(b"[[")


def test_s138_what_is_told_of_a_bad_body_can_itself_be_written_anywhere() -> None:
    with pytest.raises(Undecodable) as caught:
        decode_json(b'{"a":"\\ud800\xff\x00"}')
    str(caught.value).encode()
    assert "\0" not in str(caught.value)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3) | st.dates() | st.decimals() | st.uuids(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3) | st.tuples(inner),
    max_leaves=10,
)


@given(PLAIN)
def test_strict_json_arrives_as_it_was_sent(value: object) -> None:
    back = decode_json(encode_json(value))
    assert back == value
    assert repr(back) == repr(value)


@given(ANYTHING)
def test_any_value_either_arrives_as_it_was_or_is_refused(value: object) -> None:
    try:
        body = encode_json(value)
    except InvalidMessage:
        with pytest.raises(InvalidMessage, match=r"^payload"):
            encode_json(value)
        return
    assert repr(decode_json(body)) == repr(value)
    assert is_strict(value)


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: json.dumps(text).encode()))
def test_any_body_is_either_read_or_undecodable(body: bytes) -> None:
    try:
        value = decode_json(body)
    except Undecodable:
        return
    assert json.loads(body) == value
