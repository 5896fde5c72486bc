"""What a message is on the wire, for us and for others."""

from __future__ import annotations

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.adapters import Message
from postroom.adapters.kafka.wire import arrived, record_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.none() | TEXT | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.binary()


def travelled(message: Message, group: str | None = None) -> confluent_kafka.Message:
    sent = record_of(message, "emails", group)
    headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in sent.headers.items()]
    return confluent_kafka.Message(topic=sent.topic, partition=3, offset=7, key=sent.key, value=sent.value, headers=headers)


@given(
    headers=st.dictionaries(TEXT.filter(lambda name: not name.startswith("postroom-")), VALUES, max_size=8), body=st.binary(), key=st.none() | TEXT
)
def test_what_arrives_is_what_was_sent(headers, body, key):
    message = Message(id="4711", queue="emails", body=body, headers=headers, ordering_key=key)
    found = arrived(travelled(message), "emails").message
    assert found == message
    assert {name: type(value) for name, value in found.headers.items()} == {name: type(value) for name, value in headers.items()}


def test_text_travels_as_it_is_so_that_others_can_read_it():
    sent = record_of(Message(id="1", queue="emails", body=b"{}", headers={"tenant": "north", "size": 7}), "emails", None)
    assert sent.headers == {"tenant": "north", "size": "7", "postroom-header-types": b'{"size":"int"}', "postroom-message-id": "1"}


def test_an_id_that_the_envelope_has_is_not_sent_twice():
    message = Message(id="1", queue="emails", body=b"{}", headers={"postroom-id": "1"})
    assert record_of(message, "emails", None).headers == {"postroom-id": "1"}
    assert arrived(travelled(message), "emails").message == message


def test_a_message_for_one_group_says_so():
    message = Message(id="1", queue="orders", body=b"{}")
    assert arrived(travelled(message, "mail"), "orders").group == "mail"
    assert arrived(travelled(message), "orders").group is None


@pytest.mark.parametrize("types", [b"not json", b"[]", b"[" * 100_000, b'{"size":"complex"}', b'{"size":"int"}'])
def test_somebody_s_header_that_only_looks_like_ours_loses_nothing(types):
    headers = [("size", b"seven"), ("raw", b"\xff"), ("postroom-header-types", types)]
    record = confluent_kafka.Message(topic="emails", partition=3, offset=7, value=b"x", headers=headers)
    found = arrived(record, "emails").message
    assert (found.id, found.headers["raw"]) == ("emails-3-7", b"\xff")
    assert found.headers["size"] in ("seven", b"seven")
