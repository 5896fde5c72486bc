"""A relay of its own process, to a real broker, that is killed where the plan says: python doomed_relay.py DATABASE BROKER BATCH LEASE."""

import sys

from dooms import arm

from postroom.adapters.connect import connect
from postroom.adapters.sql.engine import open_engine
from postroom.outbox import Relay, RelayOptions

arm()
database, broker, batch, lease = sys.argv[1:]
Relay(open_engine(database), connect(broker), options=RelayOptions(batch=int(batch), lease=float(lease))).drain()
