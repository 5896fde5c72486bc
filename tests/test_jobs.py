"""Declaring handlers: what a module may say, and what is refused at once, with file and line."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from postroom import consumers
from postroom.adapters.errors import ConfigurationError
from postroom.adapters.seam import Queue
from postroom.consumers import Backoff, Fail, Jobs, Retry, WorkerSettings
from postroom.consumers.policy import readable
from postroom.outbox.options import RelayOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.consumers import Context

HERE = Path(__file__).name


@dataclass
class Receipt:
    order_id: int


def line_of(function: Callable[..., Any]) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno}"


def test_a_handler_is_found_by_the_queue_and_type_of_its_jobs() -> None:
    jobs = Jobs()

    @jobs.handler("send-receipt", queue="emails", max_attempts=7, timeout=3.0, concurrency=2)
    def send(receipt: Receipt, context: Context) -> None: ...

    handler = jobs.find("emails", "send-receipt")
    assert handler is not None
    assert handler.function is send
    assert (handler.group, handler.max_attempts, handler.timeout, handler.concurrency) == ("default", 7, 3.0, 2)
    assert handler.signature.wants_context
    assert not handler.signature.is_async
    assert handler.signature.convert(b'{"order_id": 4711}') == Receipt(4711)


def test_the_type_decides_within_a_group_whatever_queue_a_job_came_from() -> None:
    jobs = Jobs()

    @jobs.handler("a", queue="first")
    def a(payload: dict[str, Any]) -> None: ...

    @jobs.handler("b", queue="second")
    def b(payload: dict[str, Any]) -> None: ...

    found = jobs.find("second", "a")
    assert found is not None
    assert found.function is a
    assert jobs.find("second", "c") is None
    assert jobs.find("third", "a") is None


def test_a_type_that_only_exists_where_the_handler_is_declared_is_found() -> None:
    jobs = Jobs()

    @dataclass
    class Local:
        n: int

    @jobs.handler("local", queue="q")
    async def handle(payload: Local) -> None: ...

    [handler] = jobs.handlers
    assert handler.signature.is_async
    assert not handler.signature.wants_context
    assert handler.signature.convert(b'{"n": 1}') == Local(1)


def test_the_decorator_returns_the_function_itself() -> None:
    def handle(payload: int) -> int:
        return payload + 1

    assert Jobs().handler("t", queue="q")(handle) is handle


def test_two_handlers_for_one_type_are_refused_with_the_place_of_both() -> None:
    jobs = Jobs()

    def one(payload: int) -> None: ...

    def two(payload: int) -> None: ...

    jobs.handler("same", queue="q")(one)
    with pytest.raises(ConfigurationError) as refused:
        jobs.handler("same", queue="other")(two)
    assert line_of(one) in str(refused.value)
    assert line_of(two) in str(refused.value)


def _nothing() -> None: ...
def _three(a: int, b: int, c: int) -> None: ...
def _star(*payload: int) -> None: ...
def _named(payload: int, *, context: int) -> None: ...
def _generator(payload: int) -> Any:
    yield payload


async def _async_generator(payload: int) -> Any:
    yield payload


@pytest.mark.parametrize("function", [_nothing, _three, _star, _named, _generator, _async_generator])
def test_a_signature_that_no_worker_can_call_is_refused_with_its_place(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=line_of(function)):
        Jobs().handler("t", queue="q")(function)


def test_parameters_with_a_default_are_the_functions_own_business() -> None:
    jobs = Jobs()

    @jobs.handler("t", queue="q")
    def handle(payload: int, attempts_of_my_own: int = 3) -> None: ...

    [handler] = jobs.handlers
    assert not handler.signature.wants_context


class Unserved:
    pass


@dataclass
class Inside:
    deep: dict[str, list[Unserved]]


@pytest.mark.parametrize("annotation", [Unserved, Inside, "Unknown"])
def test_a_type_that_no_json_can_become_is_refused_with_its_place(annotation: Any) -> None:
    def handle(payload: Any) -> None: ...

    handle.__annotations__["payload"] = annotation
    with pytest.raises(ConfigurationError, match=f"{line_of(handle)}.*payload"):
        Jobs().handler("t", queue="q")(handle)


@pytest.mark.parametrize(
    "option", [{"max_attempts": 0}, {"timeout": 0.0}, {"concurrency": 0}, {"type": ""}, {"queue": "no spaces"}, {"group": "without-a-topic"}]
)
def test_an_option_that_makes_no_sense_is_refused(option: dict[str, Any]) -> None:
    def handle(payload: int) -> None: ...

    with pytest.raises(ConfigurationError):
        Jobs().handler(**{"type": "t", "queue": "q", **option})(handle)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"timeout": dt.timedelta(seconds=5)}, r"timeout must be a number of seconds, not datetime.timedelta\(seconds=5\); pass its total_seconds"),
        ({"timeout": "5"}, "timeout must be a number of seconds, not '5'"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, not 0"),
        ({"max_attempts": 2.5}, "max_attempts must be a whole number, not 2.5"),
        ({"max_attempts": None}, "max_attempts must be a whole number, not None"),
        ({"concurrency": True}, "concurrency must be a whole number, not True"),
        ({"backoff": 5}, "backoff must be a Backoff"),
        ({"type": None}, "type must be text of 1 to 200 bytes, not None"),
    ],
)
def test_an_option_of_a_wrong_type_is_told_with_its_place_and_the_remedy(option: dict[str, Any], told: str) -> None:
    def handle(payload: int) -> None: ...

    with pytest.raises(ConfigurationError, match=f"{line_of(handle)}: {told}"):
        Jobs().handler(**{"type": "t", "queue": "q", **option})(handle)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff(first=dt.timedelta(seconds=5)),  # type: ignore[arg-type]
        lambda: Retry(after=dt.timedelta(seconds=5)),  # type: ignore[arg-type]
        lambda: WorkerSettings(grace=dt.timedelta(seconds=5)),  # type: ignore[arg-type]
        lambda: RelayOptions(lease=dt.timedelta(seconds=5)),  # type: ignore[arg-type]
    ],
)
def test_a_timedelta_where_seconds_are_meant_is_told(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a number of seconds, not datetime.timedelta\(seconds=5\)"):
        make()


def test_the_context_of_a_handler_has_the_session_that_its_kind_can_use() -> None:
    async def asynchronous(payload: int, context: consumers.Context) -> None: ...

    def synchronous(payload: int, context: consumers.AsyncContext) -> None: ...

    with pytest.raises(ConfigurationError, match=f"{line_of(asynchronous)}: annotate 'context' as AsyncContext"):
        Jobs().handler("t", queue="q")(asynchronous)
    with pytest.raises(ConfigurationError, match=f"{line_of(synchronous)}: annotate 'context' as Context"):
        Jobs().handler("t", queue="q")(synchronous)
    kinds = {kind: kind.session.fget.__annotations__["return"] for kind in (consumers.Context, consumers.AsyncContext)}  # type: ignore[attr-defined]
    assert kinds == {consumers.Context: "Session", consumers.AsyncContext: "AsyncSession"}


def test_one_queue_declared_in_two_ways_is_refused_with_the_place_of_both() -> None:
    jobs = Jobs()

    def one(payload: int) -> None: ...

    def two(payload: int) -> None: ...

    jobs.handler("one", queue="q")(one)
    with pytest.raises(ConfigurationError, match=f"{line_of(two)}.*'q'.*{line_of(one)}"):
        jobs.handler("two", queue=Queue(name="q", ordered=True))(two)


def test_each_group_of_a_topic_has_its_own_handler_and_carrier() -> None:
    jobs, orders = Jobs(), Queue(name="orders", groups=("emails", "stock"))

    @jobs.handler("paid", queue=orders, group="emails")
    def mail(payload: int) -> None: ...

    @jobs.handler("paid", queue=orders, group="stock")
    def stock(payload: int) -> None: ...

    assert jobs.carriers() == {"orders.emails": 1, "orders.stock": 1}
    found = {carrier: jobs.find(carrier, "paid") for carrier in jobs.carriers()}
    assert {carrier: handler and (handler.function, handler.group) for carrier, handler in found.items()} == {
        "orders.emails": (mail, "emails"),
        "orders.stock": (stock, "stock"),
    }
    assert jobs.queues == {"orders": orders}


def test_a_topic_with_several_groups_needs_one_to_be_named() -> None:
    def handle(payload: int) -> None: ...

    with pytest.raises(ConfigurationError, match="emails, stock"):
        Jobs().handler("paid", queue=Queue(name="orders", groups=("emails", "stock")))(handle)


def test_priorities_become_weighted_carriers() -> None:
    jobs = Jobs()

    @jobs.handler("t", queue=Queue(name="q", priorities={"high": 4, "low": 1}))
    def handle(payload: int) -> None: ...

    assert jobs.carriers() == {"q.high": 4, "q.low": 1}


def test_a_worker_may_take_some_queues_only_and_a_wrong_name_is_told() -> None:
    jobs = Jobs()
    for name in ("a", "b", "c"):

        @jobs.handler(name, queue=name)
        def handle(payload: int) -> None: ...

    assert jobs.carriers(["a", "c"]) == {"a": 1, "c": 1}
    with pytest.raises(ConfigurationError, match=r"no handler has the queue d; there are: a, b, c"):
        jobs.carriers(["a", "d"])


def test_backoff_grows_is_capped_and_is_spread() -> None:
    steady = Backoff(first=1.0, factor=2.0, cap=60.0, jitter=0.0)
    spread = Backoff(first=1.0, factor=2.0, cap=60.0, jitter=0.5)
    rng = random.Random(4711)  # noqa: S311 - the same in each run
    assert [steady.delay(attempt, rng) for attempt in (1, 2, 3, 10, 100_000)] == [1.0, 2.0, 4.0, 60.0, 60.0]
    delays = {spread.delay(3, rng) for _ in range(100)}
    assert len(delays) == 100
    assert all(2.0 <= delay <= 4.0 for delay in delays)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("after", [float("nan"), float("inf"), 1e300, -1, "60", True])
def test_a_retry_can_not_be_asked_for_at_a_time_that_never_comes(after: Any) -> None:
    with pytest.raises(ConfigurationError, match="Retry: after must be"):
        Retry(after=after)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "ValueError: no such order"),
        (ValueError(), "ValueError"),
        (Fail("the address does not exist"), "the address does not exist"),
        (Retry("the server is busy", after=3), "the server is busy"),
        (Unspeakable(), "Unspeakable: (its text can't be shown: RuntimeError)"),
    ],
)
def test_an_error_is_told_in_words(error: Exception, text: str) -> None:
    assert readable(error) == text


def test_s137_the_text_of_any_error_can_be_stored_by_any_database() -> None:
    said = readable(ValueError("a\x00b \ud800 " + "long " * 100_000))
    assert "\0" not in said
    assert len(said.encode()) <= 8000
