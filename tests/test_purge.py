"""The removal of sent rows: in small batches, old ones only, and never what still waits."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Engine, event, func, select, update

from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.metadata import metadata
from postroom.adapters.sql.types import now
from postroom.outbox import Outbox
from postroom.outbox.parked import Parked
from postroom.outbox.purge import purge
from postroom.outbox.rows import insert_rows
from postroom.outbox.tables import outbox
from support.plans import plans_of

BOX = Outbox("emails")
DAY = 86400.0


def fill(engine: Engine, number: int, status: str, *, age: float | None = None) -> None:
    """Rows of one status; sent `age` seconds ago."""
    with engine.begin() as connection:
        rows = [BOX.row("ping", index) for index in range(number)]
        insert_rows(connection, rows, notify=False)
        newest = connection.execute(select(func.max(outbox.c.seq))).scalar_one()
        mine = outbox.c.seq > newest - number
        connection.execute(update(outbox).where(mine).values(status=status, sent_at=None if age is None else now() - age))


def left(engine: Engine) -> Counter[str]:
    with engine.connect() as connection:
        return Counter(connection.execute(select(outbox.c.status)).scalars())


def test_s067_only_rows_sent_long_enough_ago_are_removed(engine: Engine) -> None:
    fill(engine, 3, "sent", age=8 * DAY)
    fill(engine, 4, "sent", age=6 * DAY)
    fill(engine, 5, "pending")
    fill(engine, 2, "parked")
    assert purge(engine, older_than=7 * DAY) == 3
    assert left(engine) == {"sent": 4, "pending": 5, "parked": 2}
    assert purge(engine, older_than=7 * DAY) == 0


def test_s067_a_parked_row_outlives_every_retention(engine: Engine) -> None:
    fill(engine, 2, "parked")
    with engine.begin() as connection:
        connection.execute(update(outbox).values(available_at=0, enqueued_at=0, sent_at=0))
    assert purge(engine, older_than=0) == 0
    assert Parked(engine).counts() == {"emails": 2}


def test_a_discarded_row_is_removed_like_a_sent_one(engine: Engine) -> None:
    fill(engine, 1, "parked")
    [found] = Parked(engine).list()
    Parked(engine).discard([found.seq], "no longer wanted")
    assert purge(engine, older_than=DAY) == 0
    assert purge(engine, older_than=-1) == 1


def test_the_oldest_go_first_and_a_batch_has_its_limit(engine: Engine) -> None:
    for age in (9, 10, 8):
        fill(engine, 10, "sent", age=age * DAY)
    assert purge(engine, older_than=7 * DAY, limit=15) == 15
    with engine.connect() as connection:
        ages = Counter(round(age / DAY) for age in connection.execute(select(now() - outbox.c.sent_at)).scalars())
    assert ages == {9: 5, 8: 10}


def test_s085_two_purgers_beside_a_busy_relay_remove_each_old_row_once_and_nothing_else(engine: Engine) -> None:
    fill(engine, 3000, "sent", age=8 * DAY)
    fill(engine, 200, "pending")
    fill(engine, 10, "parked")
    with ThreadPoolExecutor(3) as pool:
        relay = pool.submit(send_one_by_one, engine)
        removed = sum(pool.map(purge_all, [engine, engine]))
        relay.result()
    removed += purge_all(engine)  # what one purger had left to the other
    assert removed == 3000
    assert left(engine) == {"sent": 200, "parked": 10}


def send_one_by_one(engine: Engine) -> None:
    with engine.connect() as connection:
        seqs = connection.execute(select(outbox.c.seq).where(outbox.c.status == "pending")).scalars().all()
    for seq in seqs:
        with engine.begin() as connection:
            connection.execute(update(outbox).where(outbox.c.seq == seq, outbox.c.status == "pending").values(status="sent", sent_at=now()))


def purge_all(engine: Engine) -> int:
    total = 0
    while removed := purge(engine, older_than=7 * DAY, limit=100):
        total += removed
    return total


def test_s085_a_batch_is_one_short_transaction(engine: Engine) -> None:
    fill(engine, 250, "sent", age=8 * DAY)
    commits: list[int] = []
    event.listen(engine, "commit", lambda _connection: commits.append(1))
    assert purge_all(engine) == 250
    assert len(commits) == 4  # 100, 100, 50, none


def test_s085_the_rows_are_found_by_their_index(postgresql_database_url: str) -> None:
    """However many rows are kept or wait, a purge reads what it removes."""
    engine = open_engine(postgresql_database_url)
    metadata.create_all(engine)
    fill(engine, 5000, "sent", age=DAY)
    fill(engine, 5000, "pending")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE postroom_outbox")
    with plans_of(engine, "^SELECT") as plans:
        assert purge(engine, older_than=7 * DAY) == 0
    assert "postroom_outbox_sent" in plans[0]
    assert "Seq Scan" not in plans[0]
    engine.dispose()
