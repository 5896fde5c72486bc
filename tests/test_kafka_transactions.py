"""Who has the right to handle letters, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from postroom.adapters import AccessDenied, Unavailable
from postroom.adapters.kafka import transactions
from postroom.adapters.kafka.transactions import IDLE, Transactions


class Client:
    """A transactional producer that notes what it is asked for, and fails where it is told to."""

    made: list[Client]
    fails: dict[str, int]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.name = settings["transactional.id"]
        self.calls: list[str] = []
        self.made.append(self)

    def __getattr__(self, name: str) -> Any:
        def called(*_: float) -> None:
            self.calls.append(name)
            if name in self.fails:
                raise KafkaException(KafkaError(self.fails[name]))

        return called


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    Client.made, Client.fails = [], {}
    monkeypatch.setattr(transactions, "Producer", Client)
    return Client.made


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def desk(made: list[Client], clock: Clock) -> Transactions:
    return Transactions({}, clock)


def test_a_client_is_kept_while_its_operator_is_at_work(desk, made, clock):
    assert [desk.run("emails.dlq", lambda client: client.name) for _ in range(3)] == [made[0].name] * 3
    assert made[0].calls == ["init_transactions", *["begin_transaction", "commit_transaction"] * 3]
    clock.now += IDLE + 0.1
    desk.run("emails.dlq", lambda _: None)
    assert (len(made), made[1].name, made[1].calls[0]) == (2, made[0].name, "init_transactions"), "another may have begun, and be done by now"


def test_each_topic_of_letters_has_its_own_right(desk, made):
    desk.run("emails.dlq", lambda _: None)
    desk.run("invoices.dlq", lambda _: None)
    assert len({client.name for client in made}) == 2


def test_what_fails_on_the_way_is_taken_back_and_the_client_not_used_again(desk, made):
    with pytest.raises(ZeroDivisionError):
        desk.run("emails.dlq", lambda _: 1 / 0)
    desk.run("emails.dlq", lambda _: None)
    assert [client.calls[1:] for client in made] == [["begin_transaction", "abort_transaction"], ["begin_transaction", "commit_transaction"]]


@pytest.mark.parametrize(
    ("code", "error"),
    [(KafkaError._FENCED, Unavailable), (KafkaError.INVALID_REQUEST, Unavailable), (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AccessDenied)],  # noqa: SLF001
)
@pytest.mark.parametrize("when", ["init_transactions", "commit_transaction"])
def test_what_the_cluster_refuses_is_told_of_the_topic_and_the_client_not_used_again(desk, made, when, code, error):
    Client.fails = {when: code, "abort_transaction": KafkaError._STATE}  # noqa: SLF001
    with pytest.raises(error, match=r"emails\.dlq: "):
        desk.run("emails.dlq", lambda _: None)
    Client.fails = {}
    assert desk.run("emails.dlq", lambda client: client is made[1])


@pytest.mark.parametrize("code", [KafkaError._FATAL, KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH])  # noqa: SLF001
@pytest.mark.parametrize("step", ["produce", "commit_transaction"])
def test_an_operator_whom_another_has_fenced_off_is_told_so(desk, made, code, step):
    Client.fails = {step: code}
    with pytest.raises(Unavailable, match=r"emails\.dlq: another operator has begun meanwhile, .*; run it again"):
        desk.run("emails.dlq", lambda client: client.produce())
