"""Queues as topics of Kafka: jobs on a log, with a classic consumer group or a share group (KIP-932) for the status machine."""
