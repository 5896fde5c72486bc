"""The headers on the wire, ids and digests: what another version, or another language, must be able to rely on."""

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest

from postroom.adapters.errors import InvalidMessage, Undecodable
from postroom.adapters.seam import Header, Message
from postroom.outbox.envelope import Envelope, digest, read_envelope
from postroom.outbox.ids import new_id

ENVELOPE = Envelope(
    id="01a2285fd3b076e395634cf998bef57b",
    type="send-receipt",
    key="order-4711",
    ordering_key="customer-1",
    queue="emails",
    enqueued_at=1795973698.481881,
    copy=2,
    replays=1,
    headers={"trace": "00-ab", "raw": b"\0\xff", "n": -5, "yes": True, "nothing": None},
)
WIRE: dict[str, Header] = {
    "trace": "00-ab",
    "raw": b"\0\xff",
    "n": -5,
    "yes": True,
    "nothing": None,
    "postroom-version": 1,
    "postroom-id": "01a2285fd3b076e395634cf998bef57b",
    "postroom-type": "send-receipt",
    "postroom-key": "order-4711",
    "postroom-enqueued-at": "1795973698.481881",
    "postroom-copy": 2,
    "postroom-replays": 1,
}


def message(headers: Mapping[str, Header], **changes: object) -> Message:
    whole = Message(id="01a2285fd3b076e395634cf998bef57b", queue="emails", body=b"{}", headers=headers, ordering_key="customer-1")
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_the_headers_on_the_wire_are_these() -> None:
    assert ENVELOPE.to_headers() == WIRE


def test_an_envelope_is_read_as_it_was_written() -> None:
    assert read_envelope(message(WIRE)) == ENVELOPE


def test_the_users_headers_can_not_replace_postrooms() -> None:
    impostor = replace(ENVELOPE, headers={"postroom-key": "another", "mine": 1})
    assert read_envelope(message(impostor.to_headers())).key == "order-4711"
    assert read_envelope(message(impostor.to_headers())).headers == {"mine": 1}


def test_without_an_ordering_key_the_key_orders() -> None:
    assert read_envelope(message(WIRE, ordering_key=None)).ordering_key == "order-4711"


def test_headers_that_a_later_postroom_adds_are_not_the_users() -> None:
    assert read_envelope(message({**WIRE, "postroom-from-the-future": 1})) == ENVELOPE


def test_a_message_of_another_hand_is_undecodable_and_says_so() -> None:
    for headers in ({}, {"content-type": "application/json"}):
        with pytest.raises(Undecodable, match="no postroom-version header: the message was not published by Postroom"):
            read_envelope(message(headers))
    assert issubclass(Undecodable, InvalidMessage)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("postroom-version", 2, "postroom-version is 2; this Postroom reads version 1"),
        ("postroom-version", "1", "postroom-version is '1', not a number from 0"),
        ("postroom-version", True, "postroom-version is True, not a number from 0"),
        ("postroom-id", None, "postroom-id is missing, not text of 1 to 36 bytes"),
        ("postroom-id", "", "postroom-id is '', not text of 1 to 36 bytes"),
        ("postroom-id", "x" * 37, "postroom-id is 'xxxxxxxx"),
        ("postroom-type", 5, "postroom-type is 5, not text of 1 to 200 bytes"),
        ("postroom-type", "t" * 201, "postroom-type is 'ttt"),
        ("postroom-key", b"order-4711", "postroom-key is b'order-4711', not text of 1 to 400 bytes"),
        ("postroom-key", "ü" * 201, "postroom-key is 'üüü"),
        ("postroom-key", "a\0b", "postroom-key is 'a\\x00b', not text"),
        ("postroom-key", "\ud800", "postroom-key is '\\ud800', not text"),
        ("postroom-enqueued-at", 1.5, "postroom-enqueued-at is 1.5, not seconds since the epoch as text"),
        ("postroom-enqueued-at", "noon", "postroom-enqueued-at is 'noon', not seconds"),
        ("postroom-enqueued-at", "nan", "postroom-enqueued-at is 'nan', not seconds"),
        ("postroom-enqueued-at", None, "postroom-enqueued-at is missing, not seconds"),
        ("postroom-copy", -1, "postroom-copy is -1, not a number from 0"),
        ("postroom-copy", 2**31, "postroom-copy is 2147483648, not a number from 0"),
        ("postroom-copy", "0", "postroom-copy is '0', not a number from 0"),
        ("postroom-replays", None, "postroom-replays is missing, not a number from 0"),
    ],
)
def test_a_damaged_envelope_is_undecodable_and_names_the_header(name: str, value: Header, reason: str) -> None:
    with pytest.raises(Undecodable) as caught:
        read_envelope(message({**WIRE, name: value}))
    assert str(caught.value).startswith(reason)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("key", ["x" * 401, "a\0b", "\ud800"])
def test_an_ordering_key_that_no_database_would_take_is_undecodable(key: str) -> None:
    with pytest.raises(Undecodable, match=r"its ordering key is .* not text of 1 to 400 bytes"):
        read_envelope(message(WIRE, ordering_key=key))


def test_a_digest_is_32_hex_characters_of_blake2b() -> None:
    assert digest(b"") == "cae66941d9efbd404e4d88758ea67670"
    assert digest(b'{"order_id":4711}') != digest(b'{"order_id":4712}')
    assert len(digest(bytes(1_000_000))) == 32


def test_an_id_is_a_uuid_of_version_7_without_dashes() -> None:
    made = uuid.UUID(hex=new_id())
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert abs((made.int >> 80) / 1000 - time.time()) < 5
    assert new_id(lambda: 0)[:12] == "0" * 12


def test_ids_sort_by_time_also_within_a_millisecond() -> None:
    times = [1_700_000_000_000_000_000, 1_700_000_000_000_000_300, 1_700_000_000_000_999_999, 1_700_000_000_001_000_000, 4_000_000_000_000_000_000]
    ids = [new_id(lambda now=now: now) for now in times]  # type: ignore[misc]
    assert ids == sorted(ids)
    assert len({made[:16] for made in ids}) == len(ids)


def test_ids_of_one_instant_differ() -> None:
    assert len({new_id(lambda: 0) for _ in range(10_000)}) == 10_000


def test_ids_of_a_forked_process_differ() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_id(lambda: 0).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 32).decode() != new_id(lambda: 0)
    os.close(reader)
    os.close(writer)
