"""Queues in SQLite, PostgreSQL, MySQL and MariaDB; and what the outbox and the ledger need of a database."""
