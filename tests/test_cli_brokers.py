"""The command with a real broker behind it: every line that a new user reads, and none of the client libraries' own."""

import json
import subprocess
import uuid
from pathlib import Path

import pytest

from support.command import postroom
from support.everywhere import REAL_BROKERS, broker_url
from support.rabbit import raw

APPLICATION = """
from postroom.consumers import Context, Jobs
jobs = Jobs()

@jobs.handler("send", queue="{queue}")
def send(payload: dict[str, int], context: Context) -> None: ...
"""


class User:
    """Somebody with an application of one queue, in a folder of its own."""

    def __init__(self, broker: str, folder: Path) -> None:
        self.queue = f"mails-{uuid.uuid4().hex}"
        self._folder = folder
        self._variables = {"POSTROOM_DATABASE": "sqlite:///postroom.db", "POSTROOM_BROKER": broker}
        (folder / "shop.py").write_text(APPLICATION.format(queue=self.queue))
        self("schema", "create")

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        answer = postroom(*arguments, cwd=self._folder, **self._variables)
        assert answer.returncode == code, (answer.stdout, answer.stderr)
        return answer

    def json(self, *arguments: str) -> list[dict]:
        return [json.loads(line) for line in self(*arguments, "--json").stdout.splitlines()]

    def enqueue(self, key: str, payload: str) -> None:
        self("enqueue", "send", "--queue", self.queue, "--key", key, "--payload", payload)


@pytest.fixture(params=REAL_BROKERS)
def user(request: pytest.FixtureRequest, tmp_path: Path) -> User:
    return User(broker_url(request, request.param), tmp_path)


def test_declare_says_what_is_missing_and_then_that_nothing_is(user: User):
    missing = user("declare", "--passive", "shop:jobs", code=1)
    assert (missing.stdout, missing.stderr.count("\n")) == ("", 1)
    assert "expected it to be declared, and it is not there" in missing.stderr
    declared = {"queue": user.queue, "carrier": user.queue, "ordered": False, "dead_letter": f"{user.queue}.dlq"}
    assert user.json("declare", "shop:jobs") == user.json("declare", "--passive", "shop:jobs") == [declared]
    assert user("declare", "--passive", "shop:jobs").stderr == ""


def test_a_relay_before_anybody_declared_the_queue_holds_the_job_and_says_why(user: User):
    user.enqueue("order-1", "{}")
    held = user("relay", "--drain", code=1)
    assert held.stdout == f"sent 0\nheld 1: queue '{user.queue}' is not declared; run `postroom declare ...` or start its worker\n"
    assert held.stderr == ""


def test_a_dead_letter_is_found_shown_replayed_and_discarded_without_a_word_about_where_it_is(user: User):
    key = f"order-of-{user.queue}"  # there may be letters of others on the broker
    user.enqueue(key, '{"id": "oops"}')
    worked = user("work", "shop:jobs", "--drain", code=1)
    assert worked.stdout == "all is quiet; given up meanwhile: 1; see `postroom dead list`\n"
    (letter,) = [told for told in user.json("dead", "list") if told["key"] == key]
    assert (letter["queue"], letter["attempts"]) == (user.queue, 1)
    assert user.json("dead", "show", key)[0]["payload"] == {"id": "oops"}
    assert user.json("dead", "replay", key)[0]["replayed"] == 1
    user("work", "shop:jobs", "--drain", code=1)
    assert [told["status"] for told in user.json("status", key)] == ["failed"]
    assert user("dead", "discard", key, "--reason", "a typo").stdout == "discarded 1\n"
    assert user.json("dead", "list", "--app", "shop:jobs") == []


def test_a_job_without_a_handler_is_told_to_have_failed(user: User):
    user("enqueue", "nobody", "--queue", user.queue, "--key", "order-1")
    user("work", "shop:jobs", "--drain", code=1)
    (told,) = user.json("status", "order-1")
    assert told["status"] == "failed"
    assert "no handler for type 'nobody'" in told["last_error"]


def test_stats_count_what_is_on_the_broker(user: User):
    user("declare", "shop:jobs")
    user.enqueue("order-1", "{}")
    user("relay", "--drain")
    counted = {told["queue"]: told["broker"] for told in user.json("stats")[0]["queues"]}
    assert counted[user.queue] == {"pending": 1, "running": 0, "failed": 0}


def test_the_worker_s_log_has_no_line_of_a_client_library(user: User):
    said = user("work", "shop:jobs", "--drain").stderr
    assert "rdkafka#" not in said
    assert " pika" not in said
    assert said.count("preview") == (1 if "share group" in said else 0)


def test_a_broker_that_lists_no_queues_is_told_to_with_what_names_them(rabbitmq_url: str, tmp_path: Path):
    user = User(rabbitmq_url, tmp_path)
    user("declare", "shop:jobs")
    for arguments in (("dead", "list"), ("stats",)):
        said = user(*arguments).stderr
        assert said.startswith("postroom: rabbitmq can't list its queues; it has none that outbox or ledger know. --app MODULE:JOBS looks in all of")
        assert "can't list" not in user(*arguments, "--app", "shop:jobs").stderr


def test_a_queue_that_was_deleted_is_told_with_what_was_sent_there_and_how_to_send_it_again(rabbitmq_url: str, tmp_path: Path):
    user = User(rabbitmq_url, tmp_path)
    user("declare", "shop:jobs")
    user.enqueue("order-1", "{}")
    user("relay", "--drain")
    with raw(rabbitmq_url) as channel:
        channel.queue_delete(user.queue)
    gone = f"postroom: the broker has no queue {user.queue} (1 sent and not done). If it was deleted, start its worker and run `postroom resend`"
    for arguments in (("stats",), ("stats", "--app", "shop:jobs")):
        told = user(*arguments)
        assert told.stderr.startswith(gone)
        assert told.stdout.splitlines()[1].split() == [user.queue, *"00000000"]
    assert gone in user("dead", "list").stderr
    assert "dead letter order-1 (any more)" in user("dead", "show", "order-1", code=1).stderr
    user("declare", "shop:jobs")
    user("resend", "--older-than", "0s")
    user("work", "shop:jobs", "--drain")
    assert "has no queue" not in user("stats").stderr
    assert [told["status"] for told in user.json("status", "order-1")] == ["done"]


def test_a_queue_may_be_named_by_its_dead_letters_where_none_are_listed(rabbitmq_url: str, tmp_path: Path):
    user = User(rabbitmq_url, tmp_path)
    user.enqueue("order-1", '{"id": "oops"}')
    user("work", "shop:jobs", "--drain", code=1)
    assert [letter["queue"] for letter in user.json("dead", "list", "--queue", f"{user.queue}.dlq")] == [user.queue]


WRONG = [
    ("amqp://user:p4ssw0rd@127.0.0.1:1", 3, "can't connect to RabbitMQ at 127.0.0.1:1: "),
    ("kafka://127.0.0.1:1", 3, "can't reach Kafka at 127.0.0.1:1: Connect to ipv4#127.0.0.1:1 failed: Connection refused"),
    ("kafka://127.0.0.1:1?mode=share", 3, "can't reach Kafka at 127.0.0.1:1: "),
    ("amqp://user:p4ssw0rd@host?hartbeat=3", 2, "there is no option 'hartbeat'"),
    ("kafka://user:p4ssw0rd@host?hartbeat=3", 2, 'No such configuration property: "hartbeat"'),
    ("kafka://host?mode=shared", 2, "mode='shared': it is one of classic, share"),
    ("rabbitmq://host", 2, "no backend answers to the scheme 'rabbitmq'"),
]


@pytest.mark.parametrize(("url", "code", "told"), WRONG)
def test_a_wrong_url_is_one_line_and_no_secret(tmp_path: Path, url: str, code: int, told: str):
    answer = User("sqlite:///postroom.db", tmp_path)("work", "shop:jobs", "--drain", "--broker", url, code=code)
    assert told in answer.stderr
    assert (answer.stdout, answer.stderr.count("\n")) == ("", 1)
    assert "p4ssw0rd" not in answer.stderr


def test_a_wrong_password_is_told_without_it(rabbitmq_url: str, tmp_path: Path):
    answer = User(rabbitmq_url.replace(":postroom@", ":p4ssw0rd@"), tmp_path)("work", "shop:jobs", code=3)
    assert "ACCESS_REFUSED" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert "p4ssw0rd" not in answer.stderr


def test_kafka_behind_another_protocol_is_told_as_that(kafka_bootstrap: str, tmp_path: Path):
    url = f"kafka://user:p4ssw0rd@{kafka_bootstrap}?security.protocol=SASL_PLAINTEXT"
    answer = User(url, tmp_path)("declare", "shop:jobs", code=3)
    assert answer.stderr.startswith(f"postroom: Kafka at {kafka_bootstrap} refuses: SASL")
    assert answer.stderr.count("\n") == 1
    assert "p4ssw0rd" not in answer.stderr
