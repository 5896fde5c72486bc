"""RabbitMQ 3.10 and later: quorum queues by default, one I/O thread for each connection, and nothing sent twice by the adapter itself."""

from .adapter import RabbitMQ, open_rabbitmq

__all__ = ["RabbitMQ", "open_rabbitmq"]
