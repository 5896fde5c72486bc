"""What a queue may be called, and which queues it really is."""

from __future__ import annotations

import datetime as dt

import pytest

from postroom.adapters import ConfigurationError, Queue


@pytest.mark.parametrize(
    ("queue", "carriers"),
    [
        (Queue(name="emails"), {"emails": 1}),
        (Queue(name="orders", groups=("mail", "stock")), {"orders.mail": 1, "orders.stock": 1}),
        (Queue(name="emails", priorities={"high": 4, "low": 1}), {"emails.high": 4, "emails.low": 1}),
        (Queue(name="celery", foreign=True), {"celery": 1, "celery.retry": 1}),
        (Queue(name="orders", groups=("mail",), foreign=True), {"orders.mail": 1, "orders.mail.retry": 1}),
    ],
)
def test_a_queue_is_carried_by_itself_or_by_one_queue_for_each_group_or_priority(queue, carriers):
    assert queue.carriers == carriers


@pytest.mark.parametrize("groups", [["mail", "stock"], ("mail", "stock"), {"stock", "mail"}, iter(["mail", "stock"]), {"mail": 1, "stock": 2}.keys()])
def test_groups_may_be_any_iterable_of_names_and_are_the_same_in_every_process(groups):
    assert Queue(name="orders", groups=groups) == Queue(name="orders", groups=("mail", "stock"))


@pytest.mark.parametrize("groups", ["mail", b"mail", None, 3, ["mail", 3], [None]])
def test_groups_that_are_no_names_are_refused(groups):
    with pytest.raises(ConfigurationError, match=r"queue 'orders': groups are a tuple of names, like \('emails', 'stock'\), not "):
        Queue(name="orders", groups=groups)


def test_dead_letters_go_to_a_queue_named_after_the_carrier_unless_they_have_a_name():
    assert Queue(name="emails").dead_letter_of("emails.high") == "emails.high.dlq"
    assert Queue(name="emails", dead_letter="graves").dead_letter_of("emails") == "graves"


def test_messages_from_a_foreign_queue_come_again_in_one_beside_it_and_others_where_they_came_from():
    theirs = Queue(name="orders", groups=("mail", "stock"), foreign=True)
    assert theirs.foreign_carriers == ("orders.mail", "orders.stock")
    assert [theirs.back_to(carrier) for carrier in ("orders.mail", "orders.mail.retry")] == ["orders.mail.retry"] * 2
    assert theirs.carriers_of("mail") == {"orders.mail": 1, "orders.mail.retry": 1}
    assert [theirs.group_of(carrier) for carrier in ("orders.mail", "orders.mail.retry")] == ["mail", None]
    ours = Queue(name="orders", groups=("mail",))
    assert (ours.back_to("orders.mail"), ours.foreign_carriers) == ("orders.mail", ())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": ""}, "queue name ''"),
        ({"name": "celery", "foreign": True, "priorities": {"high": 1}}, "a foreign queue is what its owner has made it"),
        ({"name": "two words"}, "queue name 'two words'"),
        ({"name": "größe"}, "queue name 'größe'"),
        ({"name": "a" * 201}, "use 1 to 200"),
        ({"name": "emails\n"}, r"queue name 'emails\\n'"),
        ({"name": "orders", "groups": ("mail room",)}, "queue name 'orders.mail room'"),
        ({"name": "emails", "dead_letter": "no where"}, "queue name 'no where'"),
        ({"name": "emails", "dead_letter": "emails"}, "its dead letters can't go to 'emails', where its jobs are"),
        ({"name": "emails", "dead_letter": "emails.high", "priorities": {"low": 1, "high": 4}}, "its dead letters can't go to 'emails.high'"),
        ({"name": "orders", "dead_letter": "orders", "groups": ("mail",)}, "its dead letters can't go to 'orders', where its jobs are"),
        ({"name": "celery", "dead_letter": "celery.retry", "foreign": True}, "its dead letters can't go to 'celery.retry'"),
        ({"name": "emails", "lease": 0.0}, "lease must be more than 0 seconds, not 0.0"),
        ({"name": "emails", "lease": float("nan")}, "lease must be more than 0 seconds, not nan"),
        ({"name": "emails", "ordered": True, "priorities": {"high": 1}}, "priorities can't be kept together"),
        ({"name": "emails", "groups": ("a",), "priorities": {"high": 1}}, "priorities can't be kept together"),
        ({"name": None}, "queue name None"),
        ({"name": "emails", "lease": dt.timedelta(seconds=30)}, r"lease must be a number of seconds, not datetime.timedelta\(seconds=30\); pass its"),
        ({"name": "emails", "lease": "30"}, "lease must be a number of seconds, not '30'"),
        ({"name": "emails", "priorities": {"high": 1.5}}, "weight of priority 'high' must be a whole number, not 1.5"),
        ({"name": "emails", "priorities": ["high", "low"]}, "priorities are names with weights"),
        ({"name": "emails", "priorities": {"high": 0}}, "weight of priority .high. must be at least 1"),
    ],
)
def test_a_queue_that_no_backend_could_carry_can_not_be_written(options, told):
    with pytest.raises(ConfigurationError, match=told):
        Queue(**options)
