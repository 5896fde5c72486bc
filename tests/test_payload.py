"""From bytes to the type that a handler asks for: strictly, and with a reason that a person can read."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from postroom.consumers.payload import Misfit, converter


@dataclass
class Line:
    sku: str
    amount: int = 1


@dataclass
class Order:
    order_id: int
    lines: list[Line]
    parent: Order | None = None


class Struct(msgspec.Struct):
    order_id: int


class Model(pydantic.BaseModel):
    order_id: int
    at: dt.date | None = None


class Typed(TypedDict):
    order_id: int


@dataclass
class Rich:
    at: dt.datetime
    price: decimal.Decimal
    id: uuid.UUID
    data: bytes
    counts: dict[int, int]


@pytest.mark.parametrize(
    ("annotation", "body", "payload"),
    [
        (Order, b'{"order_id": 1, "lines": [{"sku": "a"}], "unknown": 0}', Order(1, [Line("a", 1)])),
        (Struct, b'{"order_id": 1}', Struct(order_id=1)),
        (Model, b'{"order_id": 1, "at": "2026-01-31"}', Model(order_id=1, at=dt.date(2026, 1, 31))),
        (Typed, b'{"order_id": 1}', {"order_id": 1}),
        (dict, b'{"order_id": 1}', {"order_id": 1}),
        (list[int], b"[1, 2]", [1, 2]),
        (int | None, b"null", None),
        (Any, b'{"x": [1.5, "y", null]}', {"x": [1.5, "y", None]}),
    ],
)
def test_a_payload_becomes_what_the_annotation_says(annotation: Any, body: bytes, payload: object) -> None:
    assert converter(annotation)(body) == payload


def test_types_that_json_has_not_come_back_as_what_they_were() -> None:
    body = b'{"at":"2026-01-31T12:00:00Z","price":"1.10","id":"12345678-1234-5678-1234-567812345678","data":"AAE=","counts":{"1":2}}'
    assert converter(Rich)(body) == Rich(
        at=dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
        price=decimal.Decimal("1.10"),
        id=uuid.UUID("12345678-1234-5678-1234-567812345678"),
        data=b"\x00\x01",
        counts={1: 2},
    )


@pytest.mark.parametrize(
    ("annotation", "body", "reason"),
    [
        (Order, b'{"order_id": "1", "lines": []}', r"does not fit Order: Expected `int`, got `str` - at `\$.order_id`"),
        (Order, b'{"order_id": 1, "lines": [{"sku": 2}]}', r"at `\$.lines\[0\].sku`"),
        (Order, b"{}", "missing required field `order_id`"),
        (Model, b'{"order_id": "x"}', r"^the payload does not fit Model: Input should be a valid integer, .* - at `\$\.order_id`$"),
        (Model, b'{"at": "x"}', r"^the payload does not fit Model: Field required - at `\$\.order_id` \(and 1 more\)$"),
        (dict, b"[]", "Expected `object`, got `array`"),
    ],
)
def test_a_payload_that_does_not_fit_is_told_with_the_path_of_the_bad_value(annotation: Any, body: bytes, reason: str) -> None:
    with pytest.raises(Misfit, match=reason):
        converter(annotation)(body)


@pytest.mark.parametrize("annotation", [Order, Model, dict, Any])
@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b'{"a": NaN}', b'{"a": 1e400}', b'"\\ud800"', b"1" * 5000, b'{"a":1,"a":2}', b'["\\u0000"]'])
def test_s135_what_is_no_strict_json_is_a_misfit_for_every_type(annotation: Any, body: bytes) -> None:
    with pytest.raises(Misfit, match="does not fit"):
        converter(annotation)(body)


@pytest.mark.parametrize("annotation", [Order, Model, dict, Any])
def test_s140_deep_nesting_is_a_misfit_and_no_crash(annotation: Any) -> None:
    for body in (b"[" * 100_000, b"[" * 5_000 + b"]" * 5_000):
        with pytest.raises(Misfit, match="does not fit"):
            converter(annotation)(body)


def test_an_error_in_the_types_own_code_is_a_misfit_too() -> None:
    @dataclass
    class Picky:
        n: int

        def __post_init__(self) -> None:
            raise RuntimeError("never enough")

    with pytest.raises(Misfit, match="never enough"):
        converter(Picky)(b'{"n": 1}')


class Custom:
    pass


@dataclass
class Nested:
    inner: list[Custom]


@pytest.mark.parametrize("annotation", [Custom, Nested, list[Custom], dict[str, Nested]])
def test_a_type_that_nothing_can_be_converted_to_is_refused_at_once(annotation: Any) -> None:
    with pytest.raises(TypeError, match="Custom"):
        converter(annotation)
