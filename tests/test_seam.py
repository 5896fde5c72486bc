"""What a queue may be called, and which queues it really is."""

from __future__ import annotations

import pytest

from postroom.adapters import ConfigurationError, Queue


@pytest.mark.parametrize(
    ("queue", "carriers"),
    [
        (Queue(name="emails"), {"emails": 1}),
        (Queue(name="orders", groups=("mail", "stock")), {"orders.mail": 1, "orders.stock": 1}),
        (Queue(name="emails", priorities={"high": 4, "low": 1}), {"emails.high": 4, "emails.low": 1}),
    ],
)
def test_a_queue_is_carried_by_itself_or_by_one_queue_for_each_group_or_priority(queue, carriers):
    assert queue.carriers == carriers


def test_dead_letters_go_to_a_queue_named_after_the_carrier_unless_they_have_a_name():
    assert Queue(name="emails").dead_letter_of("emails.high") == "emails.high.dlq"
    assert Queue(name="emails", dead_letter="graves").dead_letter_of("emails") == "graves"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": ""}, "queue name ''"),
        ({"name": "two words"}, "queue name 'two words'"),
        ({"name": "größe"}, "queue name 'größe'"),
        ({"name": "a" * 201}, "use 1 to 200"),
        ({"name": "emails\n"}, r"queue name 'emails\\n'"),
        ({"name": "orders", "groups": ("mail room",)}, "queue name 'orders.mail room'"),
        ({"name": "emails", "dead_letter": "no where"}, "queue name 'no where'"),
        ({"name": "emails", "lease": 0.0}, "lease must be more than 0 seconds, not 0.0"),
        ({"name": "emails", "lease": float("nan")}, "lease must be more than 0 seconds, not nan"),
        ({"name": "emails", "ordered": True, "priorities": {"high": 1}}, "priorities can't be kept together"),
        ({"name": "emails", "groups": ("a",), "priorities": {"high": 1}}, "priorities can't be kept together"),
        ({"name": "emails", "priorities": {"high": 0}}, "weight must be at least 1"),
    ],
)
def test_a_queue_that_no_backend_could_carry_can_not_be_written(options, told):
    with pytest.raises(ConfigurationError, match=told):
        Queue(**options)
