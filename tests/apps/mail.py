"""Sends mails, as rows; those to a customer whose name is in the file `broken` fail."""

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Column, Integer, MetaData, String, Table, insert

from postroom.consumers import Context, Fail, Jobs

mails = Table("mails", MetaData(), Column("id", Integer, primary_key=True), Column("customer", String(50), nullable=False))

jobs = Jobs()


@dataclass
class Mail:
    customer: str


@jobs.handler("send-mail", queue="mails", max_attempts=1)
def send_mail(mail: Mail, context: Context) -> None:
    if mail.customer in Path(os.environ["BROKEN"]).read_text().split():
        raise Fail(f"{mail.customer} has no mailbox")
    context.session.execute(insert(mails), {"customer": mail.customer})
