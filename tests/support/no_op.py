"""An application whose one handler does nothing."""

from postroom.consumers import Jobs

jobs = Jobs()


@jobs.handler("send-receipt", queue="emails")
def send_receipt(_receipt: dict[str, int]) -> None:
    pass
