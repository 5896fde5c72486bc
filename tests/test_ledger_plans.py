"""PostgreSQL keeps the plan of a statement: none may read the whole ledger, not even one that was made while the ledger was empty."""

import pytest
from sqlalchemy import event, text

from postroom.consumers.ledger import statements
from postroom.consumers.ledger.bounds import bounded
from postroom.outbox.holdups import Holdup, hold_up
from support.ledgers import begin, claim, database, open_ledger

ROWS = {"rows": '[{"id":1,"fence":2,"key":"k","type":"t","group_name":"g"}]'}
STATEMENTS = {
    "FINISH": {"row_id": 1, "row_fence": 2},
    "FINISH_MANY": ROWS,
    "FIRST_HOLDUPS": {"rows": '[{"queue":"q","ordering_key":"k"}]'},
    "HELD": ROWS,
    "LOCK_BY_ADDRESS": ROWS,
    "LOCK_BY_ID": ROWS,
    "LOCK_BY_WORKER": {"worker": "w"},
    "LOCK_HELD": ROWS,
    "OLD": {"older_than": 3600.0, "at_most": 1000},
    "PUT": ROWS,
    "READ_BY_ADDRESS": ROWS,
    "RETRY": {"row_id": 1, "old_replays": 0},
}


@pytest.fixture
def engine(postgresql_database_url):
    engine = database(postgresql_database_url)
    yield engine
    engine.dispose()


def vacuum(engine):
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE postroom_ledger, postroom_holdups"))


def plan_of(engine, name):
    """The plan of this statement as the ledger executes it."""
    executed = []
    with engine.connect() as connection, bounded(connection):
        event.listen(connection, "before_cursor_execute", lambda *given: executed.append(given[2:4]))
        connection.execute(getattr(statements, name), STATEMENTS[name])
        sql, given = executed[0]
        return "\n".join(connection.exec_driver_sql(f"EXPLAIN {sql}", given).scalars())


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("number", [0, 2000])
def test_every_plan_finds_its_rows_by_an_index(engine, name, number):
    begin(open_ledger(engine), *(claim(f"order-{place}") for place in range(number)))
    with engine.begin() as connection:
        hold_up(connection, [Holdup("emails", f"k{place % 20}", f"job-{place}") for place in range(number)])
    vacuum(engine)
    plan = plan_of(engine, name)
    assert "Seq Scan" not in plan
    assert "Index Cond" in plan
