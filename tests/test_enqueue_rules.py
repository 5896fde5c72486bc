"""Keys, types, headers, delays: what a broker or a database could not carry is refused when the job is enqueued."""

import datetime as dt
import decimal
import enum
import math
import uuid

import pytest

from postroom.adapters.errors import InvalidMessage
from postroom.outbox import Outbox
from postroom.outbox.rules import MAX_DELAY, MAX_HEADERS

BOX = Outbox("emails")


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 1


@pytest.mark.parametrize("name", ["key", "ordering_key"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (42, "42 is int, and a key is text; pass str() of it"),
        (b"k", "b'k' is bytes, and a key is text"),
        (Colour.RED, "<Colour.RED: 'red'> is Colour, and a key is text"),
        (uuid.UUID(int=1), "UUID('00000000-0000-0000-0000-0000000000"),
        ("", "'' has 0 bytes, and a key has 1 to 400"),
        ("k" * 401, f"'{'k' * 39} has 401 bytes, and a key has 1 to 400"),
        ("ü" * 201, f"'{'ü' * 39} has 402 bytes, and a key has 1 to 400"),
        ("a\0b", "'a\\x00b': a NUL character can't be stored by every database"),
        ("\ud800", "'\\ud800': a lone surrogate is no character"),
        (10**5000, "a int is int"),
    ],
    ids=["int", "bytes", "enum", "uuid", "empty", "401", "402 bytes", "NUL", "surrogate", "huge"],
)
def test_a_key_is_text_of_1_to_400_bytes(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        BOX.row("ping", None, **{name: value})  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{name}: {message}")


@pytest.mark.parametrize("name", ["send-receipt", "shop.SendReceipt", "shop:receipt/v2", "x" * 200])
def test_a_type_is_printable_ascii(name: str) -> None:
    assert BOX.row(name, None)["type"] == name


@pytest.mark.parametrize("name", ["", "send receipt", "x" * 201, "é", "a\0", "a\n", 5, None, Colour.RED])
def test_other_types_are_refused(name: object) -> None:
    with pytest.raises(InvalidMessage, match=r"^type: .* is no job type"):
        BOX.row(name, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["text", "ü", 0, 2**63 - 1, -(2**63), True, False, None, b"", bytes(range(256))])
def test_s017_portable_header_values_are_accepted(value: object) -> None:
    BOX.row("ping", None, headers={"name": value})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "1.5 is float, and a header is str, int, bool, bytes or None"),
        (uuid.UUID(int=1), "UUID('00000000-0000-0000-0000-0000000000 is UUID"),
        (dt.date(2026, 1, 2), "datetime.date(2026, 1, 2) is date"),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "datetime.datetime(2026, 1, 2, 0, 0, tzin is datetime"),
        (decimal.Decimal(1), "Decimal('1') is Decimal"),
        ((1,), "(1,) is tuple"),
        ({1}, "{1} is set"),
        ([1], "[1] is list"),
        ({"a": 1}, "{'a': 1} is dict"),
        (bytearray(b"x"), "bytearray(b'x') is bytearray"),
        (Colour.RED, "<Colour.RED: 'red'> is Colour"),
        (Level.HIGH, "<Level.HIGH: 1> is Level"),
        (2**63, "9223372036854775808 has more than 64 bits; pass it as text"),
        (10**5000, "a int has more than 64 bits"),
        ("a\0", "a NUL character"),
        ("\udfff", "a lone surrogate"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else type(value).__name__,
)
def test_s017_a_header_that_a_broker_can_not_carry_is_refused_at_enqueue(value: object, message: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        BOX.row("ping", None, headers={"name": value})  # type: ignore[dict-item]
    assert str(caught.value).startswith(f"headers.name: {message}")


@pytest.mark.parametrize("name", ["", "two words", "é", "a\0", "n" * 101, 5, None, "postroom-id", "Postroom-Anything", "CC", "BCC"])
def test_header_names_are_ascii_and_not_taken(name: object) -> None:
    with pytest.raises(InvalidMessage, match=r"^headers: the name "):
        BOX.row("ping", None, headers={name: 1})  # type: ignore[dict-item]


def test_s131_all_headers_together_are_bounded() -> None:
    BOX.row("ping", None, headers={"name": "x" * (MAX_HEADERS - 4)})
    with pytest.raises(InvalidMessage, match=r"^headers: 8,193 bytes, and all headers together may have 8,192"):
        BOX.row("ping", None, headers={"name": "x" * (MAX_HEADERS - 3)})
    with pytest.raises(InvalidMessage, match="8,192"):
        BOX.row("ping", None, headers={f"n{number:03}": number for number in range(1000)})


def test_s131_the_headers_of_the_longest_job_stay_below_8_kib_beside_the_users() -> None:
    row = BOX.row("t" * 200, None, key="k" * 400)
    assert len(row["headers"]) < 1000


@pytest.mark.parametrize("delay", [0, 0.5, 1, MAX_DELAY])
def test_a_delay_is_seconds(delay: float) -> None:
    assert BOX.row("ping", None, delay=delay)["delay"] == delay


@pytest.mark.parametrize(
    "delay", [-1, -0.001, MAX_DELAY + 1, math.nan, math.inf, "10", True, dt.timedelta(1), 10**5000], ids=lambda value: type(value).__name__
)
def test_s019_a_delay_out_of_range_is_refused_at_enqueue(delay: object) -> None:
    with pytest.raises(InvalidMessage, match=r"^delay: .* is not a number of seconds from 0 to 316,224,000$"):
        BOX.row("ping", None, delay=delay)  # type: ignore[arg-type]
