"""What can't travel is refused in the caller's transaction, with the path of the bad value; what arrives and can't have been sent is refused too."""

import datetime as dt
import decimal
import enum
import json
import math
import threading
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from sqlalchemy import Engine, func, select

from postroom.adapters.errors import InvalidMessage, PostroomError, Undecodable
from postroom.outbox import Outbox
from postroom.outbox.payload import MAX_PAYLOAD, encode_payload
from postroom.outbox.strict import decode_json
from postroom.outbox.tables import outbox

BOX = Outbox("emails")
BERLIN = ZoneInfo("Europe/Berlin")


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 1


class Point(NamedTuple):
    x: int
    y: int


def refusal(payload: object) -> str:
    with pytest.raises(InvalidMessage) as caught:
        encode_payload(payload)
    return str(caught.value)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


# Every refusal is one kind of error, says where, and leaves the transaction as it was


def test_a_refusal_is_a_value_error_of_postrooms_tree() -> None:
    assert issubclass(InvalidMessage, ValueError)
    assert issubclass(InvalidMessage, PostroomError)
    assert issubclass(Undecodable, InvalidMessage)


def test_a_refusal_begins_with_the_path_of_the_bad_value() -> None:
    payload = {"items": [{"price": 1.0}, {"price": 2.0}, {"price": 3.0}, {"price": math.nan}]}
    assert refusal(payload) == "payload.items[3].price: NaN is not JSON"
    assert refusal({"two words": {"ok": [1, math.nan]}}) == "payload['two words'].ok[1]: NaN is not JSON"


@pytest.mark.parametrize("price", [math.nan, math.inf, -math.inf])
def test_s136_nan_and_infinity_are_refused_on_every_database(engine: Engine, price: float) -> None:
    with engine.begin() as connection:
        with pytest.raises(InvalidMessage, match=r"^payload\.a: (NaN|Infinity) is not JSON$"):
            BOX.enqueue(connection, "ping", {"a": price})
        assert connection.execute(select(func.count()).select_from(outbox)).scalar_one() == 0


@pytest.mark.parametrize(("payload", "path"), [("\0", "payload"), ({"a": ["x", "y\0z"]}, "payload.a[1]"), ({"a\0": 1}, "payload: key 'a\\x00'")])
def test_s137_a_nul_character_is_refused(payload: object, path: str) -> None:
    assert refusal(payload) == f"{path}: a NUL character can't be stored by every database"


def test_s137_text_that_only_spells_a_nul_is_text() -> None:
    assert decode_json(encode_payload({"a": "\\u0000", "b": "\\\\u0000"})) == {"a": "\\u0000", "b": "\\\\u0000"}


@pytest.mark.parametrize(("payload", "path"), [("\ud800", "payload"), ({"a": "x\udfffy"}, "payload.a"), ({"\ud800": 1}, "payload: key '\\ud800'")])
def test_s138_a_lone_surrogate_is_refused(payload: object, path: str) -> None:
    assert refusal(payload) == f"{path}: a lone surrogate is no character"


def test_s138_characters_beyond_the_first_plane_travel() -> None:
    assert decode_json(encode_payload("\U0001f600")) == "\U0001f600"


def test_s140_sixty_four_levels_travel_and_sixty_five_do_not() -> None:
    assert decode_json(encode_payload(nested(64))) == nested(64)
    assert refusal(nested(65)).startswith("payload[0][0]")
    assert refusal(nested(65)).endswith(": nested deeper than 64")


def test_s140_a_payload_5000_deep_or_endless_is_refused_like_any_other() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert refusal(nested(5000)).endswith("nested deeper than 64")
    assert refusal(endless).endswith("nested deeper than 64")
    assert refusal({"a": endless}).endswith("nested deeper than 64")


def test_s140_the_limit_holds_in_a_thread_with_a_small_stack() -> None:
    answers: list[str] = []
    threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: answers.append(refusal(nested(5000))))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(0)
    assert len(answers) == 1


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0, -1])
def test_integers_of_64_bits_travel(number: int) -> None:
    assert decode_json(encode_payload({"n": number})) == {"n": number}


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64, 10**5000], ids=["2**63", "-2**63-1", "2**64", "5001 digits"])
def test_larger_integers_are_refused(number: int) -> None:
    assert refusal({"n": number}).startswith("payload.n: an integer of ")


@pytest.mark.parametrize(
    ("key", "shown"), [(5, "5 is int"), (None, "None is NoneType"), (1.5, "1.5 is float"), (True, "True is bool"), ((1,), "(1,) is tuple")]
)
def test_keys_that_are_no_text_are_refused(key: object, shown: str) -> None:
    assert refusal({"items": {key: 1}}) == f"payload.items: key {shown}, and JSON's keys are text"


def test_the_size_limit_is_in_bytes() -> None:
    assert len(encode_payload("x" * (MAX_PAYLOAD - 2))) == MAX_PAYLOAD
    assert refusal("x" * (MAX_PAYLOAD - 1)).startswith("payload: 1,000,001 bytes of JSON, and at most 1,000,000 may travel")
    with pytest.raises(InvalidMessage, match="payload: 12 bytes of JSON, and at most 10"):
        Outbox("emails", max_payload=10).row("ping", "ü" * 5)


# S142: types that change in transit, in a payload without a type

CHANGING: list[tuple[object, str]] = [
    (dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC), "datetime would arrive as text; pass its .isoformat()"),
    (dt.date(2026, 1, 2), "date would arrive as text; pass its .isoformat()"),
    (dt.time(1, 2), "time would arrive as text; pass its .isoformat()"),
    (dt.timedelta(1), "timedelta would arrive as text; pass its .total_seconds()"),
    (decimal.Decimal("1.10"), "Decimal would arrive as text; pass str() of it"),
    (uuid.UUID(int=1), "UUID would arrive as text; pass str() of it"),
    ((1, 2), "tuple would arrive as a list; pass list() of it"),
    (Point(1, 2), "Point would arrive as a list; pass list() of it"),
    ({1, 2}, "set would arrive as a list; pass sorted() of it"),
    (frozenset("a"), "frozenset would arrive as a list; pass sorted() of it"),
    (Colour.RED, "Colour would arrive as its value; pass its .value"),
    (Level.HIGH, "Level would arrive as its value; pass its .value"),
    (b"raw", "bytes would arrive as text; pass text, in base64 for instance"),
    (bytearray(b"raw"), "bytearray would arrive as text; pass text, in base64 for instance"),
    (OrderedDict(a=1), "OrderedDict would arrive as a plain dict; pass dict() of it"),
    (defaultdict(int), "defaultdict would arrive as a plain dict; pass dict() of it"),
    (type("Name", (str,), {})("n"), "Name would arrive as a plain str; pass str() of it"),
    (type("Money", (float,), {})(1.5), "Money would arrive as a plain float; pass float() of it"),
    (object(), "JSON has nothing like object; pass dict, list, str, int, float, bool or None"),
    (1j, "JSON has nothing like complex"),
]


@pytest.mark.parametrize(("value", "message"), CHANGING, ids=[f"{type(value).__name__}" for value, _ in CHANGING])
def test_s142_a_value_that_would_arrive_as_another_type_is_refused(value: object, message: str) -> None:
    assert refusal(value).startswith(f"payload: {message}")
    assert refusal({"a": [value]}).startswith(f"payload.a[0]: {message}")


def test_s142_a_dataclass_inside_a_dict_would_arrive_as_a_dict() -> None:
    assert refusal({"order": Holder(1)}).startswith("payload.order: Holder would arrive as a dict; make it the whole payload")


def test_s047_an_int_key_and_a_bytearray_payload_are_refused_at_enqueue(engine: Engine) -> None:
    with engine.begin() as connection:
        with pytest.raises(InvalidMessage, match=r"^key: 42 is int, and a key is text; pass str\(\) of it$"):
            BOX.enqueue(connection, "ping", None, key=42)  # type: ignore[call-overload]
        with pytest.raises(InvalidMessage, match=r"^payload: bytearray would arrive as text"):
            BOX.enqueue(connection, "ping", bytearray(b"raw"))
        assert connection.execute(select(func.count()).select_from(outbox)).scalar_one() == 0


# S142: the same types as fields of a payload whose type says so: exact there and back


@dataclass
class Holder:
    value: Any


def typed(annotation: Any, value: object) -> object:
    return msgspec.defstruct("Typed", [("value", annotation)])(value)


def made(annotation: Any, value: object) -> object:
    kind = type("Made", (), {"__annotations__": {"value": annotation}, "__module__": __name__})
    return dataclass(kind)(value)  # type: ignore[call-arg]


def modelled(annotation: Any, value: object) -> object:
    return pydantic.create_model("Model", value=(annotation, ...))(value=value)


EXACT: list[tuple[Any, object]] = [
    (dt.datetime, dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)),
    (dt.datetime, dt.datetime(2026, 1, 2, 3, 4)),  # noqa: DTZ001 - a naive one travels naive
    (dt.date, dt.date(2026, 1, 2)),
    (dt.time, dt.time(1, 2, 3, 4)),
    (dt.timedelta, dt.timedelta(days=-3, microseconds=5)),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (decimal.Decimal, decimal.Decimal("1E+30")),
    (uuid.UUID, uuid.UUID(int=1)),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (tuple[int, str], (1, "a")),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset("a")),
    (float, 1.5),
    (list[dt.date], [dt.date(2026, 1, 2)]),
    (dict[str, decimal.Decimal], {"a": decimal.Decimal(1)}),
    (dict[int, str], {1: "a"}),
    (Point, Point(1, 2)),
    (int | None, None),
    (Any, {"plain": [1, 2.5, "x", None, True]}),
]


@pytest.mark.parametrize("make", [typed, made, modelled])
@pytest.mark.parametrize(("annotation", "value"), EXACT, ids=[f"{annotation} {value}" for annotation, value in EXACT])
def test_s142_a_typed_field_arrives_as_it_was_given(make: Callable[[Any, object], Any], annotation: Any, value: object) -> None:
    payload = make(annotation, value)
    body = encode_payload(payload)
    kind = type(payload)
    back = kind.model_validate_json(body).value if make is modelled else msgspec.json.decode(body, type=kind).value
    assert type(back) is type(value)
    assert back == value


@pytest.mark.parametrize("make", [typed, made])
def test_s142_a_zoned_datetime_keeps_its_clock_and_its_offset_and_loses_the_zones_name(make: Callable[[Any, object], Any]) -> None:
    for fold in (0, 1):
        given_ = dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold)
        payload = make(dt.datetime, given_)
        back = msgspec.json.decode(encode_payload(payload), type=type(payload)).value
        assert back.isoformat() == given_.isoformat()
        assert back.tzinfo != BERLIN


@pytest.mark.parametrize("make", [typed, made, modelled])
def test_s142_a_whole_number_may_fill_a_field_of_floats(make: Callable[[Any, object], object]) -> None:
    assert json.loads(encode_payload(make(float, 3))) == {"value": 3}


@pytest.mark.parametrize("make", [typed, made])
def test_s142_a_decimal_keeps_its_zeros(make: Callable[[Any, object], Any]) -> None:
    payload = make(decimal.Decimal, decimal.Decimal("1.10"))
    assert str(msgspec.json.decode(encode_payload(payload), type=type(payload)).value) == "1.10"


@pytest.mark.parametrize("make", [typed, made])
def test_s142_bytes_in_a_typed_field_arrive_as_they_were(make: Callable[[Any, object], Any]) -> None:
    payload = make(bytes, bytes(range(256)))
    assert msgspec.json.decode(encode_payload(payload), type=type(payload)).value == bytes(range(256))


LOSSY: list[tuple[Any, object, str]] = [
    (Any, dt.date(2026, 1, 2), "payload.value: date would arrive as str; give the field the type date"),
    (dict, {"a": [dt.date(2026, 1, 2)]}, "payload.value.a[0]: date would arrive as str"),
    (list, [(1, 2)], "payload.value[0]: tuple would arrive as list"),
    (str, Colour.RED, "payload.value: Colour would arrive as str; give the field the type Colour"),
    (dict, {1: "a"}, "payload.value: key 1: int would arrive as str"),
    (Any, b"raw", "payload.value: bytes would arrive as str"),
    (float, math.nan, "payload.value: NaN is not JSON"),
    (float | None, math.inf, "payload.value: Infinity is not JSON"),
    (int, 2**63, "payload.value: an integer of 65 bits"),
    (str, "a\0b", "payload.value: a NUL character"),
    (str, "\ud800", "payload.value: a lone surrogate"),
    (int, "4711", "payload.value: Expected `int`, got `str`"),
    (int, True, "payload.value: Expected `int`, got `bool`"),
    (list[int], [1, "2"], "payload.value[1]: Expected `int`, got `str`"),
    (dt.datetime, dt.datetime(1800, 1, 1, tzinfo=BERLIN), "payload.value: datetime.datetime(1800"),
    (str | dt.date, "x", "payload: no "),
    (complex, 1j, "payload: "),
]


@pytest.mark.parametrize("make", [typed, made])
@pytest.mark.parametrize(("annotation", "value", "message"), LOSSY, ids=[message for *_, message in LOSSY])
def test_s142_a_typed_field_that_would_arrive_otherwise_is_refused(
    make: Callable[[Any, object], object],
    annotation: Any,
    value: object,
    message: str,
) -> None:
    assert refusal(make(annotation, value)).startswith(message)


def test_s142_a_pydantic_model_is_held_to_the_same() -> None:
    class Model(pydantic.BaseModel):
        when: dt.datetime = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
        price: float | None = 1.0
        anything: Any = None
        number: int = pydantic.Field(default=1, alias="No")
        secret: pydantic.SecretStr = pydantic.SecretStr("")

    assert json.loads(encode_payload(Model(No=5))) == {"when": "2026-01-02T00:00:00Z", "price": 1.0, "anything": None, "No": 5, "secret": ""}
    assert refusal(Model(price=math.nan)) == "payload.price: NaN is not JSON"
    assert refusal(Model(anything={"a": dt.date(2026, 1, 2)})).startswith("payload.anything.a: date would arrive as str")
    assert refusal(Model(secret=pydantic.SecretStr("x"))).startswith("payload.secret: ")
    assert refusal(Model.model_construct(price="much")).startswith("payload.price: Input should be a valid number")


def test_s142_a_class_that_changes_its_own_values_is_refused() -> None:
    @dataclass
    class Gross:
        price: int

        def __post_init__(self) -> None:
            self.price += 1

    assert refusal(Gross(1)) == "payload.price: 2 would arrive as 3"


def test_s142_a_comparison_of_the_classs_own_hides_nothing() -> None:
    @dataclass
    class Order:
        number: int
        note: object = field(default=None, compare=False)

    assert refusal(Order(1, (1, 2))).startswith("payload.note: tuple would arrive as list")


def test_s142_a_class_that_can_not_be_made_again_is_refused() -> None:
    @dataclass
    class Partly:
        price: int
        factor: InitVar[int]

    assert refusal(Partly(1, 2)).startswith("payload: no Partly can be made from JSON again: ")


def test_s140_typed_payloads_have_the_same_limit() -> None:
    def chain(length: int) -> Link | None:
        link = None
        for _ in range(length):
            link = Link(link)
        return link

    encode_payload(chain(64))
    assert refusal(chain(65)).endswith("nested deeper than 64")
    assert refusal(chain(5000)).endswith("nested deeper than 64")


@dataclass
class Link:
    next: "Link | None" = None


def test_s142_an_old_reader_never_sees_a_tagged_value_it_does_not_know() -> None:
    """There are no tags: a reader without the type gets plain JSON, whoever wrote it."""
    body = encode_payload(typed(dt.date, dt.date(2026, 1, 2)))
    assert decode_json(body) == {"value": "2026-01-02"}
