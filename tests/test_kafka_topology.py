"""What is declared on a real cluster, against what is there already: what differs, and what would lose jobs, is named and not touched."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from postroom.adapters import Queue, TopologyMismatch, connect
from postroom.adapters.kafka.topics import REGISTRY
from support.command import postroom
from support.kafka import wait_until


@pytest.fixture
def url(kafka_bootstrap: str) -> str:
    return f"kafka://{kafka_bootstrap}"


@pytest.fixture
def admin(kafka_bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})


def make(admin: AdminClient, topic: str, partitions: int = 1, **config: str) -> None:
    for future in admin.create_topics(
        [NewTopic(topic, partitions, 1, config={name.replace("_", "."): value for name, value in config.items()})]
    ).values():
        future.result(30)
    wait_until(lambda: topic in admin.list_topics(timeout=10).topics)


LOSSES = {
    "a compacted queue": (
        "",
        {"cleanup_policy": "compact"},
        "cleanup.policy 'delete', .* 'compact': of the jobs of one ordering key only the newest",
    ),
    "a queue compacted and deleted": ("", {"cleanup_policy": "compact,delete"}, "cleanup.policy 'delete', .* 'compact,delete'"),
    "short-lived dead letters": (
        ".dlq",
        {"retention_ms": "1000"},
        "retention.ms '-1', .* '1000': dead letters would be gone .* dlq.retention.ms=1000",
    ),
    "dead letters of a limited size": (".dlq", {"retention_ms": "-1", "retention_bytes": "1000"}, "retention.bytes '-1', .* '1000'"),
    "compacted dead letters": (".dlq", {"cleanup_policy": "compact"}, "cleanup.policy 'delete', .* 'compact': dead letters would be gone"),
    "dead letters that nobody has set a retention for": (".dlq", {}, "retention.ms '-1', .* '604800000'"),
}


@pytest.mark.parametrize("passive", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_topic_that_is_there_and_loses_jobs_or_dead_letters_is_refused_and_stays_as_it_is(url, admin, name, loss, passive):
    suffix, settings, told = LOSSES[loss]
    make(admin, f"{name}{suffix}", **settings)
    with closing(connect(url)) as adapter:
        with pytest.raises(TopologyMismatch, match=f"topic '{name}{suffix}': expected {told}"):
            adapter.ensure([Queue(name=name)], passive=passive)
        assert name not in adapter.carriers()


def test_every_loss_is_named_at_once_and_is_accepted_where_the_url_says_that_it_is_meant(url, admin, name):
    make(admin, name, cleanup_policy="compact")
    make(admin, f"{name}.dlq", cleanup_policy="compact,delete", retention_ms="1000")
    with closing(connect(url)) as adapter, pytest.raises(TopologyMismatch) as refused:
        adapter.ensure([Queue(name=name)])
    asked = ["topic.cleanup.policy=compact", "dlq.cleanup.policy=compact,delete", "dlq.retention.ms=1000"]
    assert all(f"say {option} in the URL" in str(refused.value) for option in asked)
    with closing(connect(f"{url}?{'&'.join(asked)}")) as meant:
        meant.ensure([Queue(name=name)])
        meant.ensure([Queue(name=name)], passive=True)
    with closing(connect(f"{url}?{'&'.join(asked[:2])}&dlq.retention.ms=2000")) as other, pytest.raises(TopologyMismatch, match=r"'2000', .* '1000'"):
        other.ensure([Queue(name=name)])


def test_the_configuration_of_dead_letters_is_what_the_url_says_when_they_are_made(url, name):
    with closing(connect(f"{url}?dlq.retention.ms=86400000")) as adapter:
        adapter.ensure([Queue(name=name)])
        adapter.ensure([Queue(name=name)], passive=True)
    with closing(connect(url)) as other, pytest.raises(TopologyMismatch, match=f"topic '{name}.dlq': expected retention.ms '-1', .* '86400000'"):
        other.ensure([Queue(name=name)])


def test_what_the_cluster_does_by_default_and_loses_nothing_is_accepted(url, admin, name):
    make(admin, name, retention_ms="86400000", cleanup_policy="delete")
    make(admin, f"{name}.dlq", retention_ms="-1", max_message_bytes="100000")
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name)])
        adapter.ensure([Queue(name=name)], passive=True)


def test_the_topic_of_another_program_may_be_compacted_and_its_dead_letters_may_not(url, admin, name):
    make(admin, name, cleanup_policy="compact")
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name, foreign=True)])
        adapter.ensure([Queue(name=name, foreign=True)], passive=True)
    dead = ConfigResource(ResourceType.TOPIC, f"{name}.dlq", incremental_configs=[_set("retention.ms", "1000")])
    for future in admin.incremental_alter_configs([dead]).values():
        future.result(30)
    with closing(connect(url)) as adapter, pytest.raises(TopologyMismatch, match=f"topic '{name}.dlq': expected retention.ms"):
        adapter.ensure([Queue(name=name, foreign=True)])


def _set(option: str, value: str) -> ConfigEntry:
    return ConfigEntry(option, value, incremental_operation=AlterConfigOpType.SET)


@pytest.mark.parametrize(
    ("actual", "told"),
    [
        ({"cleanup.policy": "compact", "retention.ms": "1000"}, False),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "-1"}, False),
        ({"cleanup.policy": "compact,delete", "retention.ms": "1000"}, True),
        ({"cleanup.policy": "delete", "retention.ms": "604800000"}, True),
    ],
)
def test_a_registry_that_would_forget_what_is_declared_is_refused(actual, told):
    said = "; ".join(REGISTRY.differences(actual))
    assert bool(said) == told
    assert said == "" or "expected cleanup.policy 'compact'" in said


def test_what_a_share_group_lacks_is_named_and_not_changed_when_it_is_only_compared(url, name):
    with closing(connect(f"{url}?mode=share")) as adapter:
        adapter.ensure([Queue(name=name, lease=45.0)])
        for _ in range(2):
            with pytest.raises(TopologyMismatch) as differs:
                adapter.prepare([name], group=name, passive=True)
            for option, wanted, actual in (
                ("share.record.lock.duration.ms", "45000", "30000"),
                ("share.auto.offset.reset", "earliest", "latest"),
                ("share.delivery.count.limit", "10", "5"),
            ):
                assert f"expected {option} {wanted!r}, but it is there with {option} {actual!r}" in str(differs.value)
            assert f"group '{name}.share': " in str(differs.value)
        assert adapter.prepare([name], group=name) == adapter.prepare([name], group=name, passive=True)


APP = """
from postroom.consumers import Jobs

jobs = Jobs()

@jobs.handler("send", queue={name!r})
def send(payload: dict) -> None:
    pass
"""


def test_declare_passive_has_the_answer_no_until_the_share_group_is_what_declare_makes_it(url, admin, name, tmp_path):
    (tmp_path / "shop.py").write_text(APP.format(name=name))
    declare = partial(postroom, "--broker", f"{url}?mode=share", "declare", "shop:jobs", cwd=tmp_path)
    assert declare().returncode == 0
    group = ConfigResource(ResourceType.GROUP, "default.share", incremental_configs=[_set("share.delivery.count.limit", "3")])
    for future in admin.incremental_alter_configs([group]).values():
        future.result(30)
    no = declare("--passive")
    assert (no.returncode, no.stdout) == (1, "")
    assert "group 'default.share': expected share.delivery.count.limit '10', but it is there with share.delivery.count.limit '3'" in no.stderr
    assert declare().returncode == 0
    assert declare("--passive").returncode == 0


def test_what_differs_from_the_declaration_is_named_and_nothing_is_changed(url, admin, name):
    with closing(connect(f"{url}?partitions=2&topic.retention.ms=1000000")) as adapter:
        with pytest.raises(TopologyMismatch, match=f"queue '{name}': expected it to be declared"):
            adapter.ensure([Queue(name=name)], passive=True)
        adapter.ensure([Queue(name=name)])
        adapter.ensure([Queue(name=name)], passive=True)
    with (
        closing(connect(f"{url}?partitions=3&topic.retention.ms=5000")) as other,
        pytest.raises(TopologyMismatch, match=r"expected ordered True.*expected partitions 3.*expected retention.ms '5000'"),
    ):
        other.ensure([Queue(name=name, ordered=True)], passive=True)
    with closing(connect(url)) as careless:
        careless.ensure([Queue(name=name)], passive=True)
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 2


def test_a_replication_that_differs_from_the_declaration_is_named(url, name):
    with closing(connect(f"{url}?replication=1")) as adapter:
        adapter.ensure([Queue(name=name)])
        adapter.ensure([Queue(name=name)], passive=True)
    with (
        closing(connect(f"{url}?replication=3")) as other,
        pytest.raises(TopologyMismatch, match=f"'{name}': expected replication 3, .* replication 1"),
    ):
        other.ensure([Queue(name=name)])
