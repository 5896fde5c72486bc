"""The tables: made by any number of processes, compared with what is there, printed; the same on three databases."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.exc import DBAPIError

import postroom.consumers.ledger.tables
import postroom.outbox.tables  # noqa: F401 - these two add their tables to the metadata
from postroom.adapters.errors import ConfigurationError, SchemaDrift, Unavailable
from postroom.adapters.sql import schema
from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.metadata import metadata
from postroom.adapters.sql.tables import jobs

TABLES = ["postroom_holdups", "postroom_jobs", "postroom_lanes", "postroom_ledger", "postroom_outbox", "postroom_queues", "postroom_relays"]
CREATE = "run `postroom schema create`"


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def made(engine: Engine) -> Engine:
    """The engine of a database with all tables in it."""
    schema.create(engine)
    return engine


def _do(engine: Engine, *commands: str) -> None:
    with engine.begin() as connection:
        for command in commands:
            connection.exec_driver_sql(command)


def _mend(engine: Engine, line: str) -> None:
    """Run the command at the end of a line of `check`, as an operator would."""
    for command in line.partition(": ")[2].split(", then "):
        if command == CREATE:
            schema.create(engine)
        else:
            _do(engine, command)


def test_all_tables_of_postroom_are_known() -> None:
    assert sorted(metadata.tables) == TABLES


def test_created_tables_are_as_they_should_be(made: Engine) -> None:
    assert schema.check(made) == []
    schema.require(made)


def test_create_tells_what_it_made_and_has_nothing_to_make_a_second_time(engine: Engine) -> None:
    assert {*TABLES, "postroom_jobs_due", "postroom_outbox_due"} <= set(schema.create(engine))
    assert schema.create(engine) == []


def test_create_leaves_what_is_there_alone(made: Engine) -> None:
    _do(made, "INSERT INTO postroom_relays (id, until) VALUES ('kept', 1.0)", "DROP TABLE postroom_queues", _drop_index(made, "postroom_jobs_due"))
    assert schema.create(made) == ["ix_postroom_queues_topic", "postroom_jobs_due", "postroom_queues"]
    with made.connect() as connection:
        assert connection.execute(text("SELECT id FROM postroom_relays")).scalars().all() == ["kept"]
    assert schema.check(made) == []


def test_several_processes_may_create_at_once(database_url: str) -> None:
    start = threading.Barrier(4)

    def create() -> list[str]:
        engine = open_engine(database_url)
        start.wait()
        made = schema.create(engine)
        engine.dispose()
        return made

    with ThreadPoolExecutor(4) as pool:
        made = [result.result(120) for result in [pool.submit(create) for _ in range(4)]]
    assert sorted(map(bool, made)) == [False, False, False, True]


def test_an_engine_of_the_callers_own_will_do(sqlite_database_url: str) -> None:
    engine = create_engine(sqlite_database_url)
    assert schema.create(engine)
    assert schema.check(engine) == []
    engine.dispose()


def test_a_missing_table_is_named_with_the_command(engine: Engine) -> None:
    assert schema.check(engine) == [f"table {name} is missing: {CREATE}" for name in sorted(TABLES)]


def test_require_says_it_in_one_line_that_names_the_command(engine: Engine) -> None:
    with pytest.raises(SchemaDrift) as error:
        schema.require(engine)
    assert f"table {TABLES[0]} is missing" in str(error.value)
    assert f"(and {len(TABLES) - 1} more)" in str(error.value)
    assert "`postroom schema create`" in str(error.value)
    assert "\n" not in str(error.value)
    assert "test:" not in str(error.value)


def _drop_index(engine: Engine, index: str, table: str = "postroom_jobs") -> str:
    return f"DROP INDEX {index} ON {table}" if engine.dialect.name == "mysql" else f"DROP INDEX {index}"


@pytest.mark.parametrize("column", ["worker", "attempts", "body", "due_at", "status"])
def test_a_missing_column_is_named_and_its_command_mends_it(engine: Engine, column: str) -> None:
    before = ", ".join(f"{name} {_declared(engine, name)}" for name in ("seq", "queue"))
    _do(engine, f"CREATE TABLE postroom_jobs ({before})", "INSERT INTO postroom_jobs (seq, queue) VALUES (1, 'emails')")
    [line] = [line for line in schema.check(engine) if f"column postroom_jobs.{column} " in line]
    assert line.startswith(f"column postroom_jobs.{column} is missing: ALTER TABLE postroom_jobs ADD COLUMN ")
    _mend(engine, line)
    assert not [line for line in schema.check(engine) if f"column postroom_jobs.{column} " in line]


def _declared(engine: Engine, column: str) -> str:
    return f"{jobs.c[column].type.compile(engine.dialect)} NOT NULL"


def test_a_missing_index_is_named_and_its_command_mends_it(made: Engine) -> None:
    _do(made, _drop_index(made, "postroom_jobs_due"))
    [line] = schema.check(made)
    assert line == f"index postroom_jobs_due of table postroom_jobs is missing: {CREATE}"
    _mend(made, line)
    assert schema.check(made) == []


def test_an_index_of_other_columns_is_named_and_its_command_mends_it(made: Engine) -> None:
    _do(made, _drop_index(made, "postroom_jobs_due"), "CREATE INDEX postroom_jobs_due ON postroom_jobs (queue)")
    [line] = schema.check(made)
    assert line.startswith("index postroom_jobs_due of table postroom_jobs covers (queue), expected (queue, status, available_at, seq): DROP INDEX")
    _mend(made, line)
    assert schema.check(made) == []


def test_a_key_that_is_not_unique_is_named_and_its_command_mends_it(server_database_url: str) -> None:
    engine = open_engine(server_database_url)
    schema.create(engine)
    _do(engine, _drop_constraint(engine))
    [line] = schema.check(engine)
    assert line.startswith("table postroom_jobs does not keep (queue, id) unique: CREATE UNIQUE INDEX")
    _mend(engine, line)
    assert schema.check(engine) == []
    engine.dispose()


def _drop_constraint(engine: Engine) -> str:
    return f"ALTER TABLE postroom_jobs DROP {'INDEX' if engine.dialect.name == 'mysql' else 'CONSTRAINT'} postroom_jobs_id"


@pytest.mark.parametrize(
    ("column", "kind", "null"),
    [("id", "VARCHAR(20)", " NOT NULL"), ("attempts", "BIGINT", " NOT NULL"), ("attempts", "INTEGER", ""), ("last_error", "VARCHAR(20)", "")],
)
def test_a_column_of_another_kind_is_named_with_both_and_its_command_mends_it(server_database_url: str, column: str, kind: str, null: str) -> None:
    engine = open_engine(server_database_url)
    schema.create(engine)
    if engine.dialect.name == "mysql":
        _do(engine, f"ALTER TABLE postroom_jobs MODIFY COLUMN {column} {kind}{null}")
    else:
        _do(engine, f"ALTER TABLE postroom_jobs ALTER COLUMN {column} TYPE {kind}, ALTER COLUMN {column} {'SET' if null else 'DROP'} NOT NULL")
    [line] = schema.check(engine)
    assert line.startswith(f"column postroom_jobs.{column} is {kind}{null}, expected ")
    _mend(engine, line)
    assert schema.check(engine) == []
    engine.dispose()


def test_in_sqlite_a_column_of_another_kind_is_mended_by_a_new_table(sqlite_database_url: str) -> None:
    engine = open_engine(sqlite_database_url)
    _do(engine, "CREATE TABLE postroom_relays (id INTEGER NOT NULL, until DOUBLE NOT NULL, PRIMARY KEY (id))")
    schema.create(engine)
    [line] = schema.check(engine)
    assert line == (
        f"column postroom_relays.id is INTEGER NOT NULL, expected VARCHAR(64) NOT NULL: "
        f"ALTER TABLE postroom_relays RENAME TO postroom_relays_old, then {CREATE} and copy the rows"
    )
    engine.dispose()


def test_tables_that_others_have_beside_ours_are_none_of_our_business(made: Engine) -> None:
    _do(
        made,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY)",
        "CREATE INDEX orders_id ON orders (id)",
        "ALTER TABLE postroom_jobs ADD COLUMN note INTEGER",
    )
    assert schema.check(made) == []
    assert schema.create(made) == []


def test_a_database_that_is_away_is_unavailable_not_drifted() -> None:
    engine = open_engine("postgresql://user@nowhere.invalid/jobs")
    for use in (schema.check, schema.create, schema.require):
        with pytest.raises(Unavailable) as error:
            use(engine)
        assert type(error.value) is Unavailable


def test_the_printed_ddl_makes_what_create_makes(engine: Engine) -> None:
    printed = schema.dump(engine.dialect.name)
    _do(engine, *filter(str.strip, printed.split(";\n")))
    assert schema.check(engine) == []
    assert schema.create(engine) == []


def test_ddl_is_printed_for_a_dialect_that_is_known() -> None:
    assert schema.dump("mysql") == schema.dump("mariadb")
    assert "VARBINARY(400)" in schema.dump("mysql")
    assert 'VARCHAR(400) COLLATE "C"' in schema.dump("postgresql")
    with pytest.raises(ConfigurationError, match="no DDL for 'oracle': use one of sqlite, postgresql, mysql, mariadb"):
        schema.dump("oracle")


def test_on_mysql_every_table_is_transactional_and_compares_byte_by_byte(mariadb_database_url: str) -> None:
    engine = open_engine(mariadb_database_url)
    schema.create(engine)
    with engine.connect() as connection:
        query = text("SELECT table_name, engine, table_collation FROM information_schema.tables WHERE table_schema = database()")
        assert {tuple(row) for row in connection.execute(query)} == {(name, "InnoDB", "utf8mb4_bin") for name in TABLES}
    engine.dispose()


def test_the_lock_for_creating_is_given_back_also_after_a_failure(mariadb_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(mariadb_database_url)
    monkeypatch.setattr(metadata, "create_all", lambda connection: connection.exec_driver_sql("CREATE TABLE without_columns ()"))
    with pytest.raises(DBAPIError):
        schema.create(engine)
    with engine.connect() as connection:
        assert connection.execute(select(func.is_free_lock("postroom_schema"))).scalar_one() == 1
    engine.dispose()


def test_a_server_that_is_too_old_is_told_what_is_needed(made: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "mariadb" if made.dialect.name == "mysql" else made.dialect.name
    monkeypatch.setitem(schema._OLDEST, name, (99, 1))  # noqa: SLF001
    for use in (schema.create, schema.check, schema.require):
        with pytest.raises(ConfigurationError, match=f"this is {name} .*, and Postroom needs 99.1 or later"):
            use(made)
