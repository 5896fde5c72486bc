"""Nothing exists before the commit, nothing after a rollback, savepoints included: on each database, or it is refused."""

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sqlalchemy import Connection, Engine, StaticPool, create_engine, event, insert, select
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.sql.engine import engine_url, open_engine
from postroom.adapters.sql.metadata import metadata
from postroom.outbox import Outbox, prepare
from postroom.outbox.tables import outbox

BOX = Outbox("emails")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_engine(database_url)
    metadata.create_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def plain_sqlite(sqlite_database_url: str) -> Iterator[Engine]:
    """An engine as people make it: Python's sqlite3 decides when a transaction begins."""
    engine = create_engine(sqlite_database_url)
    metadata.create_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def others_see(engine: Engine) -> list[bytes]:
    """What a relay would find: the payloads of the committed rows."""
    with engine.connect().execution_options(postroom_reading=True) as connection:
        return list(connection.execute(select(outbox.c.body).order_by(outbox.c.seq)).scalars())


def orders(engine: Engine) -> list[int]:
    with engine.connect().execution_options(postroom_reading=True) as connection:
        return list(connection.execute(select(Order.id).order_by(Order.id)).scalars())


def test_s077_a_job_is_invisible_until_the_commit(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Order(id=4711))
        BOX.enqueue(session, "send-receipt", 4711)
        assert others_see(engine) == []
        session.commit()
    assert others_see(engine) == [b"4711"]
    assert orders(engine) == [4711]


def test_s077_a_rollback_leaves_neither_order_nor_job(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Order(id=4711))
        BOX.enqueue(session, "send-receipt", 4711)
        session.flush()
        session.rollback()
    assert (others_see(engine), orders(engine)) == ([], [])


def test_s077_an_exception_in_the_callers_block_leaves_nothing(engine: Engine) -> None:
    with suppress(ZeroDivisionError), engine.begin() as connection:
        BOX.enqueue(connection, "send-receipt", 4711)
        raise ZeroDivisionError
    assert others_see(engine) == []


def test_s078_a_job_of_a_savepoint_that_is_rolled_back_vanishes_and_the_others_stay(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Order(id=1))
        BOX.enqueue(session, "send-receipt", "A")
        inner = session.begin_nested()
        session.add(Order(id=2))
        BOX.enqueue(session, "send-receipt", "B")
        inner.rollback()
        BOX.enqueue(session, "send-receipt", "C")
        session.commit()
    assert (others_see(engine), orders(engine)) == ([b'"A"', b'"C"'], [1])


def test_s078_the_same_with_a_core_connection(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(insert(Order), {"id": 1})
        BOX.enqueue(connection, "send-receipt", "A")
        inner = connection.begin_nested()
        BOX.enqueue(connection, "send-receipt", "B")
        inner.rollback()
        connection.commit()
    assert others_see(engine) == [b'"A"']


def test_s078_a_savepoint_that_is_released_belongs_to_the_outer_transaction(engine: Engine) -> None:
    for ends_well in (False, True):
        with Session(engine) as session:
            with session.begin_nested():
                BOX.enqueue(session, "send-receipt", ends_well)
                with session.begin_nested():
                    BOX.enqueue(session, "send-receipt", "deep")
            session.commit() if ends_well else session.rollback()
    assert others_see(engine) == [b"true", b'"deep"']


def test_s075_a_savepoint_that_comes_first_can_not_commit_by_itself(engine: Engine) -> None:
    with Session(engine) as session:
        with session.begin_nested():
            BOX.enqueue(session, "send-receipt", "phantom")
        session.rollback()
    assert others_see(engine) == []


def test_s075_an_unprepared_sqlite_engine_is_refused_inside_a_savepoint(plain_sqlite: Engine) -> None:
    with Session(plain_sqlite) as session:
        with session.begin_nested(), pytest.raises(ConfigurationError, match=r"postroom\.outbox\.prepare\(engine\)"):
            BOX.enqueue(session, "send-receipt", "phantom")
        session.rollback()
    assert others_see(plain_sqlite) == []


def test_s075_outside_of_savepoints_an_unprepared_sqlite_engine_is_good(plain_sqlite: Engine) -> None:
    for ends_well in (False, True):
        with Session(plain_sqlite) as session:
            BOX.enqueue(session, "send-receipt", ends_well)
            session.commit() if ends_well else session.rollback()
    assert others_see(plain_sqlite) == [b"true"]


def test_s075_prepare_mends_an_engine_even_when_it_has_connections(plain_sqlite: Engine) -> None:
    assert others_see(plain_sqlite) == []
    assert prepare(plain_sqlite) is plain_sqlite
    prepare(plain_sqlite)
    with Session(plain_sqlite) as session:
        with session.begin_nested():
            BOX.enqueue(session, "send-receipt", "phantom")
        session.rollback()
        with session.begin_nested():
            BOX.enqueue(session, "send-receipt", "real")
        session.commit()
    assert others_see(plain_sqlite) == [b'"real"']


def test_s075_the_recipe_of_sqlalchemys_manual_is_as_good(plain_sqlite: Engine) -> None:
    plain_sqlite.dispose()
    event.listen(plain_sqlite, "connect", lambda driver, _record: setattr(driver, "isolation_level", None))
    event.listen(plain_sqlite, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with Session(plain_sqlite) as session:
        with session.begin_nested():
            BOX.enqueue(session, "send-receipt", "phantom")
        session.rollback()
    assert others_see(plain_sqlite) == []


def test_s075_somebody_elses_begin_listener_does_not_make_an_engine_prepared(plain_sqlite: Engine) -> None:
    event.listen(plain_sqlite, "begin", lambda _connection: None)
    with plain_sqlite.connect() as connection, connection.begin(), connection.begin_nested(), pytest.raises(ConfigurationError, match="prepare"):
        BOX.enqueue(connection, "send-receipt", "phantom")


def test_s076_an_autocommit_connection_is_refused(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            BOX.enqueue(connection, "send-receipt", 4711)
        connection.rollback()
    assert others_see(engine) == []


def test_s076_an_autocommit_engine_is_refused(database_url: str, engine: Engine) -> None:
    careless = create_engine(engine_url(database_url), isolation_level="AUTOCOMMIT")
    with Session(careless) as session, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        BOX.enqueue(session, "send-receipt", 4711)
    careless.dispose()
    assert others_see(engine) == []


def test_s076_autocommit_that_only_the_driver_knows_of_is_refused(server_database_url: str) -> None:
    careless = create_engine(engine_url(server_database_url), connect_args={"autocommit": True}, skip_autocommit_rollback=True)
    metadata.create_all(careless)
    with careless.connect() as connection, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        BOX.enqueue(connection, "send-receipt", 4711)
    assert others_see(careless) == []
    careless.dispose()


def test_s076_after_the_commit_it_is_too_late(engine: Engine) -> None:
    with Session(engine) as session:
        event.listen(session, "after_commit", lambda session: BOX.enqueue(session, "send-receipt", 4711))
        session.add(Order(id=4711))
        with pytest.raises(InvalidRequestError, match="committed"):
            session.commit()
    assert others_see(engine) == []


def test_s076_a_session_without_a_bind_is_refused_with_the_remedy(engine: Engine) -> None:
    with Session(binds={Order: engine}) as session:
        with pytest.raises(ConfigurationError, match=r"bind_arguments=\{'mapper': YourModel\}"):
            BOX.enqueue(session, "send-receipt", 4711)
        session.add(Order(id=4711))
        BOX.enqueue(session.connection(bind_arguments={"mapper": Order}), "send-receipt", 4711)
        session.commit()
    assert (others_see(engine), orders(engine)) == ([b"4711"], [4711])


def test_s076_a_session_may_bind_the_outboxs_table(engine: Engine) -> None:
    with Session(binds={Order: engine, outbox: engine}) as session:
        BOX.enqueue(session, "send-receipt", 4711)
        session.commit()
    assert others_see(engine) == [b"4711"]


def test_s076_a_session_on_several_databases_is_refused(engine: Engine, plain_sqlite: Engine) -> None:
    with Session(engine, binds={Order: plain_sqlite}) as session, pytest.raises(ConfigurationError, match="several databases"):
        BOX.enqueue(session, "send-receipt", 4711)
    assert others_see(engine) == []


def test_s076_a_session_that_joined_the_callers_connection_writes_there(engine: Engine) -> None:
    with engine.connect() as connection, connection.begin() as outer, Session(connection, join_transaction_mode="create_savepoint") as session:
        BOX.enqueue(session, "send-receipt", 4711)
        session.commit()
        outer.rollback()
    assert others_see(engine) == []


@pytest.mark.parametrize("target", [None, "session", 42, sqlite3], ids=["None", "str", "int", "module"])
def test_s076_what_is_no_transaction_is_refused(target: object) -> None:
    with pytest.raises(ConfigurationError, match="pass a Session, AsyncSession, Connection or AsyncConnection"):
        BOX.enqueue(target, "send-receipt", 4711)  # type: ignore[call-overload]


def test_s076_an_engine_is_no_transaction(plain_sqlite: Engine) -> None:
    with pytest.raises(ConfigurationError, match="Engine has no transaction of yours"):
        BOX.enqueue(plain_sqlite, "send-receipt", 4711)  # type: ignore[call-overload]


def test_a_database_in_memory_works_with_one_connection() -> None:
    engine = prepare(create_engine("sqlite://", poolclass=StaticPool))
    metadata.create_all(engine)
    with engine.connect() as connection:
        BOX.enqueue(connection, "send-receipt", 1)
        connection.rollback()
        BOX.enqueue(connection, "send-receipt", 2)
        connection.commit()
        assert list(connection.execute(select(outbox.c.body)).scalars()) == [b"2"]
    engine.dispose()


def test_a_closed_connection_says_so_in_sqlalchemys_words(engine: Engine) -> None:
    connection: Connection = engine.connect()
    connection.close()
    with pytest.raises(Exception, match="closed"):
        BOX.enqueue(connection, "send-receipt", 1)
